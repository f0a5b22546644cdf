// Implementation of the benchmark C face: translation of structs, nothing else.
#include "tessera/bench/c_api.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <string>

#include "tessera/attention.h"
#include "tessera/device.h"
#include "tessera/router.h"

namespace {

using tessera::Bshd;
using tessera::Dtype;
using tessera::Status;

void copy_text(const std::string& text, TbMessage* message) {
  if (message == nullptr || message->text == nullptr || message->bytes == 0) return;
  const size_t length = std::min(text.size(), message->bytes - 1);
  std::memcpy(message->text, text.data(), length);
  message->text[length] = '\0';
}

int finish(const Status& status, TbMessage* message) {
  copy_text(status.message(), message);
  return static_cast<int>(status.code());
}

Status to_view(const TbTensor* tensor, const char* name, Bshd* out) {
  if (tensor == nullptr || tensor->data == nullptr) {
    return tessera::invalid_argument(std::string(name) +
                                     " is null; a [B, S, H, D] tensor is needed");
  }
  if (tensor->dtype < 0 || tensor->dtype > 2) {
    return tessera::invalid_argument(std::string(name) + " has dtype code " +
                                     std::to_string(tensor->dtype) +
                                     "; accepted are 0 (bf16), 1 (f16) and 2 (f32)");
  }
  constexpr Dtype kCodes[] = {Dtype::kBf16, Dtype::kF16, Dtype::kF32};
  out->data = const_cast<void*>(tensor->data);
  std::copy_n(tensor->size, 4, out->size.begin());
  std::copy_n(tensor->stride, 4, out->stride.begin());
  out->dtype = kCodes[tensor->dtype];
  return {};
}

Status to_params(const TbTensor* q, const TbTensor* k, const TbTensor* v, const TbTensor* out,
                 tessera::AttentionParams* params) {
  TESSERA_RETURN_IF_ERROR(to_view(q, "q", &params->q));
  TESSERA_RETURN_IF_ERROR(to_view(k, "k", &params->k));
  TESSERA_RETURN_IF_ERROR(to_view(v, "v", &params->v));
  return to_view(out, "out", &params->out);
}

Status to_request(const Bshd& q, const Bshd& k, const TbRouteConfig* config,
                  tessera::RouteParams* request) {
  if (config == nullptr) return tessera::invalid_argument("the route config is null");
  request->q = q;
  request->k = k;
  request->config.n_q = config->n_q;
  request->config.n_k = config->n_k;
  request->config.budget.kind = tessera::BudgetKind::kKeep;
  request->config.budget.keep = config->keep;
  return {};
}

tessera::Execution on_threads(int threads) {
  tessera::Execution exec;
  exec.threads = threads;
  return exec;
}

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

Status run_dense(const TbTensor* q, const TbTensor* k, const TbTensor* v, const TbTensor* out,
                 int threads) {
  tessera::AttentionParams params;
  TESSERA_RETURN_IF_ERROR(to_params(q, k, v, out, &params));
  return tessera::attend(params, on_threads(threads));
}

Status run_route(const TbTensor* q, const TbTensor* k, const TbRouteConfig* config, int32_t* index,
                 int32_t* count, int threads) {
  if (index == nullptr || count == nullptr) {
    return tessera::invalid_argument("index and count are needed to hold the plan");
  }
  Bshd q_view, k_view;
  TESSERA_RETURN_IF_ERROR(to_view(q, "q", &q_view));
  TESSERA_RETURN_IF_ERROR(to_view(k, "k", &k_view));
  tessera::RouteParams request;
  TESSERA_RETURN_IF_ERROR(to_request(q_view, k_view, config, &request));
  tessera::Plan plan;
  TESSERA_RETURN_IF_ERROR(tessera::route(request, on_threads(threads), &plan));
  if (plan.shape.width != config->keep) {
    return tessera::invalid_argument("keep " + std::to_string(config->keep) +
                                     " asked, but rows hold " + std::to_string(plan.shape.width) +
                                     " blocks; ask for at most the number of key blocks");
  }
  std::copy(plan.index.begin(), plan.index.end(), index);
  std::copy(plan.count.begin(), plan.count.end(), count);
  return {};
}

Status run_sparse(const TbTensor* q, const TbTensor* k, const TbTensor* v, const TbTensor* out,
                  const TbRouteConfig* config, const int32_t* index, const int32_t* count,
                  int threads, TbTimes* times) {
  tessera::AttentionParams params;
  TESSERA_RETURN_IF_ERROR(to_params(q, k, v, out, &params));
  tessera::RouteParams request;
  TESSERA_RETURN_IF_ERROR(to_request(params.q, params.k, config, &request));
  if ((index == nullptr) != (count == nullptr)) {
    return tessera::invalid_argument("index and count come together or not at all");
  }
  tessera::Plan plan;
  const auto start = std::chrono::steady_clock::now();
  TESSERA_RETURN_IF_ERROR(tessera::route(request, on_threads(threads), &plan));
  const double route_s = seconds_since(start);
  tessera::PlanView used = plan.view();
  if (index != nullptr) {
    const int64_t batch = params.q.size[0], heads = params.q.size[2];
    const int64_t rows = plan.shape.query_blocks;
    used = {};
    used.index =
        tessera::contiguous_view<4>(index, {batch, heads, rows, config->keep}, Dtype::kI32);
    used.count = tessera::contiguous_view<3>(count, {batch, heads, rows}, Dtype::kI32);
  }
  params.plan = used;
  const auto middle = std::chrono::steady_clock::now();
  TESSERA_RETURN_IF_ERROR(tessera::attend(params, on_threads(threads)));
  if (times != nullptr) *times = {route_s, seconds_since(middle)};
  return {};
}

Status to_exec(const TbCudaCall* call, tessera::Execution* exec) {
  if (call == nullptr) return tessera::invalid_argument("the call settings are null");
  exec->device = {tessera::DeviceKind::kCuda, call->device};
  exec->stream = call->stream;
  exec->workspace = {call->workspace, call->workspace_bytes};
  exec->kernel = call->kernel == nullptr ? "" : call->kernel;
  exec->check_plan = call->check_plan != 0;
  return {};
}

int64_t blocks_of(int64_t tokens) {
  return (tokens + tessera::kBlockTokens - 1) / tessera::kBlockTokens;
}

/// Absent pointers give absent views.
tessera::PlanView device_plan(const TbCudaPlan& plan, const Bshd& q, const Bshd& k) {
  const int64_t batch = q.size[0], heads = q.size[2], rows = blocks_of(q.size[1]);
  const int64_t words = (blocks_of(k.size[1]) + 31) / 32;
  tessera::PlanView view;
  if (plan.index != nullptr) {
    view.index =
        tessera::contiguous_view<4>(plan.index, {batch, heads, rows, plan.width}, Dtype::kI32);
  }
  if (plan.count != nullptr) {
    view.count = tessera::contiguous_view<3>(plan.count, {batch, heads, rows}, Dtype::kI32);
  }
  if (plan.bitmap != nullptr) {
    view.bitmap =
        tessera::contiguous_view<4>(plan.bitmap, {batch, heads, rows, words}, Dtype::kU32);
  }
  return view;
}

Status to_cuda_attend(const TbTensor* q, const TbTensor* k, const TbTensor* v, const TbTensor* out,
                      float* lse, const TbCudaPlan* plan, const TbCudaCall* call,
                      tessera::AttentionParams* params, tessera::Execution* exec) {
  TESSERA_RETURN_IF_ERROR(to_exec(call, exec));
  TESSERA_RETURN_IF_ERROR(to_params(q, k, v, out, params));
  if (lse != nullptr) {
    params->lse = tessera::contiguous_view<3>(
        lse, {params->q.size[0], params->q.size[2], params->q.size[1]}, Dtype::kF32);
  }
  if (plan != nullptr) params->plan = device_plan(*plan, params->q, params->k);
  return {};
}

Status to_cuda_route(const TbTensor* q, const TbTensor* k, const TbRouteConfig* config,
                     const TbCudaCall* call, tessera::RouteParams* params,
                     tessera::Execution* exec) {
  TESSERA_RETURN_IF_ERROR(to_exec(call, exec));
  exec->kernel.clear();  // it names attention kernels
  Bshd q_view, k_view;
  TESSERA_RETURN_IF_ERROR(to_view(q, "q", &q_view));
  TESSERA_RETURN_IF_ERROR(to_view(k, "k", &k_view));
  return to_request(q_view, k_view, config, params);
}

Status run_cuda_attend(const TbTensor* q, const TbTensor* k, const TbTensor* v, const TbTensor* out,
                       float* lse, const TbCudaPlan* plan, const TbCudaCall* call) {
  tessera::AttentionParams params;
  tessera::Execution exec;
  TESSERA_RETURN_IF_ERROR(to_cuda_attend(q, k, v, out, lse, plan, call, &params, &exec));
  return tessera::attend(params, exec);
}

Status run_cuda_route(const TbTensor* q, const TbTensor* k, const TbRouteConfig* config,
                      const TbCudaPlan* plan, uint8_t* dense_rows, const TbCudaCall* call) {
  tessera::RouteParams params;
  tessera::Execution exec;
  TESSERA_RETURN_IF_ERROR(to_cuda_route(q, k, config, call, &params, &exec));
  if (plan == nullptr || dense_rows == nullptr) {
    return tessera::invalid_argument("plan and dense_rows are needed to hold the result");
  }
  tessera::RouteOutputs outputs;
  outputs.plan = device_plan(*plan, params.q, params.k);
  outputs.plan.dense_rows = tessera::contiguous_view<2>(
      dense_rows, {params.q.size[0], blocks_of(params.q.size[1])}, Dtype::kU8);
  return tessera::route(params, exec, outputs);
}

}  // namespace

