// The model's 3-D rotary positions: the first 96 of 128 dimensions, half-split pairs (n, n + 48),
// 16 frequencies each for t, h and w.
#pragma once

#include <cstdint>
#include <vector>

#include "tessera/video/grid.h"

namespace tessera::video {

inline constexpr int kHeadDim = 128;
inline constexpr int kRopePairs = 48;

struct Position {
  float t = 0, h = 0, w = 0;
};

/// Position of every token. Space: the model's area-normalised grid scaled to 32, whose step is
/// about 1 at 1344 x 768. Time: 5/3 a frame, 20/3 a token; unlike the model's latents, where every
/// fifth spans one frame, all tokens span 4 frames here. `t_origin` is added to every t.
std::vector<Position> token_positions(const TokenGrid& grid, double t_origin = 0);

/// [S, 96]: cos of the 48 angles, then sin, each rounded to bf16 as the model stores them.
std::vector<float> rope_table(const std::vector<Position>& positions);

/// Rotates x[0..95] in place with one row of the table; x[96..127] stay.
void apply_rope(const float* table_row, float* x);

}  // namespace tessera::video
