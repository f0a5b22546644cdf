// Exact selection of key blocks from one row of scores.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "tessera/router.h"

namespace tessera::internal {

/// Reusable buffers of one thread.
struct SelectScratch {
  std::vector<uint64_t> keys;
  std::vector<double> weights;
};

/// The budget of one document: how many slots its rows need and how a row fills them.
struct RowBudget {
  BudgetKind kind = BudgetKind::kSparsity;
  int32_t keep = 0;      // kSparsity, kKeep: exact count; kMass: cap
  int32_t min_keep = 1;  // kMass
  double mass = 1.0;     // kMass
};

/// Fails when the protected blocks exceed the count (or the cap).
Status resolve_budget(const Budget& budget, int32_t key_blocks,
                      std::span<const int32_t> protected_blocks, RowBudget* out);

/// Writes ascending ids to `ids` (room for budget.keep) and returns their number. Order of
/// preference: protected, then higher score, then lower index; NaN ranks below -infinity. `mass`
/// (nullable) receives the estimated softmax mass of the kept blocks, NaN scores counting as none.
int32_t select_row(std::span<const float> scores, const RowBudget& budget,
                   std::span<const int32_t> protected_blocks, SelectScratch& scratch, int32_t* ids,
                   float* mass);

}  // namespace tessera::internal
