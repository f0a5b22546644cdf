#include "tessera/cli/common/cuda_sensor.h"

#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include "tessera/cli/common/timing.h"

namespace tessera::cli {

namespace {

// Of the management library's documented C interface (NVML).
constexpr unsigned kSmClock = 1;
using Init = int (*)();
using FindByPci = int (*)(const char*, void**);
using ReadClock = int (*)(void*, unsigned, unsigned*);
using ReadPower = int (*)(void*, unsigned*);

template <class Function>
Function find(void* library, const char* name) {
  return library == nullptr ? nullptr : reinterpret_cast<Function>(dlsym(library, name));
}

double taken_median(std::vector<double>* values) {
  const double result = values->empty() ? 0 : median(*values);
  values->clear();
  return result;
}

}  // namespace

CudaSensor::CudaSensor(const Device& device) {
  library_ = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
  const auto init = find<Init>(library_, "nvmlInit_v2");
  const auto by_pci = find<FindByPci>(library_, "nvmlDeviceGetHandleByPciBusId_v2");
  char pci[32] = {};
  // By bus id: the management library counts devices that CUDA_VISIBLE_DEVICES hides.
  if (init == nullptr || by_pci == nullptr || init() != 0 ||
      cudaDeviceGetPCIBusId(pci, sizeof(pci), device.index) != cudaSuccess ||
      by_pci(pci, &handle_) != 0) {
    handle_ = nullptr;
  }
}

CudaSensor::~CudaSensor() {
  if (const auto shutdown = find<Init>(library_, "nvmlShutdown"); shutdown != nullptr) {
    (void)shutdown();
  }
  if (library_ != nullptr) (void)dlclose(library_);
}

void CudaSensor::sample() {
  if (handle_ == nullptr) return;
  unsigned value = 0;
  const auto clock = find<ReadClock>(library_, "nvmlDeviceGetClockInfo");
  if (clock != nullptr && clock(handle_, kSmClock, &value) == 0) clocks_.push_back(value);
  const auto power = find<ReadPower>(library_, "nvmlDeviceGetPowerUsage");
  if (power != nullptr && power(handle_, &value) == 0) powers_.push_back(value * 1e-3);
}

CudaSensor::Reading CudaSensor::take() { return {taken_median(&clocks_), taken_median(&powers_)}; }

}  // namespace tessera::cli
