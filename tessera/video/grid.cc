#include "tessera/video/grid.h"

#include <algorithm>
#include <cmath>
#include <string>

namespace tessera::video {
namespace {

// Tokens in a step per step, of the model's usual 1344 x 768 clip of 5 to 6 s.
constexpr double kSpaceToTime = 27.0;

// The largest grid of at most `budget` tokens with the aspect ratio of the source.
void fit_size(const ClipInfo& info, int64_t budget, TokenGrid* grid) {
  const double source_w = double(info.width) / kTokenPixels;
  const double source_h = double(info.height) / kTokenPixels;
  const double scale = std::min(1.0, std::sqrt(double(budget) / (source_w * source_h)));
  grid->w = std::max(1, int(std::lround(source_w * scale)));
  grid->h = std::max(1, int(std::lround(source_h * scale)));
  while (grid->per_step() > budget) {
    // Shrinks the axis that is stretched most against the source.
    const bool shrink_w = grid->w > 1 && (grid->h == 1 || grid->w / source_w > grid->h / source_h);
    --(shrink_w ? grid->w : grid->h);
  }
}

Status check_request(const ClipInfo& info, const GridRequest& r) {
  const auto bad_side = [](int side) { return side <= 0 || side % kTokenPixels != 0; };
  if ((r.width != 0 || r.height != 0) && (bad_side(r.width) || bad_side(r.height))) {
    return invalid_argument("--size " + std::to_string(r.width) + "x" + std::to_string(r.height) +
                            ": both sides must be positive multiples of 32 (one token is 32 x 32 "
                            "pixels); try --size 640x352");
  }
  if (r.frames < 0 || r.frames % kTokenFrames != 0) {
    return invalid_argument("--frames " + std::to_string(r.frames) +
                            ": must be a positive multiple of 4 (one token spans 4 frames); try "
                            "--frames " +
                            std::to_string(std::max(kTokenFrames, r.frames / 4 * 4)));
  }
  if (r.max_tokens < 1 || r.max_tokens > kMaxTokens) {
    return invalid_argument("--tokens " + std::to_string(r.max_tokens) + ": must be 1 to " +
                            std::to_string(kMaxTokens) + "; try --tokens 8192");
  }
  const int64_t known = info.declared_frames;
  if (known > 0 && known < kTokenFrames) {
    return invalid_argument("clip '" + info.path + "' has " + std::to_string(known) +
                            " frames, at least 4 are needed (one token spans 4 frames); give a "
                            "longer clip");
  }
  if (known > 0 && r.frames > known) {
    return invalid_argument("--frames " + std::to_string(r.frames) + ": clip '" + info.path +
                            "' has only " + std::to_string(known) + "; use --frames " +
                            std::to_string(known / 4 * 4) + " or fewer");
  }
  return {};
}

}  // namespace

Status choose_grid(const ClipInfo& info, const GridRequest& r, TokenGrid* out) {
  TESSERA_RETURN_IF_ERROR(check_request(info, r));
  const int64_t steps_available =
      info.declared_frames > 0 ? info.declared_frames / kTokenFrames : kMaxTokens;
  TokenGrid grid;
  grid.w = r.width / kTokenPixels;
  grid.h = r.height / kTokenPixels;
  grid.t = r.frames / kTokenFrames;
  if (grid.t == 0 && grid.w == 0) {
    const int64_t balanced = std::llround(std::sqrt(double(r.max_tokens) / kSpaceToTime));
    grid.t = int(std::clamp<int64_t>(balanced, 1, steps_available));
    fit_size(info, r.max_tokens / grid.t, &grid);
    // A small source leaves tokens over: spend them on time.
    grid.t = int(std::clamp<int64_t>(r.max_tokens / grid.per_step(), 1, steps_available));
  } else if (grid.t == 0) {
    grid.t = int(std::clamp<int64_t>(r.max_tokens / grid.per_step(), 1, steps_available));
    if (grid.tokens() > r.max_tokens) {
      return invalid_argument("--size " + std::to_string(r.width) + "x" + std::to_string(r.height) +
                              " has " + std::to_string(grid.per_step()) +
                              " tokens in one step of 4 frames, "
                              "--tokens allows " +
                              std::to_string(r.max_tokens) +
                              "; choose a smaller size or raise "
                              "--tokens");
    }
  } else if (grid.w == 0) {
    if (grid.t > r.max_tokens) {
      return invalid_argument("--frames " + std::to_string(r.frames) + " needs at least " +
                              std::to_string(grid.t) + " tokens, --tokens allows " +
                              std::to_string(r.max_tokens) +
                              "; choose fewer frames or raise "
                              "--tokens");
    }
    fit_size(info, r.max_tokens / grid.t, &grid);
  }
  if (grid.tokens() > kMaxTokens) {
    return invalid_argument("--size and --frames together make " + std::to_string(grid.tokens()) +
                            " tokens, at most " + std::to_string(kMaxTokens) +
                            " are accepted; choose a smaller size or fewer frames");
  }
  *out = grid;
  return {};
}

}  // namespace tessera::video
