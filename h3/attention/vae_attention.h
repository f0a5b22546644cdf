// Attention of the VAEs. Ranks of a tile-parallel decode hold different complete tiles, so calls
// stay on the rank, whatever the sequence degrees are. The backend choice never changes precision:
// f32 stays f32 unless a fused backend was asked for by name.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "h3/attention/impl.h"
#include "h3/attention/runtime_layer.h"
#include "h3/attention/selection.h"

namespace h3 {

/// The forward context of one VAE, set by the stage that runs it and read by its layers. One thread
/// at a time; it must outlive the layers.
class VaeContext {
 public:
  /// Sets the context and restores the previous one at the end, also when an exception leaves.
  class Scope {
   public:
    explicit Scope(VaeContext& owner, AttentionContext context = {});
    ~Scope() { owner_.current_.swap(previous_); }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    VaeContext& owner_;
    std::optional<AttentionContext> previous_;
  };

  /// Throws kInternal, naming `reader`, outside of any scope.
  const AttentionContext& current(std::string_view reader) const;

 private:
  std::optional<AttentionContext> current_;
};

/// What a VAE layer is made of: a layer of the runtime (impl) and how it was resolved.
struct VaeLayer {
  std::shared_ptr<AttentionImpl> impl;
  ResolvedLayer resolved;
};

/// Both in one from a layer of the runtime.
VaeLayer vae_layer(const std::shared_ptr<RuntimeLayer>& layer);

/// Non-causal attention of the video VAE.
class VideoVaeAttention {
 public:
  /// Throws kUnsupported for `t_causal` (the released decoder is not, and nothing here masks) and
  /// for a causal layer.
  VideoVaeAttention(VaeLayer layer, const VaeContext& context, bool t_causal = false);

  /// q, k, v [B, N, H, D]. f16 and bf16 on CUDA run the layer's backend; f32 and everything outside
  /// CUDA runs torch_sdpa. Returns [B, N, H, D] of q's dtype. Throws kInternal without a context.
  at::Tensor forward(const Qkv& qkv);

 private:
  const VaeLayer layer_;
  const std::string name_;
  const VaeContext& context_;
  const std::shared_ptr<AttentionImpl> sdpa_;
};

/// Causal attention of the audio VAE.
class AudioVaeAttention {
 public:
  /// `compute_dtype`: what a fused backend runs in. Throws kInternal for a layer that is not
  /// causal, and for a fused backend that nobody asked for.
  AudioVaeAttention(VaeLayer layer, const VaeContext& context,
                    at::ScalarType compute_dtype = at::kBFloat16);

  /// q, k, v [B, N, H, D]. torch_sdpa runs in the dtype given (f32 in the released model), without
  /// a cast. A fused backend gets q, k and v in `compute_dtype`; the result returns to q's dtype.
  /// Throws kInternal without a context.
  at::Tensor forward(const Qkv& qkv);

 private:
  const VaeLayer layer_;
  const std::string name_;
  const VaeContext& context_;
  const at::ScalarType compute_dtype_;
  const bool fused_;
};

}  // namespace h3
