// Principal components, rotary positions, and q, k, v made from them.
#include "tessera/video/features.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "tessera/types.h"
#include "tessera/video/qkv.h"
#include "tessera/video/rope.h"

namespace tessera::video {
namespace {

// Patches with `rank` independent directions of very different strength, around a mean of 0.5.
std::vector<float> random_patches(int tokens, int rank, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> directions(size_t(rank) * kPatchValues);
  for (float& d : directions) d = normal(random) * 0.01f;
  std::vector<float> out(size_t(tokens) * kPatchValues, 0.5f);
  for (int s = 0; s < tokens; ++s) {
    for (int r = 0; r < rank; ++r) {
      const float weight = normal(random) / (1.0f + float(r) * 0.5f);
      for (int i = 0; i < kPatchValues; ++i) {
        out[size_t(s) * kPatchValues + i] += weight * directions[size_t(r) * kPatchValues + i];
      }
    }
  }
  return out;
}

TEST(Features, WhitenedComponents_HaveUnitVarianceAndNoCorrelation) {
  constexpr int kTokens = 600, kRank = 40;
  const std::vector<float> patches = random_patches(kTokens, kRank, 11);
  Pca pca;
  ASSERT_TRUE(fit_pca(patches, kTokens, &pca).ok());
  ASSERT_EQ(pca.rank, kRank) << "seed 11";
  EXPECT_NEAR(pca.explained, 1.0, 1e-4);
  const std::vector<float> z = project(pca, patches, Scaling::kWhitened);
  for (int a = 0; a < kComponents; ++a) {
    for (int b = 0; b <= a; ++b) {
      double sum = 0;
      for (int s = 0; s < kTokens; ++s) sum += double(z[s * 128 + a]) * z[s * 128 + b];
      const double expected = a == b && a < kRank ? 1.0 : 0.0;
      ASSERT_NEAR(sum / kTokens, expected, 0.01) << "components " << a << ", " << b;
    }
  }
}

TEST(Features, FewTokens_AreReconstructedExactly) {
  constexpr int kTokens = 20;
  const std::vector<float> patches = random_patches(kTokens, 60, 12);
  Pca pca;
  ASSERT_TRUE(fit_pca(patches, kTokens, &pca).ok());
  EXPECT_EQ(pca.rank, kTokens - 1) << "seed 12";
  const std::vector<float> back = reconstruct(pca, project(pca, patches, Scaling::kPixels));
  for (size_t i = 0; i < patches.size(); ++i) ASSERT_NEAR(back[i], patches[i], 1e-4) << i;
}

TEST(Features, ConstantPictures_GiveZerosAndNoNan) {
  for (int tokens : {1, 2, 300}) {
    const std::vector<float> patches(size_t(tokens) * kPatchValues, 0.3f);
    Pca pca;
    ASSERT_TRUE(fit_pca(patches, tokens, &pca).ok());
    EXPECT_EQ(pca.rank, 0);
    const std::vector<float> z = project(pca, patches, Scaling::kWhitened);
    for (float v : z) ASSERT_EQ(v, 0.0f);
    Qkv qkv;
    const std::vector<Position> positions = token_positions({tokens, 1, 1});
    ASSERT_TRUE(make_qkv(z, z, positions, {.heads = 2, .locality = 0}, &qkv).ok());
    for (uint16_t bits : qkv.q) ASSERT_EQ(bf16_to_f32(bits), 0.0f);
  }
}

// The formula of the model in double, without tables or rounding.
std::vector<double> rotate(const std::vector<double>& x, double t, double h, double w) {
  std::vector<double> y = x;
  const double at[3] = {t, h, w};
  for (int n = 0; n < 48; ++n) {
    const double angle = at[n / 16] / std::pow(10000.0, (n % 16) / 16.0);
    y[n] = x[n] * std::cos(angle) - x[n + 48] * std::sin(angle);
    y[n + 48] = x[n + 48] * std::cos(angle) + x[n] * std::sin(angle);
  }
  return y;
}

TEST(Rope, Rotation_AgreesWithScalarDouble) {
  std::mt19937_64 random(21);
  std::normal_distribution<double> normal;
  for (const Position& p : {Position{0, 0, 0}, Position{6.6666667f, 3.905f, -5.166f},
                            Position{213.3333f, 27.0f, 36.1f}, Position{0, 0, 8.5f}}) {
    std::vector<double> x(kHeadDim);
    for (double& v : x) v = normal(random);
    std::vector<float> y(x.begin(), x.end());
    apply_rope(rope_table({p}).data(), y.data());
    const std::vector<double> expected = rotate(x, p.t, p.h, p.w);
    for (int d = 0; d < kHeadDim; ++d) {
      // cos and sin are stored in bf16: 2^-9 each, times |x| up to about 4; angles in f32.
      const double scale = std::hypot(x[d % 96 % 48], x[d % 96 % 48 + 48]);
      ASSERT_NEAR(y[d], expected[d], d < 96 ? scale * 0.006 + 1e-6 : 1e-6)
          << "seed 21, dimension " << d << ", t " << p.t;
    }
  }
}

TEST(Rope, ConstantAddedToAllTimes_LeavesScoresAlone) {
  const TokenGrid grid{3, 2, 2};
  std::mt19937_64 random(22);
  std::normal_distribution<float> normal;
  std::vector<float> q(kHeadDim), k(kHeadDim);
  for (float& v : q) v = normal(random);
  for (float& v : k) v = normal(random);
  const auto score = [&](double q_origin, double k_origin) {
    const std::vector<float> q_table = rope_table(token_positions(grid, q_origin));
    const std::vector<float> k_table = rope_table(token_positions(grid, k_origin));
    std::vector<float> a = q, b = k;
    apply_rope(q_table.data() + 9 * 96, a.data());
    apply_rope(k_table.data() + 2 * 96, b.data());
    double sum = 0;
    for (int d = 0; d < kHeadDim; ++d) sum += double(a[d]) * b[d];
    return sum;
  };
  const double here = score(0, 0);
  EXPECT_NEAR(score(40, 40), here, 0.25) << "seed 22: only the bf16 rounding of cos and sin";
  EXPECT_GT(std::abs(score(40, 0) - here), 1.0) << "a shift of one side must matter";
}

TEST(Positions, ModelGrid_MatchesItsKnownEnds) {
  // 1344 x 768: 42 x 24 tokens.
  const std::vector<Position> p = token_positions({2, 24, 42}, 100.0);
  EXPECT_NEAR(p.front().h, 3.905137, 1e-5);
  EXPECT_NEAR(p.back().h, 27.086958, 1e-5);
  EXPECT_NEAR(p.front().w, -5.166010, 1e-5);
  EXPECT_NEAR(p.back().w, 36.158105, 1e-5);
  EXPECT_FLOAT_EQ(p.front().t, 100.0f);
  EXPECT_NEAR(p.back().t, 100.0 + 20.0 / 3.0, 1e-4);
}

TEST(Qkv, SameSeed_SameBitsAndOtherSeed_OtherBits) {
  const TokenGrid grid{2, 4, 8};
  const std::vector<float> patches = random_patches(int(grid.tokens()), 30, 31);
  Pca pca;
  ASSERT_TRUE(fit_pca(patches, grid.tokens(), &pca).ok());
  const std::vector<float> z = project(pca, patches, Scaling::kWhitened);
  const std::vector<Position> positions = token_positions(grid);
  Qkv a, b, c;
  ASSERT_TRUE(make_qkv(z, z, positions, {.heads = 3, .seed = 5}, &a).ok());
  ASSERT_TRUE(make_qkv(z, z, positions, {.heads = 3, .seed = 5}, &b).ok());
  ASSERT_TRUE(make_qkv(z, z, positions, {.heads = 3, .seed = 6}, &c).ok());
  EXPECT_EQ(a.q, b.q);
  EXPECT_EQ(a.k, b.k);
  EXPECT_NE(a.q, c.q);
  EXPECT_NE(a.q, a.k);
}

TEST(Qkv, RootMeanSquareOfARow_IsTheGainOfItsHead) {
  const TokenGrid grid{2, 4, 8};
  const std::vector<float> patches = random_patches(int(grid.tokens()), 30, 32);
  Pca pca;
  ASSERT_TRUE(fit_pca(patches, grid.tokens(), &pca).ok());
  const std::vector<float> z = project(pca, patches, Scaling::kWhitened);
  const QkvOptions options{.heads = 3, .min_gain = 1.0, .max_gain = 2.0};
  Qkv qkv;
  ASSERT_TRUE(make_qkv(z, z, token_positions(grid), options, &qkv).ok());
  for (int64_t row = 0; row < grid.tokens() * 3; ++row) {
    double square = 0;
    for (int d = 0; d < kHeadDim; ++d) {
      square += std::pow(bf16_to_f32(qkv.q[size_t(row * kHeadDim + d)]), 2);
    }
    ASSERT_NEAR(std::sqrt(square / kHeadDim), 1.0 + 0.5 * double(row % 3), 0.02) << row;
  }
}

TEST(Qkv, BadOptions_AreRefused) {
  const std::vector<float> z(kComponents, 0.0f);
  Qkv qkv;
  for (const QkvOptions& bad : {QkvOptions{.heads = 0}, QkvOptions{.heads = 65},
                                QkvOptions{.shared = 1.5}, QkvOptions{.locality = -1}}) {
    EXPECT_EQ(make_qkv(z, z, {Position{}}, bad, &qkv).code(), StatusCode::kInvalidArgument);
  }
}

}  // namespace
}  // namespace tessera::video
