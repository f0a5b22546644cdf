#include "h3/layers/fused.h"

#include <ATen/ops/empty.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <string>
#include <utility>

#include "h3/attention/binding.h"
#include "h3/attention/checks.h"
#include "h3/common/error.h"
#include "h3/layers/composed.h"
#include "h3/layers/kernels.h"

namespace h3::layers {
namespace {

[[noreturn]] void refuse(std::string message, std::string hint = {}) {
  throw Error(ErrorCode::kInvalidArgument, std::move(message), std::move(hint));
}

std::string shape_text(at::IntArrayRef sizes) {
  std::string text = "[";
  for (size_t i = 0; i < sizes.size(); ++i) text += (i ? ", " : "") + std::to_string(sizes[i]);
  return text + "]";
}

/// The tensor that gives a call its dtype, device and size.
void check_main(const at::Tensor& t, const char* name, const char* shape) {
  if (!t.defined()) refuse(std::string(name) + " is undefined", "give a tensor");
  if (t.dim() != 2 || t.size(1) < 1) {
    refuse(std::string(name) + " is " + describe(t) + "; it must be " + shape);
  }
  if (!at::isFloatingType(t.scalar_type())) {
    refuse(std::string(name) + " is " + describe(t) + "; its dtype must be a floating one",
           "bf16 and f32 are meant");
  }
  if (!t.is_contiguous()) {
    refuse(std::string(name) + " is " + describe(t) + " with strides " + shape_text(t.strides()) +
               "; it must be contiguous",
           "call contiguous()");
  }
}

void check_like(const at::Tensor& t, const char* name, const at::Tensor& main,
                const char* main_name, at::IntArrayRef sizes) {
  if (!t.defined()) refuse(std::string(name) + " is undefined", "give a tensor");
  if (t.sizes() != sizes) {
    refuse(std::string(name) + " is " + describe(t) + "; beside " + main_name + ", " +
           describe(main) + ", it must be " + shape_text(sizes));
  }
  if (t.scalar_type() != main.scalar_type() || t.device() != main.device()) {
    refuse(std::string(name) + " is " + describe(t) + " and " + main_name + " " + describe(main),
           "dtype and device must agree");
  }
}

void check_dense(const at::Tensor& t, const char* name, const at::Tensor& main,
                 const char* main_name, at::IntArrayRef sizes) {
  check_like(t, name, main, main_name, sizes);
  if (!t.is_contiguous()) {
    refuse(
        std::string(name) + " has strides " + shape_text(t.strides()) + "; it must be contiguous",
        "call contiguous()");
  }
}

/// `rows`: of the first table of the call, -1 for none yet.
void check_table(const at::Tensor& t, const char* name, const at::Tensor& x, int64_t* rows) {
  if (*rows < 0 && t.defined() && t.dim() == 2) *rows = t.size(0);
  check_like(t, name, x, "x", {*rows, x.size(1)});
  if (t.size(0) < 1) refuse(std::string(name) + " is " + describe(t) + "; it has no row");
  if (t.stride(1) != 1 && t.size(1) > 1) {
    refuse(std::string(name) + " has a last stride of " + std::to_string(t.stride(1)) +
               "; channels must be contiguous (stride 1)",
           "the row stride is free");
  }
}

void check_row(const at::Tensor& row, const at::Tensor& x) {
  if (!row.defined()) refuse("row is undefined", "give a tensor");
  if (row.scalar_type() != at::kInt || row.dim() != 1 || row.size(0) != x.size(0) ||
      !row.is_contiguous() || row.device() != x.device()) {
    refuse("row is " + c10::str(row.scalar_type()) + " " + shape_text(row.sizes()) + " on " +
               row.device().str() + "; beside x, " + describe(x) +
               ", it must be contiguous int32 [" + std::to_string(x.size(0)) + "]",
           "give the table row of every packed row");
  }
}

#ifdef H3_WITH_CUDA
/// The tensors' device and its current stream, through c10's device-neutral interface.
Launch launch_on(const at::Tensor& t) {
  const at::Device device = t.device();
  return {device.index(),
          c10::impl::VirtualGuardImpl(device.type()).getStream(device).native_handle()};
}

Table table_of(const at::Tensor& t) {
  // torch lets the stride of a single row be anything.
  return {t.const_data_ptr(), t.size(0) == 1 ? t.size(1) : t.stride(0)};
}

RowParams row_params(const at::Tensor& x) {
  RowParams params;
  params.rows = x.size(0);
  params.width = x.size(1);
  // Only the launchers with a gate write to x.
  params.x = const_cast<void*>(x.const_data_ptr());
  return params;
}

void set_norm(RowParams* params, const at::Tensor& out, const at::Tensor& weight, double eps) {
  params->out = out.mutable_data_ptr();
  params->weight = weight.const_data_ptr();
  params->eps = static_cast<float>(eps);
}

void set_rows(RowParams* params, const at::Tensor& row, const at::Tensor& table) {
  params->row = row.const_data_ptr<int32_t>();
  params->table_rows = table.size(0);
}
#endif

}  // namespace

bool fused_kernels_available() {
#ifdef H3_WITH_CUDA
  return true;
#else
  return false;
#endif
}

bool uses_fused_kernels([[maybe_unused]] const at::Tensor& x) {
#ifdef H3_WITH_CUDA
  return x.is_cuda() && x.scalar_type() == at::kBFloat16 && kernels_run_on(x.device().index());
#else
  return false;
#endif
}

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  check_main(x, "x", "[S, H]");
  check_dense(weight, "weight", x, "x", {x.size(1)});
  if (x.size(0) == 0) return at::empty(x.sizes(), x.options());
#ifdef H3_WITH_CUDA
  if (uses_fused_kernels(x)) {
    const at::Tensor out = at::empty(x.sizes(), x.options());
    RowParams params = row_params(x);
    set_norm(&params, out, weight, eps);
    throw_if_error(launch_rms_norm(params, launch_on(x)));
    return out;
  }
#endif
  return composed::rms_norm(x, weight, eps);
}

