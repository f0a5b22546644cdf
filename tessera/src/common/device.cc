// What this machine offers: processor, instruction sets, GPUs.
#include "tessera/device.h"

#include <fstream>
#include <string>
#include <thread>

#include "hwy/highway.h"
#include "hwy/targets.h"
#include "tessera/src/cpu/fast_kernels.h"
#ifdef TESSERA_WITH_CUDA
#include "tessera/src/cuda/runtime.h"
#endif

namespace tessera {

CpuInfo cpu_info() {
  CpuInfo info;
  info.hardware_threads = static_cast<int>(std::thread::hardware_concurrency());
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("model name")) {
      const size_t colon = line.find(": ");
      if (colon != std::string::npos) info.model = line.substr(colon + 2);
      break;
    }
  }
  info.vector_target = cpu::fast_target_name();
  for (int64_t targets = cpu::fast_compiled_targets(); targets != 0; targets &= targets - 1) {
    info.compiled_targets.emplace_back(hwy::TargetName(targets & -targets));
  }
  return info;
}

#ifdef TESSERA_WITH_CUDA

bool built_with_cuda() { return true; }

namespace {

std::string cuda_version(int number) {  // 13000 is 13.0
  return number <= 0 ? ""
                     : std::to_string(number / 1000) + "." + std::to_string(number % 1000 / 10);
}

}  // namespace

CudaDriverInfo cuda_driver() {
  CudaDriverInfo info;
  int number = 0;
  if (cudaRuntimeGetVersion(&number) == cudaSuccess) info.runtime = cuda_version(number);
  if (cudaDriverGetVersion(&number) == cudaSuccess) info.driver = cuda_version(number);
  cuda::DeviceFacts facts;
  info.why_not = cuda::device_facts(0, &facts).message();
  return info;
}

std::vector<CudaDeviceInfo> cuda_devices() {
  std::vector<CudaDeviceInfo> list;
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) {
    (void)cudaGetLastError();  // the text is cuda_driver's why_not
    return list;
  }
  for (int index = 0; index < count; ++index) {
    cuda::DeviceFacts facts;
    const Status status = cuda::require_sm90(index, &facts);
    list.push_back({index, facts.name, facts.major, facts.minor, facts.multiprocessors,
                    facts.memory_bytes, status.ok(), status.message()});
  }
  return list;
}

#else

bool built_with_cuda() { return false; }
CudaDriverInfo cuda_driver() { return {}; }
std::vector<CudaDeviceInfo> cuda_devices() { return {}; }

#endif

const char* version() { return TESSERA_VERSION; }

}  // namespace tessera
