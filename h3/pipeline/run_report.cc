#include "h3/pipeline/run_report.h"

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

namespace h3::pipeline {
namespace {

using Json = nlohmann::ordered_json;

struct StepSummary {
  double first = 0, median = 0, last = 0, sum = 0;  // seconds
  PhaseTimes phases{};                              // milliseconds, of all steps
  bool profiled = false;
};

StepSummary summary_of(const std::vector<StepReport>& steps) {
  StepSummary s;
  std::vector<double> times;
  for (const StepReport& step : steps) {
    times.push_back(step.seconds);
    s.sum += step.seconds;
    for (size_t p = 0; p < kPhases; ++p) {
      s.phases[p] += step.phases[p];
      s.profiled = s.profiled || step.phases[p] > 0;
    }
  }
  if (times.empty()) return s;
  s.first = times.front();
  s.last = times.back();
  std::nth_element(times.begin(), times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2),
                   times.end());
  s.median = times[times.size() / 2];
  return s;
}

double share(const PhaseTimes& phases, Phase phase) {
  double sum = 0;
  for (const double ms : phases) sum += ms;
  return sum > 0 ? phases[static_cast<size_t>(phase)] / sum : 0;
}

Json phases_json(const PhaseTimes& phases) {
  Json json;
  for (size_t p = 0; p < kPhases; ++p) {
    json[std::string(to_text(static_cast<Phase>(p))) + "_ms"] = phases[p];
  }
  return json;
}

Json output_json(const RunReport::Output& output, int64_t weight_bytes) {
  const StepSummary s = summary_of(output.result.steps);
  Json json = {{"file", output.file},
               {"seed", output.seed},
               {"prepare_seconds", output.result.prepare_seconds},
               {"denoise_seconds", s.sum},
               {"forwards", output.result.steps.size()},
               {"median_step_seconds", s.median}};
  if (s.profiled) {
    json["attention_share"] = share(s.phases, Phase::kAttention);
    json["phases"] = phases_json(s.phases);
  }
  Json steps = Json::array();
  for (const StepReport& step : output.result.steps) {
    Json one = {{"seconds", step.seconds}};
    if (s.profiled) one["phases"] = phases_json(step.phases);
    steps.push_back(std::move(one));
  }
  json["steps"] = std::move(steps);
  json["attention"] = Json::parse(output.attention);
  const DeviceMemory& memory = output.result.memory;
  if (memory.peak > 0) {
    json["memory"] = {{"peak_bytes", memory.peak},
                      {"peak_over_weights_bytes", memory.peak - weight_bytes},
                      {"reserved_peak_bytes", memory.reserved_peak}};
  }
  return json;
}

template <class... Values>
std::string line(const char* format, Values... values) {
  char text[320];
  std::snprintf(text, sizeof(text), format, values...);
  return std::string(text) + "\n";
}

}  // namespace

Json report_json(const RunReport& r) {
  Json json = {
      {"version", r.version},
      {"model", {{"path", r.model}, {"partition", r.partition}, {"weight_bytes", r.weight_bytes}}},
      {"device", r.device},
      {"dtype", r.dtype},
      {"ranks", r.ranks},
      {"request",
       {{"task", r.task},
        {"size", std::to_string(r.canvas.width) + "x" + std::to_string(r.canvas.height)},
        {"frames", r.timing.frames},
        {"seconds", r.timing.seconds()}}},
      {"packed_rows", r.packed_rows},
      {"used_rows", r.used_rows},
      {"load", {{"seconds", r.load_seconds}, {"gb_per_second", r.load_gb_per_second}}},
      {"text_seconds", r.text_seconds}};
  Json outputs = Json::array();
  for (const RunReport::Output& output : r.outputs) {
    outputs.push_back(output_json(output, r.weight_bytes));
  }
  json["outputs"] = std::move(outputs);
  return json;
}

std::string report_text(const RunReport& r) {
  std::string text = line(
      "%s %lldx%lld, %lld frames (%.3f s), %lld packed rows (%lld live), %s, %s%s", r.task.c_str(),
      static_cast<long long>(r.canvas.width), static_cast<long long>(r.canvas.height),
      static_cast<long long>(r.timing.frames), r.timing.seconds(),
      static_cast<long long>(r.packed_rows), static_cast<long long>(r.used_rows), r.device.c_str(),
      r.dtype.c_str(), r.ranks > 1 ? (", " + std::to_string(r.ranks) + " ranks").c_str() : "");
  text += line("weights  %.2f GB in %.2f s (%.2f GB/s), text refined in %.2f s",
               static_cast<double>(r.weight_bytes) / 1e9, r.load_seconds, r.load_gb_per_second,
               r.text_seconds);
  for (const RunReport::Output& output : r.outputs) {
    const StepSummary s = summary_of(output.result.steps);
    text += line(
        "seed %llu  prepare %.2f s, %zu forwards in %.2f s (median %.3f s, first %.3f s, "
        "last %.3f s)",
        static_cast<unsigned long long>(output.seed), output.result.prepare_seconds,
        output.result.steps.size(), s.sum, s.median, s.first, s.last);
    if (s.profiled) {
      const double rest = share(s.phases, Phase::kEmbed) + share(s.phases, Phase::kOutput);
      text += line(
          "  of the forwards: attention %.1f %%, matrix products %.1f %%, pointwise %.1f "
          "%%, embedding and output %.1f %%",
          100 * share(s.phases, Phase::kAttention), 100 * share(s.phases, Phase::kLinear),
          100 * share(s.phases, Phase::kPointwise), 100 * rest);
    }
    const Json total = Json::parse(output.attention)["total"];
    std::string reasons;
    if (total.contains("dense_calls")) {
      for (const auto& [reason, calls] : total["dense_calls"].items()) {
        reasons += (reasons.empty() ? "" : ", ") + reason + " " + calls.dump();
      }
    }
    text += line("  attention: %s sparse calls, dense by reason: %s",
                 total.value("sparse_calls", Json(0)).dump().c_str(),
                 reasons.empty() ? "none" : reasons.c_str());
    if (output.result.memory.peak > 0) {
      text += line("  memory: peak %.2f GB, %.2f GB over the weights",
                   static_cast<double>(output.result.memory.peak) / 1e9,
                   static_cast<double>(output.result.memory.peak - r.weight_bytes) / 1e9);
    }
    text += "  -> " + output.file + "\n";
  }
  return text;
}

}  // namespace h3::pipeline
