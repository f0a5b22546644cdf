// Merging two partial results by their log-sum-exp.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tessera/tests/support/attend_case.h"

namespace tessera {
namespace {

using testing::AttendCase;
using testing::BlockLists;
using testing::expect_refusal;
using testing::is_ok;
using testing::kernels;
using testing::on;
using testing::Random;

constexpr float kInf = std::numeric_limits<float>::infinity();

MergeParams merge_of(const AttendCase& a, const AttendCase& b, const AttendCase& out) {
  return {a.out.view(), b.out.view(), out.out.view(), a.lse.view(), b.lse.view(), out.lse.view()};
}

/// Every row of `a` gets some blocks, `b` the rest; some rows have all in one, some none at all.
void split_lists(Random& random, BlockLists* joint, BlockLists* a, BlockLists* b) {
  joint->fill_random(random, 0, joint->key_blocks);
  for (size_t r = 0; r < joint->rows.size(); ++r) {
    for (int32_t j : joint->rows[r]) {
      const bool to_a = r % 5 == 1 || (r % 5 != 2 && random.chance(0.5));
      (to_a ? a : b)->rows[r].push_back(j);
    }
  }
  joint->rows[0].clear();
  a->rows[0].clear();
  b->rows[0].clear();
}

TEST(Merge, TwoPlans_EqualTheJointOne) {
  Random random(testing::test_seed(101));
  AttendCase joint({.batch = 2, .sq = 330, .sk = 400, .heads = 2, .kv_heads = 2});
  joint.fill_random(random, 2);
  BlockLists all(2, 2, 330, 400), first(2, 2, 330, 400), second(2, 2, 330, 400);
  split_lists(random, &all, &first, &second);
  const Plan plan = all.plan(), plan_a = first.plan(), plan_b = second.plan();
  const auto oracle = joint.oracle(all.keys(400));
  for (const std::string& kernel : kernels()) {
    SCOPED_TRACE(kernel);
    ASSERT_TRUE(is_ok(joint.run(plan.view(), on(kernel))));
    AttendCase a = joint, b = joint, merged = joint;
    ASSERT_TRUE(is_ok(a.run(plan_a.view(), on(kernel))));
    ASSERT_TRUE(is_ok(b.run(plan_b.view(), on(kernel))));
    merged.out.poison();
    merged.lse.poison();
    ASSERT_TRUE(is_ok(merge_partials(merge_of(a, b, merged), on(kernel))));
    testing::expect_matches(merged, oracle);
    testing::for_each_index<4>(merged.out.size(), [&](const auto& at) {
      ASSERT_NEAR(merged.out.get(at), joint.out.get(at), 1e-5);
    });
    const auto want = merged.out.bits(), want_lse = merged.lse.bits();
    for (int threads : {1, 3, 7}) {
      ASSERT_TRUE(is_ok(merge_partials(merge_of(a, b, merged), on(kernel, threads))));
      EXPECT_EQ(merged.out.bits(), want);
    }
    // In place over a, then over b.
    AttendCase a_copy = a, b_copy = b;
    ASSERT_TRUE(is_ok(merge_partials(merge_of(a_copy, b, a_copy), {})));
    EXPECT_EQ(a_copy.out.bits(), want);
    EXPECT_EQ(a_copy.lse.bits(), want_lse);
    ASSERT_TRUE(is_ok(merge_partials(merge_of(a, b_copy, b_copy), {})));
    EXPECT_EQ(b_copy.out.bits(), want);
    EXPECT_EQ(b_copy.lse.bits(), want_lse);
  }
}

/// One row, one head: out_a = 1, out_b = 3 with the given log-sum-exps.
struct TinyMerge {
  AttendCase a{{.sq = 1, .sk = 1, .heads = 1, .kv_heads = 1}}, b = a, out = a;
  TinyMerge(float lse_a, float lse_b) {
    a.out.fill([](const auto&) { return 1.0f; });
    b.out.fill([](const auto&) { return 3.0f; });
    a.lse.set({0, 0, 0}, lse_a);
    b.lse.set({0, 0, 0}, lse_b);
  }
  float value() const { return out.out.get({0, 0, 0, 100}); }
  float lse() const { return out.lse.get({0, 0, 0}); }
  void run() { ASSERT_TRUE(is_ok(merge_partials(merge_of(a, b, out), {}))); }
};

TEST(Merge, HandCases_WeighByExpOfLse) {
  TinyMerge equal(5, 5);
  equal.run();
  EXPECT_FLOAT_EQ(equal.value(), 2.0f);
  EXPECT_FLOAT_EQ(equal.lse(), 5 + std::log(2.0f));
  TinyMerge third(0, std::log(2.0f));
  third.run();
  EXPECT_NEAR(third.value(), 7.0f / 3, 1e-6);
  EXPECT_NEAR(third.lse(), std::log(3.0f), 1e-6);
  TinyMerge far(-500, 500);  // exp of either alone would overflow or vanish
  far.run();
  EXPECT_FLOAT_EQ(far.value(), 3.0f);
  EXPECT_FLOAT_EQ(far.lse(), 500.0f);
}

TEST(Merge, EmptySides_LeaveTheOtherUntouched) {
  TinyMerge only_a(2.5f, -kInf);
  only_a.b.out.poison();  // an unused buffer may hold anything
  only_a.run();
  EXPECT_EQ(only_a.value(), 1.0f);
  EXPECT_EQ(only_a.lse(), 2.5f);
  TinyMerge only_b(-kInf, -7.0f);
  only_b.a.out.poison();
  only_b.run();
  EXPECT_EQ(only_b.value(), 3.0f);
  EXPECT_EQ(only_b.lse(), -7.0f);
  TinyMerge neither(-kInf, -kInf);
  neither.a.out.poison();
  neither.run();
  EXPECT_EQ(neither.value(), 0.0f);
  EXPECT_EQ(neither.lse(), -kInf);
}

TEST(Merge, NanLse_GivesNan) {
  for (bool in_a : {true, false}) {
    TinyMerge t(in_a ? std::nanf("") : 1, in_a ? 1 : std::nanf(""));
    t.run();
    EXPECT_TRUE(std::isnan(t.value())) << in_a;
    EXPECT_TRUE(std::isnan(t.lse())) << in_a;
  }
}

TEST(Merge, MixedDtypes_RoundOnce) {
  AttendCase a({.sq = 1, .sk = 1, .heads = 1, .kv_heads = 1, .dtype = Dtype::kBf16});
  AttendCase b({.sq = 1, .sk = 1, .heads = 1, .kv_heads = 1, .dtype = Dtype::kF16});
  AttendCase out({.sq = 1, .sk = 1, .heads = 1, .kv_heads = 1, .dtype = Dtype::kF32});
  a.out.fill([](const auto&) { return 1.0078125f; });
  b.out.fill([](const auto&) { return 1.0009765625f; });
  a.lse.set({0, 0, 0}, 0);
  b.lse.set({0, 0, 0}, 0);
  ASSERT_TRUE(is_ok(merge_partials(merge_of(a, b, out), {})));
  EXPECT_EQ(out.out.get({0, 0, 0, 3}), (1.0078125f + 1.0009765625f) / 2);
}

TEST(Merge, BadInput_IsRefused) {
  const TinyMerge t(0, 0);
  AttendCase wide({.sq = 2, .sk = 1, .heads = 1, .kv_heads = 1});
  const auto refuse = [&](auto change, std::vector<std::string> parts) {
    MergeParams p = merge_of(t.a, t.b, t.out);
    change(p);
    expect_refusal(merge_partials(p, {}), StatusCode::kInvalidArgument, parts);
  };
  refuse([&](MergeParams& p) { p.out_b = wide.out.view(); },
         {"out_b [1, 2, 1, 128]", "all three must be equal"});
  refuse([&](MergeParams& p) { p.out = wide.out.view(); }, {"out [1, 2, 1, 128]"});
  refuse([](MergeParams& p) { p.lse.data = nullptr; }, {"f32 [1, 1, 1]", "without data"});
  refuse([&](MergeParams& p) { p.lse_a = wide.lse.view(); }, {"got f32 [1, 1, 2]"});
  refuse([](MergeParams& p) { p.lse_b.dtype = Dtype::kF16; }, {"got f16"});
  refuse([](MergeParams& p) { p.out_a.data = nullptr; }, {"out_a has no data"});
  refuse([](MergeParams& p) { p.out_b.dtype = Dtype::kI8; }, {"out_b is i8"});
  refuse([](MergeParams& p) { p.out.stride[3] = 2; }, {"out has a last stride of 2"});
  Execution exec;
  exec.device.kind = DeviceKind::kCuda;
  expect_refusal(merge_partials(merge_of(t.a, t.b, t.out), exec), StatusCode::kUnsupported,
                 {"cuda:0"});
}

}  // namespace
}  // namespace tessera
