#include "h3/models/vae_video/decoder.h"

#include <ATen/ops/add.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/conv3d.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/rms_norm.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <c10/core/CachingDeviceAllocator.h>

#include <numbers>
#include <string>
#include <utility>

#include "h3/common/error.h"

namespace h3::vae_video {
namespace {

// Axis numbers of [B, N, 2 heads, 2 halves, m].
constexpr int64_t kHalves = 3;

// x [B, N, H, head_dim], changed in place; every product and sum rounded to x's type.
void rotate_(const at::Tensor& x, const RotaryTable& rope) {
  const int64_t half = rope.cos.size(-1);
  at::Tensor turned = x.narrow(-1, 0, 2 * half).unflatten(-1, {2, half});
  const at::Tensor other = turned.flip(kHalves).mul_(rope.sin);
  const at::Tensor own = at::mul(turned, rope.cos);
  at::add_out(turned, own, other);
}

}  // namespace

at::Tensor rotary_coordinates(int64_t n, at::ScalarType dtype, c10::Device device) {
  return at::arange(0.5, n, at::TensorOptions().dtype(dtype).device(device))
      .div_(n)
      .mul_(2)
      .sub_(1);
}

RotaryTable rotary_table(const VideoVaeConfig& config, std::array<int64_t, 3> latents,
                         int64_t suffix, at::ScalarType compute, RotaryRule rule,
                         c10::Device device) {
  const int64_t dim = config.rope_dim(), frequencies = dim / 6;
  if (dim < 6 || dim % 6 != 0) {
    throw Error(ErrorCode::kInvalidArgument,
                "rotary positions over " + std::to_string(dim) +
                    " channels; a multiple of 6 (three axes of two halves) is accepted");
  }
  const at::ScalarType type = rule == RotaryRule::kF32 ? at::kFloat : compute;
  const auto wide = at::TensorOptions().dtype(at::kFloat).device(device);
  const at::Tensor inverse =
      at::pow(config.rope_theta, at::arange(0, 1, 6.0 / static_cast<double>(dim), wide))
          .reciprocal_();
  std::vector<at::Tensor> axes;
  for (size_t axis = 0; axis < 3; ++axis) {
    std::vector<int64_t> shape(4, 1);
    shape[axis] = latents[axis];
    // Through f32: with a scalar, half products on the CPU would round the scalar as well.
    const at::Tensor angle = rotary_coordinates(latents[axis], type, device)
                                 .to(at::kFloat)
                                 .mul(2 * std::numbers::pi)
                                 .to(type)
                                 .to(at::kFloat)
                                 .view({-1, 1})
                                 .mul(inverse);
    shape[3] = frequencies;
    axes.push_back(angle.view(shape).expand({latents[0], latents[1], latents[2], frequencies}));
  }
  const at::Tensor angles = at::cat({at::cat(axes, -1).reshape({-1, 3 * frequencies}),
                                     at::zeros({suffix, 3 * frequencies}, wide)});
  const auto rounded = [&](const at::Tensor& t) { return t.to(type).to(compute); };
  const at::Tensor cos = rounded(angles.cos()), sin = rounded(angles.sin());
  const int64_t tokens = angles.size(0);
  return {cos.view({1, tokens, 1, 1, dim / 2}),
          at::stack({sin.neg(), sin}, 1).view({1, tokens, 1, 2, dim / 2})};
}

at::Tensor qk_norm(const at::Tensor& x, QkNorm type, double eps) {
  switch (type) {
    case QkNorm::kNone: return x.contiguous();
    case QkNorm::kLayerNorm: return at::layer_norm(x, {x.size(-1)}, {}, {}, eps);
    case QkNorm::kRmsNorm: break;
  }
  if (x.is_cuda() || x.scalar_type() == at::kFloat) return at::rms_norm(x, {x.size(-1)}, {}, eps);
  // The CPU would round inside.
  return at::rms_norm(x.to(at::kFloat), {x.size(-1)}, {}, eps).to(x.scalar_type());
}

Decoder::Decoder(const VideoVaeConfig& config, DecoderWeights weights, AttentionRuntime& attention,
                 const VaeContext& context, const DecoderOptions& options)
    : config_(config), options_(options), weights_(std::move(weights)), timer_(device()) {
  attention_.reserve(static_cast<size_t>(config.layers));
  for (int64_t i = 0; i < config.layers; ++i) {
    const auto layer =
        attention.layer("video_vae", "decoder.transformer_blocks." + std::to_string(i) + ".attn");
    attention_.emplace_back(vae_layer(layer), context);
  }
  if (options.compute != at::kFloat) {
    converted_ = prepare_autocast_weights(weights_, options.compute);
    // The f32 matrices are twice as large and of no more use to anyone here.
    if (device().is_cuda()) c10::getDeviceAllocator(device().type())->emptyCache();
  }
  post_quant_ = {weights_.post_quant.weight.to(options.compute),
                 weights_.post_quant.bias.to(options.compute)};
}

const RotaryTable& Decoder::rotary(std::array<int64_t, 3> latents) {
  if (!rotary_.cos.defined() || rotary_of_ != latents) {
    rotary_ = rotary_table(config_, latents, config_.registers + 1, options_.compute,
                           options_.rotary, device());
    rotary_of_ = latents;
  }
  return rotary_;
}

// The residual stream [B, N, dim], f32: tokens, registers, and one token of zeros.
at::Tensor Decoder::embedded(const at::Tensor& z) {
  const int64_t batch = z.size(0);
  const at::Tensor y = at::conv3d(z.to(options_.compute), post_quant_.weight, post_quant_.bias);
  const at::Tensor tokens =
      y.permute({0, 2, 3, 4, 1}).reshape({batch, -1, config_.latent_channels});
  // In f32, but seen by the blocks as rounded to the compute type.
  const at::Tensor x = at::linear(tokens.to(at::kFloat), weights_.embed.weight, weights_.embed.bias)
                           .to(options_.compute)
                           .to(at::kFloat);
  std::vector<at::Tensor> all{x};
  if (weights_.registers.defined()) all.push_back(weights_.registers.expand({batch, -1, -1}));
  all.push_back(at::zeros({batch, 1, config_.dim()}, x.options()));
  return at::cat(all, 1);
}

at::Tensor Decoder::attend(const at::Tensor& x, size_t block, const RotaryTable& rope) {
  const DecoderBlockWeights& w = weights_.blocks[block];
  const int64_t batch = x.size(0), tokens = x.size(1), dim = config_.dim();
  at::Tensor y;
  {
    const auto span = timer_.measure(Phase::kPointwise);
    y = at::rms_norm(x, {dim}, w.norm1, config_.decoder_eps).to(options_.compute);
  }
  at::Tensor qkv;
  {
    const auto span = timer_.measure(Phase::kLinear);
    qkv = at::linear(y, w.qkv.weight, w.qkv.bias);
  }
  y.reset();
  const std::vector<int64_t> heads{batch, tokens, config_.heads, config_.head_dim};
  at::Tensor qk;
  {
    const auto span = timer_.measure(Phase::kPointwise);
    // q and k at once, as 2 heads.
    const at::Tensor raw =
        qkv.narrow(2, 0, 2 * dim).view({batch, tokens, 2 * config_.heads, config_.head_dim});
    qk = qk_norm(raw, config_.qk_norm, config_.decoder_eps);
    rotate_(qk, rope);
  }
  at::Tensor out;
  {
    const auto span = timer_.measure(Phase::kAttention);
    out = attention_[block].forward({qk.narrow(2, 0, config_.heads),
                                     qk.narrow(2, config_.heads, config_.heads),
                                     qkv.narrow(2, 2 * dim, dim).view(heads)});
  }
  qk.reset();
  qkv.reset();
  const auto span = timer_.measure(Phase::kLinear);
  return at::linear(out.reshape({batch, tokens, dim}), w.out.weight, w.out.bias);
}

at::Tensor Decoder::feed_forward(const at::Tensor& x, const DecoderBlockWeights& w) {
  at::Tensor y;
  {
    const auto span = timer_.measure(Phase::kPointwise);
    y = at::rms_norm(x, {config_.dim()}, w.norm2, config_.decoder_eps).to(options_.compute);
  }
  at::Tensor wide;
  {
    const auto span = timer_.measure(Phase::kLinear);
    wide = at::linear(y, w.w1.weight, w.w1.bias);
  }
  y.reset();
  {
    const auto span = timer_.measure(Phase::kPointwise);
    at::Tensor gate = wide.narrow(-1, 0, config_.ffn());
    at::silu_(gate);  // rounded before the product
    wide = at::mul(gate, wide.narrow(-1, config_.ffn(), config_.ffn()));
  }
  const auto span = timer_.measure(Phase::kLinear);
  return at::linear(wide, w.w2.weight, w.w2.bias);
}

at::Tensor Decoder::pixels(const at::Tensor& x, std::array<int64_t, 3> latents) {
  const int64_t batch = x.size(0), unit = config_.space_ratio(), ratio = config_.time_ratio();
  const int64_t tokens = latents[0] * latents[1] * latents[2];
  // Every row for itself, so the suffix tokens need not come along.
  const at::Tensor y =
      at::layer_norm(x.narrow(1, 0, tokens), {config_.dim()}, weights_.norm_out.weight,
                     weights_.norm_out.bias, config_.decoder_eps);
  return at::linear(y, weights_.proj_out.weight, weights_.proj_out.bias)
      .view({batch, latents[0], latents[1], latents[2], VideoVaeConfig::kPixelChannels, ratio, unit,
             unit})
      .permute({0, 4, 1, 5, 2, 6, 3, 7})
      .reshape({batch, VideoVaeConfig::kPixelChannels, latents[0] * ratio, latents[1] * unit,
                latents[2] * unit});
}

at::Tensor Decoder::forward(const at::Tensor& z) {
  if (z.dim() != 5 || z.size(1) != config_.latent_channels || z.scalar_type() != at::kFloat ||
      z.numel() == 0) {
    throw Error(ErrorCode::kInternal, "a tile to decode is f32 [B, channels, T, H, W]");
  }
  const std::array<int64_t, 3> latents{z.size(2), z.size(3), z.size(4)};
  const RotaryTable& rope = rotary(latents);
  at::Tensor x;
  {
    const auto span = timer_.measure(Phase::kEmbed);
    x = embedded(z);
  }
  // Product and sum apart: a fused one would round once.
  const auto add_scaled = [&](const at::Tensor& branch, const at::Tensor& scale) {
    const auto span = timer_.measure(Phase::kPointwise);
    x.add_(at::mul(branch, scale));
  };
  for (size_t i = 0; i < weights_.blocks.size(); ++i) {
    add_scaled(attend(x, i, rope), weights_.blocks[i].scale1);
    add_scaled(feed_forward(x, weights_.blocks[i]), weights_.blocks[i].scale2);
  }
  const auto span = timer_.measure(Phase::kOutput);
  return pixels(x, latents);
}

}  // namespace h3::vae_video
