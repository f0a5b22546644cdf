// Random audio VAEs small enough for tests, as checkpoints. No torch.
#pragma once

#include <cstdint>
#include <string>

#include "h3/models/vae_audio/config.h"
#include "h3/models/vae_audio/names.h"

namespace h3::vae_audio {

/// Writes an audio VAE folder, which must exist: config.json and model.safetensors. Values depend
/// on seed and tensor alone, and are such that decoded sound is neither silent nor clipped. Throws
/// kInvalidArgument for kFolded (there would be no pair to fold), kUnavailable if the disk refuses.
void write_random_audio_vae(const std::string& folder, const AudioVaeConfig& config,
                            NormStyle style, uint64_t seed);

}  // namespace h3::vae_audio
