// The memory-bound sites of a transformer block as plain ATen operations: the arithmetic that the
// fused kernels have to reproduce, and what runs where there are none. Every operation rounds its
// result to the tensors' dtype, which gives the roundings listed in h3/layers/kernels.h; f32 has
// none. Arguments as in h3/layers/fused.h, which checks them; here they are taken as they are.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace h3::layers::composed {

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps);

at::Tensor rms_norm_modulate(const at::Tensor& x, const at::Tensor& weight, double eps,
                             const at::Tensor& scale, const at::Tensor& shift,
                             const at::Tensor& row);

void gated_residual_(at::Tensor& x, const at::Tensor& y, const at::Tensor& gate,
                     const at::Tensor& row);

at::Tensor gated_residual_norm_modulate_(at::Tensor& x, const at::Tensor& y, const at::Tensor& gate,
                                         const at::Tensor& weight, double eps,
                                         const at::Tensor& scale, const at::Tensor& shift,
                                         const at::Tensor& row);

at::Tensor swiglu(const at::Tensor& gate_up);

void qk_norm_rope_(at::Tensor& qkv, int64_t heads, const at::Tensor& q_weight,
                   const at::Tensor& k_weight, double eps, const at::Tensor& cos_sin);

}  // namespace h3::layers::composed
