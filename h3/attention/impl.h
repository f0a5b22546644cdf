// What one attention layer calls: a backend's implementation for that layer, and what travels with
// a call. Backends (static facts, selection) are described in h3/attention/registry.h.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace h3 {

/// Index of a denoise step, 0-based: counts steps, not model forwards, and is no diffusion time.
struct StepIndex {
  int64_t value = 0;
};

/// State of one model forward that attention layers read. Passed explicitly; there is no ambient
/// context.
struct AttentionContext {
  StepIndex step;
  // Query blocks of the first document that may be sparse: one byte per 64-row block, non-zero =
  // all its rows are video rows. Host memory.
  bool has_query_block_mask = false;
  std::vector<uint8_t> query_block_mask;
};

/// Packed documents: rows [cu[d], cu[d + 1]) form document d. Host bounds are required: without
/// them a sparse backend could not decide per document and would silently run dense.
struct PackedBounds {
  std::vector<int32_t> cu;  // n + 1 values, cu[0] = 0, never falling, cu[n] <= T
  int64_t max_seqlen = 0;   // length of the longest document, 0 = not given
};

/// q [B, Sq, H, D], k and v [B, Sk, Hkv, D] (or [T, H, D] packed); one dtype, one device, last
/// stride 1, other strides arbitrary. H is a multiple of Hkv.
struct Qkv {
  at::Tensor q, k, v;
};

/// Attention over a part of the keys, to be merged with others.
struct AttentionPartial {
  at::Tensor out;  // as q
  at::Tensor lse;  // f32, natural log: [B, H, Sq], packed [H, T]
};

/// Settings that hold for the life of a layer.
struct AttentionOptions {
  float softmax_scale = 0;  // 0: 1 / sqrt(D)
  bool causal = false;
};

class AttentionImpl {
 public:
  virtual ~AttentionImpl() = default;

  /// One sequence per batch entry. Returns a new tensor [B, Sq, H, D] of q's dtype. Enqueues on the
  /// current stream and does not wait for it. Throws h3::Error (shapes, dtypes, device).
  virtual at::Tensor forward(const Qkv& qkv, const AttentionContext& context) = 0;

  /// Packed documents, bidirectional inside a document, nothing across. Rows past the last bound
  /// are zero in the result [T, H, D].
  virtual at::Tensor forward_packed(const Qkv& qkv, const PackedBounds& bounds,
                                    const AttentionContext& context) = 0;

  /// As forward, with the log-sum-exp that merging (ring attention) needs. The default throws
  /// kUnsupported; backends that can say so in their capabilities.
  virtual AttentionPartial forward_with_lse(const Qkv& qkv);
};

}  // namespace h3
