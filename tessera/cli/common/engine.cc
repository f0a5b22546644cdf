#include "tessera/cli/common/engine.h"

#include <algorithm>

#include "tessera/cli/common/timing.h"

namespace tessera::cli {

namespace {

template <int kRank>
size_t bytes_of(const TensorView<kRank>& view) {
  return static_cast<size_t>(view.elements()) * dtype_bytes(view.dtype);
}

// All host tensors here are contiguous: a mapped file, or memory of the command.
template <int kRank>
TensorView<kRank> moved(const TensorView<kRank>& host, const DeviceBuffer& buffer) {
  return contiguous_view<kRank>(buffer.data(), host.size, host.dtype);
}

}  // namespace

Engine::Engine(const Device& device, const GlobalOptions& global) : exec_(make_execution(global)) {
  exec_.device = device;
}

Status Engine::open(const Input& input) {
  if (!on_cuda()) return {};
  TESSERA_RETURN_IF_ERROR(select_device(exec_.device));
  TESSERA_RETURN_IF_ERROR(stream_.open());
  exec_.stream = stream_.handle();
  exec_.check_plan = false;  // checked on the host, where the message can name the place
  TESSERA_RETURN_IF_ERROR(q_.upload(input.q.data, bytes_of(input.q)));
  TESSERA_RETURN_IF_ERROR(k_.upload(input.k.data, bytes_of(input.k)));
  if (!input.v.present()) return {};
  return v_.upload(input.v.data, bytes_of(input.v));
}

Status Engine::route(const RouteParams& params, const Progress& progress, Plan* plan,
                     double* seconds) {
  if (on_cuda()) return route_cuda(params, plan, seconds);
  Execution exec = exec_;
  exec.progress = progress;
  const Stopwatch watch;
  TESSERA_RETURN_IF_ERROR(tessera::route(params, exec, plan));
  *seconds = watch.seconds();
  return {};
}

Status Engine::route_cuda(RouteParams params, Plan* plan, double* seconds) {
  params.q = moved(params.q, q_);
  params.k = moved(params.k, k_);
  PlanShape shape;
  TESSERA_RETURN_IF_ERROR(route_shape(params, &shape));
  Plan made;
  TESSERA_RETURN_IF_ERROR(allocate_plan(shape, &made));
  made.dense_rows.assign(size_t(shape.batch) * shape.query_blocks, 0);
  made.mass.assign(shape.rows(), 0.0f);
  const size_t rows = static_cast<size_t>(shape.rows());
  TESSERA_RETURN_IF_ERROR(index_.reserve(rows * shape.width * sizeof(int32_t)));
  TESSERA_RETURN_IF_ERROR(count_.reserve(rows * sizeof(int32_t)));
  TESSERA_RETURN_IF_ERROR(dense_rows_.reserve(made.dense_rows.size()));
  TESSERA_RETURN_IF_ERROR(mass_.reserve(rows * sizeof(float)));
  RouteOutputs outputs;
  const std::array<int64_t, 3> row_size = {shape.batch, shape.heads, shape.query_blocks};
  outputs.plan.index = contiguous_view<4>(
      index_.data(), {shape.batch, shape.heads, shape.query_blocks, shape.width}, Dtype::kI32);
  outputs.plan.count = contiguous_view<3>(count_.data(), row_size, Dtype::kI32);
  outputs.plan.dense_rows =
      contiguous_view<2>(dense_rows_.data(), {shape.batch, shape.query_blocks}, Dtype::kU8);
  outputs.mass = contiguous_view<3>(mass_.data(), row_size, Dtype::kF32);

  Execution exec = exec_;
  size_t needed = 0;
  TESSERA_RETURN_IF_ERROR(route_workspace(params, exec, &needed));
  TESSERA_RETURN_IF_ERROR(workspace_.reserve(needed));
  exec.workspace = {workspace_.data(), workspace_.bytes()};
  TESSERA_RETURN_IF_ERROR(timer_.start(stream_));
  TESSERA_RETURN_IF_ERROR(tessera::route(params, exec, outputs));
  TESSERA_RETURN_IF_ERROR(timer_.stop(stream_));
  TESSERA_RETURN_IF_ERROR(timer_.seconds(seconds));

  TESSERA_RETURN_IF_ERROR(index_.download(made.index.data(), rows * shape.width * sizeof(int32_t)));
  TESSERA_RETURN_IF_ERROR(count_.download(made.count.data(), rows * sizeof(int32_t)));
  TESSERA_RETURN_IF_ERROR(dense_rows_.download(made.dense_rows.data(), made.dense_rows.size()));
  TESSERA_RETURN_IF_ERROR(mass_.download(made.mass.data(), rows * sizeof(float)));
  // As the CPU router: no flags where no row is dense.
  if (std::none_of(made.dense_rows.begin(), made.dense_rows.end(),
                   [](uint8_t dense) { return dense != 0; })) {
    made.dense_rows.clear();
  }
  *plan = std::move(made);
  return {};
}

Status Engine::attend(const AttentionParams& params, const std::string& kernel,
                      const Progress& progress, double* seconds) {
  if (on_cuda()) return attend_cuda(params, kernel, seconds);
  Execution exec = exec_;
  exec.kernel = kernel;
  exec.progress = progress;
  const Stopwatch watch;
  TESSERA_RETURN_IF_ERROR(tessera::attend(params, exec));
  *seconds = watch.seconds();
  return {};
}

Status Engine::upload_plan(const PlanView& host, PlanView* out) {
  TESSERA_RETURN_IF_ERROR(index_.upload(host.index.data, bytes_of(host.index)));
  TESSERA_RETURN_IF_ERROR(count_.upload(host.count.data, bytes_of(host.count)));
  *out = {};
  out->index = moved(host.index, index_);
  out->count = moved(host.count, count_);
  if (!host.dense_rows.present()) return {};
  TESSERA_RETURN_IF_ERROR(dense_rows_.upload(host.dense_rows.data, bytes_of(host.dense_rows)));
  out->dense_rows = moved(host.dense_rows, dense_rows_);
  return {};
}

Status Engine::to_device(const AttentionParams& host, AttentionParams* out) {
  *out = host;
  out->q = moved(host.q, q_);
  out->k = moved(host.k, k_);
  out->v = moved(host.v, v_);
  TESSERA_RETURN_IF_ERROR(out_.reserve(bytes_of(host.out)));
  out->out = moved(host.out, out_);
  if (host.lse.present()) {
    TESSERA_RETURN_IF_ERROR(lse_.reserve(bytes_of(host.lse)));
    out->lse = moved(host.lse, lse_);
  }
  if (!host.plan) return {};
  PlanView plan;
  TESSERA_RETURN_IF_ERROR(upload_plan(*host.plan, &plan));
  out->plan = plan;
  return {};
}

Status Engine::attend_cuda(const AttentionParams& host, const std::string& kernel,
                           double* seconds) {
  AttentionParams params;
  TESSERA_RETURN_IF_ERROR(to_device(host, &params));
  Execution exec = exec_;
  exec.kernel = kernel;
  size_t needed = 0;
  TESSERA_RETURN_IF_ERROR(attention_workspace(params, exec, &needed));
  TESSERA_RETURN_IF_ERROR(workspace_.reserve(needed));
  exec.workspace = {workspace_.data(), workspace_.bytes()};
  TESSERA_RETURN_IF_ERROR(timer_.start(stream_));
  TESSERA_RETURN_IF_ERROR(tessera::attend(params, exec));
  TESSERA_RETURN_IF_ERROR(timer_.stop(stream_));
  TESSERA_RETURN_IF_ERROR(timer_.seconds(seconds));
  TESSERA_RETURN_IF_ERROR(out_.download(host.out.data, bytes_of(host.out)));
  if (!host.lse.present()) return {};
  return lse_.download(host.lse.data, bytes_of(host.lse));
}

Explanation Engine::explain(const AttentionParams& params, const std::string& kernel) {
  Execution exec = exec_;
  exec.kernel = kernel;
  if (!on_cuda()) return tessera::explain(params, exec);
  AttentionParams device;
  if (Status status = to_device(params, &device); !status.ok()) {
    Explanation failed;
    failed.status = std::move(status);
    return failed;
  }
  return tessera::explain(device, exec);
}

}  // namespace tessera::cli
