// Shape of a MiniMax-H3 diffusion transformer, read from its config.json. No torch.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace h3::dit {

/// Defaults are the published 33 B model (MiniMax-H3 `transformer/config.json`).
struct DitConfig {
  int64_t hidden = 5376;
  int64_t layers = 50, refiner_layers = 2;
  int64_t heads = 56, head_dim = 128;  // heads * head_dim need not be `hidden`
  int64_t ffn = 14336;
  int64_t video_channels = 24, audio_channels = 32;
  std::array<int64_t, 3> patch{1, 2, 2};  // time, height, width, in latents
  int64_t text_dim = 5120;
  int64_t timestep_input = 256, time_hidden = 5376, time_embed = 2688;
  int64_t rope_freqs = 16;  // per axis
  double rope_theta = 10000;
  double norm_eps = 1e-5, qk_norm_eps = 1e-5, final_norm_eps = 1e-5;

  int64_t inner() const { return heads * head_dim; }
  int64_t video_row() const { return video_channels * patch[0] * patch[1] * patch[2]; }
  int64_t audio_row() const { return audio_channels; }
  int64_t adaln_out() const { return 18 * hidden; }  // 3 modalities x 6 x hidden
  int64_t final_adaln_out() const { return 2 * hidden; }
  friend bool operator==(const DitConfig&, const DitConfig&) = default;
};

/// Reads config.json with the native or the diffusers key names (both may be mixed if they agree).
/// Keys that are not of the model ("_class_name", "_diffusers_version", ...) are ignored; absent
/// keys keep the defaults only if the file is of a known class. Throws kInvalidArgument, with all
/// faults at once, for what is no JSON object, wrong types, sizes below 1, contradictory aliases,
/// adaln_out_features != 18 hidden or final_adaln_out_features != 2 hidden, head_dim != 128, a
/// patch other than (1, 2, 2) or rotary axes wider than the head. `label` begins the message.
DitConfig parse_dit_config(std::string_view json, std::string_view label);

/// The config in native key names, as one JSON object.
std::string dit_config_json(const DitConfig& config);
/// The same with the key names of diffusers.
std::string dit_config_diffusers_json(const DitConfig& config);

/// A model small enough for tests: head_dim stays 128, inner width differs from hidden, every path
/// is there.
DitConfig tiny_dit_config();

}  // namespace h3::dit
