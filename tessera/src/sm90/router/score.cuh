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
inline constexpr int kScoreCtas = 2;                                // on an SM
inline constexpr uint32_t kQueryTileBytes = kRouterTile * 128 * 2;  // 32 KiB
inline constexpr uint32_t kKeyTileBytes = kKeyTile * 128 * 2;       // 16 KiB
inline constexpr int kScoreStages = 3;
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

/// What is added to the terms of a cell: 0, the weight of a partial cell, or kExcluded where the
/// cell has no token.
__device__ __forceinline__ float cell_bias(int cell, int valid, float tail_log2) {
  return cell >= valid ? kExcluded : cell == valid - 1 ? tail_log2 : 0.0f;
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

/// kEdge: some cells of the tile have no token, or only part of one's tokens. The accumulators are
/// read only: writing to them would make the compiler serialise the products.
template <int kNq, int kNk, bool kEdge>
__device__ __forceinline__ void reduce_and_store(const float (&acc)[2][kKeyTile / 2],
                                                 const ScoreParams& p, int flat_head, int q_tile,
                                                 int k_tile, int warp, int lane) {
  constexpr int kRows = kNq >= 4 ? 4 : kNq;  // of a thread's four rows, per query block
  constexpr int kBlocks = 4 / kRows;         // query blocks of a thread
  constexpr int kKeys = kKeyTile / 4 / kNk;  // key blocks of a thread
  constexpr float kLn2 = 0.6931471805599453f;
  const int r = lane >> 2, c = lane & 3;
#pragma unroll
  for (int b = 0; b < kBlocks; ++b) {
    // The inverse of permuted_query_row: this thread's block, and its first cell.
    int local, first_cell = 0;
    if constexpr (kNq == 1) {
      local = b / 2 * 64 + warp * 16 + b % 2 * 8 + r;
    } else if constexpr (kNq == 2) {
      local = b * 32 + warp * 8 + r;
    } else if constexpr (kNq == 4) {
      local = warp * 8 + r;
    } else {
      local = warp * 4 + r / 2, first_cell = r % 2 * 4;
    }
    const int query_block = q_tile * (kRouterTile / kNq) + local;
    float q_bias[kRows];
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      q_bias[i] =
          kEdge ? cell_bias(query_block * kNq + first_cell + i, p.q_valid, p.q_tail_log2) : 0.0f;
    }
    float* row = p.scores + (int64_t{flat_head} * p.query_blocks + query_block) * p.score_stride;
#pragma unroll
    for (int key = 0; key < kKeys; ++key) {
      const int k_local = kNk == 1 ? key / 2 * 8 + c * 2 + key % 2 : key * 4 + c;
      const int key_block = k_tile * (kKeyTile / kNk) + k_local;
      float k_bias[kNk];
#pragma unroll
      for (int i = 0; i < kNk; ++i) {
        k_bias[i] = kEdge ? cell_bias(key_block * kNk + i, p.k_valid, p.k_tail_log2) : 0.0f;
      }
      const auto term = [&](int i) -> float {
        const int q_part = b * kRows + i / kNk;  // 0..3: half * 2 + eight
        const int column = key * kNk + i % kNk;  // of the thread's columns
        const float x = acc[q_part / 2][column / 2 * 4 + q_part % 2 * 2 + column % 2];
        if constexpr (!kEdge) return x;
        const float bias = q_bias[i / kNk] + k_bias[i % kNk];
        return bias <= kExcluded ? kExcluded : x + bias;  // a NaN of a real cell stays one
      };
      float2 part = max_and_sum<kRows * kNk>(term);
      if constexpr (kNq == 8) {  // the other four cells are in the lane four further
        const float other_top = __shfl_xor_sync(~0u, part.x, 4);
        const float other_sum = __shfl_xor_sync(~0u, part.y, 4);
        const float top = fmaxf(part.x, other_top);
        part.y =
            part.y * ptx::exp2_approx(part.x - top) + other_sum * ptx::exp2_approx(other_top - top);
        part.x = top;
      }
      if (query_block < p.query_blocks && key_block < p.key_blocks && (kNq < 8 || (r & 1) == 0)) {
        row[key_block] = (part.x + ptx::log2_approx(part.y)) * kLn2;
      }
    }
  }
}

/// One CTA's walk over its run of tiles in the order (head, query tile, key tile).
struct TileCursor {
  int k_tile, q_tile, head;

  __device__ __forceinline__ TileCursor(const ScoreParams& p, int tile)
      : k_tile(tile % p.k_tiles),
        q_tile(tile / p.k_tiles % p.q_tiles),
        head(tile / p.k_tiles / p.q_tiles) {}

  /// Steps on; true if another q tile is needed. Counters: divisions would show in so short a loop.
  __device__ __forceinline__ bool advance(const ScoreParams& p) {
    if (++k_tile < p.k_tiles) return false;
    k_tile = 0;
    if (++q_tile == p.q_tiles) {
      q_tile = 0;
      ++head;
    }
    return true;
  }
  __device__ __forceinline__ int kv_head(const ScoreParams& p) const {
    return head / p.heads * (p.heads / p.kv_ratio) + head % p.heads / p.kv_ratio;
  }
};

/// Persistent: each CTA takes an equal run of tiles. The product of the next tile runs under the
/// log-sum-exp of the present one; without that, CTAs of an SM fall into step (the tensor cores
/// serve them in turns, so all finish together) and nothing overlaps.
template <int kNq, int kNk>
struct ScoreWalk {
  using Wgmma = ptx::WgmmaOf<__nv_bfloat16>;
  using Accumulator = float[2][kKeyTile / 2];

