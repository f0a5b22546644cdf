// What the pictures share: colours, frames of the clip as images, choice of time steps.
#pragma once

#include <string>
#include <vector>

#include "tessera/video/canvas.h"
#include "tessera/video/clip.h"
#include "tessera/video/grid.h"

namespace tessera::video {

inline constexpr Color kPaper{1, 1, 1};
inline constexpr Color kInk{0.10, 0.11, 0.13};
inline constexpr Color kFaint{0.42, 0.45, 0.49};
inline constexpr Color kGridLine{0.88, 0.89, 0.91};
inline constexpr Color kKept{1.0, 0.62, 0.10};
inline constexpr Color kQuery{0.10, 0.85, 1.0};

/// One frame of the clip, full size.
RgbImage clip_frame(const Clip& clip, int frame);

/// `count` time steps spread over the grid, ascending (fewer if the grid has fewer). `must_have`
/// (if >= 0) replaces the nearest one.
std::vector<int> spread_steps(const TokenGrid& grid, int count, int must_have = -1);

/// "frame 12, 0.40 s" for the first frame of a time step.
std::string step_label(const Clip& clip, int step);

/// "12,345".
std::string with_commas(int64_t value);

/// printf into a string.
std::string format(const char* pattern, ...) __attribute__((format(printf, 1, 2)));

}  // namespace tessera::video
