// The slow way to score a tile, for powers that leave the range of fp32.
#pragma once

#include <cstdint>

#include "tessera/src/ptx/math.cuh"
#include "tessera/src/ptx/mma.cuh"
#include "tessera/src/sm90/router/config.h"
#include "tessera/src/sm90/router/score_layout.h"

namespace tessera::sm90 {

inline constexpr float kLn2 = 0.6931471805599453f;

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
