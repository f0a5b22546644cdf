// The sharing kernel. Roles of a CTA (one per SM, persistent over work items):
//   warp 0      loads Q tiles and, block by block of the schedule, K and V (one stage = 32 KiB)
//   warp 1      turns three bitmaps into the schedule: (key block, which of the three need it)
//   warpgroups 1-3  one query block each; read the schedule themselves and never touch the barriers
//               of blocks they skip (the producer arrives on their behalf)
// P V of a block overlaps q k^T and softmax of the next; before a long skip the pending product is
// drained, so that its stage can be reused.
#pragma once

#include <cuda.h>

#include "tessera/src/ptx/math.cuh"
#include "tessera/src/ptx/mbarrier.cuh"
#include "tessera/src/ptx/wgmma.cuh"
#include "tessera/src/sm90/attention_params.h"
#include "tessera/src/sm90/epilogue.cuh"
#include "tessera/src/sm90/softmax.cuh"
#include "tessera/src/sm90/tiles.cuh"
#include "tessera/src/sm90/union_fwd/config.h"
#include "tessera/src/sm90/union_fwd/schedule.cuh"

namespace tessera::sm90 {

template <class C>
__device__ __forceinline__ void schedule_warp(const ForwardParams& p, typename C::Control& control,
                                              int lane) {
  uint32_t turn = 0;  // slot = turn % 2, its round = turn / 2
  for (int it = blockIdx.x; it < p.items; it += gridDim.x) {
    const DocumentInfo* d;
    const WorkItem item = locate_item<C>(p, it, d);
    const uint32_t* rows = bitmap_rows(p, *d, item);
    const int blocks = min(C::kGroup, d->query_blocks - item.block);
#pragma unroll 1
    for (int chunk = chunks_of<C>(*d) - 1; chunk >= 0; --chunk, ++turn) {
      const uint32_t slot = turn & 1;
      ptx::barrier_wait(ptx::shared_address(&control.schedule_empty[slot]), (turn >> 1 & 1) ^ 1);
      int count;
      if constexpr (C::kBalanced) {
        count = list_union<C>(p, *d, rows, blocks, chunk, control.unordered, lane);
        __syncwarp();
        balance<C>(control, control.schedule[slot], count, lane);
      } else {
        count = list_union<C>(p, *d, rows, blocks, chunk, control.schedule[slot], lane);
      }
      if (lane == 0) control.schedule_count[slot] = count;
      // Every lane wrote entries, so every lane arrives.
      ptx::barrier_arrive(ptx::shared_address(&control.schedule_full[slot]));
    }
  }
}

/// Lane 0 of the loading warp: fills the stages of the ring and the resident halves of the q tiles.
template <class C>
struct Loader {
  const ForwardParams& p;
  const ForwardMaps& maps;
  typename C::Control& control;
  uint32_t q_high, stages;

  int stage = 0, issued = 0;
  uint32_t stage_parity = 1, q_parity = 1;

