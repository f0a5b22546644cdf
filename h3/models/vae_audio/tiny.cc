#include "h3/models/vae_audio/tiny.h"

#include <array>
#include <cmath>
#include <numbers>
#include <vector>

#include "h3/common/error.h"
#include "h3/models/dit/tiny.h"
#include "h3/weights/sharded_writer.h"
#include "tessera/io/safetensors.h"

namespace h3::vae_audio {
namespace {

// Modified Bessel function of the first kind, order 0, by its power series.
double bessel_i0(double x) {
  double sum = 1, term = 1;
  for (int k = 1; k < 40; ++k) {
    term *= (x / 2 / k) * (x / 2 / k);
    sum += term;
  }
  return sum;
}

// The low-pass filter of the anti-aliased activations: a sinc of cutoff 1/4 in a Kaiser window
// whose beta follows from a half width of 0.3 (Kaiser's formula for attenuations above 50 dB).
std::array<float, 12> filter_taps() {
  const double attenuation = 2.285 * 5 * std::numbers::pi * 1.2 + 7.95;
  const double beta = 0.1102 * (attenuation - 8.7);
  std::array<double, 12> taps{};
  double sum = 0;
  for (int i = 0; i < 12; ++i) {
    const double time = i - 5.5, place = time / 5.5;
    const double angle = std::numbers::pi * time / 2;
    taps[static_cast<size_t>(i)] =
        bessel_i0(beta * std::sqrt(1 - place * place)) * std::sin(angle) / angle;
    sum += taps[static_cast<size_t>(i)];
  }
  std::array<float, 12> values{};
  for (size_t i = 0; i < 12; ++i) values[i] = static_cast<float>(taps[i] / sum);
  return values;
}

std::vector<float> values_of(const weights::SourceTensor& tensor, uint64_t seed) {
  const std::string& name = tensor.name;
  size_t count = 1;
  for (const int64_t size : tensor.shape) count *= static_cast<size_t>(size);
  if (name.ends_with(".filter")) {
    const auto taps = filter_taps();
    return {taps.begin(), taps.end()};
  }
  if (name.ends_with("zero_k_bias")) return std::vector<float>(count, 0.0f);
  std::vector<float> values = dit::random_normals("audio_vae." + name, count, seed);
  const auto scale = [&](float mean, float deviation) {
    for (float& v : values) v = mean + deviation * v;
  };
  const bool norm_weight = name.ends_with(".weight") && tensor.shape.size() == 1;
  if (name.ends_with("weight_g") || name.ends_with("original0")) {
    // About the variance through every convolution; the last one sets the volume.
    const bool last = name.starts_with("decoder.conv_post");
    scale(last ? 0.3f : 0.8f, last ? 0.0f : 0.08f);
  } else if (name.ends_with("weight_v") || name.ends_with("original1")) {
    // Only its direction counts.
  } else if (name.ends_with(".alpha") && tensor.shape.size() == 3) {
    for (float& v : values) v = 0.2f + std::abs(v);  // linear scale
  } else if (norm_weight) {
    scale(1, 0.1f);
  } else if (tensor.shape.size() > 1) {
    const auto fan_in = static_cast<double>(count) / static_cast<double>(tensor.shape[0]);
    scale(0, static_cast<float>(1.5 / std::sqrt(fan_in)));
  } else {
    scale(0, 0.2f);  // biases, and alpha and beta on a log scale
  }
  return values;
}

}  // namespace

void write_random_audio_vae(const std::string& folder, const AudioVaeConfig& config,
                            NormStyle style, uint64_t seed) {
  if (style == NormStyle::kFolded) {
    throw Error(ErrorCode::kInvalidArgument, "random audio VAEs are written as pairs, not folded");
  }
  const auto names = checkpoint_tensors(config, NormStyle::kPair);
  const auto tensors = checkpoint_tensors(config, style);
  std::vector<std::vector<float>> data;
  std::vector<tessera::io::SafetensorsItem> items;
  for (size_t i = 0; i < tensors.size(); ++i) {  // the same values in every style
    data.push_back(values_of(names[i], seed));
    items.push_back({tensors[i].name, tensors[i].dtype, tensors[i].shape, data.back().data()});
  }
  const tessera::Status status =
      tessera::io::write_safetensors(folder + "/model.safetensors", items);
  if (!status.ok()) throw Error(ErrorCode::kUnavailable, status.message());
  weights::write_text(folder + "/config.json", audio_vae_config_json(config));
}

}  // namespace h3::vae_audio
