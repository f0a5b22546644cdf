// Starting noise and condition noise with the published streams, and the way between latents and
// rows. All tensors are float32 on the CPU unless said otherwise; results are new, contiguous
// tensors. Every stream is a Mersenne twister of its own, so that one seed gives the same media
// whatever else a request has; video and audio share their leading values.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "h3/models/dit/layout.h"

namespace h3::dit {

inline constexpr int64_t kStereo = 2;

/// [1, C, T, H, W] -> [T (H/2) (W/2), 4 C]: rows frame by frame, then row by row; inside a row the
/// channel is slowest, then the 2 x 2 patch. Any dtype and device. Throws kInvalidArgument for
/// other ranks, a batch other than 1 and odd sides.
at::Tensor patchify_video(const at::Tensor& latents);

/// The inverse; `shape` is that of the latents. Throws kInvalidArgument for a wrong row count.
at::Tensor unpatchify_video(const at::Tensor& rows, const LatentShape& shape);

/// [2, C, T] -> [2 T, C]: all of the left channel, then all of the right. Any dtype and device.
at::Tensor pack_audio(const at::Tensor& latents);

/// The inverse. Throws kInvalidArgument for an odd number of rows.
at::Tensor unpack_audio(const at::Tensor& rows);

/// Rows of the target video: drawn as [1, C, T, H, W], then patchified.
at::Tensor video_noise(uint64_t seed, const LatentShape& target, int64_t channels);

/// Rows of the target audio: drawn as [2 T, C].
at::Tensor audio_noise(uint64_t seed, int64_t latents, int64_t channels);

/// Noise rows of one keyframe or visual reference: the first frames of a draw of
/// target_frames + conditions frames, where `conditions` is the number of visual conditions of the
/// request. Throws kInvalidArgument for a condition longer than the draw.
at::Tensor visual_condition_noise(uint64_t seed, const LatentShape& condition,
                                  int64_t target_frames, int64_t conditions, int64_t channels);

/// Noise rows of one audio reference; its stream has seed + 1.
at::Tensor audio_condition_noise(uint64_t seed, int64_t latents, int64_t channels);

/// level clean + (1 - level) noise, with `level` and its complement in float32. At level 1 the
/// clean rows themselves are returned. Throws kInvalidArgument outside [0, 1] and for unequal
/// shapes.
at::Tensor mix_condition(const at::Tensor& clean, const at::Tensor& noise, double level);

/// (latents - mean) / std per channel; `latents` has the channel second, `mean` and `std` are [C].
/// Throws kInvalidArgument for other lengths.
at::Tensor normalize_latents(const at::Tensor& latents, const at::Tensor& mean,
                             const at::Tensor& std);

/// latents * std + mean, in two roundings.
at::Tensor denormalize_latents(const at::Tensor& latents, const at::Tensor& mean,
                               const at::Tensor& std);

}  // namespace h3::dit
