// The MiniMax-H3 audio VAE: 32 kHz waveforms to latents of 40 a second and back. It is mono; the
// two channels of stereo are two batch items. f32 throughout, also where other parts run in half
// precision: bf16 comes out about 20 dB too quiet.
//
//   AudioVae vae(config, weights, attention);
//   at::Tensor latents = vae.normalize(vae.encode(vae_audio::stereo_batch(pcm)));
//   at::Tensor pcm = vae_audio::stereo_channels(vae.decode(vae.denormalize(latents)));
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

#include "h3/attention/runtime.h"
#include "h3/attention/vae_attention.h"
#include "h3/models/vae_audio/config.h"
#include "h3/models/vae_audio/weights.h"

namespace h3::vae_audio {

struct AudioPosterior {
  at::Tensor mean, logs;  // [B, latent_channels, T]; logs: logarithm of the standard deviation
};

/// Calls enqueue on the current stream; no tensor given is changed. One thread at a time.
class AudioVae {
 public:
  /// Takes the layer "pre_block.attn" of component "audio_vae" from `attention`, which outlives the
  /// model. Throws kInternal if the layer has other heads than `config` (size_audio_layers sets
  /// them), and as AudioVaeAttention.
  AudioVae(const AudioVaeConfig& config, AudioVaeWeights weights, AttentionRuntime& attention);

  /// Mean of the posterior, which is what conditions are made of. waveform [B, 1, L] f32 on the
  /// model's device, L >= 1 -> [B, latent_channels, ceil(L / hop)]; the last latent is completed
  /// with silence. Throws kInvalidArgument for other shapes, types and devices and for values that
  /// are not finite.
  at::Tensor encode(const at::Tensor& waveform);

  /// With the second head, which generation never asks for.
  AudioPosterior posterior(const at::Tensor& waveform);

  /// latents [B, latent_channels, T] f32, denormalised, T >= 1 -> waveform [B, 1, hop T] in
  /// [-1, 1]. Decoded as a whole: there are no chunks whose seams could be heard. Throws as encode.
  at::Tensor decode(const at::Tensor& latents);

  /// (z - mean) / std and z std + mean (a product, then a sum) per channel; [B, C, T] or [C, T].
  /// Throw kInvalidArgument for another channel count and for a model without statistics.
  at::Tensor normalize(const at::Tensor& latents) const;
  at::Tensor denormalize(const at::Tensor& latents) const;

  const AudioVaeConfig& config() const { return config_; }
  at::Device device() const { return weights_.mean.weight.device(); }
  int64_t weight_bytes() const { return weights_.bytes; }

 private:
  at::Tensor trunk(const at::Tensor& waveform);
  void check(const at::Tensor& x, const char* what, int64_t channels) const;
  void check_statistics(const at::Tensor& latents) const;

  const AudioVaeConfig config_;
  const AudioVaeWeights weights_;
  VaeContext context_;
  std::unique_ptr<AudioVaeAttention> attention_;
  at::Tensor mean_, std_;  // [C, 1]; undefined without statistics
};

/// [2, L] <-> [2, 1, L], the batch of the model. Throw kInvalidArgument for other shapes.
at::Tensor stereo_batch(const at::Tensor& channels);
at::Tensor stereo_channels(const at::Tensor& batch);

/// Normalised latents of stereo as rows of the transformer, all of the left channel first:
/// [2, C, T] <-> [2 T, C]. Throw kInvalidArgument for other shapes.
at::Tensor stereo_rows(const at::Tensor& latents);
at::Tensor stereo_latents(const at::Tensor& rows);

}  // namespace h3::vae_audio
