// Random weights of a model, laid out as either kind of file has them. The rows are moved here by
// hand and not by model_recipes, so that recipes can be tested against these files.
#include "h3/models/dit/tiny.h"

#include <cmath>
#include <cstring>
#include <functional>
#include <numbers>
#include <span>
#include <utility>

#include "h3/common/error.h"
#include "h3/common/hash.h"
#include "h3/weights/sharded_writer.h"

namespace h3::dit {
namespace {

using tessera::Dtype;

constexpr size_t kShards = 3;

// SplitMix64 (Steele, Lea, Flood 2014) and Box-Muller: the same values on every machine.
class Normal {
 public:
  explicit Normal(uint64_t seed) : state_(seed) {}

  float operator()() {
    if (has_spare_) {
      has_spare_ = false;
      return static_cast<float>(spare_);
    }
    const double radius = std::sqrt(-2 * std::log(1 - uniform()));
    const double angle = 2 * std::numbers::pi * uniform();
    spare_ = radius * std::sin(angle);
    has_spare_ = true;
    return static_cast<float>(radius * std::cos(angle));
  }

 private:
  double uniform() {  // [0, 1)
    state_ += 0x9e3779b97f4a7c15u;
    uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    z ^= z >> 31;
    return static_cast<double>(z >> 11) * 0x1p-53;
  }

