// Real sizes of the catalogue: too slow for the fast label.
#include <gtest/gtest.h>

#include <cmath>

#include "tessera/quality.h"
#include "tessera/router.h"
#include "tessera/tests/support/attend_case.h"

namespace tessera {
namespace {

using testing::AttendCase;
using testing::is_ok;
using testing::on;
using testing::Random;

double cosine_to(const AttendCase& c, const testing::Tensor4& reference) {
  ErrorStats stats;
  EXPECT_TRUE(is_ok(compare_outputs(c.out.view(), reference.view(), &stats)));
  EXPECT_EQ(stats.non_finite, 0);
  return stats.cosine;
}

TEST(Large, FC1_LongPartialLastBlocks) {
  for (int64_t tokens : {4033, 8229}) {
    AttendCase c({.sq = tokens, .sk = tokens, .dtype = Dtype::kBf16});
    c.fill_uniform();
    const float last = round_bf16(static_cast<float>(tokens + 1));
    c.v.fill([&](const auto& at) { return at[1] == tokens - 1 ? last : 1.0f; });
    const double e = (double(tokens - 1) + last) / double(tokens);
    Plan plan;
    ASSERT_TRUE(is_ok(full_plan(single_document(tokens, tokens), 1, 2, &plan)));
    for (const auto& mask : {std::optional<PlanView>(), std::optional(plan.view())}) {
      ASSERT_TRUE(is_ok(c.run(mask, on("cpu_highway"))));
      testing::for_each_index<4>(c.out.size(), [&](const auto& at) {
        ASSERT_LE(std::abs(c.out.get(at) - e), e * 0x1p-8) << "S " << tokens;
      });
    }
  }
}

TEST(Large, FullBudget8192And8229_EqualDense_K1K2) {
  Random random(testing::test_seed(161));
  for (int64_t tokens : {8192, 8192 + 37}) {
    AttendCase c({.sq = tokens, .sk = tokens, .heads = 1, .kv_heads = 1, .dtype = Dtype::kBf16});
    c.fill_random(random, 2);
    ASSERT_TRUE(is_ok(c.run(std::nullopt, on("cpu_highway"))));
    const auto dense = c.out.bits();
    RouteParams p;
    p.q = c.q.view();
    p.k = c.k.view();
    p.config.budget.sparsity = 1e-6;
    Plan plan;
    ASSERT_TRUE(is_ok(route(p, {}, &plan)));
    EXPECT_EQ(plan.count[0], (tokens + 63) / 64);
    ASSERT_TRUE(is_ok(c.run(plan.view(), on("cpu_highway"))));
    EXPECT_EQ(c.out.bits(), dense);
  }
}

TEST(Large, SparseRowsOf4096_MatchTheReferenceKernel) {
  Random random(testing::test_seed(162));
  AttendCase c({.sq = 4096, .sk = 4131, .heads = 1, .kv_heads = 1, .dtype = Dtype::kBf16});
  c.fill_random(random, 2);
  RouteParams p;
  p.q = c.q.view();
  p.k = c.k.view();
  Plan plan;
  ASSERT_TRUE(is_ok(route(p, {}, &plan)));
  ASSERT_TRUE(is_ok(c.run(plan.view(), on("cpu_reference"))));
  const testing::Tensor4 reference = c.out;
  ASSERT_TRUE(is_ok(c.run(plan.view(), on("cpu_highway"))));
  ErrorStats stats;
  ASSERT_TRUE(is_ok(compare_outputs(c.out.view(), reference.view(), &stats)));
  EXPECT_LE(stats.relative_l2, 2e-3) << "at most one bf16 rounding apart";
}

TEST(Large, Packed8192And512_EachDocumentLikeAlone_G5) {
  Random random(testing::test_seed(163));
  AttendCase c({.sq = 8704, .sk = 8704, .heads = 1, .kv_heads = 1, .dtype = Dtype::kBf16});
  c.fill_random(random, 2);
  c.cu = {0, 8192, 8704};
  ASSERT_TRUE(is_ok(c.run(std::nullopt, on("cpu_highway"))));
  const testing::Tensor4 packed = c.out;
  c.cu = std::vector<int32_t>();
  ASSERT_TRUE(is_ok(c.run(std::nullopt, on("cpu_highway"))));
  const testing::Tensor4 joint = c.out;
  for (const auto& [first, length] : {std::pair{0, 8192}, std::pair{8192, 512}}) {
    AttendCase alone(
        {.sq = length, .sk = length, .heads = 1, .kv_heads = 1, .dtype = Dtype::kBf16});
    const auto rows = [first = first](const testing::Tensor4& from) {
      return [&from, first](const std::array<int64_t, 4>& at) {
        return from.get({0, at[1] + first, at[2], at[3]});
      };
    };
    alone.q.fill(rows(c.q));
    alone.k.fill(rows(c.k));
    alone.v.fill(rows(c.v));
    ASSERT_TRUE(is_ok(alone.run(std::nullopt, on("cpu_highway"))));
    testing::Tensor4 part(alone.out.size(), Dtype::kBf16), mixed = part;
    part.fill(rows(packed));
    mixed.fill(rows(joint));
    EXPECT_EQ(part.bits(), alone.out.bits());
    if (length == 512) {
      EXPECT_LT(cosine_to(alone, mixed), 0.9) << "control: joint attention";
    }
  }
}

}  // namespace
}  // namespace tessera
