// The operators `tessera::*` of the torch dispatcher: one implementation for CPU and CUDA (the
// binding looks at the device), shape functions for tracing. Built into the Python package's module
// by python/CMakeLists.txt.
#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/library.h>

#include <cmath>
#include <limits>
#include <optional>
#include <sstream>
#include <string>
#include <tuple>
#include <vector>

#include "h3/attention/binding.h"
#include "h3/attention/checks.h"
#include "h3/common/error.h"
#include "tessera/layout.h"

namespace h3 {
namespace {

using at::Tensor;
using Bounds = at::OptionalIntArrayRef;

int32_t narrow_int(int64_t value, const char* name) {
  if (value < std::numeric_limits<int32_t>::min() || value > std::numeric_limits<int32_t>::max()) {
    throw Error(ErrorCode::kInvalidArgument,
                std::string(name) + " is " + std::to_string(value) + "; it must fit into 32 bits");
  }
  return static_cast<int32_t>(value);
}

std::optional<PackedBounds> bounds_of(Bounds cu_seqlens, int64_t max_seqlen) {
  if (!cu_seqlens.has_value()) {
    if (max_seqlen != 0) {
      throw Error(ErrorCode::kInvalidArgument,
                  "max_seqlen is " + std::to_string(max_seqlen) + " without cu_seqlens",
                  "give the bounds of the packed documents, or leave max_seqlen out");
    }
    return std::nullopt;
  }
  PackedBounds bounds;
  bounds.max_seqlen = max_seqlen;
  for (int64_t value : *cu_seqlens) bounds.cu.push_back(narrow_int(value, "cu_seqlens"));
  return bounds;
}

/// Library errors under the names that Python gives them: ValueError, NotImplementedError,
/// torch.OutOfMemoryError, RuntimeError.
template <class Body>
auto translated(const Body& body) {
  try {
    return body();
  } catch (const Error& e) {
    switch (e.code()) {
      case ErrorCode::kInvalidArgument: C10_THROW_ERROR(ValueError, e.what());
      case ErrorCode::kUnsupported: C10_THROW_ERROR(NotImplementedError, e.what());
      case ErrorCode::kUnavailable:
      case ErrorCode::kOutOfMemory: C10_THROW_ERROR(OutOfMemoryError, e.what());
      case ErrorCode::kCancelled:
      case ErrorCode::kInternal: break;
    }
    C10_THROW_ERROR(Error, e.what());
  }
}

struct RouteCall {
  RouteOptions options;
  std::optional<PackedBounds> bounds;
  const PackedBounds* bounds_pointer() const { return bounds ? &*bounds : nullptr; }
};

tessera::Budget budget_of(c10::string_view kind, double amount, int64_t min_keep, int64_t max_keep,
                          int64_t granularity, bool exact_rounding) {
  tessera::Budget budget;
  if (kind == "sparsity") {
    budget.kind = tessera::BudgetKind::kSparsity;
    budget.sparsity = amount;
  } else if (kind == "keep") {
    budget.kind = tessera::BudgetKind::kKeep;
    constexpr double kMost = std::numeric_limits<int32_t>::max();
    if (!(std::abs(amount) <= kMost) || amount != std::trunc(amount)) {
      throw Error(
          ErrorCode::kInvalidArgument,
          "keep is " + std::to_string(amount) + "; it must be a whole number of blocks below 2^31");
    }
    budget.keep = static_cast<int32_t>(amount);
  } else if (kind == "mass") {
    budget.kind = tessera::BudgetKind::kMass;
    budget.mass = amount;
  } else {
    throw Error(ErrorCode::kInvalidArgument, "budget is \"" + std::string(kind) + "\"",
                "accepted are sparsity, keep and mass");
  }
  budget.min_keep = narrow_int(min_keep, "min_keep");
  budget.max_keep = narrow_int(max_keep, "max_keep");
  budget.granularity = narrow_int(granularity, "granularity");
  budget.exact_rounding = exact_rounding;
  return budget;
}

/// Zero stands for 1 / sqrt(D), so that a scale too small for f32 must not become it.
float scale_of(double softmax_scale) {
  const auto scale = static_cast<float>(softmax_scale);
  if (scale == 0.0f && softmax_scale != 0.0) {
    std::ostringstream text;
    text << "softmax_scale is " << softmax_scale << "; f32 cannot hold a value so small";
    throw Error(ErrorCode::kInvalidArgument, text.str(), "leave it out for 1/sqrt(D)");
  }
  return scale;
}

/// Block ids to the mask that the router takes.
std::vector<uint8_t> dense_mask(at::IntArrayRef blocks, const Tensor& q,
                                const std::optional<PackedBounds>& bounds) {
  // A tensor of another rank is refused by the binding, with a better text.
  if (blocks.empty() || q.dim() != (bounds ? 3 : 4)) return {};
  tessera::BlockLayout layout;
  if (bounds) {
    throw_if_error(tessera::packed_documents(bounds->cu, q.size(0), bounds->max_seqlen, &layout));
  } else {
    layout = tessera::single_document(q.size(1), q.size(1));
  }
  std::vector<uint8_t> mask(layout.query_blocks, 0);
  for (int64_t block : blocks) {
    if (block < 0 || block >= layout.query_blocks) {
      throw Error(ErrorCode::kInvalidArgument,
                  "dense query block " + std::to_string(block) + " is outside [0, " +
                      std::to_string(layout.query_blocks) + "), the query blocks of q");
    }
    mask[block] = 1;
  }
  return mask;
}

RouteCall route_call(const Tensor& q, c10::string_view budget, double amount, int64_t min_keep,
                     int64_t max_keep, int64_t granularity, bool exact_rounding, int64_t n_q,
                     int64_t n_k, bool weight_partial_cells, double softmax_scale,
                     int64_t min_seq_len, at::IntArrayRef protected_blocks,
                     at::IntArrayRef dense_query_blocks, bool estimate_mass, Bounds cu_seqlens,
                     int64_t max_seqlen) {
  RouteCall call;
  call.bounds = bounds_of(cu_seqlens, max_seqlen);
  RouteOptions& o = call.options;
  o.config.n_q = narrow_int(n_q, "n_q");
  o.config.n_k = narrow_int(n_k, "n_k");
  o.config.weight_partial_cells = weight_partial_cells;
  o.config.budget = budget_of(budget, amount, min_keep, max_keep, granularity, exact_rounding);
  o.softmax_scale = scale_of(softmax_scale);
  o.min_seq_len = min_seq_len;
  o.estimate_mass = estimate_mass;
  for (int64_t id : protected_blocks) {
    o.protected_blocks.push_back(narrow_int(id, "protected_blocks"));
  }
  o.dense_query_blocks = dense_mask(dense_query_blocks, q, call.bounds);
  return call;
}

using RouteResult = std::tuple<Tensor, Tensor, Tensor, Tensor>;

RouteResult route_op(const Tensor& q, const Tensor& k, c10::string_view budget, double amount,
                     int64_t min_keep, int64_t max_keep, int64_t granularity, bool exact_rounding,
                     int64_t n_q, int64_t n_k, bool weight_partial_cells, double softmax_scale,
                     int64_t min_seq_len, at::IntArrayRef protected_blocks,
                     at::IntArrayRef dense_query_blocks, bool estimate_mass, Bounds cu_seqlens,
                     int64_t max_seqlen) {
  return translated([&]() -> RouteResult {
    const RouteCall call =
        route_call(q, budget, amount, min_keep, max_keep, granularity, exact_rounding, n_q, n_k,
                   weight_partial_cells, softmax_scale, min_seq_len, protected_blocks,
                   dense_query_blocks, estimate_mass, cu_seqlens, max_seqlen);
    RoutePlan plan = h3::route(q, k, call.options, call.bounds_pointer());
    if (!plan.mass.defined()) plan.mass = at::empty({0}, q.options().dtype(at::kFloat));
    return {plan.index, plan.count, plan.dense_rows, plan.mass};
  });
}

/// The plan's width follows from the lengths by a rounding rule, so tracing is bound to them: a
/// traced program holds for one sequence length.
RouteResult route_meta(const Tensor& q, const Tensor& k, c10::string_view budget, double amount,
                       int64_t min_keep, int64_t max_keep, int64_t granularity, bool exact_rounding,
                       int64_t n_q, int64_t n_k, bool weight_partial_cells, double softmax_scale,
                       int64_t min_seq_len, at::IntArrayRef protected_blocks,
                       at::IntArrayRef dense_query_blocks, bool estimate_mass, Bounds cu_seqlens,
                       int64_t max_seqlen) {
  return translated([&]() -> RouteResult {
    // Also refuses real tensors next to meta ones, which the dispatcher sends here as well.
    check_qkv({q, k, k}, cu_seqlens.has_value() ? 3 : 4);
    const auto fixed = [](const Tensor& t) {
      std::vector<int64_t> sizes;
      for (const c10::SymInt& size : t.sym_sizes()) {
        sizes.push_back(size.guard_int(__FILE__, __LINE__));
      }
      return at::empty(sizes, at::device(at::kMeta).dtype(t.scalar_type()));
    };
    const Tensor shape_q = fixed(q), shape_k = fixed(k);
    const RouteCall call =
        route_call(shape_q, budget, amount, min_keep, max_keep, granularity, exact_rounding, n_q,
                   n_k, weight_partial_cells, softmax_scale, min_seq_len, protected_blocks,
                   dense_query_blocks, estimate_mass, cu_seqlens, max_seqlen);
    const tessera::PlanShape s =
        h3::route_shape(shape_q, shape_k, call.options, call.bounds_pointer());
    const auto i32 = q.options().dtype(at::kInt);
    const auto f32 = q.options().dtype(at::kFloat);
    return {
        at::empty({s.batch, s.heads, s.query_blocks, s.width}, i32),
        at::empty({s.batch, s.heads, s.query_blocks}, i32),
        at::empty({s.batch, s.query_blocks}, q.options().dtype(at::kByte)),
        estimate_mass ? at::empty({s.batch, s.heads, s.query_blocks}, f32) : at::empty({0}, f32)};
  });
}

using AttendResult = std::tuple<Tensor, Tensor>;

AttendResult attend_with(const Qkv& qkv, const RoutePlan* plan, double softmax_scale,
                         bool return_lse, Bounds cu_seqlens, int64_t max_seqlen,
                         c10::string_view kernel_name) {
  const std::optional<PackedBounds> bounds = bounds_of(cu_seqlens, max_seqlen);
  AttendOptions options;
  options.plan = plan;
  options.bounds = bounds ? &*bounds : nullptr;
  options.softmax_scale = scale_of(softmax_scale);
  options.with_lse = return_lse;
  options.kernel = std::string(kernel_name);
  AttentionPartial result = h3::attend(qkv, options);
  if (!return_lse) result.lse = at::empty({0}, qkv.q.options().dtype(at::kFloat));
  return {result.out, result.lse};
}

AttendResult dense_op(const Tensor& q, const Tensor& k, const Tensor& v, double softmax_scale,
                      bool return_lse, Bounds cu_seqlens, int64_t max_seqlen,
                      c10::string_view kernel_name) {
  return translated([&] {
    return attend_with({q, k, v}, nullptr, softmax_scale, return_lse, cu_seqlens, max_seqlen,
                       kernel_name);
  });
}

AttendResult sparse_op(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& index,
                       const Tensor& count, const std::optional<Tensor>& dense_rows,
                       double softmax_scale, bool return_lse, Bounds cu_seqlens, int64_t max_seqlen,
                       c10::string_view kernel_name, bool check_plan) {
  return translated([&] {
    RoutePlan plan;
    plan.index = index;
    plan.count = count;
    if (dense_rows) plan.dense_rows = *dense_rows;
    plan.from_router = !check_plan;
    return attend_with({q, k, v}, &plan, softmax_scale, return_lse, cu_seqlens, max_seqlen,
                       kernel_name);
  });
}

/// The shapes of attend, after the checks that need no memory. The dispatcher comes here as soon as
/// one tensor is a meta tensor: then all have to be.
AttendResult attend_shapes(const Qkv& qkv, double softmax_scale, bool return_lse, Bounds cu_seqlens,
                           int64_t max_seqlen) {
  const std::optional<PackedBounds> bounds = bounds_of(cu_seqlens, max_seqlen);
  check_qkv(qkv, bounds ? 3 : 4);
  scale_of(softmax_scale);
  const c10::SymIntArrayRef size = qkv.q.sym_sizes();
  if (bounds) {
    check_bounds(*bounds, std::numeric_limits<int64_t>::max());
    for (const Tensor* t : {&qkv.q, &qkv.k}) {
      if (!t->sym_size(0).sym_ge(bounds->cu.back()).expect_true(__FILE__, __LINE__)) {
        throw Error(ErrorCode::kInvalidArgument,
                    "cu_seqlens ends at " + std::to_string(bounds->cu.back()) + " but " +
                        (t == &qkv.q ? "q" : "k") + " is " + describe(*t),
                    "the last bound must not exceed the rows");
      }
    }
  }
  const auto f32 = qkv.q.options().dtype(at::kFloat);
  Tensor lse;
  if (!return_lse) {
    lse = at::empty({0}, f32);
  } else if (bounds) {
    lse = at::empty_symint({size[1], size[0]}, f32);
  } else {
    lse = at::empty_symint({size[0], size[2], size[1]}, f32);
  }
  return {at::empty_symint(size, qkv.q.options()), lse};
}

AttendResult dense_meta(const Tensor& q, const Tensor& k, const Tensor& v, double softmax_scale,
                        bool return_lse, Bounds cu_seqlens, int64_t max_seqlen, c10::string_view) {
  return translated([&] {
    return attend_shapes({q, k, v}, softmax_scale, return_lse, cu_seqlens, max_seqlen);
  });
}

/// One tensor of a plan: device, dtype, and the sizes that q fixes; nothing for the plan's width.
void check_plan_tensor(const Tensor& t, const char* name, const Tensor& q, at::ScalarType type,
                       const std::vector<std::optional<c10::SymInt>>& sizes) {
  bool right = t.device() == q.device() && t.scalar_type() == type &&
               t.dim() == static_cast<int64_t>(sizes.size());
  for (size_t i = 0; right && i < sizes.size(); ++i) {
    right = !sizes[i] || t.sym_size(i).sym_eq(*sizes[i]).expect_true(__FILE__, __LINE__);
  }
  if (right) return;
  std::string wanted;
  for (const auto& size : sizes) {
    wanted += (wanted.empty() ? "[" : ", ") + (size ? c10::str(*size) : std::string("W"));
  }
  throw Error(ErrorCode::kInvalidArgument,
              std::string(name) + " is " + describe(t) + "; it must be " + c10::toString(type) +
                  " " + wanted + "] on " + q.device().str(),
              "make the plan with route() for these tensors");
}

AttendResult sparse_meta(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& index,
                         const Tensor& count, const std::optional<Tensor>& dense_rows,
                         double softmax_scale, bool return_lse, Bounds cu_seqlens,
                         int64_t max_seqlen, c10::string_view, bool) {
  return translated([&] {
    AttendResult result =
        attend_shapes({q, k, v}, softmax_scale, return_lse, cu_seqlens, max_seqlen);
    const bool packed = cu_seqlens.has_value();
    c10::SymInt batch = 1, heads = q.sym_size(packed ? 1 : 2), blocks = 0;
    if (packed) {
      for (size_t i = 1; i < cu_seqlens->size(); ++i) {
        blocks += (cu_seqlens->at(i) - cu_seqlens->at(i - 1) + tessera::kBlockTokens - 1) /
                  tessera::kBlockTokens;
      }
    } else {
      batch = q.sym_size(0);
      blocks = (q.sym_size(1) + (tessera::kBlockTokens - 1)) / tessera::kBlockTokens;
    }
    check_plan_tensor(index, "index", q, at::kInt, {batch, heads, blocks, std::nullopt});
    check_plan_tensor(count, "count", q, at::kInt, {batch, heads, blocks});
    if (dense_rows) check_plan_tensor(*dense_rows, "dense_rows", q, at::kByte, {batch, blocks});
    return result;
  });
}

// No argument may be called `kernel`: torch's inductor passes arguments by name next to one of its
// own of that name.
TORCH_LIBRARY(tessera, m) {
  const std::vector<at::Tag> tags{at::Tag::pt2_compliant_tag};
  m.def(
      "route(Tensor q, Tensor k, *, str budget=\"sparsity\", float amount=0.75, int min_keep=1, "
      "int max_keep=0, int granularity=8, bool exact_rounding=False, int n_q=4, int n_k=4, "
      "bool weight_partial_cells=False, float softmax_scale=0.0, int min_seq_len=0, "
      "int[] protected_blocks=[], int[] dense_query_blocks=[], bool estimate_mass=True, "
      "int[]? cu_seqlens=None, int max_seqlen=0) "
      "-> (Tensor index, Tensor count, Tensor dense_rows, Tensor mass)",
      tags);
  m.def(
      "sparse_attention(Tensor q, Tensor k, Tensor v, Tensor index, Tensor count, "
      "Tensor? dense_rows=None, *, float softmax_scale=0.0, bool return_lse=False, "
      "int[]? cu_seqlens=None, int max_seqlen=0, str kernel_name=\"\", bool check_plan=True) "
      "-> (Tensor out, Tensor lse)",
      tags);
  m.def(
      "dense_attention(Tensor q, Tensor k, Tensor v, *, float softmax_scale=0.0, "
      "bool return_lse=False, int[]? cu_seqlens=None, int max_seqlen=0, str kernel_name=\"\") "
      "-> (Tensor out, Tensor lse)",
      tags);
}

void register_kernels(torch::Library& m) {
  m.impl("route", route_op);
  m.impl("sparse_attention", sparse_op);
  m.impl("dense_attention", dense_op);
}

TORCH_LIBRARY_IMPL(tessera, CPU, m) { register_kernels(m); }
TORCH_LIBRARY_IMPL(tessera, CUDA, m) { register_kernels(m); }

// Forward works where gradients are recorded; backward says that there is none.
TORCH_LIBRARY_IMPL(tessera, Autograd, m) {
  for (const char* name : {"route", "sparse_attention", "dense_attention"}) {
    m.impl(name, torch::autograd::autogradNotImplementedFallback());
  }
}

TORCH_LIBRARY_IMPL(tessera, Meta, m) {
  m.impl("route", route_meta);
  m.impl("sparse_attention", sparse_meta);
  m.impl("dense_attention", dense_meta);
}

}  // namespace
}  // namespace h3
