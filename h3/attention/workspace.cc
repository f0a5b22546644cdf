#include "h3/attention/workspace.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstdint>

namespace h3 {
namespace {

constexpr size_t kAlignment = 256;

}  // namespace

WorkspaceCache::Lease WorkspaceCache::borrow(const c10::Stream& stream, size_t bytes) {
  Slot* slot = nullptr;
  {
    const std::lock_guard lock(mutex_);
    slot = &slots_[stream];
  }
  Lease lease;
  lease.lock_ = std::unique_lock(slot->mutex);
  const size_t needed = bytes + kAlignment;  // room to move the base up to the alignment
  const size_t last = slot->buffers.empty() ? 0 : slot->buffers.back().nbytes();
  if (last < needed) {
    slot->buffers.push_back(at::empty({static_cast<int64_t>(std::max(needed, 2 * last))},
                                      at::device(stream.device()).dtype(at::kByte)));
  }
  const at::Tensor& buffer = slot->buffers.back();
  const auto base = reinterpret_cast<uintptr_t>(buffer.data_ptr());
  const uintptr_t aligned = (base + kAlignment - 1) / kAlignment * kAlignment;
  lease.data_ = reinterpret_cast<void*>(aligned);
  lease.bytes_ = buffer.nbytes() - (aligned - base);
  return lease;
}

void WorkspaceCache::release() {
  const std::lock_guard lock(mutex_);
  for (auto& [stream, slot] : slots_) {
    const std::lock_guard slot_lock(slot.mutex);
    slot.buffers.clear();
  }
}

size_t WorkspaceCache::bytes_held() {
  const std::lock_guard lock(mutex_);
  size_t bytes = 0;
  for (auto& [stream, slot] : slots_) {
    const std::lock_guard slot_lock(slot.mutex);
    for (const at::Tensor& buffer : slot.buffers) bytes += buffer.nbytes();
  }
  return bytes;
}

WorkspaceCache& workspace_cache() {
  static WorkspaceCache* const cache = new WorkspaceCache;
  return *cache;
}

}  // namespace h3
