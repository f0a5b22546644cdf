// The sub-block router: estimates how much softmax mass each (query block, key block) pair carries
// and keeps the best key blocks of every query block. Training-free; weights are not touched.
//
// Method (SGLang 0.5.23, SubBlock sparse attention): each 64-token block is split into n runs
// ("cells"), q and k are averaged over the real tokens of a cell, q cells are multiplied by
// softmax_scale * log2(e), both are rounded to bf16, and
//   score(i, j) = ln sum_{a < n_q, b < n_k} exp(qbar[i,a] . kbar[j,b] * softmax_scale)
// in fp32, cells without a real token excluded. The k highest scores of a row are kept: exactly,
// ties to the lower block index, NaN below -infinity.
#pragma once

#include <cstdint>
#include <span>

#include "tessera/execution.h"
#include "tessera/plan.h"
#include "tessera/status.h"
#include "tessera/tensor_view.h"

namespace tessera {

enum class BudgetKind : uint8_t { kSparsity, kKeep, kMass };

/// How many key blocks a query block may keep.
struct Budget {
  BudgetKind kind = BudgetKind::kSparsity;
  double sparsity = 0.75;   // kSparsity: upper bound on the share of dropped key blocks, [0, 1)
  int32_t keep = 0;         // kKeep: blocks per row, >= 1, clamped to the document's key blocks
  double mass = 0.9;        // kMass: fewest best blocks whose estimated mass reaches this, (0, 1]
  int32_t min_keep = 1;     // kMass: floor per row
  int32_t max_keep = 0;     // kMass: cap per row, 0 = all key blocks
  int32_t granularity = 8;  // kSparsity: the kept count is rounded up to a multiple of this
  bool exact_rounding =
      false;  // kSparsity: subtract 1e-9 before the ceiling, so that (1-0.7)*80 is 24
};

/// Kept blocks per row for kSparsity:
///   raw = ceil((1 - sparsity) * key_blocks)  in IEEE double, in this order
///   kept = min(key_blocks, max(1, ceil(raw / granularity)) * granularity)
int32_t blocks_for_sparsity(double sparsity, int32_t key_blocks, int32_t granularity,
                            bool exact_rounding = false);

struct RouterConfig {
  int n_q = 4;  // query cells per block: 1, 2, 4 or 8
  int n_k = 4;  // key cells per block: 1, 2, 4 or 8
  Budget budget;
  // Weight a partial cell by its share of real tokens (adds ln(tokens / cell size) to its terms).
  // Off in the published method, which over-weights the tail block.
  bool weight_partial_cells = false;
};

struct RouteParams {
  Bshd q;                               // [B, Sq, H, D], bf16 / f16 / f32
  Bshd k;                               // [B, Sk, Hkv, D], H a multiple of Hkv
  std::span<const int32_t> cu_seqlens;  // packed documents (then B = 1, Sq = Sk); empty: unpacked
  int64_t max_seqlen = 0;               // optional check, see packed_documents
  float softmax_scale = 0;              // 0: 1 / sqrt(D)
  RouterConfig config;
  int64_t min_seq_len = 0;                    // documents with fewer keys get dense rows
  std::span<const int32_t> protected_blocks;  // key blocks every sparse row keeps, inside its
                                              // budget; more of them than the budget is refused
  std::span<const uint8_t>
      dense_query_blocks;  // [Gq], non-zero: that query block is dense; may be empty
};

/// Buffers to fill. `plan.index`, `plan.count` and `plan.dense_rows` are required with the sizes of
/// `route_shape`; the rest is optional.
struct RouteOutputs {
  PlanView plan;
  TensorView<3> mass;    // f32 [B, H, Gq]: estimated softmax mass kept, 1 for dense rows
  TensorView<4> scores;  // f32 [B, H, Gq, Gk]: the score matrix, -inf for pairs outside a document
};

/// Shape of the plan that `route` would write. Checks everything that does not need tensor values.
Status route_shape(const RouteParams& params, PlanShape* out);

/// Device scratch that `route` needs in `exec.workspace`, in bytes; 0 for the CPU.
Status route_workspace(const RouteParams& params, const Execution& exec, size_t* bytes);

/// Routes into caller memory. Ids are ascending, unused slots are -1. q and k are only read;
/// outputs must not alias them. CPU: returns when done. Same bits for any thread count.
Status route(const RouteParams& params, const Execution& exec, const RouteOutputs& out);

/// Routes into an owning host plan (with `mass`).
Status route(const RouteParams& params, const Execution& exec, Plan* out);

}  // namespace tessera
