// Block scores: pooled q times pooled k with wgmma, then the log-sum-exp over the n_q x n_k terms
// of each block pair, all of which lie in registers of one thread (the pooling wrote them in that
// order).
#pragma once

#include <cuda.h>

#include "tessera/src/ptx/launch.cuh"
#include "tessera/src/ptx/math.cuh"
#include "tessera/src/ptx/mbarrier.cuh"
#include "tessera/src/ptx/tma.cuh"
#include "tessera/src/ptx/wgmma.cuh"
#include "tessera/src/sm90/router/config.h"

namespace tessera::sm90 {

inline constexpr int kScoreThreads = 128;
inline constexpr int kScoreCtas = 3;                                // on an SM
inline constexpr uint32_t kQueryTileBytes = kRouterTile * 128 * 2;  // 32 KiB
inline constexpr uint32_t kKeyTileBytes = kKeyTile * 128 * 2;       // 16 KiB
inline constexpr int kScoreStages = 2;
inline constexpr size_t kScoreSharedBytes =
    1024 + kQueryTileBytes + kScoreStages * kKeyTileBytes + 64;
inline constexpr float kExcluded =
    -1e30f;  // finite: a group of only such terms must not become NaN

struct ScoreMaps {
  CUtensorMap q, k;  // rank 4: channel, row, head, 1; boxes of 64 channels x one tile of rows
};

/// A tile as two swizzled halves of 64 channels.
template <int kRows>
__device__ __forceinline__ void load_router_tile(uint32_t to, const CUtensorMap* map, int tile,
                                                 int head, uint32_t barrier) {
  ptx::barrier_arrive_expect(barrier, kRows * 256);
  ptx::tma_load_4d(to, map, 0, tile * kRows, head, 0, barrier);
  ptx::tma_load_4d(to + kRows * 128, map, 64, tile * kRows, head, 0, barrier);
}

/// Terms of cells without a token are excluded; partial cells get their weight (0 when unweighted).
template <int kNq, int kNk>
__device__ __forceinline__ void adjust_terms(float (&acc)[2][kKeyTile / 2], const ScoreParams& p,
                                             int q_tile, int k_tile, int warp, int lane) {
  // Which cell a row or column is follows from the permutation; edge tiles only.
  const int r = lane >> 2, c = lane & 3;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
#pragma unroll
    for (int eight = 0; eight < 2; ++eight) {
      int local, cell;
      if constexpr (kNq == 1) {
        local = half * 64 + warp * 16 + eight * 8 + r, cell = 0;
      } else if constexpr (kNq == 2) {
        local = half * 32 + warp * 8 + r, cell = eight;
      } else if constexpr (kNq == 4) {
        local = warp * 8 + r, cell = half * 2 + eight;
      } else {
        local = warp * 4 + r / 2, cell = r % 2 * 4 + half * 2 + eight;
      }
      const int q_cell = (q_tile * (kRouterTile / kNq) + local) * kNq + cell;
      const bool q_out = q_cell >= p.q_valid;
      const float q_bias = q_cell == p.q_valid - 1 ? p.q_tail_log2 : 0.0f;
#pragma unroll
      for (int j = 0; j < kKeyTile / 8; ++j) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          int k_local, k_part;
          if constexpr (kNk == 1) {
            k_local = j * 8 + c * 2 + e, k_part = 0;
          } else {
            k_local = j / (kNk / 2) * 4 + c, k_part = j % (kNk / 2) * 2 + e;
          }
          const int k_cell = (k_tile * (kKeyTile / kNk) + k_local) * kNk + k_part;
          float& term = acc[half][j * 4 + eight * 2 + e];
          term += q_bias + (k_cell == p.k_valid - 1 ? p.k_tail_log2 : 0.0f);
          if (q_out || k_cell >= p.k_valid) term = kExcluded;
        }
      }
    }
  }
}

