// Random video VAEs small enough for tests, as checkpoints. Values depend on seed and tensor only,
// so both name styles hold the same model. No torch.
#pragma once

#include <cstdint>
#include <string>

#include "h3/models/vae_video/config.h"
#include "h3/models/vae_video/names.h"

namespace h3::vae_video {

/// Writes a video VAE folder, which must exist: config.json, and source/model.safetensors (official
/// names) or diffusion_pytorch_model.safetensors. Values are such that decoded frames are neither
/// grey nor saturated and that every path matters. Throws kUnavailable if the disk refuses.
void write_random_video_vae(const std::string& folder, const VideoVaeConfig& config,
                            NameStyle style, uint64_t seed);

}  // namespace h3::vae_video
