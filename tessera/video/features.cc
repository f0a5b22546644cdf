#include "tessera/video/features.h"

#include <Eigen/Dense>
#include <algorithm>
#include <cmath>
#include <new>

namespace tessera::video {
namespace {

using Matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using ConstMap = Eigen::Map<const Matrix>;
using Map = Eigen::Map<Matrix>;

// Relative to the largest variance: about what rounding leaves of a constant direction in f32.
constexpr double kVarianceFloor = 1e-7;
// Absolute, in units of (pixel value / 255)^2 summed over a patch: below this there is no picture.
constexpr double kNoVariance = 1e-9;

constexpr int kCellPixels = kTokenPixels / kCells;

void pool_patch(const Clip& clip, int frame0, int y0, int x0, float* out) {
  constexpr float kScale = 1.0f / (255.0f * kCellPixels * kCellPixels);
  for (int f = 0; f < kTokenFrames; ++f) {
    for (int cy = 0; cy < kCells; ++cy) {
      for (int cx = 0; cx < kCells; ++cx) {
        int sum[3] = {0, 0, 0};
        for (int y = 0; y < kCellPixels; ++y) {
          const uint8_t* p =
              clip.pixel(frame0 + f, y0 + cy * kCellPixels + y, x0 + cx * kCellPixels);
          for (int i = 0; i < kCellPixels * 3; ++i) sum[i % 3] += p[i];
        }
        for (int c = 0; c < 3; ++c) *out++ = float(sum[c]) * kScale;
      }
    }
  }
}

}  // namespace

std::vector<float> patch_features(const Clip& clip, const TokenGrid& grid) {
  std::vector<float> out(size_t(grid.tokens()) * kPatchValues);
  for (int t = 0; t < grid.t; ++t) {
    for (int h = 0; h < grid.h; ++h) {
      for (int w = 0; w < grid.w; ++w) {
        pool_patch(clip, t * kTokenFrames, h * kTokenPixels, w * kTokenPixels,
                   out.data() + size_t(grid.token(t, h, w)) * kPatchValues);
      }
    }
  }
  return out;
}

Status fit_pca(const std::vector<float>& patches, int64_t tokens, Pca* out) {
  if (tokens < 1 || patches.size() != size_t(tokens) * kPatchValues) {
    return invalid_argument("principal components of " + std::to_string(tokens) + " tokens from " +
                            std::to_string(patches.size()) +
                            " values: 768 values a token and at least one token are needed");
  }
  try {
    const ConstMap x(patches.data(), tokens, kPatchValues);
    const Eigen::RowVectorXf mean = x.colwise().mean();
    Eigen::MatrixXf covariance = Eigen::MatrixXf::Zero(kPatchValues, kPatchValues);
    // In slices, so that the centred copy stays small for long clips.
    constexpr int64_t kSlice = 1024;
    for (int64_t s = 0; s < tokens; s += kSlice) {
      const int64_t n = std::min(kSlice, tokens - s);
      const Eigen::MatrixXf centred = x.middleRows(s, n).rowwise() - mean;
      covariance.selfadjointView<Eigen::Lower>().rankUpdate(centred.transpose(),
                                                            1.0f / float(tokens));
    }
    const Eigen::SelfAdjointEigenSolver<Eigen::MatrixXd> solver(covariance.cast<double>());
    if (solver.info() != Eigen::Success) {
      return internal_error("the eigen-decomposition of the patch covariance did not converge");
    }
    const Eigen::VectorXd& variance = solver.eigenvalues();  // ascending
    const double largest = variance[kPatchValues - 1];
    const double floor = std::max(kNoVariance, largest * kVarianceFloor);

    Pca pca;
    pca.mean.assign(mean.data(), mean.data() + kPatchValues);
    pca.basis.assign(size_t(kComponents) * kPatchValues, 0.0f);
    pca.deviation.assign(kComponents, 0.0f);
    double kept = 0, total = 0;
    for (int i = 0; i < kPatchValues; ++i) total += std::max(0.0, variance[i]);
    for (int c = 0; c < kComponents; ++c) {
      const int column = kPatchValues - 1 - c;
      if (!(variance[column] > floor)) break;
      Eigen::VectorXd v = solver.eigenvectors().col(column);
      Eigen::Index peak = 0;
      v.cwiseAbs().maxCoeff(&peak);
      if (v[peak] < 0) v = -v;
      for (int i = 0; i < kPatchValues; ++i) {
        pca.basis[size_t(c) * kPatchValues + i] = float(v[i]);
      }
      pca.deviation[c] = float(std::sqrt(variance[column]));
      kept += variance[column];
      pca.rank = c + 1;
    }
    pca.explained = pca.rank > 0 ? kept / total : 1.0;
    *out = std::move(pca);
    return {};
  } catch (const std::bad_alloc&) {
    return out_of_memory("no memory for the principal components of " + std::to_string(tokens) +
                         " tokens; choose fewer --tokens");
  }
}

std::vector<float> project(const Pca& pca, const std::vector<float>& patches, Scaling scaling) {
  const int64_t tokens = int64_t(patches.size()) / kPatchValues;
  std::vector<float> out(size_t(tokens) * kComponents);
  const ConstMap x(patches.data(), tokens, kPatchValues);
  const ConstMap basis(pca.basis.data(), kComponents, kPatchValues);
  const Eigen::Map<const Eigen::RowVectorXf> mean(pca.mean.data(), kPatchValues);
  Map y(out.data(), tokens, kComponents);
  // The mean is taken out before the product: afterwards it would cancel large numbers.
  y.noalias() = Matrix(x.rowwise() - mean) * basis.transpose();
  if (scaling == Scaling::kWhitened) {
    for (int c = 0; c < kComponents; ++c) {
      y.col(c) *= c < pca.rank ? 1.0f / pca.deviation[c] : 0.0f;
    }
  }
  return out;
}

std::vector<float> reconstruct(const Pca& pca, const std::vector<float>& components) {
  const int64_t tokens = int64_t(components.size()) / kComponents;
  std::vector<float> out(size_t(tokens) * kPatchValues);
  const ConstMap y(components.data(), tokens, kComponents);
  const ConstMap basis(pca.basis.data(), kComponents, kPatchValues);
  const Eigen::Map<const Eigen::RowVectorXf> mean(pca.mean.data(), kPatchValues);
  Map x(out.data(), tokens, kPatchValues);
  x.noalias() = y * basis;
  x.rowwise() += mean;
  return out;
}

}  // namespace tessera::video