  __device__ __forceinline__ void announce_stage() {
    ptx::store_relaxed(ptx::shared_address(&control.issued), ++issued);
    if (++stage == C::kStages) {
      stage = 0;
      stage_parity ^= 1;
    }
  }
  /// The halves of q that stay in shared memory first: their places are free when all warpgroups
  /// are through with the item before, and blocks loaded ahead of that would let one warpgroup run
  /// away from the others, which costs 6 % with independent lists. The halves that go to registers
  /// take one stage together.
  __device__ __forceinline__ void start_item(const DocumentInfo& d, const WorkItem& item) {
    const int blocks = min(C::kGroup, d.query_blocks - item.block);
    const int row = d.query_start + item.block * kBlock;
    for (int g = 0; g < C::kGroup; ++g) {
      const uint32_t full = ptx::shared_address(&control.q_full[g]);
      ptx::barrier_wait(ptx::shared_address(&control.q_empty[g]), q_parity);
      if (g < blocks) {
        ptx::barrier_arrive_expect(full, C::kHalfTileBytes);
        load_query_half(q_high + g * C::kHalfTileBytes, &maps.q, 1, row + g * kBlock, item.head,
                        item.batch, full);
      } else {
        ptx::barrier_arrive(full);
      }
    }
    q_parity ^= 1;
    const uint32_t full = ptx::shared_address(&control.stage_full[stage]);
    ptx::barrier_wait(ptx::shared_address(&control.stage_empty[stage]), stage_parity);
    ptx::barrier_arrive_expect(full, blocks * C::kHalfTileBytes);
    for (int g = 0; g < blocks; ++g) {
      load_query_half(stages + stage * C::kStageBytes + g * C::kHalfTileBytes, &maps.q, 0,
                      row + g * kBlock, item.head, item.batch, full);
    }
    announce_stage();
  }
  /// From the moment a stage is free until its data has come, a warpgroup that runs ahead waits:
  /// everything that can be known before stands before the wait.
  __device__ __forceinline__ void load_block(const DocumentInfo& d, int batch, int kv_head,
                                             int entry) {
    const uint32_t to = stages + stage * C::kStageBytes;
    const uint32_t full = ptx::shared_address(&control.stage_full[stage]);
    const uint32_t empty = ptx::shared_address(&control.stage_empty[stage]);
    const int skipped_by = C::kGroup - __popc(wanted_by(entry));
    const KeyTile tile = locate_keys<C::kPacked>(maps, d, entry & 4095);
    ptx::barrier_wait(empty, stage_parity);
    ptx::barrier_arrive_expect(full, C::kStageBytes);
    load_tile(to, tile.k, tile.row, kv_head, batch, full);
    load_tile(to + C::kTileBytes, tile.v, tile.row, kv_head, batch, full);
    announce_stage();
    if (skipped_by > 0) ptx::barrier_arrive_n(empty, skipped_by);
  }
};

template <class C>
__device__ __forceinline__ void load_warp(const ForwardParams& p, const ForwardMaps& maps,
                                          typename C::Control& control, uint32_t q_high,
                                          uint32_t stages, int lane) {
  Loader<C> loader{p, maps, control, q_high, stages};
  uint32_t turn = 0;
  for (int it = blockIdx.x; it < p.items; it += gridDim.x) {
    const DocumentInfo* d;
    const WorkItem item = locate_item<C>(p, it, d);
    const int kv_head = item.head / p.kv_ratio;
    if (lane == 0) loader.start_item(*d, item);
#pragma unroll 1
    for (int chunk = 0; chunk < chunks_of<C>(*d); ++chunk, ++turn) {
      const uint32_t slot = turn & 1;
      ptx::barrier_wait(ptx::shared_address(&control.schedule_full[slot]), turn >> 1 & 1);
      const int count = control.schedule_count[slot];
      if (lane == 0) {
#pragma unroll 1
        for (int i = 0; i < count; ++i) {
          loader.load_block(*d, item.batch, kv_head, control.schedule[slot][i]);
        }
      }
      __syncwarp();
      ptx::barrier_arrive(ptx::shared_address(&control.schedule_empty[slot]));
    }
  }
}

template <class C>
struct Consumer {
  using Wgmma = ptx::WgmmaOf<typename C::Element>;

  const ForwardParams& p;
  typename C::Control& control;
  uint32_t q_high, stages;
  int group, thread;

  float o[64];
  uint32_t q_low[C::kQInRegisters][4];
  RowState row;
  bool first;       // no product has been added to o yet
  int seen_issued;  // last value read of control.issued

  /// Takes the low half of q out of ring use `use`. Returns the squares of this thread's share.
  __device__ __forceinline__ float2 load_queries(int use, uint32_t q_parity) {
    const int stage = use % C::kStages;
    const uint32_t low = stages + stage * C::kStageBytes + group * C::kHalfTileBytes;
    wait_stage(use);
    float2 squares{0, 0};
#pragma unroll
    for (int k = 0; k < C::kQInRegisters; ++k) {
      ptx::load_matrix_x4(q_low[k], fragment_address(low, k, thread));
      add_squares<Wgmma>(squares, q_low[k]);
    }
    // All four warps have read it.
    asm volatile("barrier.cta.sync %0, 128;" ::"r"(group + 1) : "memory");
    release_stage(stage);
    ptx::barrier_wait(ptx::shared_address(&control.q_full[group]), q_parity);
    add_squares<Wgmma>(squares, q_high, thread);
    return squares;
  }

