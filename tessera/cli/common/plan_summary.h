// What a plan keeps, in the words of every command that routes.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "tessera/cli/common/routing.h"
#include "tessera/layout.h"
#include "tessera/plan.h"

namespace tessera::cli {

/// What a plan came out as, counted over documents as well as rows.
struct RoutingSummary {
  PlanStats stats;
  int64_t sparse_documents = 0, dense_documents = 0;
  int32_t kept = 0, key_blocks = 0;  // largest row of the first routed document; 0: none is routed
  double sparsity = 0;               // 1 - kept / key_blocks
  double mean_mass = -1;             // mean estimate over sparse rows, -1: not known
};
RoutingSummary summarize_plan(const Plan& plan, const BlockLayout& layout);

/// "152 of 590 blocks, sparsity 0.7424 delivered for 0.75 asked".
std::string kept_line(const RoutingSummary& summary, const Budget& budget);

nlohmann::ordered_json summary_json(const RoutingSummary& summary);

/// Prints the accepted backend options with the kept blocks of the first routed sequence on stderr,
/// once, if options were given.
void report_accepted(const Routing& routing, const RoutingSummary& summary);

}  // namespace tessera::cli
