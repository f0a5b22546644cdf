// What both sm_90 attention kernels consume. Plain values; the tensor maps travel beside them.
#pragma once

#include <cstdint>

namespace tessera::sm90 {

inline constexpr int kHeadDim = 128;
inline constexpr int kBlock = 64;

/// Documents per launch; a call with more of them is split over launches.
inline constexpr int kMaxDocuments = 32;

struct DocumentInfo {
  int32_t query_start = 0, query_length = 0;
  int32_t key_start = 0;
  int32_t query_blocks = 0, key_blocks = 0;
  int32_t last_block_keys = 64;  // real keys of the last key block
  int32_t first_plan_row = 0;    // its first row in the plan
  int32_t first_item = 0;        // its first work item inside a head
  int32_t norm_slot = 0;         // its column in key_norms
  int32_t tail_slot = -1;  // >= 0: the last key block is read from this slot of the tail copies
};

struct ForwardParams {
  DocumentInfo documents[kMaxDocuments];
  int32_t document_count = 0;
  int32_t batch = 0, heads = 0, kv_ratio = 1;
  int32_t items_per_head = 0;
  int32_t items = 0;                 // batch * heads * items_per_head
  const uint32_t* bitmap = nullptr;  // [B, H, plan rows, words]; null: dense
  int64_t bitmap_batch = 0, bitmap_head = 0, bitmap_row = 0;  // strides in words
  void* out = nullptr;
  int64_t out_batch = 0, out_token = 0, out_head = 0;
  float* lse = nullptr;  // optional
  int64_t lse_batch = 0, lse_head = 0, lse_token = 0;
  const float* key_norms = nullptr;  // [B, Hkv, norm_stride] largest |k|^2 of a document
  int32_t norm_stride = 0;
  const int32_t* fault = nullptr;  // non-zero there: the plan broke a rule, write NaN
  float scale_log2 = 0;            // softmax_scale * log2(e)
};

/// The document that owns `item` of a head. An unpacked call has one: everything about it is then a
/// compile-time address in the kernel's parameters.
template <bool kPacked>
__host__ __device__ inline const DocumentInfo& document_of(const ForwardParams& p, int item) {
  int d = 0;
  if constexpr (kPacked) {
    while (d + 1 < p.document_count && p.documents[d + 1].first_item <= item) ++d;
  }
  return p.documents[d];
}

}  // namespace tessera::sm90
