// The encoder of the video VAE: causal 3-D convolutions, no attention. Spatial padding reflects,
// time is padded with zeros in front only, and norms take each frame for itself.
#pragma once

#include <ATen/core/Tensor.h>

#include "h3/models/vae_video/config.h"
#include "h3/models/vae_video/weights.h"

namespace h3::vae_video {

class Encoder {
 public:
  Encoder(const VideoVaeConfig& config, EncoderWeights weights);

  /// Moments of one tile of one clip, quant_conv included. x [B, 3, T, H, W] f32, normalised
  /// pixels, H and W at least twice the spatial ratio -> [B, 2 latent channels, ceil(T / time
  /// ratio), H / ratio, W / ratio] f32. f32 throughout; the sizes of a side are rounded up. Throws
  /// kInvalidArgument for a side too short to reflect.
  at::Tensor forward(const at::Tensor& x) const;

  at::Device device() const { return weights_.conv_in.weight.device(); }

 private:
  at::Tensor norm_silu(const at::Tensor& x, const WeightBias& norm) const;
  at::Tensor residual(const at::Tensor& x, const ResidualWeights& block) const;

  const VideoVaeConfig config_;
  const EncoderWeights weights_;
};

/// Mean and log variance of moments [B, 2 C, ...]; f32, log variance within [-30, 20].
struct Posterior {
  at::Tensor mean, logvar;
  at::Tensor std() const;
  at::Tensor mode() const { return mean; }
  /// mean + std * noise, with noise N(0, 1) drawn in f32 from a CPU generator in one call of the
  /// mean's shape.
  at::Tensor sample(at::Generator generator) const;
};

Posterior posterior_of(const at::Tensor& moments);

/// A CPU generator of its own; draws what PyTorch's default generator draws after this seed.
at::Generator make_cpu_generator(uint64_t seed);

}  // namespace h3::vae_video