  __device__ __forceinline__ void issue_scores(float (&s)[32], int stage) {
    const uint32_t tile = stages + stage * C::kStageBytes;
#pragma unroll
    for (int k = 0; k < kHeadDim / 16; ++k) {
      const uint32_t step = (k >> 2) * kBlock * 128 + (k & 3) * 32;
      const uint64_t keys = ptx::operand_descriptor(tile + step, 16, 1024);
      if (k < C::kQInRegisters) {
        const int r = k < C::kQInRegisters ? k : 0;
        Wgmma::multiply_kt_rs(s, q_low[r][0], q_low[r][1], q_low[r][2], q_low[r][3], keys, k > 0);
      } else {
        Wgmma::multiply_kt_ss(s, ptx::operand_descriptor(q_high + (k & 3) * 32, 16, 1024), keys,
                              k > 0);
      }
    }
    ptx::wgmma_commit();
  }

  __device__ __forceinline__ void issue_output(const uint32_t (&probability)[16], int stage) {
    const uint32_t tile = stages + stage * C::kStageBytes + C::kTileBytes;
#pragma unroll
    for (int k = 0; k < kBlock / 16; ++k) {
      Wgmma::multiply_v_rs(o, probability[4 * k], probability[4 * k + 1], probability[4 * k + 2],
                           probability[4 * k + 3],
                           ptx::operand_descriptor(tile + k * 2048, kBlock * 128, 1024),
                           !(first && k == 0));
    }
    ptx::wgmma_commit();
    first = false;
  }

  /// Waits for use number `use` of the ring. Parity alone is ambiguous two rounds ahead, so the
  /// producer must first have announced it.
  __device__ __forceinline__ void wait_stage(int use) {
    while (seen_issued <= use) {
      seen_issued = ptx::load_relaxed(ptx::shared_address(&control.issued));
    }
    ptx::barrier_wait(ptx::shared_address(&control.stage_full[use % C::kStages]),
                      (use / C::kStages) & 1);
  }

  __device__ __forceinline__ void release_stage(int stage) {
    if (thread == 0) ptx::barrier_arrive(ptx::shared_address(&control.stage_empty[stage]));
  }

  /// Scores of the tile in s become probabilities. kBounded: see softmax.cuh; otherwise the factors
  /// say how o must be rescaled.
  template <bool kBounded>
  __device__ __forceinline__ void softmax(float (&s)[32], float& factor0, float& factor1) {
    if constexpr (kBounded) {
      softmax_step_bounded(s, p.scale_log2, row);
    } else {
      softmax_step(s, p.scale_log2, row, factor0, factor1);
    }
  }

  template <bool kBounded>
  __device__ __forceinline__ void run_chunk(const uint16_t* entries, int count, int first_use,
                                            const DocumentInfo& d) {
    const int lane = thread & 31;
    ScheduleCursor cursor{entries, count, group, lane};
    float s[32], factor0, factor1;
    uint32_t probability[16];
    int at = cursor.next();
    while (at >= 0) {
      int use = first_use + at;
      int stage = use % C::kStages;
      wait_stage(use);
      ptx::pin_registers(s);
      ptx::wgmma_fence();
      issue_scores(s, stage);
      // The ragged block of a document, if any, is the first entry of all: see list_union, balance.
      const bool cut = at == 0 && entries[0] >> 15 != 0;
      ptx::wgmma_wait<0>();
      ptx::pin_registers(s);
      if (cut) mask_columns(s, d.last_block_keys, lane);
      softmax<kBounded>(s, factor0, factor1);
      if (!kBounded && !first) rescale_output(o, row, factor0, factor1);
      pack_probabilities<Wgmma>(s, probability);
      int held_stage = stage, held_at = at;
      at = cursor.next();
      while (at >= 0 && at - held_at <= C::kMaxRunAhead) {
        use = first_use + at;
        stage = use % C::kStages;
        wait_stage(use);
        ptx::pin_registers(s);
        ptx::pin_registers(o);
        ptx::wgmma_fence();
        issue_scores(s, stage);
        issue_output(probability, held_stage);
        ptx::wgmma_wait<1>();
        ptx::pin_registers(s);
        softmax<kBounded>(s, factor0, factor1);
        ptx::wgmma_wait<0>();
        ptx::pin_registers(o);
        release_stage(held_stage);
        if constexpr (!kBounded) rescale_output(o, row, factor0, factor1);
        pack_probabilities<Wgmma>(s, probability);
        held_stage = stage;
        held_at = at;
        at = cursor.next();
      }
      ptx::pin_registers(o);
      ptx::wgmma_fence();
      issue_output(probability, held_stage);
      ptx::wgmma_wait<0>();
      ptx::pin_registers(o);
      release_stage(held_stage);
    }
  }

