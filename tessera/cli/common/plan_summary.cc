#include "tessera/cli/common/plan_summary.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "tessera/cli/commands.h"

namespace tessera::cli {

RoutingSummary summarize_plan(const Plan& plan, const BlockLayout& layout) {
  RoutingSummary summary;
  summary.stats = plan_stats(plan.view(), layout);
  auto is_dense = [&](int64_t batch, int32_t row) {
    return !plan.dense_rows.empty() &&
           plan.dense_rows[size_t(batch) * plan.shape.query_blocks + row] != 0;
  };
  // A document is routed when any of its rows is, in any sample of the batch.
  for (const Document& document : layout.documents) {
    int32_t most = -1;
    for (int64_t b = 0; b < plan.shape.batch; ++b) {
      for (int32_t i = 0; i < document.query_blocks; ++i) {
        const int32_t row = document.first_query_block + i;
        if (is_dense(b, row)) continue;
        for (int64_t h = 0; h < plan.shape.heads; ++h) {
          most = std::max(most,
                          plan.count[(b * plan.shape.heads + h) * plan.shape.query_blocks + row]);
        }
      }
    }
    if (most < 0) {
      ++summary.dense_documents;
      continue;
    }
    if (summary.sparse_documents++ == 0) {
      summary.kept = most;
      summary.key_blocks = document.key_blocks;
      summary.sparsity = 1.0 - double(most) / double(document.key_blocks);
    }
  }
  double mass = 0;
  int64_t rows = 0;
  // A plan without rows still owns one element; its shape says how many count.
  const int64_t entries = plan.mass.empty() ? 0 : plan.shape.rows();
  for (int64_t at = 0; at < entries; ++at) {
    const int32_t row = static_cast<int32_t>(at % plan.shape.query_blocks);
    const int64_t batch = at / (int64_t{plan.shape.query_blocks} * plan.shape.heads);
    if (is_dense(batch, row)) continue;
    mass += plan.mass[at];
    ++rows;
  }
  if (rows > 0) summary.mean_mass = mass / double(rows);
  return summary;
}

std::string kept_line(const RoutingSummary& summary, const Budget& budget) {
  if (summary.sparse_documents == 0) return "no document is routed, all run dense";
  std::string line = fmt::format("{} of {} blocks, sparsity {:.4f} delivered", summary.kept,
                                 summary.key_blocks, summary.sparsity);
  switch (budget.kind) {
    case BudgetKind::kSparsity: line += fmt::format(" for {} asked", budget.sparsity); break;
    case BudgetKind::kKeep: line += fmt::format(" for keep {} asked", budget.keep); break;
    case BudgetKind::kMass:
      line += fmt::format(" (largest row; {:.1f} on average) for mass {} asked",
                          summary.stats.mean_kept, budget.mass);
      break;
  }
  return line;
}

nlohmann::ordered_json summary_json(const RoutingSummary& summary) {
  nlohmann::ordered_json json;
  json["rows"] = summary.stats.rows;
  json["dense_rows"] = summary.stats.dense_rows;
  json["kept_blocks"] = summary.kept;
  json["key_blocks"] = summary.key_blocks;
  json["delivered_sparsity"] = summary.sparsity;
  json["min_kept"] = summary.stats.min_kept;
  json["max_kept"] = summary.stats.max_kept;
  json["mean_kept"] = summary.stats.mean_kept;
  json["density"] = summary.stats.density();
  json["routed_documents"] = summary.sparse_documents;
  json["dense_documents"] = summary.dense_documents;
  if (summary.mean_mass >= 0) json["estimated_mass"] = summary.mean_mass;
  return json;
}

void report_accepted(const Routing& routing, const RoutingSummary& summary) {
  if (routing.accepted.empty()) return;
  message(fmt::format("--attention-backend-config: {}; {}", routing.accepted,
                      kept_line(summary, routing.config.budget)));
}

}  // namespace tessera::cli
