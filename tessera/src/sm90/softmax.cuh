// Online softmax of one 64 x 64 score tile in the registers of a warpgroup.
//
// A thread holds rows r = lane / 4 and r + 8 of its warp's 16, and in each group of eight columns
// the columns 2 * (lane % 4) and the next: s[4i], s[4i+1] belong to row r, s[4i+2], s[4i+3] to row
// r + 8.
#pragma once

#include <cstdint>

#include "tessera/src/ptx/math.cuh"
#include "tessera/src/sm90/attention_params.h"

namespace tessera::sm90 {

// Bounded rows. By Cauchy-Schwarz no score of a row exceeds |q| * max |k| * scale. Where that bound
// is small, it takes the place of the running maximum: no maxima, no shuffles, no rescaling.
// Weights become 2^(score - bound + kShift). Upwards they end at 2^8.
// Downwards, no score lies further than twice the bound below it, so the largest weight of a row is
// at least 2^(8 - 2 * 40) = 2^-72: weights 2^24 smaller, times values of v down to 1e-8, are still
// normal fp32 numbers. Needs the exponent range of bf16 for the weights.
inline constexpr float kShift = 8.0f;
inline constexpr float kLargestBound = 40.0f;  // log2 units; QK-normed heads with a gain up to 1.5

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
  // The exact maximum: the largest weight is then exactly 1, and a row that one key dominates loses
  // nothing to the rounding of its weight to 16 bits (a tolerance of 2^8 was 2 % faster).
  const float new0 = fmaxf(row.max0, top0 * scale), new1 = fmaxf(row.max1, top1 * scale);
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

/// Where this lane's part of a fragment lies in a swizzled half tile (64 rows, 64 channels).
/// `step`: which 16 channels, 0 to 3.
__device__ __forceinline__ uint32_t fragment_address(uint32_t half_tile, int step, int thread) {
  const int lane = thread & 31, row = (thread >> 5) * 16 + (lane & 15);
  return half_tile + row * 128 + (((step * 2 + (lane >> 4)) ^ (row & 7)) << 4);
}

/// Adds the squares of a fragment (64 x 16 of q) to those of the thread's two rows.
template <class Wgmma>
__device__ __forceinline__ void add_squares(float2& sum, const uint32_t (&fragment)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {  // parts 0 and 2: row lane / 4; 1 and 3: eight rows further
    const float2 pair = Wgmma::unpack(fragment[i]);
    float& to = i % 2 == 0 ? sum.x : sum.y;
    to = fmaf(pair.x, pair.x, fmaf(pair.y, pair.y, to));
  }
}

/// The same for a half tile in shared memory.
template <class Wgmma>
__device__ __forceinline__ void add_squares(float2& sum, uint32_t half_tile, int thread) {
#pragma unroll
  for (int step = 0; step < 4; ++step) {
    uint32_t fragment[4];
    ptx::load_matrix_x4(fragment, fragment_address(half_tile, step, thread));
    add_squares<Wgmma>(sum, fragment);
  }
}

/// True in all 128 threads of the warpgroup if it is true in each. `barrier` is a named barrier of
/// its own.
__device__ __forceinline__ bool all_of_warpgroup(bool mine, int barrier) {
  uint32_t all;
  asm volatile(
      "{\n.reg .pred mine, all;\n"
      "setp.ne.u32 mine, %1, 0;\n"
      "barrier.cta.red.and.pred all, %2, 128, mine;\n"
      "selp.u32 %0, 1, 0, all;\n}"
      : "=r"(all)
      : "r"(static_cast<uint32_t>(mine)), "r"(barrier)
      : "memory");
  return __shfl_sync(~0u, all, 0) != 0;
}

/// Decides for a query block and sets the bounds. `q_norm`: squares of the thread's rows, its own
/// share; `key_norm`: largest |k|^2. NaN and infinity in q or k fail the comparison and take the
/// general path.
template <class Wgmma>
__device__ __forceinline__ bool start_bounded(RowState& row, float2 q_norm, int thread, int barrier,
                                              int rows, float key_norm, float scale) {
  if constexpr (!Wgmma::kWideRange) return false;
#pragma unroll
  for (int step = 1; step <= 2; step <<= 1) {
    q_norm.x += __shfl_xor_sync(~0u, q_norm.x, step);
    q_norm.y += __shfl_xor_sync(~0u, q_norm.y, step);
  }
  // One part in a thousand covers the rounding of the norms and of the scores.
  const float bound0 = sqrtf(q_norm.x * key_norm) * scale * 1.001f;
  const float bound1 = sqrtf(q_norm.y * key_norm) * scale * 1.001f;
  // Rows behind the document belong to another one, or hold anything: they must not decide.
  const int first_row = (thread >> 5) * 16 + ((thread & 31) >> 2);
  const bool small = (first_row >= rows || bound0 <= kLargestBound) &&
                     (first_row + 8 >= rows || bound1 <= kLargestBound);
  if (!all_of_warpgroup(small, barrier)) return false;
  row.max0 = bound0 - kShift;
  row.max1 = bound1 - kShift;
  return true;
}

/// As softmax_step, with the fixed bound in row.max0 and row.max1.
__device__ __forceinline__ void softmax_step_bounded(float (&s)[32], float scale, RowState& row) {
  float sum0 = 0, sum1 = 0;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    s[4 * i] = ptx::exp2_approx(fmaf(s[4 * i], scale, -row.max0));
    s[4 * i + 1] = ptx::exp2_approx(fmaf(s[4 * i + 1], scale, -row.max0));
    s[4 * i + 2] = ptx::exp2_approx(fmaf(s[4 * i + 2], scale, -row.max1));
    s[4 * i + 3] = ptx::exp2_approx(fmaf(s[4 * i + 3], scale, -row.max1));
    sum0 += s[4 * i] + s[4 * i + 1];
    sum1 += s[4 * i + 2] + s[4 * i + 3];
  }
  row.sum0 += sum0;
  row.sum1 += sum1;
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