  __device__ __forceinline__ void run() {
    int first_use = 0;
    uint32_t turn = 0, q_parity = 0;
    seen_issued = 0;
    for (int it = blockIdx.x; it < p.items; it += gridDim.x) {
      const DocumentInfo* d;
      const WorkItem item = locate_item<C>(p, it, d);
      const float2 squares = load_queries(first_use++, q_parity);
      q_parity ^= 1;
      row = RowState{};
      first = true;
      const bool bounded = start_bounded<Wgmma>(row, squares, thread, group + 1,
                                                d->query_length - (item.block + group) * kBlock,
                                                key_norm_of(p, *d, item), p.scale_log2);
#pragma unroll
      for (int i = 0; i < 64; ++i) o[i] = 0;
#pragma unroll 1
      for (int chunk = 0; chunk < chunks_of<C>(*d); ++chunk, ++turn) {
        const uint32_t slot = turn & 1;
        ptx::barrier_wait(ptx::shared_address(&control.schedule_full[slot]), turn >> 1 & 1);
        const int count = __shfl_sync(~0u, control.schedule_count[slot], 0);
        if (bounded) {
          run_chunk<true>(control.schedule[slot], count, first_use, *d);
        } else {
          run_chunk<false>(control.schedule[slot], count, first_use, *d);
        }
        first_use += count;
        // Every thread reads the schedule, so every thread says when it is done.
        ptx::barrier_arrive(ptx::shared_address(&control.schedule_empty[slot]));
      }
      if ((thread & 31) == 0) ptx::barrier_arrive(ptx::shared_address(&control.q_empty[group]));
      // Located again: holding the item through the loop costs registers the loop does not have.
      const WorkItem done = locate_item<C>(p, it, d);
      store_block<Wgmma>(p, *d, done.batch, done.head, done.block + group, o, row, thread);
    }
  }
};

template <class C>
__global__ void __launch_bounds__(C::kThreads, 1)
    sm90_union_fwd_kernel(const __grid_constant__ ForwardMaps maps,
                          const __grid_constant__ ForwardParams p) {
  extern __shared__ uint8_t shared[];
  const uint32_t base = (ptx::shared_address(shared) + 1023) & ~1023u;
  uint8_t* aligned = shared + (base - ptx::shared_address(shared));
  const uint32_t q_high = base, stages = base + C::kGroup * C::kHalfTileBytes;
  auto& control = *reinterpret_cast<typename C::Control*>(aligned + C::kGroup * C::kHalfTileBytes +
                                                          C::kStages * C::kStageBytes);

  if (threadIdx.x == 0) {
    control.issued = 0;
    for (int i = 0; i < C::kStages; ++i) {
      ptx::barrier_init(ptx::shared_address(&control.stage_full[i]), 1);
      ptx::barrier_init(ptx::shared_address(&control.stage_empty[i]), C::kGroup);
    }
    for (int g = 0; g < C::kGroup; ++g) {
      ptx::barrier_init(ptx::shared_address(&control.q_full[g]), 1);
      ptx::barrier_init(ptx::shared_address(&control.q_empty[g]), 4);
    }
    for (int i = 0; i < 2; ++i) {
      ptx::barrier_init(ptx::shared_address(&control.schedule_full[i]), 32);
      ptx::barrier_init(ptx::shared_address(&control.schedule_empty[i]), 128 * C::kGroup + 32);
    }
    ptx::barrier_init_fence();
  }
  __syncthreads();

  // The role index goes through a shuffle so that the compiler sees a warp-uniform branch;
  // otherwise it serialises every product of the function.
  const int warpgroup = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 128, 0);
  if (warpgroup == 0) {
    ptx::give_registers_back<C::kProducerRegisters>();
    const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32, 0);
    const int lane = threadIdx.x & 31;
    if (warp == 0) load_warp<C>(p, maps, control, q_high, stages, lane);
    if (warp == 1) schedule_warp<C>(p, control, lane);
  } else {
    ptx::take_registers<C::kConsumerRegisters>();
    const int group = warpgroup - 1;
    Consumer<C> consumer{p,      control, q_high + group * C::kHalfTileBytes,
                         stages, group,   static_cast<int>(threadIdx.x) & 127};
    consumer.run();
  }
}

}  // namespace tessera::sm90
