// The token grid of the video model: one token is 4 frames x 32 x 32 pixels, frame-major order
// (t slowest, then h, then w). Chooses the grid that a clip is scaled to.
#pragma once

#include <cstdint>

#include "tessera/status.h"
#include "tessera/video/clip.h"

namespace tessera::video {

inline constexpr int kTokenFrames = 4;
inline constexpr int kTokenPixels = 32;

/// Bounds memory: the pixels of this many tokens take 1.6 GB.
inline constexpr int64_t kMaxTokens = 131072;

struct TokenGrid {
  int t = 0, h = 0, w = 0;  // tokens along each axis
  int64_t per_step() const { return int64_t{h} * w; }
  int64_t tokens() const { return t * per_step(); }
  int frames() const { return t * kTokenFrames; }
  int height() const { return h * kTokenPixels; }
  int width() const { return w * kTokenPixels; }
  int64_t token(int ti, int hi, int wi) const { return (int64_t{ti} * h + hi) * w + wi; }
};

struct GridRequest {
  int64_t max_tokens = 8192;  // --tokens
  int width = 0, height = 0;  // --size in pixels; 0: chosen, never larger than the source
  int frames = 0;             // --frames; 0: chosen
};

/// Fills what the request leaves open: keeps the aspect ratio, and about the model's own balance of
/// space and time (a 42 x 24 grid over 37 steps has 27 times more tokens in a step than steps).
/// Refused with the accepted values: a size that is not a positive multiple of 32, frames that are
/// not a positive multiple of 4 or more than the clip has, a clip of fewer than 4 frames, more than
/// `max_tokens` forced by the other choices, more than kMaxTokens.
Status choose_grid(const ClipInfo& info, const GridRequest& request, TokenGrid* out);

}  // namespace tessera::video
