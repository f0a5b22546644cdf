// What the attention kernels of this folder share: tensor maps, tile loads.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "tessera/src/ptx/tma.cuh"
#include "tessera/src/sm90/attention_params.h"
#include "tessera/src/sm90/work_item.h"

namespace tessera::sm90 {

struct ForwardMaps {
  // Channel, token, half, head, batch; boxes of 64 tokens x 64 channels, for k and v both halves.
  CUtensorMap q, k, v;
  CUtensorMap tail_k, tail_v;  // zero-padded copies of ragged last blocks of packed documents
};

/// Largest |k|^2 among the keys of an item's head and document.
__device__ __forceinline__ float key_norm_of(const ForwardParams& p, const DocumentInfo& d,
                                             const WorkItem& item) {
  const int kv_heads = p.heads / p.kv_ratio;
  return __ldg(p.key_norms +
               (int64_t{item.batch} * kv_heads + item.head / p.kv_ratio) * p.norm_stride +
               d.norm_slot);
}

/// One half (64 channels) of 64 queries, swizzled.
__device__ __forceinline__ void load_query_half(uint32_t to, const CUtensorMap* map, int half,
                                                int row, int head, int batch, uint32_t barrier) {
  ptx::tma_load_5d(to, map, 0, row, half, head, batch, barrier);
}

/// One 64 x 128 tile of keys or values as two swizzled halves.
__device__ __forceinline__ void load_tile(uint32_t to, const CUtensorMap* map, int row, int head,
                                          int batch, uint32_t barrier) {
  ptx::tma_load_5d(to, map, 0, row, 0, head, batch, barrier);
}

/// Where K and V of a key block come from. A ragged last block of a packed document comes from its
/// zero-padded copy: the rows behind it belong to another document, and even a masked NaN there
/// would poison P V.
struct KeyTile {
  const CUtensorMap *k, *v;
  int row;
};

template <bool kPacked>
__device__ __forceinline__ KeyTile locate_keys(const ForwardMaps& maps, const DocumentInfo& d,
                                               int block) {
  const bool tail = kPacked && d.tail_slot >= 0 && block == d.key_blocks - 1;
  return {tail ? &maps.tail_k : &maps.k, tail ? &maps.tail_v : &maps.v,
          tail ? d.tail_slot * kBlock : d.key_start + block * kBlock};
}

/// K and V of one key block.
template <bool kPacked>
__device__ __forceinline__ void load_keys_values(const ForwardMaps& maps, const DocumentInfo& d,
                                                 int block, int kv_head, int batch, uint32_t to,
                                                 uint32_t tile_bytes, uint32_t barrier) {
  const KeyTile tile = locate_keys<kPacked>(maps, d, block);
  load_tile(to, tile.k, tile.row, kv_head, batch, barrier);
  load_tile(to + tile_bytes, tile.v, tile.row, kv_head, batch, barrier);
}

}  // namespace tessera::sm90
