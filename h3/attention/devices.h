// The device that a plan is made for. Only what selection needs: kind, compute capability, and
// whether this build holds CUDA kernels; nothing here opens a device.
#pragma once

#include <string>
#include <string_view>

namespace h3 {

struct Capability {
  int major = 0, minor = 0;
  friend bool operator==(const Capability&, const Capability&) = default;
};

struct Platform {
  bool cuda = false;
  Capability capability;     // of the CUDA device
  bool cuda_kernels = true;  // this build holds kernels for CUDA devices

  bool is(int major, int minor) const { return cuda && capability == Capability{major, minor}; }
};

Platform cpu_platform();
Platform cuda_platform(int major, int minor, bool cuda_kernels = true);

/// "cpu", "capability 9.0".
std::string to_text(const Platform& platform);

/// "9.0" or "10.3": two integers with a dot. Throws kInvalidArgument for anything else.
Capability capability_from_text(std::string_view text);

}  // namespace h3
