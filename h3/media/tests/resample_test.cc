// Sample rate conversion against published values and against its definition in double.
#include "h3/media/resample.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numbers>
#include <numeric>

#include "h3/media/tests/media_test_util.h"

namespace h3::media {
namespace {

using testing::refusal;
using testing::tone;

TEST(Resample, ImpulseFrom48k_HasThePublishedValues) {
  std::vector<float> impulse(60, 0.0f);
  impulse[0] = 1;
  const auto out = resample_sinc(impulse, 48000, 32000);
  ASSERT_EQ(out.size(), 40u);
  EXPECT_FLOAT_EQ(out[0], 0.66f);
  EXPECT_NEAR(out[1], 0.00622774707, 1e-9);
  EXPECT_NEAR(out[2], -0.00502682896, 1e-9);
  EXPECT_NEAR(out[3], 0.00338068092, 1e-9);
}

TEST(Resample, Lengths_AreRoundedUp) {
  for (const auto& [n, from, to, want] : {std::tuple{1, 48000, 32000, 1},
                                          {3, 48000, 32000, 2},
                                          {4, 48000, 32000, 3},
                                          {441, 44100, 32000, 320},
                                          {442, 44100, 32000, 321},
                                          {5, 16000, 32000, 10},
                                          {7, 32000, 32000, 7}}) {
    EXPECT_EQ(resample_sinc(std::vector<float>(static_cast<size_t>(n), 0.5f), from, to).size(),
              static_cast<size_t>(want))
        << n << " " << from << " " << to;
  }
}

TEST(Resample, Tone_KeepsFrequencyAndLevel) {
  for (const int from : {8000, 16000, 22050, 44100, 48000, 96000, 44099}) {
    const auto out = resample_sinc(tone(from, 440, from), from, 32000);
    const auto want = tone(32000, 440, 32000);
    double worst = 0;
    for (size_t i = 2000; i < 30000; ++i) {
      worst = std::max(worst, std::abs(static_cast<double>(out[i]) - want[i]));
    }
    EXPECT_LT(worst, 5e-3) << from;
  }
}

// The sum over the whole window, as a direct reading of the definition.
TEST(Resample, AnySignal_EqualsTheDefinition) {
  std::vector<float> x(700);
  uint32_t state = 20261130;
  for (float& v : x) {
    state = state * 1664525u + 1013904223u;
    v = static_cast<float>(state >> 8) / (1 << 23) - 1;
  }
  for (const auto& [from_rate, to_rate] : {std::pair{44100, 32000}, {24000, 32000}}) {
    const int64_t divisor = std::gcd(from_rate, to_rate);
    const int64_t o = from_rate / divisor, n = to_rate / divisor;
    const double b = 0.99 * static_cast<double>(std::min(o, n));
    const auto reach = static_cast<int64_t>(std::ceil(6.0 * static_cast<double>(o) / b));
    const auto out = resample_sinc(x, from_rate, to_rate);
    for (size_t k = 0; k < out.size(); k += 7) {
      const int64_t frame = static_cast<int64_t>(k) / n, j = static_cast<int64_t>(k) % n;
      double sum = 0;
      for (int64_t i = -reach; i < reach + o; ++i) {
        const int64_t at = frame * o + i;
        if (at < 0 || at >= static_cast<int64_t>(x.size())) continue;
        double t = b * (static_cast<double>(i) / static_cast<double>(o) -
                        static_cast<double>(static_cast<float>(j) / static_cast<float>(n)));
        t = std::clamp(t, -6.0, 6.0);
        const double window = std::pow(std::cos(std::numbers::pi * t / 12), 2);
        const double sinc = t == 0 ? 1 : std::sin(std::numbers::pi * t) / (std::numbers::pi * t);
        sum += sinc * window * b / static_cast<double>(o) * x[static_cast<size_t>(at)];
      }
      EXPECT_NEAR(out[k], sum, 1e-6) << from_rate << " sample " << k;
    }
  }
}

TEST(Resample, NoSamplesOrRates_AreRefused) {
  refusal(ErrorCode::kInvalidArgument, [] { resample_sinc({}, 48000, 32000); });
  refusal(ErrorCode::kInvalidArgument, [] { resample_sinc({1}, 0, 32000); });
  refusal(ErrorCode::kInvalidArgument, [] { resample_sinc({1}, 48000, -1); });
}

}  // namespace
}  // namespace h3::media
