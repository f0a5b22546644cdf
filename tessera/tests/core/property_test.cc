// Random shapes, layouts and lists: every form of the same call gives the same bits, and they agree
// with fp64. The seed is printed; TESSERA_TEST_SEED repeats or varies a run.
#include <gtest/gtest.h>

#include <cmath>

#include "tessera/router.h"
#include "tessera/tests/support/attend_case.h"

namespace tessera {
namespace {

using testing::AttendCase;
using testing::BlockLists;
using testing::CaseLayouts;
using testing::CaseShape;
using testing::is_ok;
using testing::kernels;
using testing::Layout4;
using testing::on;
using testing::Random;

Layout4 random_layout(Random& random) {
  static const std::array<std::array<int, 4>, 6> kOrders{
      {{0, 1, 2, 3}, {0, 2, 1, 3}, {1, 0, 2, 3}, {1, 2, 0, 3}, {2, 0, 1, 3}, {2, 1, 0, 3}}};
  Layout4 layout;
  layout.order = kOrders[random.integer(0, 5)];
  for (int i = 0; i < 4; ++i) layout.extra[i] = random.chance(0.3) ? random.integer(1, 5) : 0;
  for (int i = 0; i < 3; ++i) {
    layout.step[i] = random.chance(0.2) ? 2 : 1;
    layout.reversed[i] = random.chance(0.2);
  }
  return layout;
}

CaseShape random_shape(Random& random) {
  CaseShape s;
  s.batch = random.integer(1, 2);
  s.sq = random.integer(1, 330);
  s.sk = random.chance(0.5) ? s.sq : random.integer(1, 330);
  s.kv_heads = random.integer(1, 2);
  s.heads = s.kv_heads * random.integer(1, 2);
  s.dim = random.chance(0.3) ? 64 : 128;
  const Dtype dtypes[] = {Dtype::kF32, Dtype::kBf16, Dtype::kF16};
  s.dtype = dtypes[random.integer(0, 2)];
  return s;
}

CaseLayouts random_layouts(Random& random) {
  CaseLayouts layouts{random_layout(random),
                      random_layout(random),
                      random_layout(random),
                      random_layout(random),
                      {}};
  const std::array<std::array<int, 3>, 3> orders{{{0, 1, 2}, {0, 2, 1}, {2, 1, 0}}};
  layouts.lse.order = orders[random.integer(0, 2)];
  layouts.lse.extra[2] = random.integer(0, 3);
  return layouts;
}

std::string text_of(const CaseShape& s, int n) {
  return "case " + std::to_string(n) + ": B " + std::to_string(s.batch) + " Sq " +
         std::to_string(s.sq) + " Sk " + std::to_string(s.sk) + " H " + std::to_string(s.heads) +
         "/" + std::to_string(s.kv_heads) + " D " + std::to_string(s.dim) + " " +
         std::string(dtype_name(s.dtype));
}

TEST(Property, AnyShapeLayoutAndLists_MatchFp64InEveryForm) {
  Random random(testing::test_seed(91));
  for (int n = 0; n < 14; ++n) {
    const CaseShape shape = random_shape(random);
    SCOPED_TRACE(text_of(shape, n));
    AttendCase c(shape, random_layouts(random));
    c.fill_random(random, 1.5);
    BlockLists lists(shape.batch, shape.heads, shape.sq, shape.sk);
    lists.fill_random(random, 0, lists.key_blocks);
    const Plan plan = lists.plan(lists.key_blocks + 1, 1 << 30);
    const auto oracle = c.oracle(lists.keys(shape.sk));
    BlockLists permuted = lists;
    for (auto& row : permuted.rows) random.shuffle(row);
    const Plan other = permuted.plan();
    const std::vector<uint32_t> words = lists.bitmap();
    for (const std::string& kernel : kernels()) {
      SCOPED_TRACE(kernel);
      ASSERT_TRUE(is_ok(c.run(plan.view(), on(kernel))));
      testing::expect_matches(c, oracle);
      const auto bits = c.out.bits(), lse = c.lse.bits();
      ASSERT_TRUE(is_ok(c.run(other.view(), on(kernel))));
      EXPECT_EQ(c.out.bits(), bits) << "order of ids";
      EXPECT_EQ(c.lse.bits(), lse) << "order of ids";
      ASSERT_TRUE(is_ok(c.run(lists.bitmap_view(words), on(kernel))));
      EXPECT_EQ(c.out.bits(), bits) << "bitmap";
      EXPECT_EQ(c.lse.bits(), lse) << "bitmap";
    }
  }
}

TEST(Property, AnyLayout_BitEqualToContiguous) {
  Random random(testing::test_seed(92));
  for (int n = 0; n < 20; ++n) {
    const CaseShape shape = random_shape(random);
    SCOPED_TRACE(text_of(shape, n));
    AttendCase flat(shape), strided(shape, random_layouts(random));
    flat.fill_random(random);
    strided.q.copy_from(flat.q);
    strided.k.copy_from(flat.k);
    strided.v.copy_from(flat.v);
    ASSERT_TRUE(is_ok(flat.run(std::nullopt, on("cpu_highway"))));
    ASSERT_TRUE(is_ok(strided.run(std::nullopt, on("cpu_highway"))));
    EXPECT_EQ(strided.out.bits(), flat.out.bits());
    EXPECT_EQ(strided.lse.bits(), flat.lse.bits());
    RouteParams a, b;
    a.q = flat.q.view();
    a.k = flat.k.view();
    b.q = strided.q.view();
    b.k = strided.k.view();
    a.config.budget.granularity = b.config.budget.granularity = 1;
    Plan plan_a, plan_b;
    ASSERT_TRUE(is_ok(route(a, {}, &plan_a)));
    ASSERT_TRUE(is_ok(route(b, {}, &plan_b)));
    EXPECT_EQ(plan_a.index, plan_b.index);
    EXPECT_EQ(plan_a.mass, plan_b.mass);
  }
}

TEST(Property, FullLists_EqualDenseBitForBit) {
  Random random(testing::test_seed(93));
  for (int n = 0; n < 12; ++n) {
    CaseShape shape = random_shape(random);
    shape.batch = 1;
    SCOPED_TRACE(text_of(shape, n));
    AttendCase c(shape);
    c.fill_random(random);
    BlockLists lists(shape.batch, shape.heads, shape.sq, shape.sk);
    lists.fill_all();
    for (auto& row : lists.rows) random.shuffle(row);
    const Plan plan = lists.plan();
    for (const std::string& kernel : kernels()) {
      if (n >= 3 && kernel == "cpu_reference") continue;
      ASSERT_TRUE(is_ok(c.run(std::nullopt, on(kernel))));
      const auto bits = c.out.bits(), lse = c.lse.bits();
      ASSERT_TRUE(is_ok(c.run(plan.view(), on(kernel))));
      EXPECT_EQ(c.out.bits(), bits) << kernel;
      EXPECT_EQ(c.lse.bits(), lse) << kernel;
    }
  }
}

TEST(Property, ThreadCounts_GiveTheSameBits) {
  Random random(testing::test_seed(94));
  AttendCase c(
      {.batch = 2, .sq = 330, .sk = 450, .heads = 4, .kv_heads = 2, .dtype = Dtype::kBf16});
  c.fill_random(random);
  BlockLists lists(2, 4, 330, 450);
  lists.fill_random(random, 0, 2);
  const Plan plan = lists.plan();
  for (const std::string& kernel : kernels()) {
    ASSERT_TRUE(is_ok(c.run(plan.view(), on(kernel, 1))));
    const auto bits = c.out.bits(), lse = c.lse.bits();
    for (int threads : {2, 3, 7, 0}) {
      ASSERT_TRUE(is_ok(c.run(plan.view(), on(kernel, threads))));
      EXPECT_EQ(c.out.bits(), bits) << kernel << " threads " << threads;
      EXPECT_EQ(c.lse.bits(), lse) << kernel << " threads " << threads;
    }
  }
}

TEST(Property, RowAndHeadAlone_GiveTheSameBitsAsTogether) {
  // A result must not depend on what shares a work item with it.
  Random random(testing::test_seed(95));
  AttendCase c({.sq = 300, .sk = 300, .heads = 2, .kv_heads = 2});
  c.fill_random(random);
  BlockLists lists(1, 2, 300, 300);
  lists.fill_random(random, 1, 4);
  const Plan plan = lists.plan();
  for (const std::string& kernel : kernels()) {
    ASSERT_TRUE(is_ok(c.run(plan.view(), on(kernel))));
    for (int64_t h = 0; h < 2; ++h) {
      for (int64_t i = 0; i < 5; ++i) {
        const int64_t rows = std::min<int64_t>(64, 300 - i * 64);
        BlockLists one(1, 1, rows, 300);
        one.rows[0] = lists.at(0, h, i);
        const Plan single = one.plan();
        AttentionParams p = c.params(single.view());
        testing::Tensor4 out({1, rows, 1, 128}, Dtype::kF32);
        p.q.size = {1, rows, 1, 128};
        p.q.data = static_cast<float*>(p.q.data) + offset_of<4>(p.q, {0, i * 64, h, 0});
        p.k.size[2] = p.v.size[2] = 1;
        p.k.data = static_cast<float*>(p.k.data) + h * p.k.stride[2];
        p.v.data = static_cast<float*>(p.v.data) + h * p.v.stride[2];
        p.out = out.view();
        p.lse = {};
        ASSERT_TRUE(is_ok(attend(p, on(kernel))));
        testing::for_each_index<4>(out.size(), [&](const auto& at) {
          ASSERT_EQ(out.get(at), c.out.get({0, at[1] + i * 64, h, at[3]})) << kernel;
        });
      }
    }
  }
}

TEST(Property, NanInAnInput_ReachesExactlyTheRowsThatReadIt) {
  Random random(testing::test_seed(96));
  for (Dtype dtype : {Dtype::kF32, Dtype::kBf16, Dtype::kF16}) {
    for (int which = 0; which < 3; ++which) {
      AttendCase c({.sq = 330, .sk = 330, .heads = 2, .kv_heads = 1, .dtype = dtype});
      c.fill_random(random);
      BlockLists lists(1, 2, 330, 330);
      lists.fill_random(random, 1, 4);
      const Plan plan = lists.plan();
      const int64_t token = random.integer(0, 329), channel = random.integer(0, 127);
      testing::Tensor4& target = which == 0 ? c.q : which == 1 ? c.k : c.v;
      target.set({0, token, 0, channel}, std::nanf(""));
      for (const std::string& kernel : kernels()) {
        ASSERT_TRUE(is_ok(c.run(plan.view(), on(kernel))));
        testing::for_each_index<4>(c.out.size(), [&](const auto& at) {
          const auto& list = lists.at(0, at[2], at[1] / 64);
          const bool reads = which == 0
                                 ? at[1] == token && at[2] == 0
                                 : std::find(list.begin(), list.end(), token / 64) != list.end();
          const bool hit = reads && (which != 2 || at[3] == channel);
          ASSERT_EQ(std::isnan(c.out.get(at)), hit)
              << kernel << " input " << which << " row " << at[1] << " head " << at[2];
          if (which != 2) {
            ASSERT_EQ(std::isnan(c.lse.get({0, at[2], at[1]})), hit) << kernel;
          }
        });
      }
    }
  }
}

TEST(Property, FastKernel_AgreesWithTheReference) {
  Random random(testing::test_seed(97));
  for (int n = 0; n < 8; ++n) {
    CaseShape shape = random_shape(random);
    shape.dtype = Dtype::kF32;
    SCOPED_TRACE(text_of(shape, n));
    AttendCase c(shape);
    c.fill_random(random, 2);
    ASSERT_TRUE(is_ok(c.run(std::nullopt, on("cpu_reference"))));
    const std::vector<double> want = c.out.values();
    ASSERT_TRUE(is_ok(c.run(std::nullopt, on("cpu_highway"))));
    const std::vector<double> got = c.out.values();
    for (size_t i = 0; i < want.size(); ++i) ASSERT_NEAR(got[i], want[i], 2e-5);
  }
}

}  // namespace
}  // namespace tessera
