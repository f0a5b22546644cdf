// The resolved table for people and for programs.
#pragma once

#include <cstdint>
#include <string>

#include "h3/attention/selection.h"

namespace h3 {

/// One line per group of equal layers: layers, shape, backend, why; below it what was passed over
/// and the sparse schedule. Ends with a newline.
std::string plan_text(const AttentionPlan& plan);

/// One JSON object, indented: device, request, groups (layers, backend, dense, step, reason, passed
/// over, gate).
std::string plan_json(const AttentionPlan& plan);

/// "152 of 590 key blocks, sparsity 0.7424 delivered for 0.75 asked": what the first routed
/// sequence of `tokens` keeps. Empty if no layer is sparse, or `tokens` is under min_seq_len.
std::string kept_text(const AttentionPlan& plan, int64_t tokens);

/// Names, aliases and facts of the backends: the support matrix.
std::string backends_text();
std::string backends_json();

}  // namespace h3
