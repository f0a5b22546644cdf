#include "h3/layers/device_memory.h"

#include <ATen/Context.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace h3 {
namespace {

constexpr size_t kAll = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);

// Before the first tensor the allocator knows no device.
c10::DeviceAllocator& allocator_of(c10::Device device) {
  at::globalContext().lazyInitDevice(device.type());
  return *c10::getDeviceAllocator(device.type());
}

}  // namespace

DeviceMemory device_memory(c10::Device device) {
  if (device.is_cpu()) return {};
  c10::DeviceAllocator& allocator = allocator_of(device);
  const auto stats = allocator.getDeviceStats(device.index());
  const auto [free, total] = allocator.getMemoryInfo(device.index());
  return {stats.allocated_bytes[kAll].current, stats.allocated_bytes[kAll].peak,
          stats.reserved_bytes[kAll].peak, static_cast<int64_t>(free), static_cast<int64_t>(total)};
}

void reset_peak_memory(c10::Device device) {
  if (!device.is_cpu()) allocator_of(device).resetPeakStats(device.index());
}

void synchronize(c10::Device device) {
  if (!device.is_cpu()) {
    c10::impl::VirtualGuardImpl(device.type()).synchronizeDevice(device.index());
  }
}

}  // namespace h3