/// Maximum of kTerms values and the sum of 2^(value - maximum), in short dependency chains.
template <int kTerms, class Term>
__device__ __forceinline__ float2 max_and_sum(Term term) {
  constexpr int kChains = kTerms < 4 ? kTerms : 4;
  float top[kChains], sum[kChains];
#pragma unroll
  for (int i = 0; i < kTerms; ++i) {
    top[i % kChains] = i < kChains ? term(i) : fmaxf(top[i % kChains], term(i));
  }
#pragma unroll
  for (int i = 1; i < kChains; ++i) top[0] = fmaxf(top[0], top[i]);
#pragma unroll
  for (int i = 0; i < kTerms; ++i) {
    const float power = ptx::exp2_approx(term(i) - top[0]);
    sum[i % kChains] = i < kChains ? power : sum[i % kChains] + power;
  }
#pragma unroll
  for (int i = 1; i < kChains; ++i) sum[0] += sum[i];
  return {top[0], sum[0]};
}

template <int kNq, int kNk>
__device__ __forceinline__ void reduce_and_store(float (&acc)[2][kKeyTile / 2],
                                                 const ScoreParams& p, int flat_head, int q_tile,
                                                 int k_tile, int warp, int lane) {
  constexpr int kRows = kNq >= 4 ? 4 : kNq;             // of a thread's four rows, per query block
  constexpr int kBlocks = 4 / kRows;                    // query blocks of a thread
  constexpr int kColumnsPerKey = kNk;                   // of a thread's columns
  constexpr int kKeys = kKeyTile / 4 / kColumnsPerKey;  // key blocks of a thread
  constexpr float kLn2 = 0.6931471805599453f;
  const int r = lane >> 2, c = lane & 3;
#pragma unroll
  for (int b = 0; b < kBlocks; ++b) {
    int local;
    if constexpr (kNq == 1) {
      local = b / 2 * 64 + warp * 16 + b % 2 * 8 + r;
    } else if constexpr (kNq == 2) {
      local = b * 32 + warp * 8 + r;
    } else if constexpr (kNq == 4) {
      local = warp * 8 + r;
    } else {
      local = warp * 4 + r / 2;
    }
    const int query_block = q_tile * (kRouterTile / kNq) + local;
    float* row = p.scores + (int64_t{flat_head} * p.query_blocks + query_block) * p.score_stride;
#pragma unroll
    for (int key = 0; key < kKeys; ++key) {
      const auto term = [&](int i) -> float {
        const int q_part = b * kRows + i / kColumnsPerKey;             // 0..3: half * 2 + eight
        const int column = key * kColumnsPerKey + i % kColumnsPerKey;  // of the thread's columns
        return acc[q_part / 2][column / 2 * 4 + q_part % 2 * 2 + column % 2];
      };
      float2 part = max_and_sum<kRows * kColumnsPerKey>(term);
      if constexpr (kNq == 8) {  // the other four cells are in the lane four further
        const float other_top = __shfl_xor_sync(~0u, part.x, 4);
        const float other_sum = __shfl_xor_sync(~0u, part.y, 4);
        const float top = fmaxf(part.x, other_top);
        part.y =
            part.y * ptx::exp2_approx(part.x - top) + other_sum * ptx::exp2_approx(other_top - top);
        part.x = top;
      }
      int k_local;
      if constexpr (kNk == 1) {
        k_local = key / 2 * 8 + c * 2 + key % 2;
      } else {
        k_local = key * 4 + c;
      }
      const int key_block = k_tile * (kKeyTile / kNk) + k_local;
      if (query_block < p.query_blocks && key_block < p.key_blocks && (kNq < 8 || (r & 1) == 0)) {
        row[key_block] = (part.x + ptx::log2_approx(part.y)) * kLn2;
      }
    }
  }
}

