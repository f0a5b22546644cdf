// One measured thing of the CUDA benchmark, and the measurement of all variants of a shape.
#pragma once

#include <cstdint>
#include <functional>
#include <regex>
#include <string>
#include <vector>

#include "tessera/cli/common/cuda_bench.h"
#include "tessera/cli/common/cuda_sensor.h"
#include "tessera/cli/common/device_memory.h"

namespace tessera::cli {

struct Variant {
  std::string subject;  // dense, sparse_random, sparse_shared, router, router_graph
  std::string kernel;   // as asked; empty: the dispatch table's choice
  BenchShape shape;
  int32_t keep = 0;  // blocks per row; 0: dense
  double density = 1;
  double sharing = 0;  // listed blocks / blocks in the union of three neighbours
  double flops = 0;    // on listed blocks; 0 for the router
  double error = 0;    // relative L2 against the CPU; router: share of other ids than the CPU's
  Timing time;
  CudaSensor::Reading reading;  // of the whole shape

  // While measuring.
  bool flush = false;  // write over the L2 before each sample
  std::function<Status()> enqueue;
  DeviceTimer timer;
  std::vector<double> seconds;

  bool routes() const { return subject.starts_with("router"); }
  double tflops() const { return flops / time.median_s * 1e-12; }
  /// "sparse_random/S:37760/H:7/bf16/keep:152/default".
  std::string name() const;
};

/// What the filter keeps of a shape, without data: cheap, so that a bad filter fails early.
std::vector<Variant> cuda_variants(const CudaBenchOptions& options, const BenchShape& shape,
                                   const std::regex& filter);

/// Makes the data, checks every result against the CPU, then fills the times.
Status measure_variants(const CudaBenchOptions& options, const GlobalOptions& global,
                        const BenchShape& shape, std::vector<Variant>* variants);

}  // namespace tessera::cli
