// A borrowed strided tensor: owns nothing, knows no framework.
//   Bshd q = contiguous_view<4>(ptr, {B, S, H, D}, Dtype::kBf16);
#pragma once

#include <array>
#include <cstdint>

#include "tessera/types.h"

namespace tessera {

template <int kRank>
struct TensorView {
  void* data = nullptr;               // host or device pointer; inputs are never written through it
  std::array<int64_t, kRank> size{};  // in elements
  std::array<int64_t, kRank> stride{};  // in elements
  Dtype dtype = Dtype::kBf16;

  bool present() const { return data != nullptr; }
  int64_t elements() const {
    int64_t n = 1;
    for (int64_t s : size) n *= s;
    return n;
  }
};

/// [B, S, H, D]: batch, tokens, heads, head width. Last stride 1; the others are arbitrary.
using Bshd = TensorView<4>;

/// Row-major strides over `size`.
template <int kRank>
TensorView<kRank> contiguous_view(const void* data, std::array<int64_t, kRank> size, Dtype dtype) {
  TensorView<kRank> view{const_cast<void*>(data), size, {}, dtype};
  int64_t step = 1;
  for (int i = kRank - 1; i >= 0; --i) {
    view.stride[i] = step;
    step *= size[i];
  }
  return view;
}

/// Element offset of an index tuple; 64-bit throughout.
template <int kRank>
int64_t offset_of(const TensorView<kRank>& view, std::array<int64_t, kRank> at) {
  int64_t offset = 0;
  for (int i = 0; i < kRank; ++i) offset += at[i] * view.stride[i];
  return offset;
}

}  // namespace tessera
