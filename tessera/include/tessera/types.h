// Element types and their exact scalar conversions.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace tessera {

/// Tokens in one query or key block. Every plan, router and kernel uses this block size.
inline constexpr int kBlockTokens = 64;

enum class Dtype : uint8_t {
  kBf16,
  kF16,
  kF32,
  kF64,
  kI8,
  kU8,
  kBool,
  kI16,
  kU16,
  kI32,
  kU32,
  kI64,
  kU64
};

constexpr size_t dtype_bytes(Dtype t) {
  switch (t) {
    case Dtype::kI8:
    case Dtype::kU8:
    case Dtype::kBool: return 1;
    case Dtype::kBf16:
    case Dtype::kF16:
    case Dtype::kI16:
    case Dtype::kU16: return 2;
    case Dtype::kF32:
    case Dtype::kI32:
    case Dtype::kU32: return 4;
    case Dtype::kF64:
    case Dtype::kI64:
    case Dtype::kU64: return 8;
  }
  return 0;
}

/// Lower-case name used in messages: "bf16", "f32", "i32", ...
std::string_view dtype_name(Dtype t);

/// bf16 bits to fp32 (exact).
inline float bf16_to_f32(uint16_t bits) { return std::bit_cast<float>(uint32_t{bits} << 16); }

/// fp32 to bf16 bits, rounded to nearest even; a NaN stays a (quiet) NaN.
inline uint16_t f32_to_bf16(float value) {
  const uint32_t u = std::bit_cast<uint32_t>(value);
  if ((u & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((u >> 16) | 0x40u);
  return static_cast<uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

/// fp16 bits to fp32 (exact).
float f16_to_f32(uint16_t bits);

/// fp32 to fp16 bits, rounded to nearest even, overflow to infinity.
uint16_t f32_to_f16(float value);

/// `value` rounded to bf16 and widened again.
inline float round_bf16(float value) { return bf16_to_f32(f32_to_bf16(value)); }

}  // namespace tessera
