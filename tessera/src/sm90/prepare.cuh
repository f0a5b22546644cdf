// Small kernels before attention: lists to bitmaps with full value checks, zero-padded copies of
// ragged document tails, zeros for rows that belong to no document.
#pragma once

#include <cstdint>

#include "tessera/src/ptx/wgmma.cuh"
#include "tessera/src/sm90/attention_params.h"
#include "tessera/src/sm90/plan_fault.h"

namespace tessera::sm90 {

struct BitmapParams {
  const int32_t* index = nullptr;  // list form
  int64_t index_batch = 0, index_head = 0, index_row = 0;
  const int32_t* count = nullptr;
  int64_t count_batch = 0, count_head = 0, count_row = 0;
  int32_t width = 0;
  const uint32_t* bitmap = nullptr;  // or bitmap form
  int64_t bitmap_batch = 0, bitmap_head = 0, bitmap_row = 0;
  const uint8_t* dense_rows = nullptr;
  int64_t dense_batch = 0, dense_row = 0;
  int32_t batch = 0, heads = 0, rows = 0;    // all plan rows of the call
  int32_t first_row = 0, document_rows = 0;  // the rows of this document
  int32_t key_blocks = 0;                    // of this document
  int32_t words = 0;
  uint32_t* out = nullptr;  // [batch, heads, rows, words]
  PlanFault* fault = nullptr;
};

__device__ __forceinline__ void report_fault(PlanFault* fault, FaultCode code, int batch, int head,
                                             int row, int slot, int value, int limit) {
  if (atomicCAS(&fault->code, kNoFault, code) != kNoFault) return;
  fault->batch = batch;
  fault->head = head;
  fault->row = row;
  fault->slot = slot;
  fault->value = value;
  fault->limit = limit;
}

inline constexpr int kBitmapWarps = 4, kMaxWords = 128;

/// One warp per plan row.
__global__ void __launch_bounds__(kBitmapWarps * 32)
    build_bitmap_kernel(const __grid_constant__ BitmapParams p) {
  __shared__ uint32_t staged[kBitmapWarps][kMaxWords];
  const int warp = threadIdx.x / 32, lane = threadIdx.x & 31;
  const int64_t item = int64_t{blockIdx.x} * kBitmapWarps + warp;
  if (item >= int64_t{p.batch} * p.heads * p.document_rows) return;
  const int row = p.first_row + static_cast<int>(item % p.document_rows);
  const int head = static_cast<int>(item / p.document_rows % p.heads);
  const int batch = static_cast<int>(item / p.document_rows / p.heads);
  uint32_t* bits = staged[warp];
  const auto real_word = [&](int w) {
    const int left = p.key_blocks - w * 32;
    return left >= 32 ? ~0u : left > 0 ? (1u << left) - 1u : 0u;
  };
  const bool dense =
      p.dense_rows != nullptr && p.dense_rows[batch * p.dense_batch + row * p.dense_row] != 0;
  for (int w = lane; w < p.words; w += 32) bits[w] = dense ? real_word(w) : 0u;
  __syncwarp();
  if (!dense && p.bitmap != nullptr) {
    const uint32_t* from =
        p.bitmap + batch * p.bitmap_batch + head * p.bitmap_head + row * p.bitmap_row;
    for (int w = lane; w < p.words; w += 32) {
      const uint32_t extra = from[w] & ~real_word(w);
      if (extra != 0) {
        report_fault(p.fault, kBadBit, batch, head, row, w, w * 32 + __ffs(extra) - 1,
                     p.key_blocks);
      }
      bits[w] = from[w] & real_word(w);
    }
  } else if (!dense) {
    const int count = p.count[batch * p.count_batch + head * p.count_head + row * p.count_row];
    if ((count < 0 || count > p.width) && lane == 0) {
      report_fault(p.fault, kBadCount, batch, head, row, 0, count, p.width);
    }
    const int32_t* ids = p.index + batch * p.index_batch + head * p.index_head + row * p.index_row;
    for (int slot = lane; slot < min(count, p.width); slot += 32) {
      const int id = ids[slot];
      if (id < 0 || id >= p.key_blocks) {
        report_fault(p.fault, kBadId, batch, head, row, slot, id, p.key_blocks);
      } else if (atomicOr(&bits[id / 32], 1u << (id % 32)) >> (id % 32) & 1u) {
        report_fault(p.fault, kDuplicateId, batch, head, row, slot, id, count);
      }
    }
  }
  __syncwarp();
  uint32_t* to = p.out + ((int64_t{batch} * p.heads + head) * p.rows + row) * p.words;
  for (int w = lane; w < p.words; w += 32) to[w] = bits[w];
}

struct KeyNormParams {
  const void* k = nullptr;  // first key of the document
  int64_t batch_stride = 0, token_stride = 0, head_stride = 0;
  int32_t kv_heads = 0;
  int32_t keys = 0;
  float* out = nullptr;  // this document's column of [B, Hkv, norm_stride], zero before the launch
  int32_t norm_stride = 0;
};

/// Largest |k|^2 per head of a document. Grid (blocks of 64 keys, kv heads, batch), 128 threads: 16
/// lanes a row, eight rows at a time. Non-negative floats order like their bits, and a NaN above
/// all of them.
template <class Wgmma>
__global__ void __launch_bounds__(128) key_norm_kernel(const __grid_constant__ KeyNormParams p) {
  const int head = blockIdx.y, batch = blockIdx.z;
  const int column = threadIdx.x % 16 * 8;
  const uint16_t* base =
      static_cast<const uint16_t*>(p.k) + batch * p.batch_stride + head * p.head_stride + column;
  uint4 loaded[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const int64_t key = int64_t{blockIdx.x} * 64 + i * 8 + threadIdx.x / 16;
    loaded[i] = key < p.keys ? __ldg(reinterpret_cast<const uint4*>(base + key * p.token_stride))
                             : uint4{0, 0, 0, 0};
  }
  uint32_t top = 0;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const uint32_t words[4] = {loaded[i].x, loaded[i].y, loaded[i].z, loaded[i].w};
    float sum = 0;
#pragma unroll
    for (int w = 0; w < 4; ++w) {
      const float2 pair = Wgmma::unpack(words[w]);
      sum = fmaf(pair.x, pair.x, fmaf(pair.y, pair.y, sum));
    }
#pragma unroll
    for (int step = 8; step > 0; step >>= 1) sum += __shfl_xor_sync(~0u, sum, step);
    top = max(top, __float_as_uint(fabsf(sum)));  // a NaN may carry a sign
  }
  top = __reduce_max_sync(~0u, top);
  __shared__ uint32_t tops[4];
  if (threadIdx.x % 32 == 0) tops[threadIdx.x / 32] = top;
  __syncthreads();
  if (threadIdx.x == 0) {
    top = max(max(tops[0], tops[1]), max(tops[2], tops[3]));
    atomicMax(reinterpret_cast<unsigned int*>(p.out +
                                              (int64_t{batch} * p.kv_heads + head) * p.norm_stride),
              top);
  }
}

