#include "tessera/video/qkv.h"

#include <Eigen/Dense>
#include <cmath>
#include <new>
#include <string>

#include "tessera/types.h"
#include "tessera/video/features.h"

namespace tessera::video {
namespace {

using Matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

// std::normal_distribution differs between standard libraries; this does not.
class Gaussian {
 public:
  explicit Gaussian(uint64_t seed) : state_(seed) {}

  Matrix matrix(int rows, int columns) {
    Matrix m(rows, columns);
    for (int i = 0; i < rows; ++i) {
      for (int j = 0; j < columns; ++j) m(i, j) = float(next() / std::sqrt(double(columns)));
    }
    return m;
  }

 private:
  // Box-Muller on (0, 1] x [0, 1); the second value of the pair is not kept.
  double next() {
    constexpr double kTwoPi = 6.283185307179586;
    const double u = 1.0 - uniform();
    return std::sqrt(-2.0 * std::log(u)) * std::cos(kTwoPi * uniform());
  }
  double uniform() { return double(bits() >> 11) * 0x1p-53; }
  // SplitMix64: any seed, zero included, starts a good stream.
  uint64_t bits() {
    uint64_t z = (state_ += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  uint64_t state_;
};

// One head of q or k: projection, norm over the 128 dimensions, gain, bf16, rotation, bf16.
void write_head(const Matrix& projected, double gain, const std::vector<float>& table, int head,
                int heads, std::vector<uint16_t>* out) {
  constexpr double kEpsilon = 1e-5;  // of the model's norm; keeps an all-zero token at zero
  float row[kHeadDim];
  for (int64_t s = 0; s < projected.rows(); ++s) {
    const double mean_square = projected.row(s).cast<double>().squaredNorm() / kHeadDim;
    const double scale = gain / std::sqrt(mean_square + kEpsilon);
    for (int d = 0; d < kHeadDim; ++d) row[d] = round_bf16(float(projected(s, d) * scale));
    apply_rope(table.data() + s * 2 * kRopePairs, row);
    uint16_t* to = out->data() + (s * heads + head) * kHeadDim;
    for (int d = 0; d < kHeadDim; ++d) to[d] = f32_to_bf16(row[d]);
  }
}

}  // namespace

double head_gain(const QkvOptions& options, int head) {
  if (options.heads < 2) return (options.min_gain + options.max_gain) / 2;
  return options.min_gain + (options.max_gain - options.min_gain) * head / (options.heads - 1);
}

Status make_qkv(const std::vector<float>& whitened, const std::vector<float>& pixels,
                const std::vector<Position>& positions, const QkvOptions& options, Qkv* out) {
  static_assert(kComponents == kHeadDim);
  if (options.heads < 1 || options.heads > 64) {
    return invalid_argument("--heads " + std::to_string(options.heads) +
                            ": must be 1 to 64; try --heads 4");
  }
  if (!(options.shared >= 0.0 && options.shared <= 1.0)) {
    return invalid_argument("shared part " + std::to_string(options.shared) +
                            " of the q and k projections: must be in [0, 1]; try 0.7");
  }
  if (!(options.locality >= 0.0) || !std::isfinite(options.locality)) {
    return invalid_argument("locality " + std::to_string(options.locality) +
                            " of q and k: must be 0 or more; try 0.8");
  }
  const size_t tokens = positions.size();
  if (whitened.size() != tokens * kComponents || pixels.size() != tokens * kComponents) {
    return invalid_argument("components of " + std::to_string(whitened.size() / kComponents) +
                            " and " + std::to_string(pixels.size() / kComponents) + " tokens for " +
                            std::to_string(tokens) + " positions: all three must be the same");
  }
  try {
    Qkv qkv;
    qkv.tokens = int64_t(tokens);
    qkv.heads = options.heads;
    for (std::vector<uint16_t>* x : {&qkv.q, &qkv.k, &qkv.v}) {
      x->resize(tokens * size_t(options.heads) * kHeadDim);
    }
    const Eigen::Map<const Matrix> z(whitened.data(), int64_t(tokens), kComponents);
    const std::vector<float> table = rope_table(positions);
    const float shared = float(options.shared);
    const float own = float(std::sqrt(1.0 - options.shared * options.shared));
    for (int h = 0; h < options.heads; ++h) {
      // A stream per head: head 2 is the same whether 4 or 8 heads are made.
      Gaussian random(options.seed * 0x100000001b3u + uint64_t(h));
      const Matrix common = random.matrix(kHeadDim, kComponents);
      const Matrix wq = shared * common + own * random.matrix(kHeadDim, kComponents);
      const Matrix wk = shared * common + own * random.matrix(kHeadDim, kComponents);
      const Eigen::RowVectorXf anchor =
          float(options.locality * std::sqrt(double(kHeadDim))) * random.matrix(1, kHeadDim);
      const double gain = head_gain(options, h);
      const auto project = [&](const Matrix& w) {
        Matrix projected = z * w.transpose();
        projected.rowwise() += anchor;
        return projected;
      };
      write_head(project(wq), gain, table, h, options.heads, &qkv.q);
      write_head(project(wk), gain, table, h, options.heads, &qkv.k);
      for (size_t s = 0; s < tokens; ++s) {
        uint16_t* v = qkv.v.data() + (s * options.heads + h) * kHeadDim;
        for (int d = 0; d < kHeadDim; ++d) v[d] = f32_to_bf16(pixels[s * kComponents + d]);
      }
    }
    *out = std::move(qkv);
    return {};
  } catch (const std::bad_alloc&) {
    return out_of_memory("no memory for q, k and v of " + std::to_string(tokens) + " tokens and " +
                         std::to_string(options.heads) + " heads; choose fewer --tokens");
  }
}

}  // namespace tessera::video