int tb_attend_dense(const TbTensor* q, const TbTensor* k, const TbTensor* v, const TbTensor* out,
                    int threads, TbMessage* message) {
  return finish(run_dense(q, k, v, out, threads), message);
}

int tb_route_only(const TbTensor* q, const TbTensor* k, const TbRouteConfig* config, int32_t* index,
                  int32_t* count, int threads, TbMessage* message) {
  return finish(run_route(q, k, config, index, count, threads), message);
}

int tb_route_and_attend(const TbTensor* q, const TbTensor* k, const TbTensor* v,
                        const TbTensor* out, const TbRouteConfig* config, const int32_t* index,
                        const int32_t* count, int threads, TbTimes* times, TbMessage* message) {
  return finish(run_sparse(q, k, v, out, config, index, count, threads, times), message);
}

int tb_describe(TbMessage* message) {
  copy_text(std::string(tessera::version()) + " " + tessera::cpu_info().vector_target, message);
  return 0;
}

int tb_cuda_attend(const TbTensor* q, const TbTensor* k, const TbTensor* v, const TbTensor* out,
                   float* lse, const TbCudaPlan* plan, const TbCudaCall* call, TbMessage* message) {
  return finish(run_cuda_attend(q, k, v, out, lse, plan, call), message);
}

int tb_cuda_attend_workspace(const TbTensor* q, const TbTensor* k, const TbTensor* v,
                             const TbTensor* out, float* lse, const TbCudaPlan* plan,
                             const TbCudaCall* call, size_t* bytes, TbMessage* message) {
  tessera::AttentionParams params;
  tessera::Execution exec;
  Status status = to_cuda_attend(q, k, v, out, lse, plan, call, &params, &exec);
  if (status.ok()) status = tessera::attention_workspace(params, exec, bytes);
  return finish(status, message);
}

int tb_cuda_route(const TbTensor* q, const TbTensor* k, const TbRouteConfig* config,
                  const TbCudaPlan* plan, uint8_t* dense_rows, const TbCudaCall* call,
                  TbMessage* message) {
  return finish(run_cuda_route(q, k, config, plan, dense_rows, call), message);
}

int tb_cuda_route_workspace(const TbTensor* q, const TbTensor* k, const TbRouteConfig* config,
                            const TbCudaCall* call, size_t* bytes, TbMessage* message) {
  tessera::RouteParams params;
  tessera::Execution exec;
  Status status = to_cuda_route(q, k, config, call, &params, &exec);
  if (status.ok()) status = tessera::route_workspace(params, exec, bytes);
  return finish(status, message);
}
