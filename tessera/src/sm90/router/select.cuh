// Exact selection: the k highest scores of each row, ties to the lower index, NaN below -infinity.
//
// A warp holds a row in registers as order-preserving 32-bit keys and builds the k-th largest key
// bit by bit; ballots then give the bitmap, the ascending list and the positions at once. No sort,
// no atomics.
#pragma once

#include <cstdint>

#include "tessera/src/ptx/launch.cuh"
#include "tessera/src/sm90/router/config.h"

namespace tessera::sm90 {

inline constexpr int kSelectWarps = 4;

__device__ __forceinline__ uint32_t rank_of(float score) {
  if (isnan(score)) return 0;
  const uint32_t bits = __float_as_uint(score + 0.0f);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

__device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
  for (int step = 16; step > 0; step >>= 1) x += __shfl_xor_sync(~0u, x, step);
  return x;
}

/// Rows longer than this keep their keys in shared memory instead of registers.
inline constexpr int kMaxRegisterKeys = 32;

template <int kPerLane, bool kInRegisters = (kPerLane <= kMaxRegisterKeys)>
struct KeyStore {
  uint32_t own[kPerLane];
  __device__ __forceinline__ uint32_t& operator[](int i) { return own[i]; }
  __device__ __forceinline__ uint32_t operator[](int i) const { return own[i]; }
};

template <int kPerLane>
struct KeyStore<kPerLane, false> {
  uint32_t* lane_keys;  // every 32nd word of the warp's row
  __device__ __forceinline__ uint32_t& operator[](int i) { return lane_keys[i * 32]; }
  __device__ __forceinline__ uint32_t operator[](int i) const { return lane_keys[i * 32]; }
};

/// Loops over a lane's keys are unrolled fully where the keys are registers.
template <int kPerLane>
inline constexpr int kKeyUnroll = kPerLane <= kMaxRegisterKeys ? kPerLane : 8;

template <int kPerLane>
inline constexpr size_t kSelectSharedBytes = kPerLane <= kMaxRegisterKeys
                                                 ? 0
                                                 : size_t{kSelectWarps} * kPerLane * 32 *
                                                       sizeof(uint32_t);

/// One row: lane holds the keys of columns i * 32 + lane. Weights (exp(score - top)) are computed
/// from the cached scores when asked for: only a mass budget needs them more than twice.
template <int kPerLane>
struct RowSelector {
  KeyStore<kPerLane> key;
  const float* scores;
  int key_blocks;
  float top;
  int lane;

