// Block scores: pooled q times pooled k with wgmma, then the log-sum-exp over the n_q x n_k terms
// of each block pair, which lie in registers of one to four threads (the pooling wrote them in that
// order).
//
// The powers are summed as they are, without a maximum: fp32 holds 2^-126 to 2^127, far more than
// real scores need. A sum outside a safe range is noticed, and its tile computed again with
// maxima (score_exact.cuh).
#pragma once

#include <cuda.h>

#include "tessera/src/ptx/launch.cuh"
#include "tessera/src/ptx/math.cuh"
#include "tessera/src/ptx/mbarrier.cuh"
#include "tessera/src/ptx/tma.cuh"
#include "tessera/src/ptx/wgmma.cuh"
#include "tessera/src/sm90/router/config.h"
#include "tessera/src/sm90/router/score_exact.cuh"

namespace tessera::sm90 {

inline constexpr int kScoreGroups = 2;  // warpgroups of a CTA, 64 rows of a tile each
inline constexpr int kScoreThreads = 128 * kScoreGroups;
inline constexpr int kScoreCtas = 2;  // on an SM: 16 warps hide each other's latencies
inline constexpr uint32_t kScoreTileBytes = kRouterTile * 128 * 2;  // 32 KiB
inline constexpr int kScoreStages = 2;
inline constexpr size_t kScoreSharedBytes = 1024 + (1 + kScoreStages) * kScoreTileBytes + 64;

struct ScoreMaps {
  CUtensorMap q, k;  // channel, row, half, head, 1; boxes of one tile
};

/// A tile as two swizzled halves of 64 channels.
__device__ __forceinline__ void load_score_tile(uint32_t to, const CUtensorMap* map, int tile,
                                                int head, uint32_t barrier) {
  ptx::barrier_arrive_expect(barrier, kScoreTileBytes);
  ptx::tma_load_5d(to, map, 0, tile * kRouterTile, 0, head, 0, barrier);
}

/// Sums of powers of a thread's block pairs, and their way to memory.
template <int kNq, int kNk>
struct PairSums {
  using Layout = ScoreLayout<kNq, kNk>;
  static constexpr int kLanes = Layout::kLanes, kBlocks = Layout::kBlocks, kKeys = Layout::kKeys;
  static constexpr int kOwn = kKeys / kLanes;  // keys that a thread writes, per query block
  // Sums inside are exact to fp32 rounding: what was flushed to zero is at most 2^-126, and nothing
  // overflowed. Compared as integers, which orders positive floats and puts NaN above.
  static constexpr uint32_t kSmallest = 0x12800000;          // 2^-90
  static constexpr uint32_t kSpan = 0x7b800000 - kSmallest;  // up to 2^120
  float sum[kBlocks][kKeys];

  __device__ __forceinline__ void form(const float (&acc)[64]) {
#pragma unroll
    for (int i = 0; i < kNk; ++i) {
#pragma unroll
      for (int eight = 0; eight < 2; ++eight) {
        const bool starts = i == 0 && (kBlocks == 2 || eight == 0);
#pragma unroll
        for (int key = 0; key < kKeys; ++key) {
          const int column = key * kNk + i;
          const float power = ptx::exp2_approx(acc[column / 2 * 4 + eight * 2 + column % 2]);
          float& to = sum[kBlocks == 2 ? eight : 0][key];
          to = starts ? power : to + power;
        }
      }
    }
  }
  /// Threads that share a query block exchange sums until each holds its part of the keys complete:
  /// thread h of kLanes those with key % kLanes == h, at the places of h = 0.
  __device__ __forceinline__ void exchange(int lane) {
    const int part = (lane >> 2) % kLanes;
#pragma unroll
    for (int step = kLanes / 2; step > 0; step >>= 1) {
      const bool upper = part & step;
#pragma unroll
      for (int key = 0; key < kOwn * step; ++key) {
        const int low = key / step * kLanes + key % step, high = low + step;
        const float keep = upper ? sum[0][high] : sum[0][low];
        const float give = upper ? sum[0][low] : sum[0][high];
        sum[0][low] = keep + __shfl_xor_sync(~0u, give, step * 4);
      }
    }
  }
  /// Writes the scores, also those of padding. `to`: where the thread's first key goes, per query
  /// block. True if a sum cannot be trusted.
  __device__ __forceinline__ bool store(float* const (&to)[kBlocks]) const {
    uint32_t worst = 0;
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
#pragma unroll
      for (int i = 0; i < kOwn; ++i) {
        const float total = sum[b][i * kLanes];
        to[b][Layout::key_offset(i * kLanes)] = ptx::log2_approx(total) * kLn2;
        worst = max(worst, __float_as_uint(total) - kSmallest);
      }
    }
    return worst > kSpan;
  }
  /// As `store` answers, for real pairs only.
  __device__ __forceinline__ bool doubtful(const ScoreParams& p, const ScoreTile& at, int group,
                                           int warp, int lane) const {
    bool any = false;
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
      const int query = at.q_tile * (kRouterTile / kNq) + Layout::query(group, warp, b, lane);
#pragma unroll
      for (int i = 0; i < kOwn; ++i) {
        const int key =
            at.k_tile * (kRouterTile / kNk) + Layout::key(i * kLanes + (lane >> 2) % kLanes, lane);
        any |= query < p.query_blocks && key < p.key_blocks &&
               __float_as_uint(sum[b][i * kLanes]) - kSmallest > kSpan;
      }
    }
    return any;
  }
};

