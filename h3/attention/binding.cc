#include "h3/attention/binding.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <optional>
#include <span>

#include "h3/attention/checks.h"
#include "h3/attention/workspace.h"
#include "h3/common/error.h"
#include "tessera/attention.h"

namespace h3 {
namespace {

// A tensor without elements has no address, but a view without one counts as absent. Never read.
char no_elements;

tessera::Dtype dtype_of(const at::Tensor& t, const char* name) {
  switch (t.scalar_type()) {
    case at::kBFloat16: return tessera::Dtype::kBf16;
    case at::kHalf: return tessera::Dtype::kF16;
    case at::kFloat: return tessera::Dtype::kF32;
    case at::kDouble: return tessera::Dtype::kF64;
    case at::kByte: return tessera::Dtype::kU8;
    case at::kBool: return tessera::Dtype::kBool;
    case at::kInt: return tessera::Dtype::kI32;
    case at::kLong: return tessera::Dtype::kI64;
    default:
      throw Error(ErrorCode::kInvalidArgument,
                  std::string(name) + " is " + describe(t) + "; its dtype is unknown here",
                  "q, k and v take bf16, f16 and f32; a plan takes i32 and u8");
  }
}

template <int kRank>
tessera::TensorView<kRank> view_of(const at::Tensor& t, const char* name) {
  if (t.dim() != kRank || t.layout() != at::kStrided) {
    throw Error(ErrorCode::kInvalidArgument, std::string(name) + " is " + describe(t) +
                                                 "; it must be a strided tensor of " +
                                                 std::to_string(kRank) + " dimensions");
  }
  tessera::TensorView<kRank> view;
  view.dtype = dtype_of(t, name);
  // A meta tensor has no memory: only its shape is asked about.
  view.data = t.numel() == 0 || t.is_meta() ? &no_elements : const_cast<void*>(t.const_data_ptr());
  for (int i = 0; i < kRank; ++i) {
    view.size[i] = t.size(i);
    view.stride[i] = t.stride(i);
  }
  // Never stepped over when the size is 1, and torch lets it be anything then.
  if (view.size[kRank - 1] == 1) view.stride[kRank - 1] = 1;
  return view;
}

/// [B, S, H, D] as it is; [T, H, D] as one batch entry.
tessera::Bshd bshd_of(const at::Tensor& t, const char* name, bool packed) {
  if (!packed) return view_of<4>(t, name);
  const tessera::TensorView<3> rows = view_of<3>(t, name);
  tessera::Bshd view;
  view.data = rows.data;
  view.dtype = rows.dtype;
  view.size = {1, rows.size[0], rows.size[1], rows.size[2]};
  view.stride = {rows.size[0] * rows.stride[0], rows.stride[0], rows.stride[1], rows.stride[2]};
  return view;
}

std::span<const int32_t> documents_of(const PackedBounds* bounds) {
  if (bounds == nullptr) return {};
  if (bounds->cu.empty()) {
    throw Error(ErrorCode::kInvalidArgument, "cu is empty",
                "give n + 1 bounds for n documents, starting with 0");
  }
  return bounds->cu;
}

tessera::RouteParams route_params(const at::Tensor& q, const at::Tensor& k,
                                  const RouteOptions& options, const PackedBounds* bounds) {
  const bool packed = bounds != nullptr;
  check_qkv({q, k, k}, packed ? 3 : 4);
  tessera::RouteParams params;
  params.q = bshd_of(q, "q", packed);
  params.k = bshd_of(k, "k", packed);
  params.cu_seqlens = documents_of(bounds);
  params.max_seqlen = packed ? bounds->max_seqlen : 0;
  params.softmax_scale = options.softmax_scale;
  params.config = options.config;
  params.min_seq_len = options.min_seq_len;
  params.protected_blocks = options.protected_blocks;
  params.dense_query_blocks = options.dense_query_blocks;
  return params;
}

tessera::PlanView plan_view(const RoutePlan& plan, const at::Device& device) {
  const auto on_device = [&](const at::Tensor& t, const char* name) {
    if (t.device() != device) {
      throw Error(ErrorCode::kInvalidArgument,
                  std::string(name) + " lies on " + t.device().str() + " but q on " + device.str(),
                  "move the plan to q's device");
    }
  };
  if (!plan.index.defined() || !plan.count.defined()) {
    throw Error(ErrorCode::kInvalidArgument, "the plan has no index or no count tensor",
                "make it with route()");
  }
  tessera::PlanView view;
  on_device(plan.index, "plan.index");
  on_device(plan.count, "plan.count");
  view.index = view_of<4>(plan.index, "plan.index");
  view.count = view_of<3>(plan.count, "plan.count");
  if (plan.dense_rows.defined()) {
    on_device(plan.dense_rows, "plan.dense_rows");
    view.dense_rows = view_of<2>(plan.dense_rows, "plan.dense_rows");
  }
  return view;
}

/// Runs `call` where `tensor` lives: on the CPU with torch's thread count, on CUDA on the current
/// stream with a borrowed workspace of the size that `query` gives.
template <class Query, class Call>
void execute(const at::Tensor& tensor, tessera::Execution exec, const Query& query,
             const Call& call) {
  const at::Device device = tensor.device();
  if (device.is_cpu()) {
    exec.threads = at::get_num_threads();
    throw_if_error(call(exec));
    return;
  }
  if (!device.is_cuda()) {
    throw Error(ErrorCode::kUnsupported, "tensors lie on " + device.str(),
                "tessera runs on cpu and cuda");
  }
  // Through c10's device-neutral interface, which libtorch_cuda registers itself with: no CUDA
  // header, and one binary for builds of torch with and without CUDA.
  const c10::Stream stream = c10::impl::VirtualGuardImpl(device.type()).getStream(device);
  exec.device = {tessera::DeviceKind::kCuda, device.index()};
  exec.stream = stream.native_handle();
  size_t bytes = 0;
  throw_if_error(query(exec, &bytes));
  if (bytes == 0) {
    throw_if_error(call(exec));
    return;
  }
  const WorkspaceCache::Lease lease = workspace_cache().borrow(stream, bytes);
  exec.workspace = {lease.data(), lease.bytes()};
  throw_if_error(call(exec));
}

}  // namespace

void throw_if_error(const tessera::Status& status) {
  switch (status.code()) {
    case tessera::StatusCode::kOk: return;
    case tessera::StatusCode::kInvalidArgument:
      throw Error(ErrorCode::kInvalidArgument, status.message());
    case tessera::StatusCode::kUnsupported: throw Error(ErrorCode::kUnsupported, status.message());
    case tessera::StatusCode::kOutOfMemory:
    case tessera::StatusCode::kIo: throw Error(ErrorCode::kUnavailable, status.message());
    case tessera::StatusCode::kInternal: break;
  }
  throw Error(ErrorCode::kInternal, status.message());
}

tessera::PlanShape route_shape(const at::Tensor& q, const at::Tensor& k,
                               const RouteOptions& options, const PackedBounds* bounds) {
  tessera::PlanShape shape;
  throw_if_error(tessera::route_shape(route_params(q, k, options, bounds), &shape));
  return shape;
}

RoutePlan route(const at::Tensor& q, const at::Tensor& k, const RouteOptions& options,
                const PackedBounds* bounds) {
  const tessera::RouteParams params = route_params(q, k, options, bounds);
  tessera::PlanShape shape;
  throw_if_error(tessera::route_shape(params, &shape));

  const auto like = at::device(q.device());
  RoutePlan plan;
  plan.index =
      at::empty({shape.batch, shape.heads, shape.query_blocks, shape.width}, like.dtype(at::kInt));
  plan.count = at::empty({shape.batch, shape.heads, shape.query_blocks}, like.dtype(at::kInt));
  plan.dense_rows = at::empty({shape.batch, shape.query_blocks}, like.dtype(at::kByte));
  if (options.estimate_mass) {
    plan.mass = at::empty({shape.batch, shape.heads, shape.query_blocks}, like.dtype(at::kFloat));
  }
  plan.key_blocks = shape.key_blocks;
  plan.from_router = true;

  tessera::RouteOutputs outputs;
  outputs.plan = plan_view(plan, q.device());
  if (options.estimate_mass) outputs.mass = view_of<3>(plan.mass, "mass");
  execute(
      q, {},
      [&](const tessera::Execution& exec, size_t* bytes) {
        return tessera::route_workspace(params, exec, bytes);
      },
      [&](const tessera::Execution& exec) { return tessera::route(params, exec, outputs); });
  return plan;
}

AttentionPartial attend(const Qkv& qkv, const AttendOptions& options) {
  const bool packed = options.bounds != nullptr;
  check_qkv(qkv, packed ? 3 : 4);
  const at::Tensor& q = qkv.q;

  AttentionPartial result{options.out, {}};
  if (!result.out.defined()) result.out = at::empty(q.sizes(), q.options());
  if (result.out.device() != q.device()) {
    throw Error(ErrorCode::kInvalidArgument,
                "out is " + describe(result.out) + " but q lies on " + q.device().str(),
                "give out on q's device");
  }

  tessera::AttentionParams params;
  params.q = bshd_of(q, "q", packed);
  params.k = bshd_of(qkv.k, "k", packed);
  params.v = bshd_of(qkv.v, "v", packed);
  params.out = bshd_of(result.out, "out", packed);
  params.cu_seqlens = documents_of(options.bounds);
  params.max_seqlen = packed ? options.bounds->max_seqlen : 0;
  params.softmax_scale = options.softmax_scale;
  if (options.with_lse) {
    result.lse = options.lse;
    if (!result.lse.defined()) {
      const auto f32 = q.options().dtype(at::kFloat);
      result.lse = packed ? at::empty({q.size(1), q.size(0)}, f32)
                          : at::empty({q.size(0), q.size(2), q.size(1)}, f32);
    } else if (result.lse.device() != q.device()) {
      throw Error(ErrorCode::kInvalidArgument,
                  "lse is " + describe(result.lse) + " but q lies on " + q.device().str(),
                  "give lse on q's device");
    }
    params.lse = view_of<3>(packed ? result.lse.unsqueeze(0) : result.lse, "lse");
  }
  tessera::Execution exec;
  exec.kernel = options.kernel;
  if (options.plan != nullptr) {
    params.plan = plan_view(*options.plan, q.device());
    exec.check_plan = !options.plan->from_router;
  }
  execute(
      q, exec,
      [&](const tessera::Execution& e, size_t* bytes) {
        return tessera::attention_workspace(params, e, bytes);
      },
      [&](const tessera::Execution& e) { return tessera::attend(params, e); });
  return result;
}

}  // namespace h3
