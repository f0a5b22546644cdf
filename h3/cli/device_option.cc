#include "h3/cli/device_option.h"

#include <vector>

#include "h3/attention/names.h"
#include "h3/common/error.h"
#include "tessera/device.h"

namespace h3::cli {

DeviceChoice choose_device(const std::string& text) {
  const std::string device = folded(text);
  const bool cuda = device == "cuda" || device.starts_with("cuda:");
  if (!device.empty() && device != "cpu" && !cuda) {
    throw Error(ErrorCode::kInvalidArgument,
                "--device is '" + text + "'; accepted: cpu, cuda, cuda:N", "write --device cpu");
  }
  if (device == "cpu") return {cpu_platform(), 0};
  const std::vector<tessera::CudaDeviceInfo> devices = tessera::cuda_devices();
  for (const tessera::CudaDeviceInfo& d : devices) {
    const bool wanted = device.empty()     ? d.usable
                        : device == "cuda" ? true
                                           : device == "cuda:" + std::to_string(d.index);
    if (wanted) return {cuda_platform(d.major, d.minor, tessera::built_with_cuda()), d.index};
  }
  if (device.empty()) return {cpu_platform(), 0};
  throw Error(ErrorCode::kInvalidArgument,
              "--device " + device + " is not here; this build sees " +
                  std::to_string(devices.size()) + " CUDA devices",
              "use --device cpu");
}

}  // namespace h3::cli
