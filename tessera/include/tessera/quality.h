// What skipping blocks cost: exact measures against dense attention.
#pragma once

#include <array>
#include <cstdint>

#include "tessera/attention.h"
#include "tessera/execution.h"
#include "tessera/plan.h"
#include "tessera/status.h"
#include "tessera/tensor_view.h"

namespace tessera {

/// Exact softmax mass that a plan keeps, per query row: exp(lse_sparse - lse_dense), from the LSE
/// outputs of two `attend` calls. All f32 [B, H, S]; `recall` may alias an input. 0 where the
/// sparse row is empty; NaN for rows outside all documents (both -inf).
Status kept_mass(const TensorView<3>& lse_sparse, const TensorView<3>& lse_dense,
                 const TensorView<3>& recall);

/// True softmax mass of each block pair, averaged over the real rows of the query block: f32
/// [B, H, Gq, Gk], every row sums to 1. `lse_dense` comes from a dense `attend`. Unpacked only.
/// Costs about half of a dense attention; no [S, S] memory.
Status block_mass(const Bshd& q, const Bshd& k, float softmax_scale, const TensorView<3>& lse_dense,
                  const TensorView<4>& mass, const Execution& exec);

struct ErrorStats {
  double relative_l2 = 0;           // ||a - b|| / ||b||
  double cosine = 1;                // a . b / (||a|| ||b||)
  double max_abs = 0;               // largest |a - b|; NaN if any element of either is NaN
  std::array<int64_t, 4> max_at{};  // its [b, s, h, d]
  int64_t non_finite = 0;           // elements of `a` that are NaN or infinite
};

/// Compares `a` with the reference `b` (same shape, dtypes may differ), accumulated in double.
Status compare_outputs(const Bshd& a, const Bshd& b, ErrorStats* out);

}  // namespace tessera
