// What the score kernel needs around its inner loop: where terms lie in a thread's registers, terms
// of edge tiles, and the slow way to score a tile whose powers leave the range of fp32.
#pragma once

#include <cstdint>

#include "tessera/src/ptx/math.cuh"
#include "tessera/src/ptx/mma.cuh"
#include "tessera/src/sm90/router/config.h"

namespace tessera::sm90 {

inline constexpr float kExcluded = -1e30f;  // finite: a group of only such terms must not be NaN
inline constexpr float kLn2 = 0.6931471805599453f;

/// 128 pooled queries times 128 pooled keys.
struct ScoreTile {
  int flat_head, q_tile, k_tile;

  __device__ __forceinline__ int kv_head(const ScoreParams& p) const {
    return flat_head / p.heads * (p.heads / p.kv_ratio) + flat_head % p.heads / p.kv_ratio;
  }
  /// Moves on to the next tile; true if it has other queries.
  __device__ __forceinline__ bool advance(const ScoreParams& p) {
    if (++k_tile < p.k_tiles) return false;
    k_tile = 0;
    if (++q_tile == p.q_tiles) {
      q_tile = 0;
      ++flat_head;
    }
    return true;
  }
  /// Whether some query cell of a real block owns no token, or is partial; `k_edge` the same for
  /// keys. Rows and columns of padding may hold anything.
  __device__ __forceinline__ bool q_edge(const ScoreParams& p) const {
    return p.q_uneven && q_tile + 1 == p.q_tiles;
  }
  __device__ __forceinline__ bool k_edge(const ScoreParams& p) const {
    return p.k_uneven && k_tile + 1 == p.k_tiles;
  }
  __device__ __forceinline__ bool has_padding(const ScoreParams& p) const {
    return q_tile + 1 == p.q_tiles || k_tile + 1 == p.k_tiles;
  }
};

/// How the terms of a warpgroup's 64 x 128 share of a tile lie in registers: a thread holds two
/// rows (see permuted_query_row) and the columns 2c, 2c + 1 of every group of eight, c = lane % 4.
template <int kNq, int kNk>
struct ScoreLayout {
  static constexpr int kBlocks = kNq == 1 ? 2 : 1;       // query blocks of a thread
  static constexpr int kKeys = 32 / kNk;                 // key blocks of a thread
  static constexpr int kLanes = kNq <= 2 ? 1 : kNq / 2;  // threads that share a query block

