// A video VAE's checkpoint, opened and checked: paths, config, names and inventory. Header reads
// only. No torch.
//
//   const VideoVaeCheckpoint vae = open_video_vae("MiniMax-H3/FL2VA");
//   auto recipes = model_recipes(vae.config, vae.style, Part::kDecoder);
#pragma once

#include <string>

#include "h3/models/vae_video/config.h"
#include "h3/models/vae_video/names.h"
#include "h3/weights/checkpoint.h"

namespace h3::vae_video {

struct VideoVaeCheckpoint {
  std::string folder;  // with config.json
  VideoVaeConfig config;
  NameStyle style = NameStyle::kOfficial;
  weights::Checkpoint checkpoint;
};

/// `path`: a folder with video_vae/ (official release) or vae/ (diffusers), or one of those two
/// itself. Official weights are in source/model.safetensors beside their own source/config.json.
/// Throws kInvalidArgument and kUnsupported for everything that parse_video_vae_config,
/// Checkpoint::open, name_style_of and require_inventory refuse, and for a path without config.
VideoVaeCheckpoint open_video_vae(const std::string& path);

}  // namespace h3::vae_video
