// Patches as vectors: average-pooled pixels of every token, and their principal components.
//
//   std::vector<float> patches = patch_features(clip, grid);          // [S, 768]
//   Pca pca;
//   Status s = fit_pca(patches, grid.tokens(), &pca);
//   std::vector<float> white = project(pca, patches, Scaling::kWhitened);  // [S, 128]
#pragma once

#include <cstdint>
#include <vector>

#include "tessera/status.h"
#include "tessera/video/clip.h"
#include "tessera/video/grid.h"

namespace tessera::video {

inline constexpr int kCells =
    8;  // cells along each side of a token; one cell averages 4 x 4 pixels
inline constexpr int kPatchValues = kTokenFrames * kCells * kCells * 3;
inline constexpr int kComponents = 128;

/// [S, 768] in 0..1, value order (frame, cell row, cell column, channel). The clip must have at
/// least the frames and exactly the pixels of the grid.
std::vector<float> patch_features(const Clip& clip, const TokenGrid& grid);

struct Pca {
  int rank = 0;                  // components with a variance above the noise floor, <= 128
  std::vector<float> mean;       // [768]
  std::vector<float> basis;      // [128, 768], orthonormal rows, zero from `rank` on
  std::vector<float> deviation;  // [128] standard deviation of each component, zero from `rank`
  double explained = 0;          // share of the variance inside the kept components; 1 if none
};

/// Principal components over the tokens. Needs no minimum of tokens: components without variance
/// (few tokens, constant pictures) are left out instead of being divided by zero. The sign of each
/// component is fixed, so that equal input gives equal output on every machine up to rounding.
Status fit_pca(const std::vector<float>& patches, int64_t tokens, Pca* out);

enum class Scaling : uint8_t { kPixels, kWhitened };

/// [S, 128] components of each patch; kWhitened: each with variance 1 over the tokens.
std::vector<float> project(const Pca& pca, const std::vector<float>& patches, Scaling scaling);

/// [S, 768] patches from kPixels components, not clamped.
std::vector<float> reconstruct(const Pca& pca, const std::vector<float>& components);

}  // namespace tessera::video
