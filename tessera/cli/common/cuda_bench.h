// `tessera bench --device cuda`: dense, block-sparse and router times by CUDA events.
//
// All variants of a shape run interleaved, in one stream and back to back, so that a slow phase of
// the card hits all of them and no launch waits for the host. Every variant's result is checked
// against the CPU before anything is timed.
#pragma once

#include <string>
#include <vector>

#include "tessera/cli/commands.h"
#include "tessera/cli/common/bench_case.h"
#include "tessera/execution.h"
#include "tessera/status.h"

namespace tessera::cli {

struct CudaBenchOptions {
  Device device;
  std::string filter;                // regular expression over variant names
  std::vector<BenchShape> shapes;    // bf16 or f16
  std::vector<double> densities;     // empty: what sparsity 0.75 keeps
  std::vector<std::string> kernels;  // "" = the dispatch table's choice
  bool bitmaps = false;              // plans as bitmaps instead of index lists
  int warm_ups = 10;
  int samples = 30;
};

/// Prints a table, or JSON if asked. kInvalidArgument for a filter without a match and unknown
/// kernels, kInternal if a result differs from the CPU's.
Status run_cuda_bench(const CudaBenchOptions& options, const GlobalOptions& global);

}  // namespace tessera::cli