struct TailCopyParams {
  const void* source = nullptr;  // k or v, 16-bit elements
  int64_t token_stride = 0, head_stride = 0;
  int32_t slots = 0;
  int32_t first_token = 0;  // of the last key block
  int32_t tokens = 0;       // real ones in it
  void* out = nullptr;      // this document's slot in [heads][slots * 64][128]
};

/// Grid (heads, 4); 256 threads copy 16 rows of 128 16-bit elements, 16 bytes each.
__global__ void copy_tail_kernel(const __grid_constant__ TailCopyParams p) {
  const int head = blockIdx.x;
  const int row = blockIdx.y * 16 + threadIdx.x / 16, column = threadIdx.x % 16 * 8;
  uint4 value{0, 0, 0, 0};
  if (row < p.tokens) {
    const uint16_t* from = static_cast<const uint16_t*>(p.source) +
                           (int64_t{p.first_token} + row) * p.token_stride + head * p.head_stride +
                           column;
    value = *reinterpret_cast<const uint4*>(from);
  }
  uint16_t* to =
      static_cast<uint16_t*>(p.out) + (int64_t{head} * p.slots * kBlock + row) * kHeadDim + column;
  *reinterpret_cast<uint4*>(to) = value;
}

struct ClearParams {
  void* out = nullptr;
  int64_t out_batch = 0, out_token = 0, out_head = 0;
  float* lse = nullptr;
  int64_t lse_batch = 0, lse_head = 0, lse_token = 0;
  int64_t first_token = 0, tokens = 0;
  int32_t heads = 0;
};

/// Grid (tokens to clear, heads, batch), 64 threads.
__global__ void clear_rows_kernel(const __grid_constant__ ClearParams p) {
  const int64_t token = p.first_token + blockIdx.x;
  const int head = blockIdx.y, batch = blockIdx.z;
  uint32_t* to = reinterpret_cast<uint32_t*>(static_cast<uint16_t*>(p.out) + batch * p.out_batch +
                                             token * p.out_token + head * p.out_head);
  to[threadIdx.x] = 0;
  if (p.lse != nullptr && threadIdx.x == 0) {
    p.lse[batch * p.lse_batch + head * p.lse_head + token * p.lse_token] = -INFINITY;
  }
}

}  // namespace tessera::sm90
