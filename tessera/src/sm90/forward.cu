// Prepares and launches the sm_90 attention kernels: bitmaps, tails, tensor maps.
#include <algorithm>

#include "tessera/src/common/cat.h"
#include "tessera/src/cuda/runtime.h"
#include "tessera/src/sm90/forward.h"
#include "tessera/src/sm90/forward_setup.h"
#include "tessera/src/sm90/list_fwd/kernel.cuh"
#include "tessera/src/sm90/prepare.cuh"
#include "tessera/src/sm90/router/config.h"
#include "tessera/src/sm90/union_fwd/kernel.cuh"

namespace tessera::sm90 {

using internal::AttentionProblem;
using internal::cat;

namespace {

Status build_bitmaps(const AttentionProblem& problem, const ForwardBuffers& buffers,
                     cudaStream_t stream) {
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
Status read_fault(const ForwardBuffers& buffers, cudaStream_t stream) {
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

Status copy_tails(const AttentionProblem& problem, const ForwardBuffers& buffers,
                  cudaStream_t stream) {
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

Status measure_keys(const AttentionProblem& problem, const ForwardBuffers& buffers,
                    cudaStream_t stream) {
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
  set_outputs(params, &p);
  clear_rows_kernel<<<dim3(static_cast<unsigned>(p.tokens), static_cast<unsigned>(problem.heads),
                           static_cast<unsigned>(problem.batch)),
                      64, 0, stream>>>(p);
  return cuda::check(cudaGetLastError(), "clear_rows_kernel");
}

Status make_maps(const AttentionProblem& problem, const ForwardBuffers& buffers,
                 ForwardMaps* maps) {
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
  ForwardBuffers buffers;
  carve_forward(problem, exec.workspace.data, &buffers);
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
  return carve_forward(problem, nullptr, nullptr);
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
