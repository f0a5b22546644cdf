// What a forward needs in memory beside the weights, before anything is allocated. No torch.
#pragma once

#include <cstdint>

#include "h3/models/dit/config.h"
#include "tessera/types.h"

namespace h3::dit {

/// Estimate of the peak over the weights of one forward of `rows` packed rows on one device: the
/// residual stream and the larger of
///   attention   q, k and v and the attention's output (rows x 4 inner)
///   MLP         its normalised input (rows x hidden), and gate, up and product (3 ffn) of a chunk
///               of at most 8192 rows
/// MiniMax-H3, bf16, 37,760 rows: 2.57 GB. Allocator rounding, attention plans and AdaLN tables are
/// not in it.
int64_t estimated_activation_bytes(const DitConfig& config, int64_t rows, tessera::Dtype compute);

}  // namespace h3::dit
