#include "tessera/device.h"

#include <fstream>
#include <string>
#include <thread>

#include "hwy/highway.h"
#include "hwy/targets.h"
#include "tessera/src/cpu/fast_kernels.h"

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

const char* version() { return TESSERA_VERSION; }

}  // namespace tessera
