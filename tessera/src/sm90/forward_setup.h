// What the host decides before an attention launch: the workspace, the launches, the table of
// documents. Arithmetic without CUDA, so that the tests run it anywhere.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numbers>
#include <vector>

#include "tessera/execution.h"
#include "tessera/src/attention/problem.h"
#include "tessera/src/cuda/carver.h"
#include "tessera/src/sm90/attention_params.h"
#include "tessera/src/sm90/plan_fault.h"

namespace tessera::sm90 {

using internal::AttentionProblem;

/// Device buffers of one call, carved from the workspace.
struct ForwardBuffers {
  uint32_t* bitmap = nullptr;  // [B, H, rows, words]
  uint16_t* tail_k = nullptr;  // [Hkv, slots * 64, 128]
  uint16_t* tail_v = nullptr;
  PlanFault* fault = nullptr;
  float* key_norms = nullptr;  // [B, Hkv, documents]
};

inline int words_of(const AttentionProblem& problem) {
  return (problem.layout.max_key_blocks + 31) / 32;
}

inline bool is_packed(const AttentionProblem& problem) {
  return !problem.params->cu_seqlens.empty();
}

inline bool has_ragged_tail(const Document& d) { return d.key_length % kBlock != 0; }

/// Documents [first, last) of one launch.
struct Span {
  size_t first = 0, last = 0;
};

inline std::vector<Span> launches_of(const AttentionProblem& problem) {
  std::vector<Span> spans;
  const size_t n = problem.layout.documents.size();
  for (size_t i = 0; i < n; i += kMaxDocuments) {
    spans.push_back({i, std::min(n, i + kMaxDocuments)});
  }
  return spans;
}

inline int tail_slots(const AttentionProblem& problem) {
  if (!is_packed(problem)) return 0;  // the tensor's own end gives zeros
  return static_cast<int>(std::count_if(problem.layout.documents.begin(),
                                        problem.layout.documents.end(), has_ragged_tail));
}

inline int64_t norm_count(const AttentionProblem& problem) {
  return problem.batch * problem.kv_heads *
         static_cast<int64_t>(std::max<size_t>(1, problem.layout.documents.size()));
}

inline size_t carve_forward(const AttentionProblem& problem, void* base, ForwardBuffers* out) {
  cuda::Carver carver(base);
  ForwardBuffers buffers;
  buffers.fault = carver.take<PlanFault>(1);
  buffers.key_norms = carver.take<float>(norm_count(problem));
  if (problem.params->plan) {
    buffers.bitmap = carver.take<uint32_t>(problem.batch * problem.heads *
                                           problem.layout.query_blocks * words_of(problem));
  }
  if (const int64_t slots = tail_slots(problem); slots > 0) {
    const int64_t elements = problem.kv_heads * slots * kBlock * kHeadDim;
    buffers.tail_k = carver.take<uint16_t>(elements);
    buffers.tail_v = carver.take<uint16_t>(elements);
  }
  if (out != nullptr) *out = buffers;
  return carver.used();
}

/// A bitmap plan taken as it is: the kernels cut it to the real blocks, so it cannot be wrong, only
/// odd.
inline bool uses_given_bitmap(const AttentionProblem& problem, const Execution& exec) {
  const auto& plan = problem.params->plan;
  return plan && plan->bitmap.present() && !plan->dense_rows.present() && !exec.check_plan;
}

/// Pointers and strides of out and lse, which several parameter structs hold under the same names.
template <class Params>
void set_outputs(const AttentionParams& params, Params* p) {
  p->out = params.out.data;
  p->out_batch = params.out.stride[0];
  p->out_token = params.out.stride[1];
  p->out_head = params.out.stride[2];
  if (!params.lse.present()) return;
  p->lse = static_cast<float*>(params.lse.data);
  p->lse_batch = params.lse.stride[0];
  p->lse_head = params.lse.stride[1];
  p->lse_token = params.lse.stride[2];
}

inline ForwardParams make_params(const AttentionProblem& problem, const Execution& exec,
                                 const ForwardBuffers& buffers, Span span, int group) {
  const AttentionParams& params = *problem.params;
  ForwardParams p;
  int slot = 0;
  for (size_t i = 0; i < span.last; ++i) {
    const Document& d = problem.layout.documents[i];
    const bool tail = is_packed(problem) && has_ragged_tail(d);
    const int own_slot = tail ? slot++ : -1;
    if (i < span.first) continue;
    DocumentInfo& info = p.documents[p.document_count++];
    info.query_start = static_cast<int32_t>(d.query_start);
    info.query_length = static_cast<int32_t>(d.query_length);
    info.key_start = static_cast<int32_t>(d.key_start);
    info.query_blocks = d.query_blocks;
    info.key_blocks = d.key_blocks;
    info.last_block_keys = static_cast<int32_t>(d.key_length - int64_t{d.key_blocks - 1} * kBlock);
    info.first_plan_row = d.first_query_block;
    info.first_item = p.items_per_head;
    info.tail_slot = own_slot;
    info.norm_slot = static_cast<int32_t>(i);
    p.items_per_head += (d.query_blocks + group - 1) / group;
  }
  p.batch = static_cast<int32_t>(problem.batch);
  p.heads = static_cast<int32_t>(problem.heads);
  p.kv_ratio = static_cast<int32_t>(problem.heads / problem.kv_heads);
  p.items = p.batch * p.heads * p.items_per_head;
  if (uses_given_bitmap(problem, exec)) {
    p.bitmap = static_cast<const uint32_t*>(params.plan->bitmap.data);
    p.bitmap_batch = params.plan->bitmap.stride[0];
    p.bitmap_head = params.plan->bitmap.stride[1];
    p.bitmap_row = params.plan->bitmap.stride[2];
  } else if (params.plan) {
    p.bitmap = buffers.bitmap;
    p.bitmap_row = words_of(problem);
    p.bitmap_head = p.bitmap_row * problem.layout.query_blocks;
    p.bitmap_batch = p.bitmap_head * problem.heads;
    p.fault = &buffers.fault->code;
  }
  set_outputs(params, &p);
  p.key_norms = buffers.key_norms;
  p.norm_stride = static_cast<int32_t>(problem.layout.documents.size());
  p.scale_log2 = static_cast<float>(double{problem.scale} * std::numbers::log2e);
  return p;
}

}  // namespace tessera::sm90
