// The backends `torch_sdpa` and `torch_cudnn_sdpa`: PyTorch's scaled dot product attention.
#pragma once

#include <memory>

#include "h3/attention/impl.h"

namespace h3 {

/// torch chooses the kernel. Any device, dtype and head width that torch takes; grouped heads; no
/// log-sum-exp. Packed: one call per non-empty document. A causal layer lets query i of Sq read the
/// keys up to i + Sk - Sq (aligned at the bottom right); queries without a key give 0. In packed
/// calls every document is causal by itself.
std::unique_ptr<AttentionImpl> make_sdpa_impl(const AttentionOptions& options);

/// cuDNN's kernel and no other: an input that cuDNN refuses is an h3::Error (kUnsupported), as is a
/// tensor outside CUDA. Grouped heads are expanded, which copies k and v. Throws for a causal
/// layer.
std::unique_ptr<AttentionImpl> make_cudnn_sdpa_impl(const AttentionOptions& options);

}  // namespace h3
