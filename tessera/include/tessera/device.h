// What this machine offers.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace tessera {

struct CpuInfo {
  std::string model;  // "AMD EPYC ..." or empty
  int hardware_threads = 0;
  std::string vector_target;  // the Highway target that runs: "AVX2", "AVX3", "SSE4", "NEON", ...
  std::vector<std::string> compiled_targets;
};
CpuInfo cpu_info();

/// Whether this library was built with CUDA kernels.
bool built_with_cuda();

/// What lies between the kernels and the devices. All empty in a build without CUDA.
struct CudaDriverInfo {
  std::string runtime;  // CUDA version of the runtime inside this library, "13.0"
  std::string driver;   // newest CUDA version the installed driver speaks; empty: no driver
  std::string why_not;  // why no device can be used at all; empty if there is one
};
CudaDriverInfo cuda_driver();

struct CudaDeviceInfo {
  int index = 0;  // CUDA ordinal, the N of "cuda:N"
  std::string name;
  int major = 0, minor = 0;  // compute capability
  int multiprocessors = 0;
  size_t memory_bytes = 0;
  bool usable = false;  // the kernels of this build run there
  std::string why_not;  // empty if usable
};

/// Every visible CUDA device, usable or not; empty without a driver or without CUDA in the build.
std::vector<CudaDeviceInfo> cuda_devices();

/// Version of the library, "0.1.0".
const char* version();

}  // namespace tessera
