#include "tessera/video/rope.h"

#include <array>
#include <cmath>

#include "tessera/types.h"

namespace tessera::video {
namespace {

constexpr int kFrequencies = 16;
constexpr double kTheta = 10000.0;
constexpr double kSpatialScale = 32.0;
constexpr double kUnitsPerFrame = 5.0 / 3.0;

// Points of one spatial axis of `n` tokens; `side` is its length in latents, `area_side` the square
// root of the frame's area in latents. The right end is left out.
double axis_point(int k, int n, double side, double area_side) {
  const double ratio = side / area_side;
  const double left = (1.0 - ratio) / 2.0;
  const double step = ((left + ratio) - left) / n;
  return (k * step + left) * kSpatialScale;
}

}  // namespace

std::vector<Position> token_positions(const TokenGrid& grid, double t_origin) {
  // A token is 2 x 2 latents of 16 pixels.
  const double latent_h = 2.0 * grid.h, latent_w = 2.0 * grid.w;
  const double area_side = std::sqrt(latent_h * latent_w);
  std::vector<Position> out;
  out.reserve(size_t(grid.tokens()));
  for (int t = 0; t < grid.t; ++t) {
    for (int h = 0; h < grid.h; ++h) {
      for (int w = 0; w < grid.w; ++w) {
        out.push_back({float(t_origin + t * kTokenFrames * kUnitsPerFrame),
                       float(axis_point(h, grid.h, latent_h, area_side)),
                       float(axis_point(w, grid.w, latent_w, area_side))});
      }
    }
  }
  return out;
}

std::vector<float> rope_table(const std::vector<Position>& positions) {
  std::array<float, kFrequencies> frequency;
  for (int n = 0; n < kFrequencies; ++n) {
    frequency[n] = float(1.0 / std::pow(kTheta, 2.0 * n / 32.0));
  }
  std::vector<float> table(positions.size() * 2 * kRopePairs);
  for (size_t s = 0; s < positions.size(); ++s) {
    const std::array<float, 3> at = {positions[s].t, positions[s].h, positions[s].w};
    float* row = table.data() + s * 2 * kRopePairs;
    for (int n = 0; n < kRopePairs; ++n) {
      const float angle = at[n / kFrequencies] * frequency[n % kFrequencies];
      row[n] = round_bf16(std::cos(angle));
      row[n + kRopePairs] = round_bf16(std::sin(angle));
    }
  }
  return table;
}

void apply_rope(const float* table_row, float* x) {
  for (int n = 0; n < kRopePairs; ++n) {
    const float c = table_row[n], s = table_row[n + kRopePairs];
    const float a = x[n], b = x[n + kRopePairs];
    x[n] = a * c - b * s;
    x[n + kRopePairs] = b * c + a * s;
  }
}

}  // namespace tessera::video
