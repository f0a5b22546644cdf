// What the attention kernels of this folder share: work items, bitmaps, tile loads.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "tessera/src/ptx/tma.cuh"
#include "tessera/src/sm90/attention_params.h"

namespace tessera::sm90 {

struct ForwardMaps {
  // Channel, token, half, head, batch; boxes of 64 tokens x 64 channels, for k and v both halves.
  CUtensorMap q, k, v;
  CUtensorMap tail_k, tail_v;  // zero-padded copies of ragged last blocks of packed documents
};

/// C::kGroup consecutive query blocks of one head and document.
struct WorkItem {
  int batch, head, block;  // first of the query blocks, inside the document
};

template <class C>
__device__ __forceinline__ WorkItem locate_item(const ForwardParams& p, int item,
                                                const DocumentInfo*& d) {
  const int flat_head = item / p.items_per_head, local = item % p.items_per_head;
  d = &document_of<C::kPacked>(p, local);
  return {flat_head / p.heads, flat_head % p.heads, (local - d->first_item) * C::kGroup};
}

/// First bitmap word of an item's first query block; null for a dense run.
__device__ __forceinline__ const uint32_t* bitmap_rows(const ForwardParams& p,
                                                       const DocumentInfo& d,
                                                       const WorkItem& item) {
  if (p.bitmap == nullptr) return nullptr;
  return p.bitmap + item.batch * p.bitmap_batch + item.head * p.bitmap_head +
         int64_t{d.first_plan_row + item.block} * p.bitmap_row;
}

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
