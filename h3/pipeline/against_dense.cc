#include "h3/pipeline/against_dense.h"

#include <cstdio>
#include <nlohmann/json.hpp>
#include <span>
#include <vector>

#include "h3/pipeline/quality.h"

namespace h3::pipeline {

nlohmann::ordered_json against_dense(const DenoiseResult& run, const DenoiseResult& dense) {
  const auto view = [](const at::Tensor& t) {
    return LatentView{t.data_ptr<float>(), t.size(1), t.size(2), t.size(3), t.size(4)};
  };
  const auto values = [](const at::Tensor& t) {
    return std::span<const float>(t.data_ptr<float>(), static_cast<size_t>(t.numel()));
  };
  const auto seconds = [](const DenoiseResult& r) {
    double sum = 0;
    for (const StepReport& step : r.steps) sum += step.seconds;
    return sum;
  };
  const CompareOptions names{.a = "dense", .b = "run"};
  const auto video = compare_latents(view(dense.video), view(run.video), names);
  const std::vector<int64_t> shape = dense.audio.sizes().vec();
  nlohmann::ordered_json json;
  json["video"] = agreement_json(video.agreement);
  json["video"]["frames"] = frames_json(video.frames, video.peak);
  json["audio"] =
      agreement_json(compare_values(values(dense.audio), values(run.audio), shape, names));
  json["dense_seconds"] = seconds(dense);
  json["seconds"] = seconds(run);
  json["speed_up"] = seconds(dense) / seconds(run);
  return json;
}

std::string against_dense_text(const nlohmann::ordered_json& json) {
  const auto number = [](const nlohmann::ordered_json& value, int digits) {
    char text[64];
    if (!value.is_number()) return std::string("-");
    std::snprintf(text, sizeof(text), "%.*f", digits, value.get<double>());
    return std::string(text);
  };
  return "  against dense: video cosine " + number(json["video"]["cosine"], 6) + ", relative L2 " +
         number(json["video"]["relative_l2"], 6) + "; audio cosine " +
         number(json["audio"]["cosine"], 6) + "; speed-up " + number(json["speed_up"], 2) + "\n";
}

}  // namespace h3::pipeline
