// Synthetic work for `tessera bench`: seeded tensors and lists, and one measured case.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tessera/attention.h"
#include "tessera/execution.h"
#include "tessera/plan.h"
#include "tessera/router.h"
#include "tessera/status.h"

namespace tessera::cli {

struct BenchShape {
  int64_t tokens = 0;
  int64_t heads = 0;
  Dtype dtype = Dtype::kF32;
};

/// q, k, v and out [1, S, H, 128] with seeded values from a normal distribution.
class BenchTensors {
 public:
  explicit BenchTensors(const BenchShape& shape);
  AttentionParams attention() const;

 private:
  BenchShape shape_;
  std::vector<uint8_t> q_, k_, v_;
  mutable std::vector<uint8_t> out_;
};

/// Lists of `count` blocks of which groups of 8 neighbouring query blocks share 80 %, the rest
/// being drawn per row. Ascending; same seed, same plan.
Status shared_plan(const BlockLayout& layout, int64_t batch, int64_t heads, int32_t count,
                   uint64_t seed, Plan* out);

/// Multiply-adds of the two products over listed pairs, as floating-point operations; partial
/// blocks count their real tokens.
double attention_flops(const Plan* plan, const BenchShape& shape);

struct Timing {
  double median_s = 0, p10_s = 0, p90_s = 0;
};

/// One warm-up, then `repeat` timed calls of `work`.
Status measure(int repeat, const std::function<Status()>& work, Timing* out);

}  // namespace tessera::cli
