// The schedule of the sharing kernel: three bitmaps become the order in which key blocks are
// loaded, and a warpgroup finds its own among them. Warp-wide arithmetic without other assembly, so
// that the tests run it on a simulated warp.
#pragma once

#include <cstdint>

#include "tessera/src/sm90/attention_params.h"
#include "tessera/src/sm90/union_fwd/config.h"

namespace tessera::sm90 {

/// A schedule entry: key block in bits 0-11, who needs it in bits 12-14, "fewer than 64 keys" in
/// bit 15.
__device__ __forceinline__ int wanted_by(int entry) { return (entry >> 12) & 7; }

template <class C>
__device__ __forceinline__ int chunks_of(const DocumentInfo& d) {
  return (d.key_blocks + C::kChunkBlocks - 1) / C::kChunkBlocks;
}

/// Warp-wide: entries of one chunk in descending block order; returns their number. `rows`: bitmaps
/// of `blocks` consecutive query blocks.
template <class C>
__device__ __forceinline__ int list_union(const ForwardParams& p, const DocumentInfo& d,
                                          const uint32_t* rows, int blocks, int chunk, uint16_t* to,
                                          int lane) {
  const int words = (d.key_blocks + 31) / 32;
  const int first = chunk * C::kChunkWords, last = min(words, first + C::kChunkWords);
  int listed = 0;
#pragma unroll 1
  for (int top = (last - first - 1) / 32; top >= 0; --top) {
    const int word = first + top * 32 + 31 - lane;
    const int left = word < last ? d.key_blocks - word * 32 : 0;  // real blocks from this word on
    const uint32_t real = left >= 32 ? ~0u : left > 0 ? (1u << left) - 1u : 0u;
    uint32_t bits[C::kGroup], all = 0;
#pragma unroll
    for (int g = 0; g < C::kGroup; ++g) {
      bits[g] = g < blocks ? real : 0u;
      if (rows != nullptr && bits[g] != 0) bits[g] &= __ldg(rows + g * p.bitmap_row + word);
      all |= bits[g];
    }
    const int own = __popc(all);
    int before = own;
#pragma unroll
    for (int step = 1; step < 32; step <<= 1) {
      const int other = __shfl_up_sync(~0u, before, step);
      if (lane >= step) before += other;
    }
    int at = listed + before - own;
    listed += __shfl_sync(~0u, before, 31);
    while (all != 0) {
      const int bit = 31 - __clz(all);
      all &= ~(1u << bit);
      int wanted = 0;
#pragma unroll
      for (int g = 0; g < C::kGroup; ++g) wanted |= ((bits[g] >> bit) & 1) << g;
      const int block = word * 32 + bit;
      const int ragged = d.last_block_keys < kBlock && block == d.key_blocks - 1;
      to[at++] = static_cast<uint16_t>(block | wanted << 12 | ragged << 15);
    }
  }
  return listed;
}

/// Warp-wide: orders `count` entries so that the classes (who needs a block) are spread evenly: a
/// smooth weighted round robin, lane q counting class q. Stable inside a class. A ragged block
/// stays first.
template <class C>
__device__ __forceinline__ void balance(typename C::Control& control, uint16_t* to, int count,
                                        int lane) {
  constexpr int kClasses = 1 << C::kGroup;
  const uint16_t* from = control.unordered;
  if (count > 0 && from[0] >> 15 != 0) {  // the ragged block stays first
    if (lane == 0) to[0] = from[0];
    ++from;
    ++to;
    --count;
  }
  int size = 0;
#pragma unroll 1
  for (int i = 0; i < count; i += 32) {
    const int wanted = i + lane < count ? wanted_by(from[i + lane]) : 0;
#pragma unroll 1
    for (int q = 1; q < kClasses; ++q) {
      const uint32_t members = __ballot_sync(~0u, wanted == q);
      if (lane == q) size += __popc(members);
    }
  }
  int start = size;
#pragma unroll
  for (int step = 1; step < kClasses; step <<= 1) {
    const int other = __shfl_up_sync(~0u, start, step);
    if (lane >= step) start += other;
  }
  start -= size;
  int fill = start;
#pragma unroll 1
  for (int i = 0; i < count; i += 32) {
    const int entry = i + lane < count ? from[i + lane] : 0;
    const int wanted = wanted_by(entry);
#pragma unroll 1
    for (int q = 1; q < kClasses; ++q) {
      const uint32_t members = __ballot_sync(~0u, wanted == q);
      const int base = __shfl_sync(~0u, fill, q);
      if (wanted == q) {
        control.by_class[base + __popc(members & ((1u << lane) - 1u))] =
            static_cast<uint16_t>(entry);
      }
      if (lane == q) fill += __popc(members);
    }
  }
  __syncwarp();
  int credit = 0, next = start;
#pragma unroll 1
  for (int i = 0; i < count; ++i) {
    credit += size;
    const bool active = lane >= 1 && lane < kClasses && size > 0;
    const int key = active ? credit * kClasses + lane : INT32_MIN;
    if (lane == (__reduce_max_sync(~0u, key) & (kClasses - 1))) {
      to[i] = control.by_class[next++];
      credit -= count;
    }
  }
  __syncwarp();
}

/// Finds, 32 entries at a time, the schedule entries this warpgroup needs.
struct ScheduleCursor {
  const uint16_t* entries;
  int count, group, lane;
  int window = -32;
  uint32_t mine = 0;  // needed entries of the window

  /// Index of the next needed entry, -1 at the end.
  __device__ __forceinline__ int next() {
    while (mine == 0) {
      window += 32;
      if (window >= count) return -1;
      const int entry = window + lane < count ? entries[window + lane] : 0;
      mine = __ballot_sync(~0u, (entry >> (12 + group)) & 1);
    }
    const int bit = __ffs(mine) - 1;
    mine &= mine - 1;
    return window + bit;
  }
};

}  // namespace tessera::sm90