/// Whose turn it is at the tensor cores. Without it the warpgroups fall into step: all of them form
/// products, then all of them powers, and each unit idles while the other works.
struct Turn {
  static constexpr int kFirstBarrier = 1;  // named barriers, one a warpgroup
  int mine, next;

  __device__ __forceinline__ explicit Turn(int group)
      : mine(kFirstBarrier + group), next(kFirstBarrier + (group + 1) % kScoreGroups) {}
  __device__ __forceinline__ void wait() const {
    asm volatile("barrier.cta.sync %0, 256;" ::"r"(mine) : "memory");
  }
  __device__ __forceinline__ void pass() const {
    asm volatile("barrier.cta.arrive %0, 256;" ::"r"(next) : "memory");
  }
};

/// Persistent: each CTA takes an equal run of tiles in the order (head, query tile, key tile),
/// keeping the q tile while it lasts and loading the next k tile during the arithmetic.
template <int kNq, int kNk>
__global__ void __launch_bounds__(kScoreThreads, kScoreCtas)
    router_score_kernel(const __grid_constant__ ScoreMaps maps,
                        const __grid_constant__ ScoreParams p) {
  using Wgmma = ptx::WgmmaOf<__nv_bfloat16>;
  using Layout = ScoreLayout<kNq, kNk>;
  extern __shared__ uint8_t shared[];
  const uint32_t q_tile = (ptx::shared_address(shared) + 1023) & ~1023u;
  const uint32_t k_tiles = q_tile + kScoreTileBytes;
  const uint32_t q_full = k_tiles + kScoreStages * kScoreTileBytes;
  const uint32_t k_full = q_full + 8, k_empty = k_full + 8 * kScoreStages;
  const int lane = threadIdx.x & 31;
  const int group = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 128, 0);
  const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32 % 4, 0);
  const int first = static_cast<int>(int64_t{p.tiles} * blockIdx.x / gridDim.x);
  const int count = static_cast<int>(int64_t{p.tiles} * (blockIdx.x + 1) / gridDim.x) - first;

  // Counters instead of divisions from here on: the loop is short enough for those to show.
  ScoreTile at{first / p.k_tiles / p.q_tiles, first / p.k_tiles % p.q_tiles, first % p.k_tiles};
  ScoreTile loading = at;  // of the next load
  int loading_head = at.kv_head(p);
  const auto load_keys = [&](int step) {  // thread 0 only
    const int stage = step % kScoreStages;
    load_score_tile(k_tiles + stage * kScoreTileBytes, &maps.k, loading.k_tile, loading_head,
                    k_full + 8 * stage);
    if (loading.advance(p)) loading_head = loading.kv_head(p);
  };
  if (threadIdx.x == 0) {
    ptx::barrier_init(q_full, 1);
    for (int i = 0; i < kScoreStages; ++i) {
      ptx::barrier_init(k_full + 8 * i, 1);
      ptx::barrier_init(k_empty + 8 * i, kScoreThreads / 32);
    }
    ptx::barrier_init_fence();
    ptx::wait_for_previous_kernel();  // the pooled cells
    load_score_tile(q_tile, &maps.q, at.q_tile, at.flat_head, q_full);
    for (int step = 0; step < min(kScoreStages, count); ++step) load_keys(step);
  }
  __syncthreads();
  ptx::wait_for_previous_kernel();  // which may still read the scores that this one overwrites

  using Sums = PairSums<kNq, kNk>;
  const uint64_t q_operand = ptx::operand_descriptor(q_tile + group * 64 * 128, 16, 1024);
  const uint64_t k_operand = ptx::operand_descriptor(k_tiles, 16, 1024);
  float* to[Sums::kBlocks];  // where this thread's scores of the tile begin
  const Turn turn(group);
  if (group == kScoreGroups - 1) turn.pass();
  uint32_t q_parity = 0;
  bool new_row = true;