  uint64_t state_;
  double spare_ = 0;
  bool has_spare_ = false;
};

int64_t elements(const std::vector<int64_t>& shape) {
  int64_t count = 1;
  for (const int64_t size : shape) count *= size;
  return count;
}

// Values of a tensor of the model ([q; k; v], [gate; up]).
std::vector<float> model_values(const std::string& name, const std::vector<int64_t>& shape,
                                uint64_t seed) {
  std::vector<float> values(static_cast<size_t>(elements(shape)));
  Normal normal(seed ^ fnv1a(name));
  float mean = 0, deviation = 0.1f;
  if (name.ends_with("_norm.weight") && name.find(".attn.") != std::string::npos) {
    mean = 2;
    deviation = 0.3f;
  } else if (shape.size() == 2) {
    deviation = static_cast<float>(1 / std::sqrt(static_cast<double>(shape[1])));
  } else if (!name.ends_with(".bias")) {
    mean = 1;
  }
  for (float& value : values) value = mean + deviation * normal();
  return values;
}

// 1 / 10000^(2n / (2 count)), power first, in float: as the published buffer.
std::vector<float> rope_values(const DitConfig& config) {
  std::vector<float> values;
  for (int64_t n = 0; n < config.rope_freqs; ++n) {
    const float exponent = static_cast<float>(n) / static_cast<float>(config.rope_freqs);
    values.push_back(1.0f / std::pow(static_cast<float>(config.rope_theta), exponent));
  }
  return values;
}

RandomTensor stored(const std::string& name, Dtype dtype, std::vector<int64_t> shape,
                    std::span<const float> values) {
  RandomTensor tensor{name, dtype, std::move(shape), {}};
  tensor.data.resize(values.size() * dtype_bytes(dtype));
  if (dtype == Dtype::kF32) {
    std::memcpy(tensor.data.data(), values.data(), tensor.data.size());
    return tensor;
  }
  for (size_t i = 0; i < values.size(); ++i) {
    const uint16_t bits = tessera::f32_to_bf16(values[i]);
    std::memcpy(tensor.data.data() + 2 * i, &bits, sizeof bits);
  }
  return tensor;
}

// Rows of `values` in the order that `source_row` gives for each row of the result.
std::vector<float> reordered(const std::vector<float>& values, int64_t rows,
                             const std::function<int64_t(int64_t)>& source_row) {
  const auto columns = static_cast<int64_t>(values.size()) / rows;
  std::vector<float> result(values.size());
  for (int64_t row = 0; row < rows; ++row) {
    std::memcpy(result.data() + row * columns, values.data() + source_row(row) * columns,
                static_cast<size_t>(columns) * sizeof(float));
  }
  return result;
}

// Native: row (3 head + matrix) 128 + d of the file is row matrix inner + head 128 + d of the
// model.
std::vector<float> interleaved(const DitConfig& c, const std::vector<float>& values) {
  return reordered(values, 3 * c.inner(), [&](int64_t row) {
    const int64_t d = row % c.head_dim, slot = row / c.head_dim;
    return slot % 3 * c.inner() + slot / 3 * c.head_dim + d;
  });
}

void replace(std::string& text, std::string_view from, std::string_view to) {
  if (const size_t at = text.find(from); at != std::string::npos) text.replace(at, from.size(), to);
}

std::string diffusers_name(std::string name) {
  constexpr std::pair<std::string_view, std::string_view> kHeads[] = {
      {"video_patch_proj.", "proj_in."},
      {"audio_patch_proj.", "audio_proj_in."},
      {"condition_proj.", "context_embedder."},
      {"time_embedder.proj_in.", "time_embedder.linear_1."},
      {"time_embedder.proj_out.", "time_embedder.linear_2."},
      {"token_refiner.blocks.", "token_refiner.refiner_blocks."},
      {"blocks.", "transformer_blocks."},
      {"final_layer.norm.", "norm_out.norm."},
      {"final_layer.adaln_proj.linear.", "norm_out.linear."},
      {"final_layer.video_out.", "proj_out."},
      {"final_layer.audio_out.", "audio_proj_out."}};
  for (const auto& [native, diffusers] : kHeads) {
    if (!name.starts_with(native)) continue;
    name.replace(0, native.size(), diffusers);
    break;
  }
  replace(name, ".attn.q_norm.", ".attn.norm_q.");
  replace(name, ".attn.k_norm.", ".attn.norm_k.");
  replace(name, ".attn.out_proj.", ".attn.to_out.0.");
  replace(name, ".mlp.fc1.", ".ff.net.0.proj.");
  replace(name, ".mlp.fc2.", ".ff.net.2.");
  return name;
}

void add_diffusers(const DitConfig& c, const std::string& name, Dtype dtype,
                   const std::vector<int64_t>& shape, const std::vector<float>& values,
                   std::vector<RandomTensor>& out) {
  const size_t qkv = name.find(".attn.qkv_proj.weight");
  if (qkv != std::string::npos) {
    const size_t third = values.size() / 3;
    for (size_t matrix = 0; matrix < 3; ++matrix) {
      out.push_back(
          stored(diffusers_name(name.substr(0, qkv) + ".attn.to_") + "qkv"[matrix] + ".weight",
                 dtype, {c.inner(), c.hidden}, std::span(values).subspan(matrix * third, third)));
    }
    return;
  }
  const bool halves = name.ends_with(".mlp.fc1.weight");
  const std::vector<float> rows =
      halves
          ? reordered(values, 2 * c.ffn, [&](int64_t row) { return (row + c.ffn) % (2 * c.ffn); })
          : values;
  out.push_back(stored(diffusers_name(name), dtype, shape, rows));
}

}  // namespace

std::vector<RandomTensor> random_checkpoint(const DitConfig& config, NameStyle style, Dtype dtype,
                                            uint64_t seed) {
  if ((dtype != Dtype::kF32 && dtype != Dtype::kBf16) || style == NameStyle::kComfy) {
    throw Error(ErrorCode::kInvalidArgument,
                "a random checkpoint of " + std::string(dtype_name(dtype)) + " with " +
                    std::string(name_style_text(style)) + " names",
                "f32 and bf16, native and diffusers are accepted");
  }
  std::vector<RandomTensor> tensors;
  // The native list has every tensor of the model, with its shape.
  for (const auto& source : checkpoint_tensors(config, NameStyle::kNative)) {
    const Dtype kept = is_fp32_island(source.name) ? Dtype::kF32 : dtype;
    const bool rope = source.name == "rope.inv_freq";
    if (rope && style == NameStyle::kDiffusers) continue;
    std::vector<float> values =
        rope ? rope_values(config) : model_values(source.name, source.shape, seed);
    if (style == NameStyle::kDiffusers) {
      add_diffusers(config, source.name, kept, source.shape, values, tensors);
      continue;
    }
    if (source.name.ends_with(".attn.qkv_proj.weight")) values = interleaved(config, values);
    tensors.push_back(stored(source.name, kept, source.shape, values));
  }
  return tensors;
}

void write_random_transformer(const std::string& folder, const DitConfig& config, NameStyle style,
                              Dtype dtype, uint64_t seed) {
  const std::vector<RandomTensor> tensors = random_checkpoint(config, style, dtype, seed);
  std::vector<tessera::io::SafetensorsItem> items;
  for (const RandomTensor& t : tensors) items.push_back({t.name, t.dtype, t.shape, t.data.data()});
  const bool native = style == NameStyle::kNative;
  weights::write_sharded(folder, native ? "model" : "diffusion_pytorch_model", kShards, items);
  weights::write_text(folder + "/config.json",
                      native ? dit_config_json(config) : dit_config_diffusers_json(config));
}

std::vector<float> random_normals(std::string_view name, size_t count, uint64_t seed) {
  Normal normal(seed ^ fnv1a(name));
  std::vector<float> values(count);
  for (float& value : values) value = normal();
  return values;
}

}  // namespace h3::dit
