// Shape of the MiniMax-H3 video VAE, read from its config.json files. No torch.
//
//   const VideoVaeConfig config = parse_video_vae_config(json, "video_vae/config.json");
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace h3::vae_video {

enum class QkNorm : uint8_t { kNone, kLayerNorm, kRmsNorm };

/// Pixels of one side of a tile, and of the least overlap of two neighbours.
struct TileSettings {
  int64_t size = 256, min_overlap = 64;
  friend bool operator==(const TileSettings&, const TileSettings&) = default;
};

std::vector<float> published_latents_mean();  // 24 values each
std::vector<float> published_latents_std();

/// Defaults are the published model (MiniMax-H3 `video_vae`).
struct VideoVaeConfig {
  static constexpr int64_t kPixelChannels = 3;

  int64_t latent_channels = 24;
  // Encoder: one entry per level.
  std::vector<int64_t> widths{128, 256, 256, 512, 512, 1024};
  std::vector<int64_t> space_down{2, 2, 2, 2, 1, 1}, time_down{1, 2, 2, 1, 1, 1};
  int64_t blocks_per_level = 2;
  int64_t norm_groups = 32;
  double norm_eps = 1e-6;
  // Decoder.
  int64_t layers = 36, heads = 32, head_dim = 64;
  int64_t registers = 4, ffn_mult = 4;
  QkNorm qk_norm = QkNorm::kRmsNorm;  // without weights
  double rope_theta = 100, rope_ratio = 0.75, decoder_eps = 1e-5;
  // How videos are cut.
  int64_t clip_length = 17, token_drop = 3;
  TileSettings encode_tiles, decode_tiles;
  bool encoder_tiling = true;
  // Per latent channel.
  std::vector<float> latents_mean = published_latents_mean();
  std::vector<float> latents_std = published_latents_std();
  /// Keys of vit_decoder_kwargs that nothing reads; worth a warning.
  std::vector<std::string> unused_keys;

  int64_t levels() const { return static_cast<int64_t>(widths.size()); }
  int64_t space_ratio() const;  // pixels per latent: 16
  int64_t time_ratio() const;   // frames per latent: 4
  int64_t dim() const { return heads * head_dim; }
  int64_t ffn() const { return dim() * ffn_mult; }
  int64_t rope_dim() const {
    return static_cast<int64_t>(static_cast<double>(head_dim) * rope_ratio);
  }
  int64_t patch_channels() const {
    return kPixelChannels * time_ratio() * space_ratio() * space_ratio();
  }
  friend bool operator==(const VideoVaeConfig&, const VideoVaeConfig&) = default;
};

/// Reads config.json with the official or the diffusers key names. Official releases have two
/// files: `source` is the text of source/config.json (empty: none); where both say the same thing
/// they must agree. Absent keys keep the published values, which the inventory of the checkpoint
/// then confirms or refuses.
///
/// Throws kInvalidArgument, with all faults at once, for wrong types and sizes, lists of different
/// lengths, latent statistics that are not one finite number per channel (standard deviations
/// above 0), a rotary width that does not divide by 6, tiles that do not lie on latents, a
/// token_drop that is not inside a clip, encoder_parallel or decoder_parallel, unknown norm types.
/// Throws kUnsupported for what the published model is not: causal_decoder or t_causal, no causal
/// encoder, other convolutions, decoders, paddings, activations, and norms of q and k with weights.
VideoVaeConfig parse_video_vae_config(std::string_view json, std::string_view label,
                                      std::string_view source = {});

/// The config in one JSON object; official names (both files merged) or those of diffusers, which
/// has none for tiles: sizes other than the published ones keep their official names there.
std::string video_vae_config_json(const VideoVaeConfig& config);
std::string video_vae_config_diffusers_json(const VideoVaeConfig& config);

/// Small enough for tests: two levels, ratios 4 and 4, 4 blocks of 4 heads x 32.
VideoVaeConfig tiny_video_vae_config();
/// As small, with the released ratios 16 and 4 and the released head width.
VideoVaeConfig tiny_released_ratio_config();

}  // namespace h3::vae_video
