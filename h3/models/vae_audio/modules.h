// The three parts of the audio VAE as functions of their weights. f32 in and out; inputs are never
// changed. Formulas: DAC (Kumar et al. 2023), BigVGAN (Lee et al. 2023), MiniMax-H3 as published.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "h3/attention/vae_attention.h"
#include "h3/models/vae_audio/weights.h"

namespace h3::vae_audio {

/// x + sin(alpha x)^2 / (alpha + 1e-9). x [B, C, L], alpha [1, C, 1].
at::Tensor snake(const at::Tensor& x, const at::Tensor& alpha);

/// [B, 1, L] -> [B, latent_dim, L / hop]; L a multiple of hop.
at::Tensor encode_waveform(const AudioVaeConfig& config, const EncoderWeights& weights,
                           const at::Tensor& waveform);

/// x [B, T, in] -> [B, T, out], out = width of proj. Row n sees rows 0..n. in > out: heads of
/// in / heads channels are averaged, then pooled adaptively to `out`; else heads of out / heads
/// channels are concatenated.
at::Tensor causal_attention(const at::Tensor& x, const CausalAttentionWeights& weights,
                            int64_t heads, AudioVaeAttention& attention);

/// [B, T, latent_dim] -> [B, T, latent_channels].
at::Tensor project(const at::Tensor& x, const ProjectionWeights& weights, int64_t heads,
                   AudioVaeAttention& attention);

/// Anti-aliased SnakeBeta: up by 2, snake, down by 2. [B, C, L] -> [B, C, L].
at::Tensor activate(const at::Tensor& x, const ActivationWeights& weights);

/// [B, latent_dim, T] -> [B, 1, hop T] in [-1, 1].
at::Tensor synthesize(const AudioVaeConfig& config, const VocoderWeights& weights,
                      const at::Tensor& x);

}  // namespace h3::vae_audio
