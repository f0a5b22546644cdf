// Buffers that collectives send from and receive into, kept between calls.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <tuple>

namespace h3::parallel {

/// What a buffer is for. A role is filled and fully consumed before it is used again.
enum class StagingRole { kSendHeads, kReceiveHeads, kSendRows, kReceiveRows, kRingA, kRingB };

/// One buffer for each role, dtype and device. It only grows; views of it are handed out. Not for
/// several threads.
class StagingBuffers {
 public:
  /// Uninitialised contiguous tensor of that shape: the front of the role's buffer.
  at::Tensor get(StagingRole role, at::IntArrayRef shape, const at::TensorOptions& options);

  /// Frees all buffers. Call it where every rank comes, with no collective under way.
  void release() { buffers_.clear(); }
  int64_t bytes() const;

  /// While alive, get() returns fresh tensors and leaves the buffers alone: for graph capture,
  /// whose replays must not share memory with eager calls.
  class Bypass {
   public:
    explicit Bypass(StagingBuffers& buffers) : buffers_(buffers) { ++buffers_.bypassed_; }
    ~Bypass() { --buffers_.bypassed_; }
    Bypass(const Bypass&) = delete;
    Bypass& operator=(const Bypass&) = delete;

   private:
    StagingBuffers& buffers_;
  };

 private:
  std::map<std::tuple<StagingRole, at::ScalarType, c10::DeviceType, int>, at::Tensor> buffers_;
  int bypassed_ = 0;
};

}  // namespace h3::parallel
