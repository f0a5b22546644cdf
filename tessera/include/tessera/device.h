// What this machine offers.
#pragma once

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

/// Version of the library, "0.1.0".
const char* version();

}  // namespace tessera