  __device__ __forceinline__ float weight(int i) const {
    const int column = i * 32 + lane;
    if (column >= key_blocks) return 0.0f;
    const float score = scores[column];
    // A row whose best score is infinite has all its mass there.
    const float x = score == top ? 0.0f : score - top;
    return isnan(score) || isnan(x) ? 0.0f : __expf(x);
  }
  __device__ __forceinline__ int count_at_least(uint32_t threshold) const {
    int n = 0;
#pragma unroll kKeyUnroll < kPerLane>
    for (int i = 0; i < kPerLane; ++i) n += key[i] >= threshold;
    return __reduce_add_sync(~0u, n);
  }
  __device__ __forceinline__ float weight_at_least(uint32_t threshold) const {
    float w = 0;
#pragma unroll kKeyUnroll < kPerLane>
    for (int i = 0; i < kPerLane; ++i) w += key[i] >= threshold ? weight(i) : 0.0f;
    return warp_sum(w);
  }
  /// Bits in which the keys of the row differ at all: the search starts below their common prefix.
  __device__ __forceinline__ uint32_t common_prefix(int* first_bit) const {
    uint32_t all = ~0u, any = 0;
#pragma unroll kKeyUnroll < kPerLane>
    for (int i = 0; i < kPerLane; ++i) {
      if (i * 32 + lane >= key_blocks) continue;
      all &= key[i];
      any |= key[i];
    }
    all = __reduce_and_sync(~0u, all);
    any = __reduce_or_sync(~0u, any);
    *first_bit = 31 - __clz(all ^ any);
    if (all == any) return all;  // one value in the whole row: nothing to search, ties decide
    return *first_bit == 31 ? 0u : all & ~((2u << *first_bit) - 1u);
  }
  /// A threshold t with count(key > t) < keep <= count(key >= t), or with exactly `keep` keys >= t.
  __device__ __forceinline__ uint32_t threshold_for_count(int keep) const {
    int bit;
    uint32_t t = common_prefix(&bit);
    for (; bit >= 0; --bit) {
      const uint32_t candidate = t | 1u << bit;
      const int count = count_at_least(candidate);
      if (count >= keep) t = candidate;
      if (count == keep) break;
    }
    return t;
  }
  /// Largest threshold whose keys still weigh `want`.
  __device__ __forceinline__ uint32_t threshold_for_weight(float want) const {
    int bit;
    uint32_t t = common_prefix(&bit);
    for (; bit >= 0; --bit) {
      const uint32_t candidate = t | 1u << bit;
      if (weight_at_least(candidate) >= want) t = candidate;
    }
    return t;
  }
};

/// Blocks a mass budget keeps: those above the threshold, then equal ones until the mass is
/// reached.
template <int kPerLane>
__device__ __forceinline__ int blocks_for_mass(const RowSelector<kPerLane>& row, float want) {
  const uint32_t t = row.threshold_for_weight(want);
  float above = 0, equal_weight = 0;
  int count = 0, equal = 0;
#pragma unroll kKeyUnroll < kPerLane>
  for (int i = 0; i < kPerLane; ++i) {
    const float weight = row.weight(i);
    if (row.key[i] > t) above += weight, ++count;
    if (row.key[i] == t) equal_weight = fmaxf(equal_weight, weight), ++equal;
  }
  above = warp_sum(above);
  count = __reduce_add_sync(~0u, count);
  equal = __reduce_add_sync(~0u, equal);
#pragma unroll
  for (int step = 16; step > 0; step >>= 1) {
    equal_weight = fmaxf(equal_weight, __shfl_xor_sync(~0u, equal_weight, step));
  }
  // Equal scores have equal weights; protected blocks need not, but the caller's floor covers
  // those.
  const int more =
      equal_weight > 0 ? static_cast<int>(ceilf((want - above) / equal_weight)) : equal;
  return count + max(0, min(more, equal));
}

/// A dense row carries a flag instead of a list. Warp-wide.
__device__ __forceinline__ void write_dense_row(const SelectParams& p, int64_t batch, int64_t head,
                                                int64_t row, int lane) {
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

template <int kPerLane>
__global__ void __launch_bounds__(kSelectWarps * 32)
    router_select_kernel(const __grid_constant__ SelectParams p, int rows) {
  ptx::let_next_kernel_start();
  const int flat_row = static_cast<int>(blockIdx.x) * kSelectWarps + threadIdx.x / 32;
  if (flat_row >= rows) return;
  const int lane = threadIdx.x & 31;
  const int flat_head = flat_row / p.query_blocks;
  const int block = flat_row - flat_head * p.query_blocks;
  const int64_t batch = flat_head / p.heads, head = flat_head % p.heads;
  const int64_t plan_row = p.first_row + block;
  ptx::wait_for_previous_kernel();  // the scores
  const float* scores = p.scores + (int64_t{flat_head} * p.score_rows + block) * p.score_stride;

  RowSelector<kPerLane> row;
  if constexpr (kPerLane > kMaxRegisterKeys) {
    extern __shared__ uint32_t keys[];
    row.key.lane_keys = keys + threadIdx.x / 32 * kPerLane * 32 + lane;
  }
  row.lane = lane;
  row.scores = scores;
  row.key_blocks = p.key_blocks;
  row.top = -INFINITY;
  // Loads alone, so that all of them are in flight at once.
#pragma unroll kKeyUnroll < kPerLane>
  for (int i = 0; i < kPerLane; ++i) {
    const int column = i * 32 + lane;
    row.key[i] = __float_as_uint(column < p.key_blocks ? __ldg(scores + column) : 0.0f);
  }
  if (p.scores_out != nullptr) {
    float* to = p.scores_out + batch * p.scores_batch + head * p.scores_head +
                plan_row * p.scores_row + lane;
#pragma unroll kKeyUnroll < kPerLane>
    for (int i = 0; i < kPerLane; ++i) {
      if (i * 32 + lane < p.key_blocks) to[i * 32] = __uint_as_float(row.key[i]);
    }
  }
#pragma unroll kKeyUnroll < kPerLane>
  for (int i = 0; i < kPerLane; ++i) {
    const bool real = i * 32 + lane < p.key_blocks;
    const float score = __uint_as_float(row.key[i]);
    if (real) row.top = fmaxf(row.top, score);
    // A real NaN ranks 0, like a column that does not exist; the ballots below take real ones only.
    row.key[i] = real ? rank_of(score) : 0u;
  }
  if (p.protected_count > 0) {
#pragma unroll kKeyUnroll < kPerLane>
    for (int i = 0; i < kPerLane; ++i) {
      if (p.protected_bits[i] >> lane & 1u) row.key[i] = ~0u;
    }
  }
  const bool dense = p.dense_bits[plan_row / 32] >> (plan_row % 32) & 1u;
  if (lane == 0 && head == 0) p.dense_rows[batch * p.dense_batch + plan_row * p.dense_row] = dense;
  if (dense) {
    write_dense_row(p, batch, head, plan_row, lane);
    return;
  }
#pragma unroll
  for (int step = 16; step > 0; step >>= 1) {
    row.top = fmaxf(row.top, __shfl_xor_sync(~0u, row.top, step));
  }
  float total = 0;
  if (p.mass > 0 || p.mass_out != nullptr) {
#pragma unroll kKeyUnroll < kPerLane>
    for (int i = 0; i < kPerLane; ++i) total += row.weight(i);
    total = warp_sum(total);
  }

  int keep = min(p.keep, p.key_blocks);
  if (p.mass > 0) {
    const int floor = max(p.min_keep, p.protected_count);
    keep = min(keep, max(floor, blocks_for_mass(row, p.mass * total)));
  }

  const uint32_t t = row.threshold_for_count(keep);
  int above = 0;
#pragma unroll kKeyUnroll < kPerLane>
  for (int i = 0; i < kPerLane; ++i) above += row.key[i] > t;
  int equal_left = keep - __reduce_add_sync(~0u, above);
  float kept_weight = 0;
  int written = 0;
  int32_t* index = p.index == nullptr ? nullptr
                                      : p.index + batch * p.index_batch + head * p.index_head +
                                            plan_row * p.index_row;
  uint32_t* bitmap = p.bitmap == nullptr ? nullptr
                                         : p.bitmap + batch * p.bitmap_batch +
                                               head * p.bitmap_head + plan_row * p.bitmap_row;
#pragma unroll kKeyUnroll < kPerLane>
  for (int i = 0; i < kPerLane; ++i) {
    const uint32_t equal = __ballot_sync(~0u, row.key[i] == t && i * 32 + lane < p.key_blocks);
    const int equal_before = __popc(equal & ((1u << lane) - 1u));
    const bool kept = row.key[i] > t || ((equal >> lane & 1u) && equal_before < equal_left);
    equal_left -= min(equal_left, __popc(equal));
    const uint32_t word = __ballot_sync(~0u, kept);
    if (p.mass_out != nullptr && kept) kept_weight += row.weight(i);
    if (index != nullptr && kept)
      index[written + __popc(word & ((1u << lane) - 1u))] = i * 32 + lane;
    if (bitmap != nullptr && lane == 0 && i < p.bitmap_words) bitmap[i] = word;
    written += __popc(word);
  }
  if (index != nullptr) {
    for (int slot = written + lane; slot < p.width; slot += 32) index[slot] = -1;
  }
  if (bitmap != nullptr) {
    for (int w = kPerLane + lane; w < p.bitmap_words; w += 32) bitmap[w] = 0;
  }
  kept_weight = warp_sum(kept_weight);
  if (lane == 0) {
    if (p.count != nullptr) {
      p.count[batch * p.count_batch + head * p.count_head + plan_row * p.count_row] = written;
    }
    if (p.mass_out != nullptr) {
      p.mass_out[batch * p.mass_batch + head * p.mass_head + plan_row * p.mass_row] =
          total > 0 ? fminf(1.0f, kept_weight / total) : 0.0f;
    }
  }
}

}  // namespace tessera::sm90
