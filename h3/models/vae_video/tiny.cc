// The rows are moved here by hand and not by model_recipes, so that recipes can be tested against
// these files.
#include "h3/models/vae_video/tiny.h"

#include <cmath>
#include <filesystem>
#include <unordered_map>
#include <utility>
#include <vector>

#include "h3/common/error.h"
#include "h3/models/dit/tiny.h"
#include "h3/weights/recipes.h"
#include "h3/weights/sharded_writer.h"
#include "tessera/io/safetensors.h"

namespace h3::vae_video {
namespace {

using Values = std::vector<float>;

struct Files {
  std::vector<weights::SourceTensor> tensors;
  std::unordered_map<std::string, Values> data;
};

Values random_values(const std::string& name, const std::vector<int64_t>& shape, uint64_t seed) {
  const auto [rows, columns] = weights::as_matrix(shape);
  Values values =
      dit::random_normals("video_vae." + name, static_cast<size_t>(rows * columns), seed);
  float mean = 0, deviation = 0.1f;  // biases
  if (name.find("norm") != std::string::npos && name.ends_with(".weight")) {
    mean = 1;
  } else if (name.find(".scale") != std::string::npos || name.ends_with("register_tokens")) {
    deviation = 0.3f;
  } else if (shape.size() > 1) {
    deviation = static_cast<float>(1 / std::sqrt(static_cast<double>(columns)));
  }
  for (float& v : values) v = mean + deviation * v;
  return values;
}

// `count` rows of `columns` values from `first` on.
Values rows_of(const Values& values, int64_t columns, int64_t first, int64_t count) {
  return {values.begin() + first * columns, values.begin() + (first + count) * columns};
}

void append(Values* to, const Values& more) { to->insert(to->end(), more.begin(), more.end()); }

// Official values, [head: q k v], as q, k and v of diffusers.
Values matrix_of(const VideoVaeConfig& c, const Values& official, int64_t columns, int64_t matrix) {
  Values out;
  for (int64_t head = 0; head < c.heads; ++head) {
    append(&out, rows_of(official, columns, (3 * head + matrix) * c.head_dim, c.head_dim));
  }
  return out;
}

Files official_files(const VideoVaeConfig& config, uint64_t seed) {
  Files files{checkpoint_tensors(config, NameStyle::kOfficial), {}};
  files.tensors.push_back({"decoder.mask_token", {1, 1, config.dim()}, tessera::Dtype::kF32});
  for (const weights::SourceTensor& t : files.tensors) {
    files.data[t.name] = t.name == "decoder.mask_token" ? Values(static_cast<size_t>(config.dim()))
                                                        : random_values(t.name, t.shape, seed);
  }
  return files;
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  return at == std::string::npos ? text : text.replace(at, from.size(), to);
}

std::string official_name(std::string name) {
  for (const auto& [from, to] : {std::pair{"encoder.down_blocks.", "encoder.down."},
                                 {".resnets.", ".block."},
                                 {".conv_shortcut.", ".nin_shortcut."},
                                 {".downsamplers.0.", ".downsample."},
                                 {"decoder.proj_in.", "decoder.x_embedder."},
                                 {".to_out.0.", ".to_out."},
                                 {".to_q.", ".to_qkv."},
                                 {".to_k.", ".to_qkv."},
                                 {".to_v.", ".to_qkv."},
                                 {".ff.net.0.proj.", ".ff.w1."},
                                 {".ff.net.2.", ".ff.w2."}}) {
    name = replaced(std::move(name), from, to);
  }
  return name;
}

Files diffusers_files(const VideoVaeConfig& config, uint64_t seed) {
  const Files official = official_files(config, seed);
  Files files{checkpoint_tensors(config, NameStyle::kDiffusers), {}};
  for (const weights::SourceTensor& t : files.tensors) {
    const Values& from = official.data.at(official_name(t.name));
    const int64_t columns = weights::as_matrix(t.shape)[1], ffn = config.ffn();
    const size_t letter = t.name.find(".attn.to_");
    Values& to = files.data[t.name];
    if (letter != std::string::npos && t.name[letter + 9] != 'o') {
      const char matrix = t.name[letter + 9];
      to = matrix_of(config, from, columns, matrix == 'q' ? 0 : matrix == 'k' ? 1 : 2);
    } else if (t.name.find(".ff.net.0.") != std::string::npos) {
      to = rows_of(from, columns, ffn, ffn);
      append(&to, rows_of(from, columns, 0, ffn));
    } else {
      to = from;
    }
  }
  return files;
}

}  // namespace

void write_random_video_vae(const std::string& folder, const VideoVaeConfig& config,
                            NameStyle style, uint64_t seed) {
  const bool official = style == NameStyle::kOfficial;
  const Files files = official ? official_files(config, seed) : diffusers_files(config, seed);
  std::vector<tessera::io::SafetensorsItem> items;
  for (const weights::SourceTensor& t : files.tensors) {
    items.push_back({t.name, t.dtype, t.shape, files.data.at(t.name).data()});
  }
  std::string path = folder + "/diffusion_pytorch_model.safetensors";
  if (official) {
    std::error_code error;
    std::filesystem::create_directory(folder + "/source", error);
    if (error) {
      throw Error(ErrorCode::kUnavailable, folder + "/source: " + error.message(),
                  "choose a folder that can be written");
    }
    path = folder + "/source/model.safetensors";
  }
  const tessera::Status status = tessera::io::write_safetensors(path, items);
  if (!status.ok()) throw Error(ErrorCode::kUnavailable, status.message());
  weights::write_text(folder + "/config.json", official ? video_vae_config_json(config)
                                                        : video_vae_config_diffusers_json(config));
}

}  // namespace h3::vae_video
