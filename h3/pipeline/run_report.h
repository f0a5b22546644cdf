// What a denoise run did, for people and programs: seconds per stage, where the time of a step
// goes, sparse and dense attention calls by reason, memory.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "h3/pipeline/denoise.h"
#include "h3/pipeline/denoise_inputs.h"

namespace h3::pipeline {

struct RunReport {
  std::string version, model, partition, device, dtype;
  int64_t ranks = 1;
  std::string task;
  dit::Canvas canvas;
  dit::Timing timing;
  int64_t packed_rows = 0, used_rows = 0;
  double load_seconds = 0, load_gb_per_second = 0;
  double text_seconds = 0;  // refining the prompt, once for all outputs
  int64_t weight_bytes = 0;
  struct Output {
    std::string file;
    uint64_t seed = 0;
    DenoiseResult result;   // latents may be gone
    std::string attention;  // AttentionRuntime::stats_json of this output
  };
  std::vector<Output> outputs;
};

/// One JSON object. Phases are there if the run was profiled.
nlohmann::ordered_json report_json(const RunReport& report);

/// A few lines: what ran, seconds per step, share of attention, calls by reason, peak memory.
std::string report_text(const RunReport& report);

}  // namespace h3::pipeline
