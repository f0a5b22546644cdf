// From the encoder's trunk to the latent width: causal attention and a gated MLP.
#include <ATen/TensorOperators.h>
#include <ATen/ops/adaptive_avg_pool1d.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/linear.h>

#include "h3/common/error.h"
#include "h3/models/vae_audio/modules.h"

namespace h3::vae_audio {
namespace {

constexpr double kNormEps = 1e-5;

at::Tensor normed(const at::Tensor& x, const Affine& norm) {
  return at::layer_norm(x, {x.size(-1)}, norm.weight, norm.bias, kNormEps);
}

at::Tensor linear(const at::Tensor& x, const Affine& w) { return at::linear(x, w.weight, w.bias); }

}  // namespace

at::Tensor causal_attention(const at::Tensor& x, const CausalAttentionWeights& weights,
                            int64_t heads, AudioVaeAttention& attention) {
  const int64_t batch = x.size(0), rows = x.size(1), in = x.size(2);
  const int64_t out = weights.proj.weight.size(0), inner = weights.qkv.size(0) / 3;
  if (weights.qkv.size(1) != in || inner != (in > out ? in : out) || inner % heads != 0) {
    throw Error(ErrorCode::kInternal, "causal attention of " + std::to_string(heads) +
                                          " heads from " + std::to_string(in) + " to " +
                                          std::to_string(out) +
                                          " channels does not fit its qkv of " +
                                          std::to_string(weights.qkv.size(0)) + " rows");
  }
  const at::Tensor qkv =
      at::linear(x, weights.qkv, weights.qkv_bias).view({batch, rows, 3, heads, inner / heads});
  at::Tensor y = attention.forward({qkv.select(2, 0), qkv.select(2, 1), qkv.select(2, 2)});
  if (in > out) {
    y = y.mean(2);  // [B, T, D]
    if (y.size(2) != out) y = at::adaptive_avg_pool1d(y, out);
  } else {
    y = y.reshape({batch, rows, inner});
  }
  return linear(y, weights.proj);
}

at::Tensor project(const at::Tensor& x, const ProjectionWeights& weights, int64_t heads,
                   AudioVaeAttention& attention) {
  const at::Tensor y =
      linear(normed(x, weights.norm3), weights.proj) +
      causal_attention(normed(x, weights.norm1), weights.attention, heads, attention);
  const at::Tensor u = normed(normed(y, weights.norm2), weights.mlp_norm);
  return y + linear(at::gelu(linear(u, weights.w0), "tanh") * linear(u, weights.w1), weights.w2);
}

}  // namespace h3::vae_audio
