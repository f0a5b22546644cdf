// Prepares and launches the sm_90 attention kernels: workspace, tensor maps, bitmaps, document
// tables.
#include <algorithm>
#include <numbers>

#include "tessera/src/common/cat.h"
#include "tessera/src/cuda/runtime.h"
#include "tessera/src/sm90/forward.h"
#include "tessera/src/sm90/list_fwd/kernel.cuh"
#include "tessera/src/sm90/prepare.cuh"
#include "tessera/src/sm90/router/config.h"
#include "tessera/src/sm90/union_fwd/kernel.cuh"

namespace tessera::sm90 {

using internal::AttentionProblem;
using internal::cat;

namespace {

/// Device buffers of one call, carved from the workspace.
struct Buffers {
  uint32_t* bitmap = nullptr;  // [B, H, rows, words]
  uint16_t* tail_k = nullptr;  // [Hkv, slots * 64, 128]
  uint16_t* tail_v = nullptr;
  PlanFault* fault = nullptr;
  float* key_norms = nullptr;  // [B, Hkv, documents]
};

int words_of(const AttentionProblem& problem) { return (problem.layout.max_key_blocks + 31) / 32; }

bool is_packed(const AttentionProblem& problem) { return !problem.params->cu_seqlens.empty(); }

bool has_ragged_tail(const Document& d) { return d.key_length % kBlock != 0; }

/// Documents [first, last) of one launch.
struct Span {
  size_t first = 0, last = 0;
};

std::vector<Span> launches_of(const AttentionProblem& problem) {
  std::vector<Span> spans;
  const size_t n = problem.layout.documents.size();
  for (size_t i = 0; i < n; i += kMaxDocuments) {
    spans.push_back({i, std::min(n, i + kMaxDocuments)});
  }
  return spans;
}

int tail_slots(const AttentionProblem& problem) {
  if (!is_packed(problem)) return 0;  // the tensor's own end gives zeros
  return static_cast<int>(std::count_if(problem.layout.documents.begin(),
                                        problem.layout.documents.end(), has_ragged_tail));
}

int64_t norm_count(const AttentionProblem& problem) {
  return problem.batch * problem.kv_heads *
         static_cast<int64_t>(std::max<size_t>(1, problem.layout.documents.size()));
}

size_t carve(const AttentionProblem& problem, void* base, Buffers* out) {
  cuda::Carver carver(base);
  Buffers buffers;
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
bool uses_given_bitmap(const AttentionProblem& problem, const Execution& exec) {
  const auto& plan = problem.params->plan;
  return plan && plan->bitmap.present() && !plan->dense_rows.present() && !exec.check_plan;
}

Status build_bitmaps(const AttentionProblem& problem, const Buffers& buffers, cudaStream_t stream) {
  const PlanView& plan = *problem.params->plan;
  BitmapParams p;
  if (plan.bitmap.present()) {
    p.bitmap = static_cast<const uint32_t*>(plan.bitmap.data);
    p.bitmap_batch = plan.bitmap.stride[0];
    p.bitmap_head = plan.bitmap.stride[1];
    p.bitmap_row = plan.bitmap.stride[2];
  } else {
    p.index = static_cast<const int32_t*>(plan.index.data);
    p.index_batch = plan.index.stride[0];
    p.index_head = plan.index.stride[1];
    p.index_row = plan.index.stride[2];
    p.count = static_cast<const int32_t*>(plan.count.data);
    p.count_batch = plan.count.stride[0];
    p.count_head = plan.count.stride[1];
    p.count_row = plan.count.stride[2];
    p.width = static_cast<int32_t>(plan.index.size[3]);
  }
  if (plan.dense_rows.present()) {
    p.dense_rows = static_cast<const uint8_t*>(plan.dense_rows.data);
    p.dense_batch = plan.dense_rows.stride[0];
    p.dense_row = plan.dense_rows.stride[1];
  }
  p.batch = static_cast<int32_t>(problem.batch);
  p.heads = static_cast<int32_t>(problem.heads);
  p.rows = problem.layout.query_blocks;
  p.words = words_of(problem);
  p.out = buffers.bitmap;
  p.fault = buffers.fault;
  for (const Document& d : problem.layout.documents) {
    p.first_row = d.first_query_block;
    p.document_rows = d.query_blocks;
    p.key_blocks = d.key_blocks;
    const int64_t rows = int64_t{p.batch} * p.heads * d.query_blocks;
    build_bitmap_kernel<<<static_cast<unsigned>((rows + kBitmapWarps - 1) / kBitmapWarps),
                          kBitmapWarps * 32, 0, stream>>>(p);
    TESSERA_RETURN_IF_CUDA_ERROR(cudaGetLastError());
  }
  return {};
}

std::string fault_text(const PlanFault& f) {
  const std::string place =
      cat("[batch ", f.batch, ", head ", f.head, ", query block ", f.row, "]");
  switch (f.code) {
    case kBadCount:
      return cat("block_count at ", place, " is ", f.value, "; a count must lie in [0, ", f.limit,
                 "], the width of block_index");
    case kBadId:
      return cat("block_index at ", place, " slot ", f.slot, " is ", f.value,
                 "; ids must lie in [0, ", f.limit, "); was the plan built for another length?");
    case kDuplicateId:
      return cat("block_index at ", place, " lists block ", f.value, " twice inside its count of ",
                 f.limit, "; ids of a row must be distinct");
    default:
      return cat("bitmap at ", place, " has bit ", f.value, " set; the document has ", f.limit,
                 " key blocks");
  }
}

/// Waits for the bitmaps and turns a fault into a Status. Not legal during graph capture.
Status read_fault(const Buffers& buffers, cudaStream_t stream) {
  cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
  TESSERA_RETURN_IF_CUDA_ERROR(cudaStreamIsCapturing(stream, &capture));
  if (capture != cudaStreamCaptureStatusNone) {
    return invalid_argument(
        "check_plan waits for the device and cannot run during graph capture; set check_plan to "
        "false (a bad plan then gives NaN output)");
  }
  PlanFault fault;
  TESSERA_RETURN_IF_CUDA_ERROR(
      cudaMemcpyAsync(&fault, buffers.fault, sizeof(fault), cudaMemcpyDeviceToHost, stream));
  TESSERA_RETURN_IF_CUDA_ERROR(cudaStreamSynchronize(stream));
  return fault.code == kNoFault ? Status() : invalid_argument(fault_text(fault));
}

Status copy_tails(const AttentionProblem& problem, const Buffers& buffers, cudaStream_t stream) {
  const int slots = tail_slots(problem);
  const AttentionParams& params = *problem.params;
  for (const auto& [tensor, out] :
       {std::pair{&params.k, buffers.tail_k}, std::pair{&params.v, buffers.tail_v}}) {
    int slot = 0;
    for (const Document& d : problem.layout.documents) {
      if (!has_ragged_tail(d)) continue;
      TailCopyParams p;
      p.source = tensor->data;
      p.token_stride = tensor->stride[1];
      p.head_stride = tensor->stride[2];
      p.slots = slots;
      p.first_token = static_cast<int32_t>(d.key_start + int64_t{d.key_blocks - 1} * kBlock);
      p.tokens = static_cast<int32_t>(d.key_length % kBlock);
      p.out = out + int64_t{slot} * kBlock * kHeadDim;
      copy_tail_kernel<<<dim3(static_cast<unsigned>(problem.kv_heads), 4), 256, 0, stream>>>(p);
      TESSERA_RETURN_IF_CUDA_ERROR(cudaGetLastError());
      ++slot;
    }
  }
  return {};
}

Status measure_keys(const AttentionProblem& problem, const Buffers& buffers, cudaStream_t stream) {
  const Bshd& k = problem.params->k;
  TESSERA_RETURN_IF_CUDA_ERROR(
      cudaMemsetAsync(buffers.key_norms, 0, norm_count(problem) * sizeof(float), stream));
  const auto& documents = problem.layout.documents;
  for (size_t n = 0; n < documents.size(); ++n) {
    KeyNormParams p;
    p.k = static_cast<const uint16_t*>(k.data) + documents[n].key_start * k.stride[1];
    p.batch_stride = k.stride[0];
    p.token_stride = k.stride[1];
    p.head_stride = k.stride[2];
    p.kv_heads = static_cast<int32_t>(problem.kv_heads);
    p.keys = static_cast<int32_t>(documents[n].key_length);
    p.out = buffers.key_norms + n;
    p.norm_stride = static_cast<int32_t>(documents.size());
    const dim3 grid(static_cast<unsigned>(documents[n].key_blocks),
                    static_cast<unsigned>(problem.kv_heads), static_cast<unsigned>(problem.batch));
    if (k.dtype == Dtype::kF16) {
      key_norm_kernel<ptx::WgmmaOf<__half>><<<grid, 128, 0, stream>>>(p);
    } else {
      key_norm_kernel<ptx::WgmmaOf<__nv_bfloat16>><<<grid, 128, 0, stream>>>(p);
    }
    TESSERA_RETURN_IF_CUDA_ERROR(cudaGetLastError());
  }
  return {};
}

Status clear_outside(const AttentionProblem& problem, cudaStream_t stream) {
  const AttentionParams& params = *problem.params;
  const auto& documents = problem.layout.documents;
  ClearParams p;
  p.first_token =
      documents.empty() ? 0 : documents.back().query_start + documents.back().query_length;
  p.tokens = params.q.size[1] - p.first_token;
  if (p.tokens <= 0) return {};
  p.out = params.out.data;
  p.out_batch = params.out.stride[0];
  p.out_token = params.out.stride[1];
  p.out_head = params.out.stride[2];
  if (params.lse.present()) {
    p.lse = static_cast<float*>(params.lse.data);
    p.lse_batch = params.lse.stride[0];
    p.lse_head = params.lse.stride[1];
    p.lse_token = params.lse.stride[2];
  }
  clear_rows_kernel<<<dim3(static_cast<unsigned>(p.tokens), static_cast<unsigned>(problem.heads),
                           static_cast<unsigned>(problem.batch)),
                      64, 0, stream>>>(p);
  return cuda::check(cudaGetLastError(), "clear_rows_kernel");
}

Status make_maps(const AttentionProblem& problem, const Buffers& buffers, ForwardMaps* maps) {
  const AttentionParams& params = *problem.params;
  TESSERA_RETURN_IF_ERROR(cuda::encode_tensor_map(params.q, kBlock, 1, "q", &maps->q));
  TESSERA_RETURN_IF_ERROR(cuda::encode_tensor_map(params.k, kBlock, 2, "k", &maps->k));
  TESSERA_RETURN_IF_ERROR(cuda::encode_tensor_map(params.v, kBlock, 2, "v", &maps->v));
  maps->tail_k = maps->k;
  maps->tail_v = maps->v;
  const int64_t rows = int64_t{tail_slots(problem)} * kBlock;
  if (rows == 0) return {};
  const auto tails = [&](void* data) {
    Bshd view;
    view.data = data;
    view.size = {1, rows, problem.kv_heads, kHeadDim};
    view.stride = {problem.kv_heads * rows * kHeadDim, kHeadDim, rows * kHeadDim, 1};
    view.dtype = params.k.dtype;
    return view;
  };
  TESSERA_RETURN_IF_ERROR(
      cuda::encode_tensor_map(tails(buffers.tail_k), kBlock, 2, "k tails", &maps->tail_k));
  return cuda::encode_tensor_map(tails(buffers.tail_v), kBlock, 2, "v tails", &maps->tail_v);
}

ForwardParams make_params(const AttentionProblem& problem, const Execution& exec,
                          const Buffers& buffers, Span span, int group) {
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
  p.out = params.out.data;
  p.out_batch = params.out.stride[0];
  p.out_token = params.out.stride[1];
  p.out_head = params.out.stride[2];
  if (params.lse.present()) {
    p.lse = static_cast<float*>(params.lse.data);
    p.lse_batch = params.lse.stride[0];
    p.lse_head = params.lse.stride[1];
    p.lse_token = params.lse.stride[2];
  }
  p.key_norms = buffers.key_norms;
  p.norm_stride = static_cast<int32_t>(problem.layout.documents.size());
  p.scale_log2 = static_cast<float>(double{problem.scale} * std::numbers::log2e);
  return p;
}

template <class C, class Kernel>
Status launch(Kernel kernel, const ForwardMaps& maps, const ForwardParams& p, int grid,
              cudaStream_t stream) {
  TESSERA_RETURN_IF_CUDA_ERROR(cudaFuncSetAttribute(
      kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(C::kSharedBytes)));
  kernel<<<grid, C::kThreads, C::kSharedBytes, stream>>>(maps, p);
  return cuda::check(cudaGetLastError(), "attention kernel launch");
}

/// Everything but the kernel itself; `start(maps, params, multiprocessors, stream)` launches it.
template <class Start>
Status run_forward(const AttentionProblem& problem, const Execution& exec, int group, Start start) {
  cuda::DeviceFacts facts;
  TESSERA_RETURN_IF_ERROR(cuda::require_sm90(exec.device.index, &facts));
  const cuda::DeviceScope scope(exec.device.index);
  TESSERA_RETURN_IF_ERROR(scope.status());
  const auto stream = static_cast<cudaStream_t>(exec.stream);
  const size_t needed = forward_workspace(problem);
  TESSERA_RETURN_IF_ERROR(cuda::check_workspace(exec.workspace, needed, "attention_workspace"));
  Buffers buffers;
  carve(problem, exec.workspace.data, &buffers);
  if (problem.params->plan && !uses_given_bitmap(problem, exec)) {
    TESSERA_RETURN_IF_CUDA_ERROR(cudaMemsetAsync(buffers.fault, 0, sizeof(PlanFault), stream));
    TESSERA_RETURN_IF_ERROR(build_bitmaps(problem, buffers, stream));
    if (exec.check_plan) TESSERA_RETURN_IF_ERROR(read_fault(buffers, stream));
  }
  if (tail_slots(problem) > 0) TESSERA_RETURN_IF_ERROR(copy_tails(problem, buffers, stream));
  TESSERA_RETURN_IF_ERROR(clear_outside(problem, stream));
  TESSERA_RETURN_IF_ERROR(measure_keys(problem, buffers, stream));
  ForwardMaps maps;
  TESSERA_RETURN_IF_ERROR(make_maps(problem, buffers, &maps));
  for (const Span& span : launches_of(problem)) {
    TESSERA_RETURN_IF_ERROR(start(maps, make_params(problem, exec, buffers, span, group),
                                  facts.multiprocessors, stream));
  }
  return {};
}

/// Calls body.template operator()<Element, kPacked>() for the problem's dtype and form.
template <class Body>
Status with_element_and_form(const AttentionProblem& problem, Body body) {
  const bool packed = is_packed(problem);
  if (problem.params->q.dtype == Dtype::kF16) {
    return packed ? body.template operator()<__half, true>()
                  : body.template operator()<__half, false>();
  }
  return packed ? body.template operator()<__nv_bfloat16, true>()
                : body.template operator()<__nv_bfloat16, false>();
}

template <bool kBalanced>
Status run_union_kernel(const AttentionProblem& problem, const Execution& exec) {
  return with_element_and_form(problem, [&]<class Element, bool kPacked>() {
    using C = UnionFwdConfig<Element, kBalanced, kPacked>;
    const auto start = [](const ForwardMaps& maps, const ForwardParams& p, int processors,
                          cudaStream_t stream) {
      return launch<C>(sm90_union_fwd_kernel<C>, maps, p, std::min(processors, p.items), stream);
    };
    return run_forward(problem, exec, C::kGroup, start);
  });
}

}  // namespace

std::string refuse_forward(const AttentionProblem& problem) {
  const AttentionParams& params = *problem.params;
  if (problem.head_dim != kHeadDim) return cat("head_dim is ", problem.head_dim, ", not 128");
  if (params.q.dtype == Dtype::kF32) return "f32 tensors; accepted are bf16 and f16";
  if (problem.layout.max_key_blocks > kMaxKeyBlocks) {
    return cat(problem.layout.max_key_blocks, " key blocks; at most ", kMaxKeyBlocks,
               " (262,144 keys) are accepted");
  }
  for (const auto& [name, t] : {std::pair{"q", &params.q}, std::pair{"k", &params.k},
                                std::pair{"v", &params.v}, std::pair{"out", &params.out}}) {
    if (reinterpret_cast<uintptr_t>(t->data) % 16 != 0) {
      return cat(name, " is not 16-byte aligned; align its first element");
    }
    for (int i = 0; i < 3; ++i) {
      if (t->size[i] > 1 && (t->stride[i] <= 0 || t->stride[i] % 8 != 0)) {
        return cat(name, " has stride ", t->stride[i], " in dimension ", i,
                   "; strides must be positive multiples of 8 elements (16 bytes)");
      }
    }
  }
  return {};
}

size_t forward_workspace(const AttentionProblem& problem) {
  return carve(problem, nullptr, nullptr);
}

Status run_union(const AttentionProblem& problem, const Execution& exec) {
  return run_union_kernel<true>(problem, exec);
}

Status run_union_plain(const AttentionProblem& problem, const Execution& exec) {
  return run_union_kernel<false>(problem, exec);
}

Status run_list(const AttentionProblem& problem, const Execution& exec) {
  return with_element_and_form(problem, [&]<class Element, bool kPacked>() {
    using C = ListFwdConfig<Element, kPacked>;
    const auto start = [](const ForwardMaps& maps, const ForwardParams& p, int,
                          cudaStream_t stream) {
      return launch<C>(sm90_list_fwd_kernel<C>, maps, p, p.items, stream);
    };
    return run_forward(problem, exec, C::kGroup, start);
  });
}

}  // namespace tessera::sm90
