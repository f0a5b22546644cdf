#include <algorithm>
#include <cmath>

#include "tessera/router.h"

namespace tessera {

int32_t blocks_for_sparsity(double sparsity, int32_t key_blocks, int32_t granularity,
                            bool exact_rounding) {
  // The published order of operations: (1 - 0.7) * 80 is 24.000000000000004 and becomes 25.
  const double share = (1.0 - sparsity) * static_cast<double>(key_blocks);
  const int64_t raw = static_cast<int64_t>(std::ceil(exact_rounding ? share - 1e-9 : share));
  const int64_t groups = std::max<int64_t>(1, (raw + granularity - 1) / granularity);
  return static_cast<int32_t>(std::min<int64_t>(key_blocks, groups * granularity));
}

}  // namespace tessera
