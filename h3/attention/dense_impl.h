// The backend `fa`: tessera's dense kernel.
#pragma once

#include <memory>

#include "h3/attention/impl.h"

namespace h3 {

/// Non-causal; bf16 and f16 (CUDA, D = 128) or bf16, f16 and f32 (CPU, D = 64 or 128); packed
/// documents in one call; log-sum-exp. forward_with_lse also takes q [Tq, H, D] with k and v
/// [Tk, Hkv, D] and then gives lse [H, Tq]. Throws h3::Error (kUnsupported) for a causal layer.
std::unique_ptr<AttentionImpl> make_dense_impl(const AttentionOptions& options);

}  // namespace h3
