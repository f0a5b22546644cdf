#include "h3/models/vae_video/encoder.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/clamp.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/conv3d.h>
#include <ATen/ops/group_norm.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/reflection_pad3d.h>
#include <ATen/ops/silu.h>

#include <utility>

#include "h3/common/error.h"

namespace h3::vae_video {
namespace {

constexpr int64_t kFrontFrames = 2;  // kernel 3, all of it before the first frame

at::Tensor front_padded(const at::Tensor& x) {
  return at::constant_pad_nd(x, {0, 0, 0, 0, kFrontFrames, 0}, 0);
}

// Kernel 3, size kept.
at::Tensor causal_conv(const at::Tensor& x, const WeightBias& w) {
  const at::Tensor padded = front_padded(at::reflection_pad3d(x, {1, 1, 1, 1, 0, 0}));
  return at::conv3d(padded, w.weight, w.bias);
}

at::Tensor pointwise_conv(const at::Tensor& x, const WeightBias& w) {
  return at::conv3d(x, w.weight, w.bias);
}

at::Tensor downsample(const at::Tensor& x, const WeightBias& w, int64_t time, int64_t space) {
  const at::Tensor padded = front_padded(at::reflection_pad3d(x, {0, 1, 0, 1, 0, 0}));
  return at::conv3d(padded, w.weight, w.bias, {time, space, space});
}

}  // namespace

Encoder::Encoder(const VideoVaeConfig& config, EncoderWeights weights)
    : config_(config), weights_(std::move(weights)) {}

at::Tensor Encoder::norm_silu(const at::Tensor& x, const WeightBias& norm) const {
  const int64_t batch = x.size(0), channels = x.size(1), frames = x.size(2);
  const at::Tensor folded =
      x.permute({0, 2, 1, 3, 4}).reshape({batch * frames, channels, 1, x.size(3), x.size(4)});
  at::Tensor y =
      at::group_norm(folded, config_.norm_groups, norm.weight, norm.bias, config_.norm_eps);
  at::silu_(y);
  return y.view({batch, frames, channels, x.size(3), x.size(4)})
      .permute({0, 2, 1, 3, 4})
      .contiguous();
}

at::Tensor Encoder::residual(const at::Tensor& x, const ResidualWeights& block) const {
  at::Tensor h = causal_conv(norm_silu(x, block.norm1), block.conv1);
  h = causal_conv(norm_silu(h, block.norm2), block.conv2);
  return h.add_(block.shortcut.weight.defined() ? pointwise_conv(x, block.shortcut) : x);
}

at::Tensor Encoder::forward(const at::Tensor& x) const {
  const int64_t least = 2 * config_.space_ratio();
  if (x.dim() != 5 || x.size(1) != VideoVaeConfig::kPixelChannels || x.size(3) < least ||
      x.size(4) < least) {
    std::string sizes;
    for (const int64_t n : x.sizes()) sizes += (sizes.empty() ? "" : ", ") + std::to_string(n);
    throw Error(ErrorCode::kInvalidArgument,
                "frames to encode are [" + sizes + "]; [B, 3, T, H, W] with sides of at least " +
                    std::to_string(least) + " pixels is accepted",
                "scale the picture up");
  }
  at::Tensor h = causal_conv(x, weights_.conv_in);
  for (size_t l = 0; l < weights_.levels.size(); ++l) {
    for (const ResidualWeights& block : weights_.levels[l].blocks) h = residual(h, block);
    const WeightBias& down = weights_.levels[l].downsample;
    if (down.weight.defined()) {
      h = downsample(h, down, config_.time_down[l], config_.space_down[l]);
    }
  }
  h = causal_conv(norm_silu(h, weights_.norm_out), weights_.conv_out);
  return pointwise_conv(h, weights_.quant);
}

Posterior posterior_of(const at::Tensor& moments) {
  const at::Tensor wide = moments.to(at::kFloat);
  const int64_t channels = wide.size(1) / 2;
  return {wide.narrow(1, 0, channels), at::clamp(wide.narrow(1, channels, channels), -30.0, 20.0)};
}

at::Tensor Posterior::std() const { return logvar.mul(0.5).exp_(); }

at::Tensor Posterior::sample(at::Generator generator) const {
  const at::Tensor noise =
      at::randn(mean.sizes(), std::move(generator), at::TensorOptions().dtype(at::kFloat));
  return noise.to(mean.device()).mul(std()).add_(mean);
}

at::Generator make_cpu_generator(uint64_t seed) {
  return at::make_generator<at::CPUGeneratorImpl>(seed);
}

}  // namespace h3::vae_video
