// Between pictures as people have them and the numbers that the VAE sees: ImageNet normalisation of
// RGB, statistics of the latents.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "h3/models/vae_video/config.h"

namespace h3::vae_video {

/// uint8 [T, H, W, 3] -> f32 [1, 3, T, H, W] on the same device: (v / 255 - mean) / std.
at::Tensor normalised_pixels(const at::Tensor& rgb);

/// The inverse, clamped to [0, 1]: f32 [B, 3, T, H, W], a new contiguous tensor.
at::Tensor shown_pixels(const at::Tensor& x);

/// f32 [B, 3, T, H, W] in [0, 1] -> uint8 [B, T, H, W, 3]: v * 255 clamped and truncated, as the
/// release writes its videos (not rounded).
at::Tensor rgb24(const at::Tensor& frames);

/// The top left [.., height, width] of frames [B, 3, T, H, W]. Throws kInvalidArgument for frames
/// smaller than that.
at::Tensor cropped(const at::Tensor& frames, int64_t height, int64_t width);

/// (z - mean) / std per channel of z [B, C, ...]; a new tensor of z's type.
at::Tensor normalised_latents(const VideoVaeConfig& config, const at::Tensor& z);
/// z * std, then + mean: two roundings.
at::Tensor denormalised_latents(const VideoVaeConfig& config, const at::Tensor& z);

}  // namespace h3::vae_video
