// Exact selection on 64-bit keys that hold rank and index, so that no two keys are equal.
#include "tessera/src/router/select.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <limits>

#include "tessera/src/common/cat.h"

namespace tessera::internal {
namespace {

constexpr uint32_t kProtectedRank = 0xffffffffu;

/// Order-preserving map: greater float, greater integer; NaN lowest (0); -0 and +0 equal.
uint32_t rank_of(float score) {
  if (std::isnan(score)) return 0;
  const uint32_t bits = std::bit_cast<uint32_t>(score + 0.0f);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

int32_t block_of(uint64_t key) { return static_cast<int32_t>(~static_cast<uint32_t>(key)); }

}  // namespace

Status resolve_budget(const Budget& budget, int32_t key_blocks,
                      std::span<const int32_t> protected_blocks, RowBudget* out) {
  out->kind = budget.kind;
  out->min_keep = 1;
  out->mass = 1.0;
  switch (budget.kind) {
    case BudgetKind::kSparsity:
      out->keep = blocks_for_sparsity(budget.sparsity, key_blocks, budget.granularity,
                                      budget.exact_rounding);
      break;
    case BudgetKind::kKeep: out->keep = std::min(budget.keep, key_blocks); break;
    case BudgetKind::kMass:
      out->keep = budget.max_keep > 0 ? std::min(budget.max_keep, key_blocks) : key_blocks;
      out->min_keep = std::min(budget.min_keep, out->keep);
      out->mass = budget.mass;
      break;
  }
  if (static_cast<int64_t>(protected_blocks.size()) > out->keep) {
    return invalid_argument(cat(protected_blocks.size(), " protected blocks exceed the budget of ",
                                out->keep, " of ", key_blocks,
                                " key blocks per row; protect fewer or keep more"));
  }
  return {};
}

int32_t select_row(std::span<const float> scores, const RowBudget& budget,
                   std::span<const int32_t> protected_blocks, SelectScratch& scratch, int32_t* ids,
                   float* mass) {
  const int32_t columns = static_cast<int32_t>(scores.size());
  std::vector<uint64_t>& keys = scratch.keys;
  keys.resize(columns);
  // Rank in the high half, inverted index in the low half: all keys differ, ties go to the lower
  // index.
  for (int32_t j = 0; j < columns; ++j) {
    keys[j] = uint64_t{rank_of(scores[j])} << 32 | ~static_cast<uint32_t>(j);
  }
  for (int32_t j : protected_blocks) {
    keys[j] = uint64_t{kProtectedRank} << 32 | ~static_cast<uint32_t>(j);
  }

  const bool by_mass = budget.kind == BudgetKind::kMass;
  double total = 0;
  if (by_mass || mass != nullptr) {
    float top = -std::numeric_limits<float>::infinity();
    for (float s : scores) top = std::fmax(top, s);
    scratch.weights.resize(columns);
    for (int32_t j = 0; j < columns; ++j) {
      // A row whose best score is infinite has all its mass there.
      const float x = scores[j] == top ? 0.0f : scores[j] - top;
      scratch.weights[j] = std::isnan(x) || std::isnan(scores[j]) ? 0.0 : std::exp(x);
      total += scratch.weights[j];
    }
  }

  int32_t kept = std::min(budget.keep, columns);
  if (by_mass) {
    std::sort(keys.begin(), keys.end(), std::greater<>());
    const int32_t floor =
        std::max<int32_t>(budget.min_keep, static_cast<int32_t>(protected_blocks.size()));
    double reached = 0;
    int32_t n = 0;
    while (n < kept && (n < floor || reached < budget.mass * total)) {
      reached += scratch.weights[block_of(keys[n])];
      ++n;
    }
    kept = n;
  } else if (kept < columns) {
    std::nth_element(keys.begin(), keys.begin() + kept, keys.end(), std::greater<>());
  }

  double kept_mass = 0;
  for (int32_t i = 0; i < kept; ++i) ids[i] = block_of(keys[i]);
  std::sort(ids, ids + kept);
  if (mass != nullptr) {
    for (int32_t i = 0; i < kept; ++i) kept_mass += scratch.weights[ids[i]];
    *mass = total > 0 ? static_cast<float>(std::min(1.0, kept_mass / total)) : 0.0f;
  }
  return kept;
}

}  // namespace tessera::internal
