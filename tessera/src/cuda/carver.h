// Divides one workspace into aligned buffers. No CUDA header, so that the tests compile it
// anywhere.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tessera::cuda {

/// Carves aligned pieces from one buffer; with a null base it only adds up sizes.
class Carver {
 public:
  explicit Carver(void* base) : base_(static_cast<std::byte*>(base)) {}
  template <class T>
  T* take(int64_t count) {
    used_ = (used_ + 255) & ~size_t{255};
    std::byte* at = base_ == nullptr ? nullptr : base_ + used_;
    used_ += static_cast<size_t>(count) * sizeof(T);
    return reinterpret_cast<T*>(at);
  }
  size_t used() const { return used_; }

 private:
  std::byte* base_;
  size_t used_ = 0;
};

}  // namespace tessera::cuda
