// Which device the kernels run on.
#include "h3/layers/cuda/device.h"

namespace h3::layers {
namespace {

tessera::Status capability(int device, int* major, int* minor) {
  TESSERA_RETURN_IF_ERROR(
      check_cuda(cudaDeviceGetAttribute(major, cudaDevAttrComputeCapabilityMajor, device),
                 "cudaDeviceGetAttribute"));
  return check_cuda(cudaDeviceGetAttribute(minor, cudaDevAttrComputeCapabilityMinor, device),
                    "cudaDeviceGetAttribute");
}

}  // namespace

tessera::Status require_sm90(int device) {
  int major = 0, minor = 0;
  TESSERA_RETURN_IF_ERROR(capability(device, &major, &minor));
  if (major == 9 && minor == 0) return {};
  return tessera::unsupported("device cuda:" + std::to_string(device) + " has compute capability " +
                              std::to_string(major) + "." + std::to_string(minor) +
                              "; the fused kernels of this build accept 9.0 (H100, H200)");
}

bool kernels_run_on(int device) { return require_sm90(device).ok(); }

}  // namespace h3::layers