at::Tensor rms_norm_modulate(const at::Tensor& x, const at::Tensor& weight, double eps,
                             const at::Tensor& scale, const at::Tensor& shift,
                             const at::Tensor& row) {
  check_main(x, "x", "[S, H]");
  check_dense(weight, "weight", x, "x", {x.size(1)});
  int64_t table_rows = -1;
  check_table(scale, "scale", x, &table_rows);
  check_table(shift, "shift", x, &table_rows);
  check_row(row, x);
  if (x.size(0) == 0) return at::empty(x.sizes(), x.options());
#ifdef H3_WITH_CUDA
  if (uses_fused_kernels(x)) {
    const at::Tensor out = at::empty(x.sizes(), x.options());
    RowParams params = row_params(x);
    set_norm(&params, out, weight, eps);
    set_rows(&params, row, scale);
    params.scale = table_of(scale);
    params.shift = table_of(shift);
    throw_if_error(launch_rms_norm_modulate(params, launch_on(x)));
    return out;
  }
#endif
  return composed::rms_norm_modulate(x, weight, eps, scale, shift, row);
}

void gated_residual_(at::Tensor& x, const at::Tensor& y, const at::Tensor& gate,
                     const at::Tensor& row) {
  check_main(x, "x", "[S, H]");
  check_dense(y, "y", x, "x", x.sizes());
  int64_t table_rows = -1;
  check_table(gate, "gate", x, &table_rows);
  check_row(row, x);
  if (x.size(0) == 0) return;
#ifdef H3_WITH_CUDA
  if (uses_fused_kernels(x)) {
    RowParams params = row_params(x);
    params.y = y.const_data_ptr();
    set_rows(&params, row, gate);
    params.gate = table_of(gate);
    throw_if_error(launch_gated_residual(params, launch_on(x)));
    return;
  }
#endif
  composed::gated_residual_(x, y, gate, row);
}

