// Launchers of the fused memory-bound sites of a transformer block (bf16, compute capability 9.0).
// Plain pointers, no torch; h3/layers/fused.h is the face with tensors and checks. Every launcher
// enqueues one kernel that reads its inputs once and writes its outputs once, and returns at once.
//
// Roundings (all values bf16, round to nearest even after each step in brackets):
//   norm      n = [x * rsqrt(mean(x^2) + eps) * weight], the mean and the products in f32
//   modulate  [[n * [1 + scale]] + shift]
//   residual  x = [x + [gate * y]]
//   swiglu    [[silu(g)] * u], silu in f32
//   rope      a' = [[a cos] - [b sin]], b' = [[b cos] + [a sin]]
// Sums of squares are added in another order than on the CPU, and exp and rsqrt are the hardware's:
// a value may differ from the CPU's by one last bit where f32 rounding decides.
//
// Pointers are device pointers on 16-byte boundaries, strides are in elements and multiples of 8.
// Tensors of one call must not overlap unless said otherwise. Same inputs, same bits.
#pragma once

#include <cstdint>

#include "tessera/status.h"

namespace h3::layers {

/// Where a call runs.
struct Launch {
  int device = 0;          // CUDA ordinal
  void* stream = nullptr;  // cudaStream_t
};

/// True for a CUDA device of compute capability 9.0, which these kernels are compiled for.
bool kernels_run_on(int device);

/// A modulation table: one row of `width` channels per modulation.
struct Table {
  const void* data = nullptr;  // bf16 [table_rows, width]
  int64_t stride = 0;          // between rows
};

/// Fields that a launcher does not name may stay empty.
struct RowParams {
  int64_t rows = 0;         // S
  int64_t width = 0;        // H, a multiple of 8
  void* x = nullptr;        // bf16 [S, H]; residual stream: updated in place where there is a gate
  const void* y = nullptr;  // bf16 [S, H]: output of attention or MLP
  void* out = nullptr;      // bf16 [S, H]: normalised rows; may be x where there is no gate
  const void* weight = nullptr;  // bf16 [H] of the norm
  float eps = 0;
  // int32 [S]: table row of every packed row. A value outside 0 .. table_rows - 1 cannot be
  // refused without waiting for the device; it makes its row NaN.
  const int32_t* row = nullptr;
  int64_t table_rows = 0;
  Table gate, scale, shift;
};

/// out = norm(x). Needs x, out, weight.
tessera::Status launch_rms_norm(const RowParams& params, const Launch& launch);

/// out = modulate(norm(x)). Needs x, out, weight, row, scale, shift.
tessera::Status launch_rms_norm_modulate(const RowParams& params, const Launch& launch);

/// x = x + gate y. Needs x, y, row, gate.
tessera::Status launch_gated_residual(const RowParams& params, const Launch& launch);

/// x = x + gate y, then out = modulate(norm(x)) without reading x again. Needs everything.
tessera::Status launch_gated_residual_norm_modulate(const RowParams& params, const Launch& launch);

struct SwigluParams {
  int64_t rows = 0;               // S
  int64_t width = 0;              // F, a multiple of 8
  const void* gate_up = nullptr;  // bf16 [S, 2 F]: gate | up
  void* out = nullptr;            // bf16 [S, F]
};

/// out = silu(gate) * up.
tessera::Status launch_swiglu(const SwigluParams& params, const Launch& launch);

inline constexpr int64_t kHeadWidth = 128;

struct QkNormRopeParams {
  int64_t rows = 0;                // S
  int64_t heads = 0;               // of q, and as many of k
  void* qkv = nullptr;             // bf16 [S, 3 * heads * 128]: q | k | v, all heads of each
  const void* q_weight = nullptr;  // bf16 [128]
  const void* k_weight = nullptr;  // bf16 [128]
  float eps = 0;
  // bf16 [S, 2 * rope_half]: cos | sin of the angles. Null: no rotation.
  const void* cos_sin = nullptr;
  // Channel n is rotated with n + rope_half, n < rope_half. A multiple of 8, at most 64.
  int64_t rope_half = 0;
};

/// q and k of every row in place: norm over 128 channels with the weight, then rotation. v stays.
tessera::Status launch_qk_norm_rope(const QkNormRopeParams& params, const Launch& launch);

}  // namespace h3::layers
