// Equality with diffusers over whole trajectories is in h3/tests/parity/test_layout.py; here are
// the published values, properties and refusals.
#include "h3/models/dit/sampling.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "h3/common/error.h"

namespace h3::dit {
namespace {

struct GridCase {
  int64_t forwards;
  double shift;
  size_t index;
  float value;
};

class SigmaGrid : public testing::TestWithParam<GridCase> {};

TEST_P(SigmaGrid, HasThePublishedValue) {
  const GridCase& c = GetParam();
  const std::vector<float> grid = sigma_grid(c.forwards, c.shift);
  ASSERT_EQ(grid.size(), size_t(c.forwards) + 1);
  EXPECT_EQ(grid.front(), 1.0f);
  EXPECT_EQ(grid.back(), 0.0f);
  EXPECT_NEAR(grid[c.index], c.value, 6e-8);
}

INSTANTIATE_TEST_SUITE_P(
    All, SigmaGrid,
    testing::Values(GridCase{50, 12, 1, .9983022f}, GridCase{50, 12, 2, .9965398f},
                    GridCase{50, 12, 3, .9947090f}, GridCase{50, 12, 4, .9928058f},
                    GridCase{50, 12, 10, .9795918f}, GridCase{50, 12, 24, .9285714f},
                    GridCase{50, 12, 40, .75f}, GridCase{50, 12, 48, .3333333f},
                    GridCase{50, 12, 49, .1967213f}, GridCase{50, 3, 1, .9932433f},
                    GridCase{50, 3, 3, .9791666f}, GridCase{50, 3, 10, .9230770f},
                    GridCase{50, 3, 40, .4285714f}, GridCase{50, 3, 49, .0576923f},
                    GridCase{49, 12, 1, .9982669f}, GridCase{49, 12, 24, .925926f},
                    GridCase{49, 12, 48, .2f}, GridCase{49, 3, 24, .7575758f},
                    GridCase{49, 3, 48, .0588235f}, GridCase{1, 12, 0, 1.0f}));

TEST(Sampling, Grid_FallsStrictlyForAllStepCounts) {
  for (const double shift : {12.0, 3.0, 1.0}) {
    for (int64_t forwards = 1; forwards <= 1000; ++forwards) {
      const std::vector<float> grid = sigma_grid(forwards, shift);
      for (size_t i = 1; i < grid.size(); ++i) ASSERT_LT(grid[i], grid[i - 1]) << forwards;
    }
  }
}

// A separate rounding of step * i changes most grids: guards against losing the fused form.
TEST(Sampling, Linspace_RoundsOncePerPoint) {
  const std::vector<float> grid = sigma_grid(49, 1);
  const double step = double(-1.0f / 49.0f);
  int differs = 0;
  for (size_t i = 0; i <= 49; ++i) {
    const double exact = i < 25 ? 1.0 + step * double(i) : -step * double(49 - i);
    EXPECT_EQ(grid[i], float(exact)) << i;
    const float product = float(step) * float(i);
    differs += i < 25 && 1.0f + product != grid[i];
  }
  EXPECT_GT(differs, 0);
}

TEST(Sampling, StepCounts_FollowBothConventions) {
  EXPECT_EQ(forwards_of(50, StepCount::kForwards), 50);
  EXPECT_EQ(forwards_of(50, StepCount::kGridPoints), 49);
  EXPECT_EQ(forwards_of(1, StepCount::kForwards), 1);
  EXPECT_EQ(forwards_of(2, StepCount::kGridPoints), 1);
  EXPECT_EQ(forwards_of(1001, StepCount::kGridPoints), 1000);
  for (const int64_t n : {int64_t{0}, int64_t{-1}, int64_t{1001}}) {
    EXPECT_THROW(forwards_of(n, StepCount::kForwards), Error) << n;
  }
  EXPECT_THROW(forwards_of(1, StepCount::kGridPoints), Error);
  EXPECT_THROW(forwards_of(std::numeric_limits<int64_t>::min(), StepCount::kGridPoints), Error);
}

TEST(Sampling, BadShifts_AreRefused) {
  const double inf = std::numeric_limits<double>::infinity();
  for (const double shift : {0.0, -3.0, inf, std::nan(""), 1e30, 1e300, 1e-30, 1e9}) {
    try {
      sigma_grid(50, shift);
      ADD_FAILURE() << "accepted " << shift;
    } catch (const Error& e) {
      EXPECT_NE(e.message().find("flow shift"), std::string::npos) << e.message();
    }
  }
}

TEST(Sampling, LastStep_ReachesTheCleanSample) {
  std::mt19937 random(7);  // seed 7
  std::normal_distribution<float> normal;
  std::vector<float> x(512), clean(512), v(512);
  const float sigma = sigma_grid(50, 12)[49];
  for (size_t i = 0; i < x.size(); ++i) {
    x[i] = normal(random);
    clean[i] = normal(random);
    v[i] = (clean[i] - x[i]) / sigma;
  }
  euler_step(x, v, sigma, 0.0f);
  for (size_t i = 0; i < x.size(); ++i) EXPECT_NEAR(x[i], clean[i], 2e-6);
}

TEST(Sampling, Step_EqualsTheShortFormToRounding) {
  std::vector<float> x = {1.0f, -2.0f, 0.5f};
  const std::vector<float> v = {0.25f, 1.0f, -3.0f}, before = x;
  euler_step(x, v, 0.8f, 0.5f);
  for (size_t i = 0; i < x.size(); ++i) EXPECT_NEAR(x[i], before[i] + 0.3f * v[i], 1e-6);
}

TEST(Sampling, Step_UsesTimeNotSigma) {
  // 1 - (1 - sigma) differs from sigma below one half.
  const EulerFactors f = euler_factors(0.1967213f, 0.0f);
  EXPECT_EQ(f.t, 1.0f - 0.1967213f);
  EXPECT_EQ(f.one_minus_t, 1.0f - f.t);
  EXPECT_NE(f.one_minus_t, 0.1967213f);
  EXPECT_EQ(f.ratio, 0.0f);
  EXPECT_EQ(f.one_minus_ratio, 1.0f);
}

TEST(Sampling, Factors_GiveTheStep) {
  std::vector<float> x = {0.3f, -1.7f};
  const std::vector<float> v = {2.0f, 0.1f}, before = x;
  const EulerFactors f = euler_factors(0.7f, 0.6f);
  euler_step(x, v, 0.7f, 0.6f);
  for (size_t i = 0; i < x.size(); ++i) {
    volatile float scaled = f.one_minus_t * v[i];  // volatile: no contraction in this file either
    volatile float denoised = before[i] + scaled;
    volatile float kept = f.ratio * before[i], moved = f.one_minus_ratio * denoised;
    EXPECT_EQ(x[i], kept + moved);
  }
}

TEST(Sampling, SigmaZero_LeavesTheDenoisedSample) {
  std::vector<float> x = {1.5f};
  const std::vector<float> v = {3.0f};
  euler_step(x, v, 0.0f, 0.0f);
  EXPECT_EQ(x[0], 1.5f);
}

TEST(Sampling, VelocityOfOtherLength_IsRefused) {
  std::vector<float> x(3);
  const std::vector<float> v(2);
  EXPECT_THROW(euler_step(x, v, 1.0f, 0.5f), Error);
}

}  // namespace
}  // namespace h3::dit
