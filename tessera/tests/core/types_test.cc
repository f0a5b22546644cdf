// bf16 and f16 conversions: every pattern, and rounding against a rule that knows only the values
// of the two neighbours.
#include "tessera/types.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "tessera/tests/support/random.h"

namespace tessera {
namespace {

using testing::Random;

constexpr float kInf = std::numeric_limits<float>::infinity();

struct HalfFormat {
  int exponent_bits, mantissa_bits;
  float (*widen)(uint16_t);
  uint16_t (*narrow)(float);
};

constexpr HalfFormat kBf16Format{8, 7, bf16_to_f32, f32_to_bf16};
constexpr HalfFormat kF16Format{5, 10, f16_to_f32, f32_to_f16};

/// The value of a pattern from the definition of the format.
double value_of(const HalfFormat& f, uint16_t bits) {
  const int exponent = bits >> f.mantissa_bits & ((1 << f.exponent_bits) - 1);
  const int mantissa = bits & ((1 << f.mantissa_bits) - 1);
  const int bias = (1 << (f.exponent_bits - 1)) - 1;
  const double sign = bits & 0x8000 ? -1 : 1;
  if (exponent == (1 << f.exponent_bits) - 1) {
    return mantissa ? std::numeric_limits<double>::quiet_NaN() : sign * double{kInf};
  }
  const double scaled = exponent == 0 ? mantissa : mantissa + (1 << f.mantissa_bits);
  return sign * std::ldexp(scaled, std::max(exponent, 1) - bias - f.mantissa_bits);
}

/// Nearest pattern, ties to the even one; walks the positive patterns in order of value.
uint16_t nearest_even(const HalfFormat& f, float value) {
  const uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  const double x = std::abs(static_cast<double>(value));
  const uint16_t infinity = static_cast<uint16_t>(((1 << f.exponent_bits) - 1) << f.mantissa_bits);
  uint16_t low = 0, high = infinity;  // value_of(low) <= x; binary search on the ordered patterns
  while (high - low > 1) {
    const uint16_t mid = static_cast<uint16_t>((low + high) / 2);
    (value_of(f, mid) <= x ? low : high) = mid;
  }
  if (x == double{kInf}) return sign | infinity;
  // Past the largest finite value the next step of the same size stands for infinity.
  const double below = value_of(f, low);
  const double above =
      high == infinity ? below + (below - value_of(f, low - 1)) : value_of(f, high);
  const double to_low = x - below, to_high = above - x;
  const bool up = to_low > to_high || (to_low == to_high && low % 2 == 1);
  return static_cast<uint16_t>(sign | (up ? high : low));
}

void check_all_patterns(const HalfFormat& f) {
  for (int bits = 0; bits < 65536; ++bits) {
    const float wide = f.widen(static_cast<uint16_t>(bits));
    const double want = value_of(f, static_cast<uint16_t>(bits));
    if (std::isnan(want)) {
      ASSERT_TRUE(std::isnan(wide)) << bits;
      ASSERT_TRUE(std::isnan(f.widen(f.narrow(wide)))) << bits;
      ASSERT_EQ(f.narrow(wide) & 0x8000, bits & 0x8000) << bits;
    } else {
      ASSERT_EQ(wide, want) << bits;
      ASSERT_EQ(std::signbit(wide), (bits & 0x8000) != 0) << bits;
      ASSERT_EQ(f.narrow(wide), bits);
    }
  }
}

void check_rounding(const HalfFormat& f, uint64_t seed) {
  std::vector<float> values{0.0f,
                            -0.0f,
                            kInf,
                            -kInf,
                            65504.0f,
                            65519.996f,
                            65520.0f,
                            65536.0f,
                            std::numeric_limits<float>::max(),
                            std::numeric_limits<float>::denorm_min(),
                            0x1p-24f,
                            0x1p-25f,
                            std::nextafter(0x1p-25f, 1.0f),
                            0x1.8p-24f,
                            0x1p-14f,
                            0x1.ffcp-15f};
  // Every finite pattern's midpoint to its neighbour, and the floats just beside the midpoint.
  for (int bits = 0; bits < 0x7fff; ++bits) {
    const double low = value_of(f, static_cast<uint16_t>(bits));
    const double high = value_of(f, static_cast<uint16_t>(bits + 1));
    if (!std::isfinite(low) || !std::isfinite(high)) continue;
    const float middle = static_cast<float>((low + high) / 2);
    for (float x : {middle, std::nextafter(middle, 0.0f), std::nextafter(middle, kInf)}) {
      values.push_back(bits % 2 ? x : -x);
    }
  }
  Random random(testing::test_seed(seed));
  for (int i = 0; i < 20000; ++i) {
    const float x = std::bit_cast<float>(static_cast<uint32_t>(random.next()));
    if (!std::isnan(x)) values.push_back(x);
  }
  for (float x : values) {
    ASSERT_EQ(f.narrow(x), nearest_even(f, x)) << std::hexfloat << x;
  }
}

TEST(Bf16, EveryPattern_WidensToItsValueAndBack) { check_all_patterns(kBf16Format); }
TEST(F16, EveryPattern_WidensToItsValueAndBack) { check_all_patterns(kF16Format); }
TEST(Bf16, TiesOverflowSubnormals_RoundToNearestEven) { check_rounding(kBf16Format, 11); }
TEST(F16, TiesOverflowSubnormals_RoundToNearestEven) { check_rounding(kF16Format, 12); }

TEST(Bf16, NanWithLowMantissaOnly_StaysNan) {
  // Cutting the low half would leave an infinity.
  EXPECT_TRUE(std::isnan(bf16_to_f32(f32_to_bf16(std::bit_cast<float>(0x7f800001u)))));
  EXPECT_TRUE(std::isnan(bf16_to_f32(f32_to_bf16(std::bit_cast<float>(0xffffffffu)))));
  EXPECT_TRUE(std::isnan(f16_to_f32(f32_to_f16(std::bit_cast<float>(0x7f800001u)))));
}

TEST(Dtype, EveryValue_HasNameAndSize) {
  const std::vector<std::pair<std::string, size_t>> want{
      {"bf16", 2}, {"f16", 2}, {"f32", 4}, {"f64", 8}, {"i8", 1},  {"u8", 1}, {"bool", 1},
      {"i16", 2},  {"u16", 2}, {"i32", 4}, {"u32", 4}, {"i64", 8}, {"u64", 8}};
  for (size_t i = 0; i < want.size(); ++i) {
    EXPECT_EQ(dtype_name(static_cast<Dtype>(i)), want[i].first);
    EXPECT_EQ(dtype_bytes(static_cast<Dtype>(i)), want[i].second);
  }
}

}  // namespace
}  // namespace tessera
