// Norm and rotation of q and k in place. Eight lanes hold a head: lane t has two vectors of eight
// channels, and for the rotated channels these are the partners n and n + rope_half, so that the
// rotation needs no exchange. A warp has four heads, a CTA 28; q and k of the real model are four
// rounds of a CTA, all loaded before the first is computed.
#include "h3/layers/cuda/device.h"

namespace h3::layers {
namespace {

struct DeviceQk {
  Vector* qkv;
  const Vector* q_weight;
  const Vector* k_weight;
  const Vector* cos_sin;
  int64_t rows;
  int32_t heads;
  int32_t partners;  // vectors of rope_half channels; 0: no rotation
  float eps;
};

inline constexpr int kHeadVectors = kHeadWidth / kVectorWidth;
inline constexpr int kHeadLanes = kHeadVectors / 2;
inline constexpr int kWarps = 7, kThreads = kWarps * 32;
inline constexpr int kHeadsAtOnce = kThreads / kHeadLanes;  // 28
inline constexpr int kRealHeads = 56, kRealPartners = 6;    // 48 rotated pairs

struct HeadPart {
  Vector a, b;
};

/// Where a lane's two vectors lie in a head: partners first, what is not rotated behind them.
struct Place {
  int a, b;
};
__device__ Place place_of(int lane, int partners) {
  if (lane < partners) return {lane, lane + partners};
  return {lane + partners, lane + kHeadLanes};
}

/// All 32 lanes take part.
__device__ HeadPart normalised(const HeadPart& x, const HeadPart& weight, float eps) {
  float squares = add_squares(x.b, add_squares(x.a, 0));
#pragma unroll
  for (int step = kHeadLanes / 2; step > 0; step /= 2) {
    squares += __shfl_xor_sync(0xffffffffu, squares, step);
  }
  const float root = norm_factor(squares * (1.0f / kHeadWidth), eps);
  return {scaled(x.a, root, weight.a), scaled(x.b, root, weight.b)};
}

__device__ HeadPart rotated(const HeadPart& x, const Vector& cos, const Vector& sin) {
  return {x.a * cos - x.b * sin, x.b * cos + x.a * sin};
}

/// kReal: 56 heads and 48 pairs, known to the compiler.
template <bool kReal, bool kRope>
__global__ void __launch_bounds__(kThreads, 3) sm90_qk_norm_rope_kernel(const DeviceQk p) {
  const int64_t s = p.rows - 1 - blockIdx.x;
  const int lane = threadIdx.x % kHeadLanes, first = threadIdx.x / kHeadLanes;
  const int heads = kReal ? kRealHeads : p.heads;
  const int partners = !kRope ? 0 : kReal ? kRealPartners : p.partners;
  const Place place = place_of(lane, partners);
  Vector* const row = p.qkv + s * 3 * heads * kHeadVectors;

  const bool rotates = kRope && lane < partners;
  Vector cos, sin;
  if (rotates) {
    cos = load_cached(p.cos_sin + s * 2 * partners + lane);
    sin = load_cached(p.cos_sin + s * 2 * partners + partners + lane);
  }
  const auto weight_of = [&](bool is_k) {
    const Vector* const w = is_k ? p.k_weight : p.q_weight;
    return HeadPart{load_cached(w + place.a), load_cached(w + place.b)};
  };
  const auto finish = [&](Vector* head, HeadPart x, const HeadPart& weight, bool valid) {
    x = normalised(x, weight, p.eps);
    if (rotates) x = rotated(x, cos, sin);
    if (valid) {
      store(head + place.a, x.a);
      store(head + place.b, x.b);
    }
  };

  if constexpr (kReal) {
    constexpr int kRounds = 2 * kRealHeads / kHeadsAtOnce;
    static_assert(kRounds * kHeadsAtOnce == 2 * kRealHeads && kRounds % 2 == 0);
    HeadPart x[kRounds];
#pragma unroll
    for (int i = 0; i < kRounds; ++i) {
      const Vector* const head = row + (first + i * kHeadsAtOnce) * kHeadVectors;
      x[i] = {load_stream(head + place.a), load_stream(head + place.b)};
    }
#pragma unroll
    for (int side = 0; side < 2; ++side) {
      const HeadPart weight = weight_of(side == 1);
#pragma unroll
      for (int j = 0; j < kRounds / 2; ++j) {
        const int i = side * kRounds / 2 + j;
        finish(row + (first + i * kHeadsAtOnce) * kHeadVectors, x[i], weight, true);
      }
    }
  } else {
    // The bound is the CTA's, so that whole warps reach the shuffles.
    for (int begin = 0; begin < 2 * heads; begin += kHeadsAtOnce) {
      const bool valid = begin + first < 2 * heads;
      Vector* const head = row + (valid ? begin + first : 0) * kHeadVectors;
      HeadPart x{filled(0), filled(0)};
      if (valid) x = {load_stream(head + place.a), load_stream(head + place.b)};
      finish(head, x, weight_of(begin + first >= heads), valid);
    }
  }
}

}  // namespace

tessera::Status launch_qk_norm_rope(const QkNormRopeParams& params, const Launch& launch) {
  TESSERA_RETURN_IF_ERROR(check_size(params.rows, 1, INT32_MAX, "rows"));
  TESSERA_RETURN_IF_ERROR(check_size(params.heads, 1, 1 << 16, "heads"));
  TESSERA_RETURN_IF_ERROR(check_pointer(params.qkv, "qkv"));
  TESSERA_RETURN_IF_ERROR(check_pointer(params.q_weight, "q_weight"));
  TESSERA_RETURN_IF_ERROR(check_pointer(params.k_weight, "k_weight"));
  const bool rope = params.cos_sin != nullptr;
  if (rope) {
    TESSERA_RETURN_IF_ERROR(check_pointer(params.cos_sin, "cos_sin"));
    TESSERA_RETURN_IF_ERROR(
        check_size(params.rope_half, kVectorWidth, kHeadWidth / 2, "rope_half"));
  }
  const DeviceQk device{
      .qkv = static_cast<Vector*>(params.qkv),
      .q_weight = static_cast<const Vector*>(params.q_weight),
      .k_weight = static_cast<const Vector*>(params.k_weight),
      .cos_sin = static_cast<const Vector*>(params.cos_sin),
      .rows = params.rows,
      .heads = static_cast<int32_t>(params.heads),
      .partners = rope ? static_cast<int32_t>(params.rope_half / kVectorWidth) : 0,
      .eps = params.eps};
  const bool real = device.heads == kRealHeads && (!rope || device.partners == kRealPartners);
  const auto kernel =
      real
          ? (rope ? sm90_qk_norm_rope_kernel<true, true> : sm90_qk_norm_rope_kernel<true, false>)
          : (rope ? sm90_qk_norm_rope_kernel<false, true> : sm90_qk_norm_rope_kernel<false, false>);
  return launch_kernel(kernel, static_cast<unsigned>(params.rows), kThreads, device, launch);
}

}  // namespace h3::layers