  /// Query block inside the tile. `eight`: which of the thread's rows (only n_q = 1 tells them
  /// apart).
  static __device__ __forceinline__ int query(int group, int warp, int eight, int lane) {
    const int r = lane >> 2;
    if constexpr (kNq == 1) return group * 64 + warp * 16 + eight * 8 + r;
    return group * (64 / kNq) + warp * (16 / kNq) + r / kLanes;
  }
  /// Key block inside the tile of a thread's key number `key`.
  static __device__ __forceinline__ int key(int key, int lane) {
    return key_offset(key) + (kNk == 1 ? (lane & 3) * 2 : lane & 3);
  }
  /// How far key number `key` of a thread lies behind its first.
  static __device__ __forceinline__ constexpr int key_offset(int key) {
    return kNk == 1 ? key / 2 * 8 + key % 2 : key * 4;
  }
  static __device__ __forceinline__ float* row(const ScoreParams& p, const ScoreTile& at,
                                               int query) {
    const int64_t rows = int64_t{p.q_tiles} * (kRouterTile / kNq);
    const int64_t stride = int64_t{p.k_tiles} * (kRouterTile / kNk);
    return p.scores + (at.flat_head * rows + at.q_tile * (kRouterTile / kNq) + query) * stride +
           at.k_tile * (kRouterTile / kNk);
  }
  // What is added to the terms of a cell on either side: its weight (0 when unweighted), or so much
  // that the term vanishes if the cell owns no token. `column` counts the thread's 32.
  static __device__ __forceinline__ float query_bias(const ScoreParams& p, const ScoreTile& at,
                                                     int group, int warp, int eight, int lane) {
    int part = 0;
    if constexpr (kNq >= 2) part = (lane >> 2) % kLanes * 2 + eight;
    const int cell =
        (at.q_tile * (kRouterTile / kNq) + query(group, warp, eight, lane)) * kNq + part;
    return cell >= p.q_valid ? kExcluded : cell == p.q_valid - 1 ? p.q_tail_log2 : 0.0f;
  }
  static __device__ __forceinline__ float key_bias(const ScoreParams& p, const ScoreTile& at,
                                                   int column, int lane) {
    const int part = kNk > 1 ? column % kNk : 0;
    const int cell = (at.k_tile * (kRouterTile / kNk) + key(column / kNk, lane)) * kNk + part;
    return cell >= p.k_valid ? kExcluded : cell == p.k_valid - 1 ? p.k_tail_log2 : 0.0f;
  }
};

/// A term of an excluded cell is replaced, not moved: the product may be NaN where q or k is
/// infinite.
__device__ __forceinline__ void apply_bias(float& term, float bias) {
  term = bias == kExcluded ? kExcluded : term + bias;
}

/// Maximum of kTerms values and the sum of 2^(value - maximum).
template <int kTerms, class Term>
__device__ __forceinline__ float2 max_and_sum(Term term) {
  float top = term(0), sum = 0;
#pragma unroll
  for (int i = 1; i < kTerms; ++i) top = fmaxf(top, term(i));
#pragma unroll
  for (int i = 0; i < kTerms; ++i) sum += ptx::exp2_approx(term(i) - top);
  return {top, sum};
}

/// Scores a warpgroup's share of a tile with the maximum of every group taken out first. `q_tile`:
/// the tile's swizzled queries in shared memory; the keys are read again from global memory.
/// Warp-wide.
template <int kNq, int kNk>
__device__ __forceinline__ void score_exactly(uint32_t q_tile, const ScoreParams& p,
                                              const ScoreTile& at, int group, int warp, int lane) {
  using Layout = ScoreLayout<kNq, kNk>;
  constexpr int kEights = kNk < 2 ? 1 : kNk / 2;  // groups of eight columns that share a key
  constexpr int kKeys = kNk == 1 ? 2 : 1;         // keys of a thread among them
  constexpr int kRows = kNq == 1 ? 1 : 2;         // of a thread's two rows, per query block
  const uint32_t* tile = reinterpret_cast<const uint32_t*>(p.k_cells) +
                         (int64_t{at.kv_head(p)} * p.k_tiles + at.k_tile) * kRouterTile * 64 +
                         (lane & 3);
  const int q_row = group * 64 + warp * 16 + (lane & 15);
#pragma unroll 1
  for (int eights = 0; eights < 16 / kEights; ++eights) {
    float acc[kEights][4] = {};
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      const int chunk = k % 4 * 2 + (lane >> 4);  // of 8 channels, in the 64 of a half tile
      uint32_t q[4];
      ptx::load_matrix_x4(
          q, q_tile + k / 4 * kRouterTile * 128 + q_row * 128 + ((chunk ^ (q_row & 7)) << 4));
#pragma unroll
      for (int eight = 0; eight < kEights; ++eight) {
        const uint32_t* key = tile + ((eights * kEights + eight) * 8 + (lane >> 2)) * 64 + k * 8;
        ptx::multiply_bf16(acc[eight], q, key[0], key[4]);
      }
    }
    const float q_bias[2] = {Layout::query_bias(p, at, group, warp, 0, lane),
                             Layout::query_bias(p, at, group, warp, 1, lane)};
#pragma unroll
    for (int eight = 0; eight < kEights; ++eight) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        apply_bias(acc[eight][i], q_bias[i / 2]);
        apply_bias(acc[eight][i],
                   Layout::key_bias(p, at, (eights * kEights + eight) * 2 + i % 2, lane));
      }
    }
#pragma unroll
    for (int b = 0; b < Layout::kBlocks; ++b) {
#pragma unroll
      for (int e = 0; e < kKeys; ++e) {
        const auto term = [&](int i) -> float {
          const int column = kNk == 1 ? e : i % kNk;  // of the group's
          return acc[column / 2][(b + i / kNk) * 2 + column % 2];
        };
        float2 part = max_and_sum<kRows * kNk>(term);
#pragma unroll
        for (int step = 1; step < Layout::kLanes; step <<= 1) {
          const float other_top = __shfl_xor_sync(~0u, part.x, step * 4);
          const float other_sum = __shfl_xor_sync(~0u, part.y, step * 4);
          const float top = fmaxf(part.x, other_top);
          part.y = part.y * ptx::exp2_approx(part.x - top) +
                   other_sum * ptx::exp2_approx(other_top - top);
          part.x = top;
        }
        Layout::row(p, at,
                    Layout::query(group, warp, b, lane))[Layout::key(eights * kKeys + e, lane)] =
            (part.x + ptx::log2_approx(part.y)) * kLn2;
      }
    }
  }
}

}  // namespace tessera::sm90
