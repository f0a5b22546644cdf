// The estimate behind `h3 inspect` and the check before loading.
#include "h3/models/dit/memory.h"

#include <algorithm>

namespace h3::dit {

int64_t estimated_activation_bytes(const DitConfig& config, int64_t rows, tessera::Dtype compute) {
  const int64_t stream = rows * config.hidden;
  const int64_t attention = rows * 4 * config.inner();
  const int64_t mlp = stream + std::min(rows, kMlpRows) * 3 * config.ffn;
  const int64_t peak =
      (stream + std::max(attention, mlp)) * static_cast<int64_t>(dtype_bytes(compute));
  return peak + peak / 8;
}

int64_t adaln_table_bytes(const DitConfig& config, int64_t moments, tessera::Dtype compute) {
  return moments * (config.layers * config.adaln_out() + config.final_adaln_out()) *
         static_cast<int64_t>(dtype_bytes(compute));
}

}  // namespace h3::dit
