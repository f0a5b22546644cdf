// Float64 oracles that share no code with the library's own reference kernels: naive, row by row,
// over explicit lists of keys and cells.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "tessera/plan.h"
#include "tessera/tests/support/owned_tensor.h"

namespace tessera::testing {

/// Keys that a query row attends to, as positions on the token axis of k and v.
using KeysOfRow = std::function<std::vector<int64_t>(int64_t batch, int64_t head, int64_t row)>;

struct AttentionOracle {
  std::array<int64_t, 4> size{};  // of out
  std::vector<double> out;        // [B, Sq, H, D]
  std::vector<double> lse;        // [B, H, Sq]
};

/// scale 0 means 1 / sqrt(D).
AttentionOracle attention_oracle(const Tensor4& q, const Tensor4& k, const Tensor4& v, double scale,
                                 const KeysOfRow& keys);

/// Block lists of every plan row, row = (b * H + h) * Gq + i.
struct BlockLists {
  int64_t batch = 1, heads = 1;
  int32_t query_blocks = 0, key_blocks = 0;
  std::vector<std::vector<int32_t>> rows;

  BlockLists(int64_t batch, int64_t heads, int64_t sq, int64_t sk);
  std::vector<int32_t>& at(int64_t b, int64_t h, int64_t i) {
    return rows[(b * heads + h) * query_blocks + i];
  }
  const std::vector<int32_t>& at(int64_t b, int64_t h, int64_t i) const {
    return rows[(b * heads + h) * query_blocks + i];
  }
  void fill_all();
  /// Random lists in random order; counts in [low, high], clamped to the key blocks.
  void fill_random(Random& random, int32_t low, int32_t high);
  /// Slots behind a count hold `filler`. width 0: the longest list.
  Plan plan(int32_t width = 0, int32_t filler = -1) const;
  /// The same lists as bitmap words [B, H, Gq, ceil(Gk / 32)].
  std::vector<uint32_t> bitmap() const;
  PlanView bitmap_view(const std::vector<uint32_t>& words) const;
  KeysOfRow keys(int64_t sk) const;
};

KeysOfRow all_keys(int64_t sk);
/// Keys of the row's own document; none outside the documents.
KeysOfRow document_keys(std::vector<int32_t> cu_seqlens);

/// x rounded to `bits` significant bits, nearest even; no subnormals, no overflow.
double round_significant(double x, int bits);

/// Cell means over the real tokens of [start, start + length), times `scale`, not rounded.
std::vector<double> cell_means(const Tensor4& tensor, int64_t batch, int64_t head, int64_t start,
                               int64_t length, int cells_per_block, double scale);

/// Scores [Gq][Gk] from rounded cells (q cells carry scale * log2 e), natural log.
struct ScoreOracleInput {
  std::span<const float> q_cells, k_cells;
  int n_q = 4, n_k = 4;
  int64_t sq = 0, sk = 0, dim = 128;
  bool weight_partial_cells = false;
};
std::vector<double> score_oracle(const ScoreOracleInput& in);

/// The k best columns by a stable sort: higher first, ties to the lower index, NaN last. Ascending.
std::vector<int32_t> best_columns(std::span<const float> scores, int32_t k);

}  // namespace tessera::testing
