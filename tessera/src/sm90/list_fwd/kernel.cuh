// The simple kernel: a CTA walks the bits of its query block's bitmap from the highest down, one
// K/V tile ahead of the arithmetic. No roles, no overlap inside the warpgroup.
#pragma once

#include <cuda.h>

#include "tessera/src/ptx/mbarrier.cuh"
#include "tessera/src/ptx/wgmma.cuh"
#include "tessera/src/sm90/epilogue.cuh"
#include "tessera/src/sm90/list_fwd/config.h"
#include "tessera/src/sm90/softmax.cuh"
#include "tessera/src/sm90/tiles.cuh"

namespace tessera::sm90 {

/// Key blocks of one bitmap row, highest first.
struct BitWalker {
  const uint32_t* row;  // null: every block
  int key_blocks;
  int word;
  uint32_t bits = 0;

  __device__ __forceinline__ BitWalker(const uint32_t* r, int blocks)
      : row(r), key_blocks(blocks), word((blocks + 31) / 32) {}

  __device__ __forceinline__ int next() {
    while (bits == 0) {
      if (--word < 0) return -1;
      const int left = key_blocks - word * 32;
      bits = left >= 32 ? ~0u : (1u << left) - 1u;
      if (row != nullptr) bits &= __ldg(row + word);
    }
    const int bit = 31 - __clz(bits);
    bits &= ~(1u << bit);
    return word * 32 + bit;
  }
};

template <class C>
__global__ void __launch_bounds__(C::kThreads, 2)
    sm90_list_fwd_kernel(const __grid_constant__ ForwardMaps maps,
                         const __grid_constant__ ForwardParams p) {
  using Wgmma = ptx::WgmmaOf<typename C::Element>;
  extern __shared__ uint8_t shared[];
  const uint32_t base = (ptx::shared_address(shared) + 1023) & ~1023u;
  const uint32_t q_tile = base, stages = base + C::kTileBytes;
  const uint32_t barriers = stages + C::kStages * C::kStageBytes;  // q, then one per stage
  const int thread = threadIdx.x, lane = thread & 31;

  const DocumentInfo* d;
  const WorkItem item = locate_item<C>(p, blockIdx.x, d);
  const int kv_head = item.head / p.kv_ratio;

  if (thread == 0) {
    for (int i = 0; i < 1 + C::kStages; ++i) ptx::barrier_init(barriers + 8 * i, 1);
    ptx::barrier_init_fence();
    ptx::barrier_arrive_expect(barriers, C::kTileBytes);
    for (int half = 0; half < 2; ++half) {
      load_query_half(q_tile + half * kBlock * 128, &maps.q, half,
                      d->query_start + item.block * kBlock, item.head, item.batch, barriers);
    }
  }
  __syncthreads();

  const auto load = [&](int block, int stage) {
    if (thread != 0) return;
    const uint32_t full = barriers + 8 + 8 * stage;
    ptx::barrier_arrive_expect(full, C::kStageBytes);
    load_keys_values<C::kPacked>(maps, *d, block, kv_head, item.batch,
                                 stages + stage * C::kStageBytes, C::kTileBytes, full);
  };

  BitWalker walker(bitmap_rows(p, *d, item), d->key_blocks);
  float o[64], s[32];
  uint32_t probability[16];
  RowState row;
#pragma unroll
  for (int i = 0; i < 64; ++i) o[i] = 0;

  int block = __shfl_sync(~0u, walker.next(), 0);
  if (block >= 0) load(block, 0);
  ptx::barrier_wait(barriers, 0);
  float2 q_norm{0, 0};
  add_squares<Wgmma>(q_norm, q_tile, thread);
  add_squares<Wgmma>(q_norm, q_tile + kBlock * 128, thread);
  const bool bounded =
      start_bounded<Wgmma>(row, q_norm, thread, 1, d->query_length - item.block * kBlock,
                           key_norm_of(p, *d, item), p.scale_log2);
  for (int step = 0; block >= 0; ++step) {
    const int stage = step % C::kStages;
    const int following = __shfl_sync(~0u, walker.next(), 0);
    // The other stage was last read in the previous step, which ended with a barrier.
    if (following >= 0) load(following, (step + 1) % C::kStages);
    ptx::barrier_wait(barriers + 8 + 8 * stage, (step / C::kStages) & 1);

    const uint32_t keys = stages + stage * C::kStageBytes;
    ptx::pin_registers(s);
    ptx::wgmma_fence();
#pragma unroll
    for (int k = 0; k < kHeadDim / 16; ++k) {
      const uint32_t offset = (k >> 2) * kBlock * 128 + (k & 3) * 32;
      Wgmma::multiply_kt_ss(s, ptx::operand_descriptor(q_tile + offset, 16, 1024),
                            ptx::operand_descriptor(keys + offset, 16, 1024), k > 0);
    }
    ptx::wgmma_commit();
    ptx::wgmma_wait<0>();
    ptx::pin_registers(s);

    if (block == d->key_blocks - 1 && d->last_block_keys < kBlock) {
      mask_columns(s, d->last_block_keys, lane);
    }
    if (bounded) {
      softmax_step_bounded(s, p.scale_log2, row);
    } else {
      float factor0, factor1;
      softmax_step(s, p.scale_log2, row, factor0, factor1);
      if (step > 0) rescale_output(o, row, factor0, factor1);
    }
    pack_probabilities<Wgmma>(s, probability);

    ptx::pin_registers(o);
    ptx::wgmma_fence();
#pragma unroll
    for (int k = 0; k < kBlock / 16; ++k) {
      Wgmma::multiply_v_rs(
          o, probability[4 * k], probability[4 * k + 1], probability[4 * k + 2],
          probability[4 * k + 3],
          ptx::operand_descriptor(keys + C::kTileBytes + k * 2048, kBlock * 128, 1024),
          !(step == 0 && k == 0));
    }
    ptx::wgmma_commit();
    ptx::wgmma_wait<0>();
    ptx::pin_registers(o);
    __syncthreads();
    block = following;
  }
  store_block<Wgmma>(p, *d, item.batch, item.head, item.block, o, row, thread);
}

}  // namespace tessera::sm90
