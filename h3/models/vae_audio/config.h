// Shape of a MiniMax-H3 audio VAE, read from the config.json of its folder. No torch.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "h3/attention/layers.h"

namespace h3::vae_audio {

/// Defaults are the published model (DAC encoder, one causal projection block, BigVGAN vocoder).
struct AudioVaeConfig {
  int64_t encoder_dim = 64;                           // channels; doubled by every stage
  std::vector<int64_t> encoder_rates{2, 4, 4, 5, 5};  // strides
  int64_t latent_dim = 2048, latent_channels = 32;    // trunk and latent width
  int64_t heads = 8;                                  // of the projection block
  int64_t decoder_dim = 1024;                         // channels; halved by every stage
  std::vector<int64_t> decoder_rates{5, 5, 2, 2, 2, 2, 2};
  std::vector<int64_t> decoder_kernels{9, 9, 4, 4, 4, 4, 4};
  std::vector<int64_t> resblock_kernels{3, 7, 11};
  std::vector<std::vector<int64_t>> resblock_dilations{{1, 3, 5}, {1, 3, 5}, {1, 3, 5}};
  int64_t sample_rate = 32000;
  // Per channel, of normalised = (z - mean) / std. Both empty: the file has none.
  std::vector<float> latents_mean, latents_std;

  int64_t hop() const;  // samples per latent, 800
  int64_t head_dim() const { return latent_dim / heads; }
  /// Latents of `samples`: the last one is completed with silence.
  int64_t latents(int64_t samples) const { return (samples + hop() - 1) / hop(); }
  friend bool operator==(const AudioVaeConfig&, const AudioVaeConfig&) = default;
};

/// The published model with its latent statistics.
AudioVaeConfig published_audio_vae_config();

/// Small enough for tests: 2 encoder and 2 decoder stages, 8 latent channels, 4 samples a latent.
AudioVaeConfig tiny_audio_vae_config();
/// As small, but with the published latents: 32 channels, 800 samples each.
AudioVaeConfig tiny_released_ratio_config();

/// Reads config.json with the key names of diffusers or of the original release, whose file holds
/// the statistics alone and leaves the shape to metadata.json (`metadata`, "" if there is none;
/// its "kwargs" are read). Keys given nowhere keep the published values, which the inventory of the
/// checkpoint then confirms or refuses; statistics given nowhere are the published ones if there
/// are 32 channels, else none. Throws one kInvalidArgument that begins "MiniMax H3 audio_vae" and
/// names every faulty field: wrong types, names of one thing that disagree, statistics of another
/// length, not finite or with std <= 0, rates whose products differ, kernels that do not fit their
/// rates, a sample rate other than 32000, a vocoder other than bigvgan.
AudioVaeConfig parse_audio_vae_config(std::string_view json, std::string_view label,
                                      std::string_view metadata = {});

/// Reads FOLDER/config.json and, where it is, FOLDER/metadata.json.
AudioVaeConfig read_audio_vae_config(const std::string& folder);

/// The config with the key names of diffusers, as one JSON object.
std::string audio_vae_config_json(const AudioVaeConfig& config);

/// Gives the layers of component "audio_vae" the heads and head width of `config`.
void size_audio_layers(const AudioVaeConfig& config, ModelLayers* layers);

}  // namespace h3::vae_audio
