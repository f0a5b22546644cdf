// How many key blocks a row keeps: the rounding rule of the published router.
#include <algorithm>
#include <cmath>

#include "tessera/router.h"
#include "tessera/src/router/problem.h"

namespace tessera {

int32_t blocks_for_sparsity(double sparsity, int32_t key_blocks, int32_t granularity,
                            bool exact_rounding) {
  granularity = std::max(granularity, 1);
  // The published order of operations: (1 - 0.7) * 80 is 24.000000000000004 and becomes 25.
  const double share = (1.0 - sparsity) * static_cast<double>(key_blocks);
  const int64_t raw = static_cast<int64_t>(std::ceil(exact_rounding ? share - 1e-9 : share));
  const int64_t groups = std::max<int64_t>(1, (raw + granularity - 1) / granularity);
  return static_cast<int32_t>(std::min<int64_t>(key_blocks, groups * granularity));
}

namespace internal {

float tail_weight_log2(const RouterConfig& config, int64_t rows, int cells_per_block) {
  if (!config.weight_partial_cells) return 0.0f;
  const int64_t cell = kBlockTokens / cells_per_block;
  const int64_t filled = rows % cell == 0 ? cell : rows % cell;
  return static_cast<float>(std::log2(double(filled) / double(cell)));
}

}  // namespace internal
}  // namespace tessera
