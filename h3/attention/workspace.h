// Device scratch that the kernels borrow: one buffer per stream, owned by torch's caching
// allocator, which only grows.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>

#include <cstddef>
#include <mutex>
#include <unordered_map>
#include <vector>

namespace h3 {

/// Calls on one stream run one after another on the device, so they can share a buffer as long as
/// no two host threads mix their launches: a `Lease` keeps the stream's buffer locked until a call
/// has enqueued everything.
class WorkspaceCache {
 public:
  class Lease {
   public:
    void* data() const { return data_; }
    size_t bytes() const { return bytes_; }

   private:
    friend class WorkspaceCache;
    std::unique_lock<std::mutex> lock_;
    void* data_ = nullptr;
    size_t bytes_ = 0;
  };

  /// At least `bytes` bytes on the device of `stream`, 256-byte aligned, for work on that stream,
  /// which has to be its device's current one. Outgrown buffers are kept until `release`: a CUDA
  /// graph captured with one may still be replayed. A new buffer is at least twice the last, so
  /// the outgrown ones together are never larger than the one in use. A graph must not run at the
  /// same time as other calls on the stream it was captured on. Errors of torch's allocator pass
  /// through.
  Lease borrow(const c10::Stream& stream, size_t bytes);

  /// Gives all buffers back to the allocator. Not while a captured graph that used them lives.
  void release();

  /// Bytes held, outgrown buffers included.
  size_t bytes_held();

 private:
  struct Slot {
    std::mutex mutex;
    std::vector<at::Tensor> buffers;  // growing; the last one is in use
  };

  std::mutex mutex_;                             // guards the map, not what is in the slots
  std::unordered_map<c10::Stream, Slot> slots_;  // slots never move or go
};

/// The process's cache. Never destroyed: tensors must not outlive the CUDA runtime's shutdown.
WorkspaceCache& workspace_cache();

}  // namespace h3