  const ScoreMaps& maps;
  const ScoreParams& p;
  uint32_t q_at, k_at, q_barrier, k_barriers;
  int thread;
  int issued = 0;  // products issued
  int loaded = 0;  // key tiles requested
  uint32_t q_parity = 0;
  TileCursor load_cursor, cursor;

  __device__ __forceinline__ ScoreWalk(const ScoreMaps& m, const ScoreParams& params,
                                       uint32_t shared, int first)
      : maps(m),
        p(params),
        q_at(shared),
        k_at(shared + kQueryTileBytes),
        q_barrier(k_at + kScoreStages * kKeyTileBytes),
        k_barriers(q_barrier + 8),
        thread(threadIdx.x),
        load_cursor(params, first),
        cursor(params, first) {}

  /// Requests the next key tile into the stage that the product before the last one has left.
  __device__ __forceinline__ void load_keys(int count) {
    if (loaded == count) return;
    const int stage = loaded % kScoreStages;
    if (thread == 0) {
      load_router_tile<kKeyTile>(k_at + stage * kKeyTileBytes, &maps.k, load_cursor.k_tile,
                                 load_cursor.kv_head(p), k_barriers + 8 * stage);
    }
    load_cursor.advance(p);
    ++loaded;
  }

  /// Loads the q tile of `at`. No product may be in flight.
  __device__ __forceinline__ void load_query(const TileCursor& at) {
    if (thread == 0) {
      load_router_tile<kRouterTile>(q_at, &maps.q, at.q_tile, at.head, q_barrier);
    }
    ptx::barrier_wait(q_barrier, q_parity);
    q_parity ^= 1;
  }

  __device__ __forceinline__ void issue(Accumulator& acc) {
    const int stage = issued % kScoreStages;
    ptx::barrier_wait(k_barriers + 8 * stage, (issued / kScoreStages) & 1);
    ptx::pin_registers(acc[0]);
    ptx::pin_registers(acc[1]);
    ptx::wgmma_fence();
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int k = 0; k < 8; ++k) {
        const uint32_t offset = (k & 3) * 32;
        Wgmma::multiply_kt_ss(
            acc[half],
            ptx::operand_descriptor(q_at + (k >> 2) * kRouterTile * 128 + half * 64 * 128 + offset,
                                    16, 1024),
            ptx::operand_descriptor(
                k_at + stage * kKeyTileBytes + (k >> 2) * kKeyTile * 128 + offset, 16, 1024),
            k > 0);
      }
    }
    ptx::wgmma_commit();
    ++issued;
  }

  /// Finishes the tile in `present` (issued before) and, if there is one, issues the next into
  /// `next`. A compile-time choice: the compiler must know at every point which products are in
  /// flight.
  template <bool kIssueNext>
  __device__ __forceinline__ void step(Accumulator& present, Accumulator& next, int count) {
    ptx::wgmma_wait<0>();
    ptx::pin_registers(present[0]);
    ptx::pin_registers(present[1]);
    const TileCursor here = cursor;
    if constexpr (kIssueNext) {
      __syncthreads();  // every warp is done with the tiles that are refilled now
      load_keys(count);
      if (cursor.advance(p)) load_query(cursor);
      issue(next);
    }
    const int lane = thread & 31, warp = __shfl_sync(~0u, thread / 32, 0);
    if ((here.q_tile + 1) * kRouterTile >= p.q_valid || (here.k_tile + 1) * kKeyTile >= p.k_valid) {
      reduce_and_store<kNq, kNk, true>(present, p, here.head, here.q_tile, here.k_tile, warp, lane);
    } else {
      reduce_and_store<kNq, kNk, false>(present, p, here.head, here.q_tile, here.k_tile, warp,
                                        lane);
    }
  }

  __device__ __forceinline__ void run(int count) {
    Accumulator even, odd;
    for (int i = 0; i < kScoreStages - 1; ++i) load_keys(count);
    load_query(cursor);
    issue(even);
    int left = count - 1;  // products to be issued
    for (; left >= 2; left -= 2) {
      step<true>(even, odd, count);
      step<true>(odd, even, count);
    }
    if (left == 1) {
      step<true>(even, odd, count);
      step<false>(odd, even, count);
    } else {
      step<false>(even, odd, count);
    }
  }
};

template <int kNq, int kNk>
__global__ void __launch_bounds__(kScoreThreads, kScoreCtas)
    router_score_kernel(const __grid_constant__ ScoreMaps maps,
                        const __grid_constant__ ScoreParams p) {
  extern __shared__ uint8_t shared[];
  const uint32_t base = (ptx::shared_address(shared) + 1023) & ~1023u;
  const int first = static_cast<int>(int64_t{p.tiles} * blockIdx.x / gridDim.x);
  const int last = static_cast<int>(int64_t{p.tiles} * (blockIdx.x + 1) / gridDim.x);
  ScoreWalk<kNq, kNk> walk(maps, p, base, first);
  if (threadIdx.x == 0) {
    for (int i = 0; i < 1 + kScoreStages; ++i) ptx::barrier_init(walk.q_barrier + 8 * i, 1);
    ptx::barrier_init_fence();
  }
  __syncthreads();
  ptx::wait_for_previous_kernel();  // the pooled cells
  walk.run(last - first);
  ptx::let_next_kernel_start();
}

}  // namespace tessera::sm90
