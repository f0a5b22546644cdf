// Host side of the sm_90 attention kernels.
#pragma once

#include <cstddef>
#include <string>

#include "tessera/src/attention/problem.h"

namespace tessera::sm90 {

/// Empty if the kernels can run the problem, else the rule it breaks.
std::string refuse_forward(const internal::AttentionProblem& problem);

size_t forward_workspace(const internal::AttentionProblem& problem);

Status run_union(const internal::AttentionProblem& problem, const Execution& exec);
Status run_union_plain(const internal::AttentionProblem& problem, const Execution& exec);
Status run_list(const internal::AttentionProblem& problem, const Execution& exec);

}  // namespace tessera::sm90
