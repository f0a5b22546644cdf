// SM clock and board power while a benchmark runs, from the driver's management library where it is
// installed.
#pragma once

#include <vector>

#include "tessera/execution.h"

namespace tessera::cli {

class CudaSensor {
 public:
  explicit CudaSensor(const Device& device);
  ~CudaSensor();
  CudaSensor(const CudaSensor&) = delete;
  CudaSensor& operator=(const CudaSensor&) = delete;

  /// Reads both once; does nothing without the library.
  void sample();
  /// Medians of the samples since the last call; 0 where nothing was read.
  struct Reading {
    double sm_clock_mhz = 0, power_watt = 0;
  };
  Reading take();

 private:
  void* library_ = nullptr;
  void* handle_ = nullptr;
  std::vector<double> clocks_, powers_;
};

}  // namespace tessera::cli
