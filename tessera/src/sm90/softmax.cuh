// Online softmax of one 64 x 64 score tile in the registers of a warpgroup.
//
// A thread holds rows r = lane / 4 and r + 8 of its warp's 16, and in each group of eight columns
// the columns 2 * (lane % 4) and the next: s[4i], s[4i+1] belong to row r, s[4i+2], s[4i+3] to row
// r + 8.
#pragma once

#include <cstdint>

#include "tessera/src/ptx/math.cuh"

namespace tessera::sm90 {

/// Row values may grow by 2^8 before the accumulators are rescaled: rescaling is rare, fp32 sums
/// and fp16 probabilities stay in range.
inline constexpr float kRescaleThreshold = 8.0f;

struct RowState {
  float max0 = -INFINITY, max1 = -INFINITY;  // log2 units, already scaled
  float sum0 = 0, sum1 = 0;                  // this thread's share
};

/// Replaces columns >= `keys` of the tile by -infinity.
__device__ __forceinline__ void mask_columns(float (&s)[32], int keys, int lane) {
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const int column = i * 8 + (lane & 3) * 2;
    if (column >= keys) s[4 * i] = s[4 * i + 2] = -INFINITY;
    if (column + 1 >= keys) s[4 * i + 1] = s[4 * i + 3] = -INFINITY;
  }
}

/// s becomes the probabilities; returns the factors by which earlier output must be multiplied.
__device__ __forceinline__ void softmax_step(float (&s)[32], float scale, RowState& row,
                                             float& rescale0, float& rescale1) {
  float top0 = s[0], top1 = s[2];
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    top0 = fmaxf(top0, fmaxf(s[4 * i], s[4 * i + 1]));
    top1 = fmaxf(top1, fmaxf(s[4 * i + 2], s[4 * i + 3]));
  }
  top0 = fmaxf(top0, __shfl_xor_sync(~0u, top0, 1));
  top0 = fmaxf(top0, __shfl_xor_sync(~0u, top0, 2));
  top1 = fmaxf(top1, __shfl_xor_sync(~0u, top1, 1));
  top1 = fmaxf(top1, __shfl_xor_sync(~0u, top1, 2));
  const float new0 = top0 * scale > row.max0 + kRescaleThreshold ? top0 * scale : row.max0;
  const float new1 = top1 * scale > row.max1 + kRescaleThreshold ? top1 * scale : row.max1;
  rescale0 = ptx::exp2_approx(row.max0 - new0);
  rescale1 = ptx::exp2_approx(row.max1 - new1);
  row.max0 = new0;
  row.max1 = new1;
  float sum0 = 0, sum1 = 0;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    s[4 * i] = ptx::exp2_approx(fmaf(s[4 * i], scale, -new0));
    s[4 * i + 1] = ptx::exp2_approx(fmaf(s[4 * i + 1], scale, -new0));
    s[4 * i + 2] = ptx::exp2_approx(fmaf(s[4 * i + 2], scale, -new1));
    s[4 * i + 3] = ptx::exp2_approx(fmaf(s[4 * i + 3], scale, -new1));
    sum0 += s[4 * i] + s[4 * i + 1];
    sum1 += s[4 * i + 2] + s[4 * i + 3];
  }
  row.sum0 = row.sum0 * rescale0 + sum0;
  row.sum1 = row.sum1 * rescale1 + sum1;
}

/// Whether any row of the warp has a new maximum. Also true for a negative sum, which cannot
/// happen: it makes the answer depend on all exponentials (see the caller).
__device__ __forceinline__ bool must_rescale(const RowState& row, float factor0, float factor1) {
  const bool changed = factor0 != 1.0f || factor1 != 1.0f;
  return __any_sync(~0u, changed);
}

__device__ __forceinline__ void scale_output(float (&o)[64], float factor0, float factor1) {
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    o[4 * i] *= factor0;
    o[4 * i + 1] *= factor0;
    o[4 * i + 2] *= factor1;
    o[4 * i + 3] *= factor1;
  }
}

__device__ __forceinline__ void rescale_output(float (&o)[64], const RowState& row, float factor0,
                                               float factor1) {
  if (must_rescale(row, factor0, factor1)) scale_output(o, factor0, factor1);
}

template <class Wgmma>
__device__ __forceinline__ void pack_probabilities(const float (&s)[32], uint32_t (&packed)[16]) {
#pragma unroll
  for (int i = 0; i < 16; ++i) packed[i] = Wgmma::pack(s[2 * i], s[2 * i + 1]);
}

}  // namespace tessera::sm90
