// Pooling: means of runs of tokens, scaled and rounded once to bf16. Memory-bound: one warp per
// 64-token block, 16 lanes a row, two rows a load, eight 16-byte loads in flight per lane.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "tessera/src/ptx/launch.cuh"
#include "tessera/src/sm90/router/config.h"

namespace tessera::sm90 {

template <class Element>
__device__ __forceinline__ float2 widen(uint32_t packed);
template <>
__device__ __forceinline__ float2 widen<__nv_bfloat16>(uint32_t packed) {
  return {__uint_as_float(packed << 16), __uint_as_float(packed & 0xffff0000u)};
}
template <>
__device__ __forceinline__ float2 widen<__half>(uint32_t packed) {
  return __half22float2(*reinterpret_cast<const __half2*>(&packed));
}

inline constexpr int kPoolWarps = 4;

/// kCells per block. Grid: x over warps of (side, batch, head, block).
template <class Element, int kCells>
__device__ __forceinline__ void pool_block(const PoolSide& side, bool query, int flat_head,
                                           int block, int lane) {
  constexpr int kCellTokens = 64 / kCells;
  constexpr int kLoads = kCellTokens / 2 < 8 ? kCellTokens / 2 : 8;  // row pairs in flight
  const int column = (lane & 15) * 8, odd = lane >> 4;
  const Element* base = static_cast<const Element*>(side.data) +
                        flat_head / side.heads * side.batch_stride +
                        flat_head % side.heads * side.head_stride + column;
  const int first = block * 64;
#pragma unroll
  for (int cell = 0; cell < kCells; ++cell) {
    float sum[8] = {};
#pragma unroll
    for (int chunk = 0; chunk < kCellTokens / 2; chunk += kLoads) {
      uint4 loaded[kLoads];
#pragma unroll
      for (int i = 0; i < kLoads; ++i) {
        const int token = first + cell * kCellTokens + (chunk + i) * 2 + odd;
        loaded[i] = token < side.tokens
                        ? __ldg(reinterpret_cast<const uint4*>(base + token * side.token_stride))
                        : uint4{0, 0, 0, 0};
      }
#pragma unroll
      for (int i = 0; i < kLoads; ++i) {
        const uint32_t words[4] = {loaded[i].x, loaded[i].y, loaded[i].z, loaded[i].w};
#pragma unroll
        for (int w = 0; w < 4; ++w) {
          const float2 pair = widen<Element>(words[w]);
          sum[2 * w] += pair.x;
          sum[2 * w + 1] += pair.y;
        }
      }
    }
    const int real = min(max(side.tokens - first - cell * kCellTokens, 0), kCellTokens);
    const float divisor = static_cast<float>(max(real, 1));
    uint32_t packed[4];
#pragma unroll
    for (int w = 0; w < 4; ++w) {
      float value[2];
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const float total = sum[2 * w + e] + __shfl_xor_sync(~0u, sum[2 * w + e], 16);
        value[e] = total / divisor * side.scale;
      }
      const __nv_bfloat162 pair = __floats2bfloat162_rn(value[0], value[1]);
      packed[w] = *reinterpret_cast<const uint32_t*>(&pair);
    }
    if (odd == 0) {
      const int row =
          query ? permuted_query_row(block, cell, kCells) : permuted_key_row(block, cell, kCells);
      uint4* to = reinterpret_cast<uint4*>(
          static_cast<__nv_bfloat16*>(side.out) +
          (int64_t{flat_head} * side.tiles * kRouterTile + row) * 128 + column);
      *to = {packed[0], packed[1], packed[2], packed[3]};
    }
  }
}

template <class Element>
__global__ void __launch_bounds__(kPoolWarps * 32)
    router_pool_kernel(const __grid_constant__ PoolParams p) {
  ptx::let_next_kernel_start();
  // At most 56 heads x 4,096 blocks a side: 32 bits are plenty, and 64-bit divisions cost more than
  // the sums below.
  int item = static_cast<int>(blockIdx.x) * kPoolWarps + static_cast<int>(threadIdx.x) / 32;
  const int q_items = p.batch * p.q.heads * p.q.blocks;
  const bool query = item < q_items;
  if (!query) item -= q_items;
  const PoolSide& side = query ? p.q : p.k;
  if (item >= p.batch * side.heads * side.blocks) return;
  const int flat_head = item / side.blocks;
  const int block = item - flat_head * side.blocks, lane = threadIdx.x & 31;
  ptx::wait_for_previous_kernel();  // which may still read the cells this one overwrites
  switch (side.cells_per_block) {
    case 1: pool_block<Element, 1>(side, query, flat_head, block, lane); break;
    case 2: pool_block<Element, 2>(side, query, flat_head, block, lane); break;
    case 4: pool_block<Element, 4>(side, query, flat_head, block, lane); break;
    default: pool_block<Element, 8>(side, query, flat_head, block, lane); break;
  }
}

}  // namespace tessera::sm90