at::Tensor gated_residual_norm_modulate_(at::Tensor& x, const at::Tensor& y, const at::Tensor& gate,
                                         const at::Tensor& weight, double eps,
                                         const at::Tensor& scale, const at::Tensor& shift,
                                         const at::Tensor& row) {
  check_main(x, "x", "[S, H]");
  check_dense(y, "y", x, "x", x.sizes());
  check_dense(weight, "weight", x, "x", {x.size(1)});
  int64_t table_rows = -1;
  check_table(gate, "gate", x, &table_rows);
  check_table(scale, "scale", x, &table_rows);
  check_table(shift, "shift", x, &table_rows);
  check_row(row, x);
  if (x.size(0) == 0) return at::empty(x.sizes(), x.options());
#ifdef H3_WITH_CUDA
  if (uses_fused_kernels(x)) {
    const at::Tensor out = at::empty(x.sizes(), x.options());
    RowParams params = row_params(x);
    params.y = y.const_data_ptr();
    set_norm(&params, out, weight, eps);
    set_rows(&params, row, gate);
    params.gate = table_of(gate);
    params.scale = table_of(scale);
    params.shift = table_of(shift);
    throw_if_error(launch_gated_residual_norm_modulate(params, launch_on(x)));
    return out;
  }
#endif
  return composed::gated_residual_norm_modulate_(x, y, gate, weight, eps, scale, shift, row);
}

at::Tensor swiglu(const at::Tensor& gate_up) {
  check_main(gate_up, "gate_up", "[S, 2 F]");
  if (gate_up.size(1) % 2 != 0) {
    refuse("gate_up is " + describe(gate_up) + "; its width must be even", "gate | up, one width");
  }
  const int64_t rows = gate_up.size(0), width = gate_up.size(1) / 2;
  if (rows == 0) return at::empty({0, width}, gate_up.options());
#ifdef H3_WITH_CUDA
  if (uses_fused_kernels(gate_up)) {
    const at::Tensor out = at::empty({rows, width}, gate_up.options());
    throw_if_error(launch_swiglu({.rows = rows,
                                  .width = width,
                                  .gate_up = gate_up.const_data_ptr(),
                                  .out = out.mutable_data_ptr()},
                                 launch_on(gate_up)));
    return out;
  }
#endif
  return composed::swiglu(gate_up);
}

void qk_norm_rope_(at::Tensor& qkv, int64_t heads, const at::Tensor& q_weight,
                   const at::Tensor& k_weight, double eps, const at::Tensor& cos_sin) {
  check_main(qkv, "qkv", "[S, 3 * heads * 128]");
  if (heads < 1 || qkv.size(1) != 3 * heads * kHeadWidth) {
    refuse("qkv is " + describe(qkv) + " for " + std::to_string(heads) +
               " heads; its width must be 3 * heads * 128 with at least one head",
           "q of all heads | k | v");
  }
  check_dense(q_weight, "q_weight", qkv, "qkv", {kHeadWidth});
  check_dense(k_weight, "k_weight", qkv, "qkv", {kHeadWidth});
  if (cos_sin.defined()) {
    const int64_t width = cos_sin.dim() == 2 ? cos_sin.size(1) : 0;
    if (width < 16 || width % 16 != 0 || width > kHeadWidth) {
      refuse("cos_sin is " + describe(cos_sin) +
                 "; it must be [S, 2 R] with R a multiple of 8 up to 64",
             "cos of R angles | sin");
    }
    check_dense(cos_sin, "cos_sin", qkv, "qkv", {qkv.size(0), width});
  }
  if (qkv.size(0) == 0) return;
#ifdef H3_WITH_CUDA
  if (uses_fused_kernels(qkv)) {
    QkNormRopeParams params;
    params.rows = qkv.size(0);
    params.heads = heads;
    params.qkv = qkv.mutable_data_ptr();
    params.q_weight = q_weight.const_data_ptr();
    params.k_weight = k_weight.const_data_ptr();
    params.eps = static_cast<float>(eps);
    if (cos_sin.defined()) {
      params.cos_sin = cos_sin.const_data_ptr();
      params.rope_half = cos_sin.size(1) / 2;
    }
    throw_if_error(launch_qk_norm_rope(params, launch_on(qkv)));
    return;
  }
#endif
  composed::qk_norm_rope_(qkv, heads, q_weight, k_weight, eps, cos_sin);
}

}  // namespace h3::layers
