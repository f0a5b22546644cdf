// What the selection does not reach: rows of documents that are dense as a whole, and the caller's
// score matrix where nothing is scored.
#pragma once

#include <cstdint>

#include "tessera/src/sm90/router/config.h"
#include "tessera/src/sm90/router/select.cuh"

namespace tessera::sm90 {

/// One warp per plan row of the call. `key_blocks`: of the largest document.
__global__ void __launch_bounds__(kSelectWarps * 32)
    router_defaults_kernel(const __grid_constant__ SelectParams p, int32_t plan_rows,
                           int32_t key_blocks, int64_t rows) {
  const int64_t flat_row = int64_t{blockIdx.x} * kSelectWarps + threadIdx.x / 32;
  if (flat_row >= rows) return;
  const int lane = threadIdx.x & 31;
  const int64_t row = flat_row % plan_rows;
  const int64_t head = flat_row / plan_rows % p.heads, batch = flat_row / plan_rows / p.heads;
  if (p.scores_out != nullptr) {
    float* to = p.scores_out + batch * p.scores_batch + head * p.scores_head + row * p.scores_row;
    for (int j = lane; j < key_blocks; j += 32) to[j] = -INFINITY;
  }
  if ((p.dense_bits[row / 32] >> (row % 32) & 1u) == 0) return;
  if (lane == 0 && head == 0) p.dense_rows[batch * p.dense_batch + row * p.dense_row] = 1;
  write_dense_row(p, batch, head, row, lane);
}

}  // namespace tessera::sm90
