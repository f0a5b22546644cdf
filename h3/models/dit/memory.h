// What a forward needs in memory beside the weights, before anything is allocated. No torch.
#pragma once

#include <cstdint>

#include "h3/models/dit/config.h"
#include "tessera/types.h"

namespace h3::dit {

/// Rows of one pass through the MLP: its intermediate rows are three times ffn wide, and passes
/// keep them below the attention's own peak.
inline constexpr int64_t kMlpRows = 9472;

/// Estimate of the peak over the weights of one forward of `rows` packed rows on one device: the
/// residual stream and the larger of
///   attention   q, k and v and the attention's output (rows x 4 inner)
///   MLP         its normalised input (rows x hidden), and gate, up and product (3 ffn) of a pass
///               of at most kMlpRows rows
/// and an eighth on top: attention plans, tables of a step, allocator rounding. MiniMax-H3, bf16,
/// 37,760 rows: 2.89 GB (measured: 2.74 dense, 2.91 sparse).
int64_t estimated_activation_bytes(const DitConfig& config, int64_t rows, tessera::Dtype compute);

/// Host memory of the AdaLN tables of all steps: `moments` distinct timesteps, summed over steps.
int64_t adaln_table_bytes(const DitConfig& config, int64_t moments, tessera::Dtype compute);

}  // namespace h3::dit
