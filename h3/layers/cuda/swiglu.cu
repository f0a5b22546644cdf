// silu(gate) * up over the halves of a row. A CTA takes one piece of one row and has all of its
// loads under way before it computes; enough CTAs fit on an SM to keep memory busy.
#include "h3/layers/cuda/device.h"

namespace h3::layers {
namespace {

struct DeviceSwiglu {
  const Vector* gate_up;
  Vector* out;
  int64_t rows;
  int32_t vectors;  // of a half row
  int32_t pieces;   // CTAs of a row
};

/// x / (1 + exp(-x)) with the hardware's exp2 and reciprocal: a relative error of some 2^-22, far
/// below the 2^-9 of the rounding to bf16 that follows. 1 + exp(-x) is at least 1, so that flushing
/// to zero touches results below 1e-36 only.
__device__ float silu(float x) {
  float power, inverse;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x * -1.44269504f));
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(1.0f + power));
  return x * inverse;
}

__device__ Vector silu(const Vector& v) {
  Vector r;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    r.pair(i) = __floats2bfloat162_rn(silu(low(v.pair(i))), silu(high(v.pair(i))));
  }
  return r;
}

inline constexpr int kThreads = 128;
inline constexpr int kPieceVectors = 7;  // of a thread; 14336 = 2 pieces x 128 x 7 x 8
inline constexpr int kPiece = kThreads * kPieceVectors;

/// kExact: the row is a multiple of a piece. From the last row to the first, as the row kernels.
template <bool kExact>
__global__ void __launch_bounds__(kThreads, 6) sm90_swiglu_kernel(const DeviceSwiglu p) {
  const int64_t s = p.rows - 1 - blockIdx.x / p.pieces;
  const int first = blockIdx.x % p.pieces * kPiece + threadIdx.x;
  const Vector* const gate = p.gate_up + s * 2 * p.vectors + first;
  const Vector* const up = gate + p.vectors;
  Vector* const out = p.out + s * p.vectors + first;

  Vector g[kPieceVectors], u[kPieceVectors];
#pragma unroll
  for (int i = 0; i < kPieceVectors; ++i) {
    if (!kExact && first + i * kThreads >= p.vectors) break;
    g[i] = load_stream(gate + i * kThreads);
    u[i] = load_stream(up + i * kThreads);
  }
#pragma unroll
  for (int i = 0; i < kPieceVectors; ++i) {
    if (!kExact && first + i * kThreads >= p.vectors) break;
    store(out + i * kThreads, silu(g[i]) * u[i]);
  }
}

}  // namespace

tessera::Status launch_swiglu(const SwigluParams& params, const Launch& launch) {
  constexpr int64_t kMost = int64_t{1} << 30;
  TESSERA_RETURN_IF_ERROR(check_size(params.rows, 1, kMost, "rows"));
  TESSERA_RETURN_IF_ERROR(check_size(params.width, kVectorWidth, kMost, "width"));
  TESSERA_RETURN_IF_ERROR(check_pointer(params.gate_up, "gate_up"));
  TESSERA_RETURN_IF_ERROR(check_pointer(params.out, "out"));
  const int64_t vectors = params.width / kVectorWidth;
  const int64_t pieces = (vectors + kPiece - 1) / kPiece;
  TESSERA_RETURN_IF_ERROR(check_size(params.rows * pieces, 1, INT32_MAX, "rows * pieces of a row"));
  const DeviceSwiglu device{.gate_up = static_cast<const Vector*>(params.gate_up),
                            .out = static_cast<Vector*>(params.out),
                            .rows = params.rows,
                            .vectors = static_cast<int32_t>(vectors),
                            .pieces = static_cast<int32_t>(pieces)};
  const auto grid = static_cast<unsigned>(params.rows * pieces);
  return vectors % kPiece == 0
             ? launch_kernel(sm90_swiglu_kernel<true>, grid, kThreads, device, launch)
             : launch_kernel(sm90_swiglu_kernel<false>, grid, kThreads, device, launch);
}

}  // namespace h3::layers
