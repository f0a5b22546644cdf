// Example requests of the tiny model. Canvas and length are the smallest that the rules allow, so
// that a run takes seconds on a CPU.
#include <nlohmann/json.hpp>

#include "h3/common/error.h"
#include "h3/models/dit/geometry.h"
#include "h3/models/dit/tiny.h"
#include "h3/weights/sharded_writer.h"

namespace h3::dit {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kTextRows = 12, kSteps = 8, kEdge = 128;

struct Tensor {
  std::string name;
  std::vector<int64_t> shape;
};

void write_example(const std::string& folder, const std::string& name, const Json& request,
                   const std::vector<Tensor>& tensors, uint64_t seed) {
  std::vector<std::vector<float>> values;
  std::vector<tessera::io::SafetensorsItem> items;
  for (const Tensor& t : tensors) {
    size_t count = 1;
    for (const int64_t n : t.shape) count *= static_cast<size_t>(n);
    values.push_back(random_normals(name + "/" + t.name, count, seed));
    items.push_back({t.name, tessera::Dtype::kF32, t.shape, values.back().data()});
  }
  const tessera::Status status =
      tessera::io::write_safetensors(folder + "/" + name + ".safetensors", items);
  if (!status.ok()) throw Error(ErrorCode::kUnavailable, status.message());
  weights::write_text(folder + "/" + name + ".json", request.dump(2) + "\n");
}

Json request_of(const char* task, Json conditions) {
  return {{"task", task},
          {"prompt", "a red fox crosses a frozen river"},
          {"conditions", std::move(conditions)},
          {"target", {{"short_edge", kEdge}, {"aspect_ratio", "1:1"}, {"duration_seconds", 4}}},
          {"num_inference_steps", kSteps},
          {"seed", 0}};
}

}  // namespace

void write_example_requests(const std::string& folder, const DitConfig& config, bool ref2va,
                            uint64_t seed) {
  const int64_t side = target_canvas(1, 1, kEdge).latents(1).height;
  const Tensor text{"text", {kTextRows, config.text_dim}};
  const auto visual = [&](int i, int64_t frames) {
    return Tensor{"condition." + std::to_string(i) + ".visual",
                  {1, config.video_channels, frames, side, side}};
  };
  const auto audio = [&](int i, int64_t latents) {
    return Tensor{"condition." + std::to_string(i) + ".audio", {2, config.audio_channels, latents}};
  };
  if (ref2va) {
    write_example(
        folder, "ref2va",
        request_of("ref2va", {{{"type", "image"}, {"uri", "fox.png"}, {"role", "reference"}},
                              {{"type", "audio"}, {"uri", "wind.wav"}, {"role", "reference"}}}),
        {text, visual(0, 1), audio(1, 80)}, seed);
    return;
  }
  write_example(folder, "t2va", request_of("t2va", Json::array()), {text}, seed);
  write_example(
      folder, "fl2va",
      request_of(
          "fl2va",
          {{{"type", "image"}, {"uri", "first.png"}, {"role", "keyframe"}, {"frame_index", 0}}}),
      {text, visual(0, 1)}, seed);
}

}  // namespace h3::dit