/// Persistent: each CTA takes an equal run of tiles in the order (head, query tile, key tile),
/// keeping the q tile while it lasts and loading the next k tile during the arithmetic.
template <int kNq, int kNk>
__global__ void __launch_bounds__(kScoreThreads, kScoreCtas)
    router_score_kernel(const __grid_constant__ ScoreMaps maps,
                        const __grid_constant__ ScoreParams p) {
  using Wgmma = ptx::WgmmaOf<__nv_bfloat16>;
  extern __shared__ uint8_t shared[];
  const uint32_t base = (ptx::shared_address(shared) + 1023) & ~1023u;
  const uint32_t q_tile_at = base, k_tiles_at = base + kQueryTileBytes;
  const uint32_t q_barrier = k_tiles_at + kScoreStages * kKeyTileBytes;
  const uint32_t k_barriers = q_barrier + 8;
  const int thread = threadIdx.x, lane = thread & 31;
  const int warp = __shfl_sync(~0u, thread / 32, 0);
  const int first = static_cast<int>(int64_t{p.tiles} * blockIdx.x / gridDim.x);
  const int last = static_cast<int>(int64_t{p.tiles} * (blockIdx.x + 1) / gridDim.x);

  // Counters instead of divisions: the loop is short enough for those to show.
  int k_tile = first % p.k_tiles, q_tile = first / p.k_tiles % p.q_tiles;
  int flat_head = first / p.k_tiles / p.q_tiles;
  const auto kv_head_of = [&](int head) {
    return head / p.heads * (p.heads / p.kv_ratio) + head % p.heads / p.kv_ratio;
  };
  const auto load_keys = [&](int tile, int kv_head, int stage) {
    load_router_tile<kKeyTile>(k_tiles_at + stage * kKeyTileBytes, &maps.k, tile, kv_head,
                               k_barriers + 8 * stage);
  };
  if (thread == 0) {
    for (int i = 0; i < 1 + kScoreStages; ++i) ptx::barrier_init(q_barrier + 8 * i, 1);
    ptx::barrier_init_fence();
  }
  ptx::wait_for_previous_kernel();  // the pooled cells
  int kv_head = kv_head_of(flat_head);
  if (thread == 0) load_keys(k_tile, kv_head, 0);
  __syncthreads();

  uint32_t q_parity = 0;
  bool new_row = true;  // another (head, query tile): its q tile is not in shared memory yet
  for (int tile = first; tile < last; ++tile) {
    const int step = tile - first, stage = step % kScoreStages;
    if (new_row) {
      if (thread == 0)
        load_router_tile<kRouterTile>(q_tile_at, &maps.q, q_tile, flat_head, q_barrier);
      ptx::barrier_wait(q_barrier, q_parity);
      q_parity ^= 1;
    }
    int next_k_tile = k_tile + 1, next_q_tile = q_tile, next_head = flat_head;
    new_row = next_k_tile == p.k_tiles;
    if (new_row) {
      next_k_tile = 0;
      if (++next_q_tile == p.q_tiles) {
        next_q_tile = 0;
        ++next_head;
        kv_head = kv_head_of(next_head);
      }
    }
    if (thread == 0 && tile + 1 < last) load_keys(next_k_tile, kv_head, (step + 1) % kScoreStages);
    ptx::barrier_wait(k_barriers + 8 * stage, (step / kScoreStages) & 1);
    float acc[2][kKeyTile / 2];
    ptx::pin_registers(acc[0]);
    ptx::pin_registers(acc[1]);
    ptx::wgmma_fence();
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int k = 0; k < 8; ++k) {
        const uint32_t step_bytes = (k & 3) * 32;
        Wgmma::multiply_kt_ss(
            acc[half],
            ptx::operand_descriptor(
                q_tile_at + (k >> 2) * kRouterTile * 128 + half * 64 * 128 + step_bytes, 16, 1024),
            ptx::operand_descriptor(
                k_tiles_at + stage * kKeyTileBytes + (k >> 2) * kKeyTile * 128 + step_bytes, 16,
                1024),
            k > 0);
      }
    }
    ptx::wgmma_commit();
    ptx::wgmma_wait<0>();
    ptx::pin_registers(acc[0]);
    ptx::pin_registers(acc[1]);
    __syncthreads();  // both tiles may be refilled in the next step
    if ((q_tile + 1) * kRouterTile >= p.q_valid || (k_tile + 1) * kKeyTile >= p.k_valid) {
      adjust_terms<kNq, kNk>(acc, p, q_tile, k_tile, warp, lane);
    }
    reduce_and_store<kNq, kNk>(acc, p, flat_head, q_tile, k_tile, warp, lane);
    k_tile = next_k_tile;
    q_tile = next_q_tile;
    flat_head = next_head;
  }
  ptx::let_next_kernel_start();
}

}  // namespace tessera::sm90
