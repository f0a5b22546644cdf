// Memory of a device as torch's caching allocator and the driver see it, without CUDA headers.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>

namespace h3 {

struct DeviceMemory {
  int64_t allocated = 0, peak = 0;  // bytes in tensors: now, and at most since reset_peak
  int64_t reserved_peak = 0;        // bytes the allocator held at most
  int64_t free = 0, total = 0;      // of the device, all processes
};

/// All zero for the CPU.
DeviceMemory device_memory(c10::Device device);
/// The peaks start again from what is allocated now.
void reset_peak_memory(c10::Device device);
/// Waits for everything enqueued on the device. Nothing to do for the CPU.
void synchronize(c10::Device device);

}  // namespace h3
