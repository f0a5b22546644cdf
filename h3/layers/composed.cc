#include "h3/layers/composed.h"

#include <ATen/ops/add.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/rms_norm.h>
#include <ATen/ops/silu.h>

namespace h3::layers::composed {

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  return at::rms_norm(x, {x.size(-1)}, weight, eps);
}

at::Tensor rms_norm_modulate(const at::Tensor& x, const at::Tensor& weight, double eps,
                             const at::Tensor& scale, const at::Tensor& shift,
                             const at::Tensor& row) {
  at::Tensor n = rms_norm(x, weight, eps);
  n.mul_(at::index_select(at::add(scale, 1), 0, row));
  return n.add_(at::index_select(shift, 0, row));
}

void gated_residual_(at::Tensor& x, const at::Tensor& y, const at::Tensor& gate,
                     const at::Tensor& row) {
  x.add_(at::mul(at::index_select(gate, 0, row), y));
}

at::Tensor gated_residual_norm_modulate_(at::Tensor& x, const at::Tensor& y, const at::Tensor& gate,
                                         const at::Tensor& weight, double eps,
                                         const at::Tensor& scale, const at::Tensor& shift,
                                         const at::Tensor& row) {
  gated_residual_(x, y, gate, row);
  return rms_norm_modulate(x, weight, eps, scale, shift, row);
}

at::Tensor swiglu(const at::Tensor& gate_up) {
  const int64_t width = gate_up.size(1) / 2;
  return at::silu(gate_up.narrow(1, 0, width)).mul_(gate_up.narrow(1, width, width));
}

void qk_norm_rope_(at::Tensor& qkv, int64_t heads, const at::Tensor& q_weight,
                   const at::Tensor& k_weight, double eps, const at::Tensor& cos_sin) {
  const at::Tensor parts = qkv.view({qkv.size(0), 3, heads, qkv.size(1) / (3 * heads)});
  for (const auto& [part, weight] : {std::pair{0, &q_weight}, std::pair{1, &k_weight}}) {
    at::Tensor n = rms_norm(parts.select(1, part), *weight, eps);
    if (cos_sin.defined()) {
      const int64_t half = cos_sin.size(1) / 2;
      const at::Tensor cos = cos_sin.narrow(1, 0, half).unsqueeze(1);
      const at::Tensor sin = cos_sin.narrow(1, half, half).unsqueeze(1);
      const at::Tensor a = n.narrow(2, 0, half), b = n.narrow(2, half, half);
      const at::Tensor turned_a = at::mul(a, cos).sub_(at::mul(b, sin));
      const at::Tensor turned_b = at::mul(b, cos).add_(at::mul(a, sin));
      a.copy_(turned_a);
      b.copy_(turned_b);
    }
    parts.select(1, part).copy_(n);
  }
}

}  // namespace h3::layers::composed
