// --device: which device a command runs on.
#pragma once

#include <string>

#include "h3/attention/devices.h"

namespace h3::cli {

struct DeviceChoice {
  Platform platform;
  int index = 0;  // of a CUDA device
  std::string name() const { return platform.cuda ? "cuda:" + std::to_string(index) : "cpu"; }
};

/// "cpu", "cuda" (the first), "cuda:N", or empty: the first device that the kernels run on, else
/// the CPU. Throws kInvalidArgument for other texts and devices that are not here.
DeviceChoice choose_device(const std::string& text);

}  // namespace h3::cli
