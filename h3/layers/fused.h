// The memory-bound sites of a transformer block, each in one pass over memory: norm with AdaLN
// modulation, gated residual, both at once, SwiGLU, and norm + rotation of q and k.
//
// bf16 on a CUDA device of capability 9.0 runs the fused kernels (h3/layers/kernels.h, where the
// roundings are) on the current stream; everything else runs the same arithmetic as ATen operations
// (h3/layers/composed.h), which is the reference. uses_fused_kernels() tells which.
//
// All tensors of a call are of one floating dtype on one device, contiguous [S, H] unless said
// otherwise; the kernels also need 16-byte alignment and widths of a multiple of 8. A table is
// [U, H] with last stride 1 and any row stride (a chunk of an AdaLN output); `row` is int32 [S],
// the table row of every row. On the CPU a value outside the table is refused; on CUDA checking
// would wait for the device, and the kernels make such a row NaN. Tensors must not overlap.
// S = 0 is allowed and does nothing. Faults throw h3::Error (kInvalidArgument) naming the tensor.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace h3::layers {

/// True if this build contains the fused kernels.
bool fused_kernels_available();

/// True if calls with a tensor like `x` run them: built, bf16, CUDA device of capability 9.0.
bool uses_fused_kernels(const at::Tensor& x);

/// x * rsqrt(mean(x^2) + eps) * weight over the last dimension. x [S, H], weight [H] -> [S, H].
at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps);

/// rms_norm(x) * (1 + scale[row]) + shift[row] -> [S, H].
at::Tensor rms_norm_modulate(const at::Tensor& x, const at::Tensor& weight, double eps,
                             const at::Tensor& scale, const at::Tensor& shift,
                             const at::Tensor& row);

/// x += gate[row] * y, in place.
void gated_residual_(at::Tensor& x, const at::Tensor& y, const at::Tensor& gate,
                     const at::Tensor& row);

/// gated_residual_(x, y, gate, row), then rms_norm_modulate(x, ...) -> [S, H]: from one site of a
/// block to the next without reading x again. The three tables have equally many rows.
at::Tensor gated_residual_norm_modulate_(at::Tensor& x, const at::Tensor& y, const at::Tensor& gate,
                                         const at::Tensor& weight, double eps,
                                         const at::Tensor& scale, const at::Tensor& shift,
                                         const at::Tensor& row);

/// silu(gate) * up. gate_up [S, 2 F], gate first -> [S, F].
at::Tensor swiglu(const at::Tensor& gate_up);

/// q and k inside qkv [S, 3 * heads * 128] (q of all heads | k | v) in place: norm over the 128
/// channels of a head with weight [128], then, with cos_sin [S, 2 R] (cos of R angles | sin),
/// channels n and n + R, n < R, are rotated by angle n; R <= 64, a multiple of 8. An undefined
/// cos_sin leaves the rotation out.
void qk_norm_rope_(at::Tensor& qkv, int64_t heads, const at::Tensor& q_weight,
                   const at::Tensor& k_weight, double eps, const at::Tensor& cos_sin);

}  // namespace h3::layers
