// Vector exp2 and the fp32 conversions, per instruction set.
#if defined(TESSERA_CPU_MATH_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TESSERA_CPU_MATH_INL_H_
#undef TESSERA_CPU_MATH_INL_H_
#else
#define TESSERA_CPU_MATH_INL_H_
#endif

#include "hwy/highway.h"
#include "tessera/src/cpu/fast_kernels.h"
#include "tessera/types.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using FloatTag = hn::ScalableTag<float>;
using FloatVec = hn::Vec<FloatTag>;

/// 2^x for x <= ~127. Degree-6 minimax polynomial on [-1/2, 1/2], relative error 2e-9 before fp32
/// rounding; exactly 1 at x = 0. x below -126 gives 0 (no subnormals), NaN stays NaN.
HWY_INLINE FloatVec exp2_vec(FloatTag d, FloatVec x) {
  const hn::RebindToSigned<FloatTag> di;
  const FloatVec lowest = hn::Set(d, -126.0f);
  // The clamp keeps the integer conversion defined; both special cases are put back at the end.
  const FloatVec clamped = hn::Min(hn::Max(x, lowest), hn::Set(d, 127.0f));
  const FloatVec whole = hn::Round(clamped);
  const FloatVec f = hn::Sub(clamped, whole);
  FloatVec p = hn::Set(d, 1.534581242594868e-4f);
  p = hn::MulAdd(p, f, hn::Set(d, 1.3399930903688073e-3f));
  p = hn::MulAdd(p, f, hn::Set(d, 9.618489071726799e-3f));
  p = hn::MulAdd(p, f, hn::Set(d, 5.550328642129898e-2f));
  p = hn::MulAdd(p, f, hn::Set(d, 2.4022646248340607e-1f));
  p = hn::MulAdd(p, f, hn::Set(d, 6.931471824645996e-1f));
  p = hn::MulAdd(p, f, hn::Set(d, 1.0f));
  const auto bits = hn::Add(hn::BitCast(di, p), hn::ShiftLeft<23>(hn::ConvertTo(di, whole)));
  const FloatVec value = hn::IfThenZeroElse(hn::Lt(x, lowest), hn::BitCast(d, bits));
  return hn::IfThenElse(hn::IsNaN(x), x, value);
}

/// Copies `count` elements (a multiple of the lane count) to fp32.
HWY_INLINE void load_f32(const Rows& rows, int64_t row, int count, float* HWY_RESTRICT to) {
  const FloatTag d;
  const int lanes = static_cast<int>(hn::Lanes(d));
  const int64_t start = row * rows.row_stride;
  switch (rows.dtype) {
    case Dtype::kF32: {
      const float* from = static_cast<const float*>(rows.data) + start;
      for (int i = 0; i < count; i += lanes) hn::StoreU(hn::LoadU(d, from + i), d, to + i);
      return;
    }
    case Dtype::kBf16: {
      const hn::Rebind<uint16_t, FloatTag> d16;
      const hn::RebindToUnsigned<FloatTag> d32;
      const uint16_t* from = static_cast<const uint16_t*>(rows.data) + start;
      for (int i = 0; i < count; i += lanes) {
        const auto wide = hn::PromoteTo(d32, hn::LoadU(d16, from + i));
        hn::StoreU(hn::BitCast(d, hn::ShiftLeft<16>(wide)), d, to + i);
      }
      return;
    }
    default: {
      const hn::Rebind<uint16_t, FloatTag> d16;
      const hn::Rebind<hwy::float16_t, FloatTag> half;
      const hn::RebindToUnsigned<FloatTag> d32;
      const uint16_t* from = static_cast<const uint16_t*>(rows.data) + start;
      for (int i = 0; i < count; i += lanes) {
        const auto bits = hn::LoadU(d16, from + i);
        const FloatVec value = hn::PromoteTo(d, hn::BitCast(half, bits));
        // Without F16C the promotion widens infinity and NaN to finite numbers: put them back.
        const auto wide = hn::PromoteTo(d32, bits);
        const auto magnitude = hn::And(wide, hn::Set(d32, 0x7fffu));
        const auto special =
            hn::Or(hn::ShiftLeft<16>(hn::AndNot(hn::Set(d32, 0x7fffu), wide)),
                   hn::Or(hn::ShiftLeft<13>(magnitude), hn::Set(d32, 0x7f800000u)));
        const auto is_special = hn::Gt(magnitude, hn::Set(d32, 0x7bffu));
        hn::StoreU(hn::IfThenElse(hn::RebindMask(d, is_special), hn::BitCast(d, special), value), d,
                   to + i);
      }
      return;
    }
  }
}

/// fp32 rounded to bf16 (nearest even) and widened again; NaN stays NaN.
HWY_INLINE FloatVec round_bf16_vec(FloatTag d, FloatVec x) {
  const hn::RebindToUnsigned<FloatTag> du;
  const auto bits = hn::BitCast(du, x);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1u));
  const auto rounded = hn::Add(bits, hn::Add(hn::Set(du, 0x7fffu), odd));
  const auto cut = hn::And(rounded, hn::Set(du, 0xffff0000u));
  return hn::IfThenElse(hn::IsNaN(x), x, hn::BitCast(d, cut));
}

/// Stores one fp32 row in the output's dtype, rounded to nearest even.
HWY_INLINE void store_row(const float* from, int count, Dtype dtype, void* to) {
  if (dtype == Dtype::kF32) {
    float* out = static_cast<float*>(to);
    for (int i = 0; i < count; ++i) out[i] = from[i];
  } else if (dtype == Dtype::kBf16) {
    uint16_t* out = static_cast<uint16_t*>(to);
    for (int i = 0; i < count; ++i) out[i] = f32_to_bf16(from[i]);
  } else {
    uint16_t* out = static_cast<uint16_t*>(to);
    for (int i = 0; i < count; ++i) out[i] = f32_to_f16(from[i]);
  }
}

}  // namespace tessera::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
