// A run beside a dense one with the same seed: how far apart, and how much quicker.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "h3/pipeline/denoise.h"

namespace h3::pipeline {

/// {"video": {agreement, "frames": {...}}, "audio": {agreement}, "dense_seconds", "seconds",
/// "speed_up"}: of `run` against the reference `dense`. Seconds are those of the steps. Throws as
/// compare_latents.
nlohmann::ordered_json against_dense(const DenoiseResult& run, const DenoiseResult& dense);

/// One line of it.
std::string against_dense_text(const nlohmann::ordered_json& json);

}  // namespace h3::pipeline
