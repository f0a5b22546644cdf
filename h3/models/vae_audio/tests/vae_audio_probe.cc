// For the parity tests: runs an audio VAE on the CPU.
//   h3_vae_audio_probe FOLDER INPUT.safetensors OUTPUT.safetensors
// FOLDER has config.json and the weights. INPUT (f32): waveform [B, 1, L] gives mean and logs;
// latents [B, C, T] gives decoded; raw [B, C, T] gives normalized and its inverse, denormalized.
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/core/InferenceMode.h>

#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "h3/attention/h3_layers.h"
#include "h3/common/error.h"
#include "h3/models/vae_audio/model.h"
#include "h3/models/vae_audio/names.h"
#include "h3/weights/loader.h"
#include "tessera/io/safetensors.h"

namespace {

using namespace h3;
using tessera::io::SafetensorsFile;

void require(const tessera::Status& status) {
  if (!status.ok()) throw Error(ErrorCode::kInvalidArgument, status.message());
}

std::optional<at::Tensor> input(const SafetensorsFile& file, const char* name) {
  const auto* entry = file.find(name);
  if (entry == nullptr) return std::nullopt;
  if (entry->dtype != tessera::Dtype::kF32) {
    throw Error(ErrorCode::kInvalidArgument, std::string(name) + " is not f32");
  }
  at::Tensor t = at::empty(entry->shape, at::kFloat);
  std::memcpy(t.data_ptr(), entry->data, entry->bytes);
  return t;
}

int run(const std::string& folder, const std::string& in, const std::string& out) {
  const c10::InferenceMode inference;
  const vae_audio::AudioVaeCheckpoint model = vae_audio::open_audio_vae(folder);
  const auto recipes = vae_audio::model_recipes(model.config, model.style);
  const Platform platform = cpu_platform();
  ModelLayers layers = minimax_h3_layers(platform);
  vae_audio::size_audio_layers(model.config, &layers);
  AttentionRuntime attention(resolve_attention(layers, {}, platform),
                             {.log = [](std::string_view) {}});
  vae_audio::AudioVae vae(
      model.config,
      vae_audio::take_weights(model.config, weights::load_tensors(model.checkpoint, recipes)),
      attention);

  SafetensorsFile file;
  require(SafetensorsFile::open(in, &file));
  std::vector<std::pair<std::string, at::Tensor>> results;
  if (const auto waveform = input(file, "waveform")) {
    const at::Tensor before = waveform->clone();
    const auto posterior = vae.posterior(*waveform);
    const at::Tensor mean = vae.encode(*waveform);
    if (!mean.equal(posterior.mean) || !waveform->equal(before)) {
      throw Error(ErrorCode::kInternal, "two encodes differ, or the input was changed");
    }
    results.push_back({"mean", mean.contiguous()});
    results.push_back({"logs", posterior.logs.contiguous()});
  }
  if (const auto latents = input(file, "latents")) {
    const at::Tensor before = latents->clone();
    at::Tensor decoded = vae.decode(*latents);
    if (!vae.decode(*latents).equal(decoded) || !latents->equal(before)) {
      throw Error(ErrorCode::kInternal, "two decodes differ, or the input was changed");
    }
    results.push_back({"decoded", std::move(decoded)});
  }
  if (const auto raw = input(file, "raw")) {
    const at::Tensor normalized = vae.normalize(*raw);
    results.push_back({"normalized", normalized});
    results.push_back({"denormalized", vae.denormalize(normalized)});
  }
  std::vector<tessera::io::SafetensorsItem> items;
  for (const auto& [name, t] : results) {
    items.push_back({name, tessera::Dtype::kF32, t.sizes().vec(), t.data_ptr()});
  }
  require(tessera::io::write_safetensors(out, items));
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fprintf(stderr, "usage: h3_vae_audio_probe FOLDER INPUT OUTPUT\n");
    return 2;
  }
  try {
    return run(argv[1], argv[2], argv[3]);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "vae_audio_probe: %s\n", error.what());
    return 1;
  }
}
