// From what a request says (seconds, aspect ratio, picture sizes) to frames, canvas and latents.
// Rounding is Python's: half to even, on doubles. No torch.
#pragma once

#include <cstdint>

#include "h3/models/dit/layout.h"

namespace h3::dit {

inline constexpr int64_t kFramesPerSecond = 24, kAudioLatentsPerSecond = 40;
inline constexpr int64_t kPixelsPerLatent = 16, kCanvasMultiple = 32;
inline constexpr int64_t kShortEdge = 768, kCanvasPixels = 768 * 1344;
inline constexpr double kMinSeconds = 4, kMaxSeconds = 15;  // as requested, before alignment
inline constexpr int64_t kMaxAspect = 4;                    // 1:4 to 4:1

/// Length of a video: the video autoencoder takes 17 n + 5 frames and makes 5 n + 2 latents.
struct Timing {
  int64_t frames = 0, latent_frames = 0;
  int64_t audio_latents = 0;                                                    // per channel
  double seconds() const { return double(frames) / double(kFramesPerSecond); }  // aligned
};

/// `frames` >= 1 rounded up to 17 n + 5. Throws kInvalidArgument below 1 and over 2^31.
int64_t aligned_frames(int64_t frames);

/// Of a number of frames that is 17 n + 5; throws kInvalidArgument for others.
Timing timing_of_frames(int64_t frames);

/// Of a requested duration. Throws kInvalidArgument outside 4 to 15 s. 15 s becomes 15.083 s.
Timing timing_of_seconds(double seconds);

/// Size of a picture in pixels.
struct Canvas {
  int64_t width = 0, height = 0;
  LatentShape latents(int64_t frames) const {
    return {frames, height / kPixelsPerLatent, width / kPixelsPerLatent};
  }
  friend bool operator==(const Canvas&, const Canvas&) = default;
};

/// Canvas of the target or of a reference video with display ratio `aspect_width`:`aspect_height`:
/// short edge, area cut to kCanvasPixels, then each side to the nearest multiple of 32 (so the area
/// may exceed the cut a little). Throws kInvalidArgument outside 1:4 to 4:1 and for a short edge
/// below 1.
Canvas target_canvas(double aspect_width, double aspect_height, int64_t short_edge = kShortEdge);

/// How the size of a reference image follows from its own.
enum class ReferenceResize {
  kDiffusers,  // short edge 2048, also upwards
  kMax,        // short edge at most 2048
  kMatch,      // area at most the target's
};

/// Throws kInvalidArgument for sides below 1 and outside 1:4 to 4:1.
Canvas reference_image_canvas(const Canvas& image, const Canvas& target, ReferenceResize mode);

/// Frames of a reference video that are encoded: at most the target's, trimmed down to 17 n + 5,
/// n >= 1. Throws kInvalidArgument if fewer than 22 are left.
int64_t reference_video_frames(int64_t frames, int64_t target_frames);

/// The keyframe that is not listed first: scaled to cover the canvas, then cut.
struct CoverCrop {
  Canvas resized;
  int64_t left = 0, top = 0;
};
/// Throws kInvalidArgument for sides below 1.
CoverCrop cover_crop(const Canvas& image, const Canvas& target);

}  // namespace h3::dit
