// Scalar access to elements of the three floating-point dtypes.
#pragma once

#include <cstdint>

#include "tessera/types.h"

namespace tessera::internal {

inline float load_element(const void* data, int64_t offset, Dtype dtype) {
  switch (dtype) {
    case Dtype::kF32: return static_cast<const float*>(data)[offset];
    case Dtype::kBf16: return bf16_to_f32(static_cast<const uint16_t*>(data)[offset]);
    default: return f16_to_f32(static_cast<const uint16_t*>(data)[offset]);
  }
}

/// Rounds to nearest even.
inline void store_element(float value, void* data, int64_t offset, Dtype dtype) {
  switch (dtype) {
    case Dtype::kF32: static_cast<float*>(data)[offset] = value; return;
    case Dtype::kBf16: static_cast<uint16_t*>(data)[offset] = f32_to_bf16(value); return;
    default: static_cast<uint16_t*>(data)[offset] = f32_to_f16(value); return;
  }
}

inline bool is_float(Dtype dtype) {
  return dtype == Dtype::kBf16 || dtype == Dtype::kF16 || dtype == Dtype::kF32;
}

}  // namespace tessera::internal
