// The decoder of the video VAE: a transformer over the latents of a tile (3-D rotary positions,
// norm of q and k, layer scale), then one linear map per latent to its block of pixels.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "h3/attention/runtime.h"
#include "h3/attention/vae_attention.h"
#include "h3/layers/phase_timer.h"
#include "h3/models/vae_video/config.h"
#include "h3/models/vae_video/weights.h"

namespace h3::vae_video {

/// In which type the coordinates of the rotary table are computed. The release rounds them as its
/// autocast does; diffusers and others keep f32. The same where decoding is f32.
enum class RotaryRule : uint8_t { kComputeType, kF32 };

/// cos and sin of every token for the rotation of the first 2 m channels of a head, channel d with
/// d + m, m = rope_dim / 2: cos [1, N, 1, 1, m], and [-sin, sin] as [1, N, 1, 2, m].
struct RotaryTable {
  at::Tensor cos, sin;
};

/// (2 (i + 0.5) / n - 1), i < n, every operation rounded to `dtype`.
at::Tensor rotary_coordinates(int64_t n, at::ScalarType dtype, c10::Device device);

/// Tokens of [frames, height, width] latents and then `suffix` tokens at the origin. Angles
/// 2 pi p theta^(-k / (rope_dim / 6)), axes t, h, w; table in `compute`. Throws kInvalidArgument
/// for a rope_dim that does not divide by 6.
RotaryTable rotary_table(const VideoVaeConfig& config, std::array<int64_t, 3> latents,
                         int64_t suffix, at::ScalarType compute, RotaryRule rule,
                         c10::Device device);

/// Norm of q and k over the last axis, without weights: sums in f32, result in x's type.
at::Tensor qk_norm(const at::Tensor& x, QkNorm type, double eps);

struct DecoderOptions {
  /// Of the blocks: f32, or f16 and bf16 as under autocast (residual stream, norms, embedding and
  /// output stay f32).
  at::ScalarType compute = at::kFloat;
  RotaryRule rotary = RotaryRule::kComputeType;
};

class Decoder {
 public:
  /// Takes its attention layers, "decoder.transformer_blocks.<i>.attn" of component "video_vae",
  /// from `attention`; it and `context` outlive the decoder. Half compute types convert the block
  /// matrices (prepare_autocast_weights). Throws kUnsupported as VideoVaeAttention.
  Decoder(const VideoVaeConfig& config, DecoderWeights weights, AttentionRuntime& attention,
          const VaeContext& context, const DecoderOptions& options);

  /// One tile, post_quant_conv included. z [B, C, T, H, W] denormalised latents, f32 -> [B, 3,
  /// ratio T, 16 H, 16 W] f32, normalised pixels. Needs a VaeContext::Scope (else kInternal).
  /// Enqueues on the current stream. One thread at a time.
  at::Tensor forward(const at::Tensor& z);

  /// Matrices that the constructor converted.
  int64_t converted() const { return converted_; }
  at::ScalarType compute() const { return options_.compute; }
  at::Device device() const { return weights_.embed.weight.device(); }
  int64_t compute_bytes() const { return static_cast<int64_t>(c10::elementSize(options_.compute)); }
  PhaseTimer& timer() { return timer_; }

 private:
  const RotaryTable& rotary(std::array<int64_t, 3> latents);
  at::Tensor embedded(const at::Tensor& z);
  at::Tensor attend(const at::Tensor& x, size_t block, const RotaryTable& rope);
  at::Tensor feed_forward(const at::Tensor& x, const DecoderBlockWeights& block);
  at::Tensor pixels(const at::Tensor& x, std::array<int64_t, 3> latents);

  const VideoVaeConfig config_;
  const DecoderOptions options_;
  DecoderWeights weights_;
  WeightBias post_quant_;  // in the compute type
  std::vector<VideoVaeAttention> attention_;
  std::array<int64_t, 3> rotary_of_{};  // whose table rotary_ is: tiles of a video are all alike
  RotaryTable rotary_;
  int64_t converted_ = 0;
  PhaseTimer timer_;
};

}  // namespace h3::vae_video
