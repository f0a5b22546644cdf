// Every compiled instruction set this CPU can run, not only the best one.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <set>

#include "hwy/targets.h"
#include "tessera/device.h"
#include "tessera/quality.h"
#include "tessera/src/cpu/fast_kernels.h"
#include "tessera/tests/support/router_case.h"

namespace tessera {
namespace {

using testing::AttendCase;
using testing::BlockLists;
using testing::is_ok;
using testing::on;
using testing::Random;

/// Calls body() with the dispatcher pinned to each usable target in turn.
template <class Body>
void for_each_target(Body body) {
  const int64_t usable = cpu::fast_compiled_targets() & hwy::SupportedTargets();
  ASSERT_NE(usable, 0);
  std::set<std::string> ran;
  for (int64_t rest = usable; rest != 0; rest &= rest - 1) {
    const int64_t target = rest & -rest;
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
    SCOPED_TRACE(std::string("target ") + hwy::TargetName(target));
    ASSERT_EQ(cpu::fast_target_name(), std::string(hwy::TargetName(target)));
    ran.insert(cpu::fast_target_name());
    body();
  }
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  EXPECT_EQ(ran.size(), static_cast<size_t>(hwy::PopCount(static_cast<uint64_t>(usable))));
  for (const std::string& name : ran) std::printf("[ TARGET   ] %s\n", name.c_str());
}

TEST(Targets, Attention_EveryTargetMatchesFp64) {
  Random random(testing::test_seed(121));
  for (Dtype dtype : {Dtype::kF32, Dtype::kBf16, Dtype::kF16}) {
    for (int64_t dim : {64, 128}) {
      AttendCase c({.sq = 205, .sk = 171, .dim = dim, .dtype = dtype});
      c.fill_random(random, 2);
      BlockLists lists(1, 2, 205, 171);
      lists.fill_random(random, 0, 3);
      const Plan plan = lists.plan();
      const auto oracle = c.oracle(lists.keys(171));
      for_each_target([&] {
        ASSERT_TRUE(is_ok(c.run(plan.view(), on("cpu_highway"))));
        testing::expect_matches(c, oracle);
      });
    }
  }
}

TEST(Targets, SpecialValues_EveryTargetKeepsThem) {
  // Each f16 and bf16 class through v: subnormals, the largest finite value, infinity, NaN.
  for (Dtype dtype : {Dtype::kF32, Dtype::kBf16, Dtype::kF16}) {
    const float infinity = std::numeric_limits<float>::infinity();
    const std::vector<float> values{0x1p-24f,  0x1.8p-15f, -0x1p-14f, 1.5f,
                                    -65504.0f, infinity,   -infinity, std::nanf("")};
    AttendCase c({.sq = 1, .sk = 1, .heads = 1, .kv_heads = 1, .dtype = dtype});
    c.fill_uniform();
    c.v.fill([&](const auto& at) { return values[at[3] % 8]; });
    for_each_target([&] {
      ASSERT_TRUE(is_ok(c.run(std::nullopt, on("cpu_highway"))));
      for (int64_t d = 0; d < 128; ++d) {
        const float want = c.v.get({0, 0, 0, d}), got = c.out.get({0, 0, 0, d});
        if (std::isnan(want)) {
          EXPECT_TRUE(std::isnan(got)) << dtype_name(dtype) << " channel " << d << " got " << got;
        } else {
          EXPECT_EQ(got, want) << dtype_name(dtype) << " channel " << d;
        }
      }
    });
  }
}

TEST(Targets, Nan_EveryTargetKeepsItInItsRow) {
  Random random(testing::test_seed(122));
  AttendCase c({.sq = 70, .sk = 140, .heads = 1, .kv_heads = 1, .dtype = Dtype::kF16});
  c.fill_random(random);
  c.q.set({0, 3, 0, 17}, std::nanf(""));
  c.q.set({0, 69, 0, 0}, std::nanf(""));
  for_each_target([&] {
    ASSERT_TRUE(is_ok(c.run(std::nullopt, on("cpu_highway"))));
    for (int64_t s = 0; s < 70; ++s) {
      ASSERT_EQ(std::isnan(c.out.get({0, s, 0, 99})), s == 3 || s == 69) << s;
      ASSERT_EQ(std::isnan(c.lse.get({0, 0, s})), s == 3 || s == 69) << s;
    }
  });
}

TEST(Targets, RouterAndBlockMass_EveryTargetMatchesTheReference) {
  Random random(testing::test_seed(123));
  AttendCase c({.sq = 300, .sk = 500, .heads = 2, .kv_heads = 1});
  c.fill_random(random, 1.5);
  RouteParams p;
  p.q = c.q.view();
  p.k = c.k.view();
  ASSERT_TRUE(is_ok(c.run(std::nullopt, on("cpu_reference"))));
  testing::Tensor4 mass({1, 2, 5, 8}, Dtype::kF32), want_mass = mass;
  ASSERT_TRUE(is_ok(block_mass(p.q, p.k, 0, c.lse.view(), want_mass.view(), on("cpu_reference"))));
  for (int n : {1, 2, 4, 8}) {
    p.config.n_q = n;
    p.config.n_k = 8 / n;
    p.config.weight_partial_cells = n > 2;
    testing::RouteBuffers want(p);
    ASSERT_TRUE(is_ok(route(p, on("cpu_reference"), want.outputs())));
    for_each_target([&] {
      testing::RouteBuffers got(p);
      ASSERT_TRUE(is_ok(route(p, on("cpu_highway"), got.outputs())));
      for (size_t i = 0; i < want.scores.size(); ++i) {
        // A pooled mean may round the other way by one bf16 step, which moves a score a little.
        ASSERT_NEAR(got.scores[i], want.scores[i], 2e-3);
      }
      ASSERT_TRUE(is_ok(block_mass(p.q, p.k, 0, c.lse.view(), mass.view(), on("cpu_highway"))));
      testing::for_each_index<4>(
          mass.size(), [&](const auto& at) { ASSERT_NEAR(mass.get(at), want_mass.get(at), 1e-6); });
    });
  }
}

}  // namespace
}  // namespace tessera