#pragma unroll 1
  for (int step = 0; step < count; ++step) {
    if (new_row) {
#pragma unroll
      for (int b = 0; b < Sums::kBlocks; ++b) {
        to[b] = Layout::row(p, at, Layout::query(group, warp, b, lane)) +
                Layout::key((lane >> 2) % Layout::kLanes, lane);
      }
      ptx::barrier_wait(q_full, q_parity);
      q_parity ^= 1;
    }
    const uint32_t stage = step % kScoreStages, parity = step / kScoreStages & 1;
    ptx::barrier_wait(k_full + 8 * stage, parity);
    turn.wait();
    float acc[64];
    ptx::pin_registers(acc);
    ptx::wgmma_fence();
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      // Addresses in descriptors count 16 bytes.
      const uint32_t offset = ((k >> 2) * kRouterTile * 128 + (k & 3) * 32) >> 4;
      Wgmma::multiply_kt128_ss(acc, q_operand + offset,
                               k_operand + stage * (kScoreTileBytes >> 4) + offset, k > 0);
    }
    ptx::wgmma_commit();
    ptx::wgmma_wait<0>();
    ptx::pin_registers(acc);
    if (group + 1 < kScoreGroups || step + 1 < count) turn.pass();
    if (lane == 0) ptx::barrier_arrive(k_empty + 8 * stage);
    if (at.q_edge(p)) {
      const float bias[2] = {Layout::query_bias(p, at, group, warp, 0, lane),
                             Layout::query_bias(p, at, group, warp, 1, lane)};
#pragma unroll
      for (int i = 0; i < 64; ++i) apply_bias(acc[i], bias[i / 2 % 2]);
    }
    if (at.k_edge(p)) {
#pragma unroll
      for (int column = 0; column < 32; ++column) {
        const float bias = Layout::key_bias(p, at, column, lane);
#pragma unroll
        for (int eight = 0; eight < 2; ++eight) {
          apply_bias(acc[column / 2 * 4 + eight * 2 + column % 2], bias);
        }
      }
    }
    Sums sums;
    sums.form(acc);
    sums.exchange(lane);
    bool bad = sums.store(to);
    if (bad && at.has_padding(p)) bad = sums.doubtful(p, at, group, warp, lane);
    if (__any_sync(~0u, bad)) score_exactly<kNq, kNk>(q_tile, p, at, group, warp, lane);
#pragma unroll
    for (int b = 0; b < Sums::kBlocks; ++b) to[b] += kRouterTile / kNk;
    // Late, so that the other warpgroup is through with the stage by now.
    if (threadIdx.x == 0 && step + kScoreStages < count) {
      ptx::barrier_wait(k_empty + 8 * stage, parity);
      load_keys(step + kScoreStages);
    }
    new_row = at.advance(p);
    if (new_row && step + 1 < count) {
      __syncthreads();  // the queries are still in use until here
      if (threadIdx.x == 0) load_score_tile(q_tile, &maps.q, at.q_tile, at.flat_head, q_full);
    }
  }
  ptx::let_next_kernel_start();
}

}  // namespace tessera::sm90
