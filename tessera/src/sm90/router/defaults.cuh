// Marks dense rows (no list, full mass) and clears the caller's score matrix where nothing is
// scored.
#pragma once

#include <cstdint>

#include "tessera/src/sm90/router/config.h"
#include "tessera/src/sm90/router/select.cuh"

namespace tessera::sm90 {

struct DefaultsParams {
  uint8_t* dense_rows = nullptr;  // [B, rows]
  int64_t dense_batch = 0, dense_row = 0;
  int32_t plan_rows = 0;   // of the whole call
  int32_t key_blocks = 0;  // of the largest document
};

/// One warp per plan row.
__global__ void __launch_bounds__(kSelectWarps * 32)
    router_defaults_kernel(const __grid_constant__ SelectParams p,
                           const __grid_constant__ DefaultsParams d, int64_t rows) {
  const int64_t flat_row = int64_t{blockIdx.x} * kSelectWarps + threadIdx.x / 32;
  if (flat_row >= rows) return;
  const int lane = threadIdx.x & 31;
  const int64_t row = flat_row % d.plan_rows;
  const int64_t head = flat_row / d.plan_rows % p.heads, batch = flat_row / d.plan_rows / p.heads;
  if (p.scores_out != nullptr) {
    float* to = p.scores_out + batch * p.scores_batch + head * p.scores_head + row * p.scores_row;
    for (int j = lane; j < d.key_blocks; j += 32) to[j] = -INFINITY;
  }
  const bool dense = p.dense_bits[row / 32] >> (row % 32) & 1u;
  if (lane == 0 && head == 0) {
    d.dense_rows[batch * d.dense_batch + row * d.dense_row] = dense;
  }
  if (!dense) return;
  int32_t* index = p.index + batch * p.index_batch + head * p.index_head + row * p.index_row;
  for (int slot = lane; slot < p.width; slot += 32) index[slot] = -1;
  if (p.bitmap != nullptr) {
    uint32_t* words = p.bitmap + batch * p.bitmap_batch + head * p.bitmap_head + row * p.bitmap_row;
    for (int w = lane; w < p.bitmap_words; w += 32) words[w] = 0;
  }
  if (lane != 0) return;
  p.count[batch * p.count_batch + head * p.count_head + row * p.count_row] = 0;
  if (p.mass_out != nullptr) {
    p.mass_out[batch * p.mass_batch + head * p.mass_head + row * p.mass_row] = 1.0f;
  }
}

}  // namespace tessera::sm90
