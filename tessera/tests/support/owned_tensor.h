// Tensors that own their memory, in any layout, with NaN everywhere that is not an element: in
// front, behind, and in every gap. A kernel that reads a row it must not read shows NaN.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <vector>

#include "tessera/src/common/element.h"
#include "tessera/tensor_view.h"
#include "tessera/tests/support/random.h"

namespace tessera::testing {

template <int kRank>
struct MemoryLayout {
  std::array<int, kRank> order = identity();  // dimensions, outermost first
  std::array<int64_t, kRank> extra{};         // unused positions behind each dimension
  std::array<int64_t, kRank> step = ones();   // every step-th position of a dimension is used
  std::array<bool, kRank> reversed{};         // negative stride

  static constexpr std::array<int, kRank> identity() {
    std::array<int, kRank> order{};
    for (int i = 0; i < kRank; ++i) order[i] = i;
    return order;
  }
  static constexpr std::array<int64_t, kRank> ones() {
    std::array<int64_t, kRank> step{};
    for (int i = 0; i < kRank; ++i) step[i] = 1;
    return step;
  }
};

/// Calls body(index tuple) for every element, last dimension fastest.
template <int kRank, class Body>
void for_each_index(const std::array<int64_t, kRank>& size, Body body) {
  std::array<int64_t, kRank> at{};
  int64_t total = 1;
  for (int64_t s : size) total *= s;
  for (int64_t n = 0; n < total; ++n) {
    body(at);
    for (int i = kRank - 1; i >= 0 && ++at[i] == size[i]; --i) at[i] = 0;
  }
}

template <int kRank>
class OwnedTensor {
 public:
  static constexpr int64_t kGuard = 64;  // NaN elements in front and behind

  OwnedTensor() = default;
  OwnedTensor(std::array<int64_t, kRank> size, Dtype dtype, const MemoryLayout<kRank>& layout = {})
      : view_{nullptr, size, {}, dtype} {
    int64_t run = 1;
    for (int n = kRank - 1; n >= 0; --n) {
      const int i = layout.order[n];
      const int64_t stride = run * layout.step[i];
      run = stride * (size[i] + layout.extra[i]);
      view_.stride[i] = layout.reversed[i] ? -stride : stride;
      if (layout.reversed[i]) base_ += (size[i] - 1) * stride;
    }
    base_ += kGuard;
    // All bits set is a NaN in bf16, f16 and f32.
    bytes_.assign((run + 2 * kGuard) * static_cast<int64_t>(dtype_bytes(dtype)), std::byte{0xff});
  }

  TensorView<kRank> view() const {
    TensorView<kRank> view = view_;
    view.data = const_cast<std::byte*>(bytes_.data()) +
                base_ * static_cast<int64_t>(dtype_bytes(view_.dtype));
    return view;
  }
  const std::array<int64_t, kRank>& size() const { return view_.size; }
  Dtype dtype() const { return view_.dtype; }

  float get(const std::array<int64_t, kRank>& at) const {
    return internal::load_element(bytes_.data(), base_ + offset_of<kRank>(view_, at), view_.dtype);
  }
  void set(const std::array<int64_t, kRank>& at, float value) {
    internal::store_element(value, bytes_.data(), base_ + offset_of<kRank>(view_, at), view_.dtype);
  }

  /// set(at, value(at)) for every element.
  template <class Value>
  void fill(Value value) {
    for_each_index<kRank>(view_.size, [&](const auto& at) { set(at, value(at)); });
  }
  void fill_random(Random& random, float scale = 1) {
    fill([&](const auto&) { return scale * random.normal(); });
  }
  void copy_from(const OwnedTensor& other) {
    fill([&](const auto& at) { return other.get(at); });
  }
  /// Everything the tensor owns, guards and gaps included, and where its first element lies in it.
  std::vector<std::byte>& storage() { return bytes_; }
  const std::vector<std::byte>& storage() const { return bytes_; }
  size_t first_element_byte() const {
    return static_cast<size_t>(base_) * dtype_bytes(view_.dtype);
  }
  void poison() { std::memset(bytes_.data(), 0xff, bytes_.size()); }

  /// Row-major fp64 copy.
  std::vector<double> values() const {
    std::vector<double> out;
    out.reserve(view_.elements());
    for_each_index<kRank>(view_.size, [&](const auto& at) { out.push_back(get(at)); });
    return out;
  }
  /// Row-major bit patterns: equality of results means equality of these.
  std::vector<uint32_t> bits() const {
    std::vector<uint32_t> out;
    out.reserve(view_.elements());
    for_each_index<kRank>(view_.size, [&](const auto& at) {
      const int64_t offset = base_ + offset_of<kRank>(view_, at);
      uint32_t word = 0;
      const size_t bytes = dtype_bytes(view_.dtype);
      std::memcpy(&word, bytes_.data() + offset * static_cast<int64_t>(bytes), bytes);
      out.push_back(word);
    });
    return out;
  }
  /// True if every byte that belongs to no element still has the guard pattern.
  bool guards_intact() const {
    OwnedTensor copy = *this;
    const size_t bytes = dtype_bytes(view_.dtype);
    for_each_index<kRank>(view_.size, [&](const auto& at) {
      std::memset(
          copy.bytes_.data() + (base_ + offset_of<kRank>(view_, at)) * static_cast<int64_t>(bytes),
          0xff, bytes);
    });
    for (std::byte b : copy.bytes_) {
      if (b != std::byte{0xff}) return false;
    }
    return true;
  }

 private:
  TensorView<kRank> view_;
  int64_t base_ = 0;
  std::vector<std::byte> bytes_;
};

using Tensor4 = OwnedTensor<4>;
using Tensor3 = OwnedTensor<3>;
using Layout4 = MemoryLayout<4>;
using Layout3 = MemoryLayout<3>;

/// [B, S, H, D] with 64 NaN rows behind the last token: the "guard" of the field cases.
inline Layout4 guarded_rows() {
  Layout4 layout;
  layout.extra[1] = 64;
  return layout;
}

}  // namespace tessera::testing
