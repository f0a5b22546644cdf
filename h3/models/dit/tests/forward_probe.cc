// For the parity tests: one forward per step on a checkpoint, with a layout given as tensors.
//   h3_dit_forward_probe CHECKPOINT INPUT.safetensors OUTPUT.safetensors [f32|bf16 [BACKEND]]
// CHECKPOINT is a folder with config.json and the weights, native or diffusers names. INPUT: text
// [L, text_dim], video [video rows, w], audio [audio rows, w], positions f64 [rows, 3], tags i32
// [rows], video_rows, audio_rows, sparse_rows i64, counts i64 [used, condition video, condition
// audio], and per step k unique.k f32, inverse.k i32. OUTPUT: video.k and audio.k, f32, and text.
#include <ATen/Functions.h>
#include <ATen/core/Tensor.h>

#include <cstdio>
#include <fstream>
#include <iterator>
#include <string>

#include "h3/attention/h3_layers.h"
#include "h3/common/error.h"
#include "h3/models/dit/model.h"
#include "h3/weights/checkpoint.h"
#include "h3/weights/loader.h"
#include "tessera/io/safetensors.h"

namespace {

using namespace h3;
using tessera::io::SafetensorsEntry;
using tessera::io::SafetensorsFile;

const SafetensorsEntry& entry(const SafetensorsFile& file, const std::string& name) {
  const SafetensorsEntry* found = file.find(name);
  if (!found) throw Error(ErrorCode::kInvalidArgument, "input lacks " + name);
  return *found;
}

template <class T>
std::vector<T> values(const SafetensorsFile& file, const std::string& name) {
  const SafetensorsEntry& e = entry(file, name);
  const T* data = reinterpret_cast<const T*>(e.data);
  return {data, data + e.bytes / sizeof(T)};
}

at::Tensor floats(const SafetensorsFile& file, const std::string& name) {
  const SafetensorsEntry& e = entry(file, name);
  if (e.dtype != tessera::Dtype::kF32)
    throw Error(ErrorCode::kInvalidArgument, name + " is not f32");
  at::Tensor t = at::empty(e.shape, at::kFloat);
  std::memcpy(t.data_ptr(), e.data, e.bytes);
  return t;
}

void require(const tessera::Status& status) {
  if (!status.ok()) throw Error(ErrorCode::kInvalidArgument, status.message());
}

int run(const std::string& folder, const std::string& input, const std::string& output,
        tessera::Dtype compute, const std::string& backend) {
  std::ifstream config_file(folder + "/config.json");
  const std::string json{std::istreambuf_iterator<char>(config_file), {}};
  const dit::DitConfig config = dit::parse_dit_config(json, folder + "/config.json");
  const weights::Checkpoint checkpoint = weights::Checkpoint::open(folder);
  const dit::NameStyle style =
      checkpoint.find("proj_in.weight") ? dit::NameStyle::kDiffusers : dit::NameStyle::kNative;
  const auto recipes = dit::model_recipes(config, style, compute);
  dit::DitWeights weights =
      dit::take_weights(config, compute, {}, weights::load_tensors(checkpoint, recipes, {}));

  H3LayerOptions options;
  options.dit = {static_cast<int>(config.layers), static_cast<int>(config.refiner_layers),
                 static_cast<int>(config.heads), compute};
  const Platform platform = cpu_platform();
  AttentionChoices choices;
  if (!backend.empty()) {
    choices.components.components["transformer"] = {backend_from_text(backend, "BACKEND"), true};
  }
  AttentionRuntime attention(
      resolve_attention(minimax_h3_layers(platform, options), choices, platform),
      {.log = [](std::string_view) {}});
  dit::DitModel model(config, std::move(weights), attention);

  SafetensorsFile file;
  require(SafetensorsFile::open(input, &file));
  dit::PackedLayout layout;
  layout.positions = values<double>(file, "positions");
  for (const int32_t tag : values<int32_t>(file, "tags")) {
    layout.tags.push_back(static_cast<int8_t>(tag));
  }
  layout.video_rows = values<int64_t>(file, "video_rows");
  layout.audio_rows = values<int64_t>(file, "audio_rows");
  layout.sparse_rows = values<int64_t>(file, "sparse_rows");
  const auto counts = values<int64_t>(file, "counts");
  layout.used = counts.at(0);
  layout.condition_video_rows = counts.at(1);
  layout.condition_audio_rows = counts.at(2);
  layout.rows = static_cast<int64_t>(layout.tags.size());
  const at::Tensor text = floats(file, "text");
  layout.text_rows = text.size(0);
  std::vector<dit::RowTimesteps> steps;
  for (int k = 0; file.find("unique." + std::to_string(k)); ++k) {
    steps.push_back({values<float>(file, "unique." + std::to_string(k)),
                     values<int32_t>(file, "inverse." + std::to_string(k))});
  }
  const at::Tensor refined = model.refine_text(text);
  dit::DitSession session(model, layout, refined, steps);
  std::vector<at::Tensor> kept;
  std::vector<tessera::io::SafetensorsItem> items;
  const auto keep = [&](const std::string& name, const at::Tensor& t) {
    kept.push_back(t.to(at::kFloat).contiguous());
    items.push_back(
        {name, tessera::Dtype::kF32, kept.back().sizes().vec(), kept.back().data_ptr()});
  };
  keep("text", refined);
  for (int64_t k = 0; k < session.steps(); ++k) {
    const dit::Velocity v = session.forward(k, floats(file, "video"), floats(file, "audio"));
    keep("video." + std::to_string(k), v.video);
    keep("audio." + std::to_string(k), v.audio);
  }
  require(tessera::io::write_safetensors(output, items));
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) {
    std::fprintf(stderr, "forward_probe CHECKPOINT INPUT OUTPUT [f32|bf16 [BACKEND]]\n");
    return 2;
  }
  const bool bf16 = argc > 4 && std::string(argv[4]) == "bf16";
  try {
    return run(argv[1], argv[2], argv[3], bf16 ? tessera::Dtype::kBf16 : tessera::Dtype::kF32,
               argc > 5 ? argv[5] : "");
  } catch (const std::exception& error) {
    std::fprintf(stderr, "forward_probe: %s\n", error.what());
    return 1;
  }
}
