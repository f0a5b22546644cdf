// What a plan keeps and what it costs: mass, recall and error figures against direct computation.
#include "tessera/quality.h"

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
using testing::Tensor3;
using testing::Tensor4;

constexpr StatusCode kInvalid = StatusCode::kInvalidArgument;
constexpr float kInf = std::numeric_limits<float>::infinity();

/// True mass of block j in row s by the definition.
double true_mass(const AttendCase& c, int64_t b, int64_t h, int64_t s, int64_t block) {
  const auto [batch, sk, kv_heads, dim] = c.k.size();
  const int64_t kv = h / (c.q.size()[2] / kv_heads);
  double inside = 0, total = 0;
  for (int64_t key = 0; key < sk; ++key) {
    double dot = 0;
    for (int64_t d = 0; d < dim; ++d) {
      dot += double{c.q.get({b, s, h, d})} * double{c.k.get({b, key, kv, d})};
    }
    const double weight = std::exp(dot / std::sqrt(double(dim)));
    total += weight;
    if (key / 64 == block) inside += weight;
  }
  return inside / total;
}

TEST(BlockMass, AbsurdThreadCount_Runs) {
  AttendCase c({.sq = 70, .sk = 70});
  c.fill_uniform();
  c.v.fill([](const auto&) { return 1.0f; });
  ASSERT_TRUE(is_ok(c.run(std::nullopt, on("cpu_highway"))));
  Tensor4 mass({1, 2, 2, 2}, Dtype::kF32);
  const Execution exec = on("cpu_highway", std::numeric_limits<int>::max());
  ASSERT_TRUE(is_ok(block_mass(c.q.view(), c.k.view(), 0, c.lse.view(), mass.view(), exec)));
  EXPECT_NEAR(mass.get({0, 1, 1, 0}), 64.0 / 70.0, 1e-6);
}

TEST(BlockMass, RaggedGroupedHeads_EqualsBruteForceAndSumsToOne) {
  Random random(testing::test_seed(111));
  AttendCase c({.batch = 2, .sq = 330, .sk = 199, .heads = 2, .kv_heads = 1, .dim = 64});
  c.fill_random(random, 1.5);
  ASSERT_TRUE(is_ok(c.run(std::nullopt, on("cpu_highway"))));
  for (const std::string& kernel : kernels()) {
    Tensor4 mass({2, 2, 6, 4}, Dtype::kF32);
    ASSERT_TRUE(
        is_ok(block_mass(c.q.view(), c.k.view(), 0, c.lse.view(), mass.view(), on(kernel))));
    testing::for_each_index<3>({2, 2, 6}, [&](const auto& at) {
      double sum = 0;
      for (int64_t j = 0; j < 4; ++j) sum += mass.get({at[0], at[1], at[2], j});
      EXPECT_NEAR(sum, 1.0, 1e-5) << kernel;
    });
    for (const auto& [b, h, i, j] : {std::array{0, 0, 0, 0}, std::array{1, 1, 5, 3},
                                     std::array{0, 1, 4, 2}, std::array{1, 0, 5, 0}}) {
      double want = 0;
      const int64_t end = std::min(330, i * 64 + 64);
      for (int64_t s = i * 64; s < end; ++s) want += true_mass(c, b, h, s, j);
      EXPECT_NEAR(mass.get({b, h, i, j}), want / double(end - i * 64), 1e-5) << kernel;
    }
    EXPECT_TRUE(mass.guards_intact());
  }
}

TEST(BlockMass, BadInput_IsRefused) {
  AttendCase c({.sq = 70, .sk = 130});
  c.fill_uniform();
  Tensor4 mass({1, 2, 2, 3}, Dtype::kF32);
  const auto call = [&](auto change) {
    Bshd q = c.q.view(), k = c.k.view();
    TensorView<3> lse = c.lse.view();
    TensorView<4> to = mass.view();
    change(q, k, lse, to);
    return block_mass(q, k, 0, lse, to, {});
  };
  expect_refusal(call([](auto&, auto&, auto& lse, auto&) { lse.size[2] = 69; }), kInvalid,
                 {"lse_dense is f32 [1, 2, 69]", "[1, 2, 70]"});
  expect_refusal(call([](auto&, auto&, auto&, auto& to) { to.size[3] = 2; }), kInvalid,
                 {"mass is f32 [1, 2, 2, 2]", "[1, 2, 2, 3]"});
  expect_refusal(call([](auto&, auto&, auto&, auto& to) { to.stride[3] = 2; }), kInvalid,
                 {"last stride 1"});
  expect_refusal(call([](auto&, auto& k, auto&, auto&) { k.size[3] = 64; }), kInvalid,
                 {"head_dim must agree"});
  expect_refusal(block_mass(c.q.view(), c.k.view(), -2, c.lse.view(), mass.view(), {}), kInvalid,
                 {"softmax_scale is -2"});
  Execution exec;
  exec.device.kind = DeviceKind::kCuda;
  expect_refusal(block_mass(c.q.view(), c.k.view(), 0, c.lse.view(), mass.view(), exec),
                 StatusCode::kUnsupported, {"cuda"});
}

TEST(KeptMass, FromTwoRuns_EqualsTheMassOfTheKeptKeys) {
  Random random(testing::test_seed(112));
  AttendCase c({.sq = 130, .sk = 260});
  c.fill_random(random, 1.5);
  BlockLists lists(1, 2, 130, 260);
  lists.fill_random(random, 1, 4);
  lists.at(0, 1, 1).clear();
  const Plan plan = lists.plan();
  ASSERT_TRUE(is_ok(c.run(std::nullopt, {})));
  const Tensor3 dense = c.lse;
  ASSERT_TRUE(is_ok(c.run(plan.view(), {})));
  Tensor3 recall({1, 2, 130}, Dtype::kF32);
  ASSERT_TRUE(is_ok(kept_mass(c.lse.view(), dense.view(), recall.view())));
  for (int64_t h = 0; h < 2; ++h) {
    for (int64_t s = 0; s < 130; s += 43) {
      double want = 0;
      for (int32_t j : lists.at(0, h, s / 64)) want += true_mass(c, 0, h, s, j);
      EXPECT_NEAR(recall.get({0, h, s}), want, 1e-5);
    }
  }
  EXPECT_EQ(recall.get({0, 1, 64}), 0.0f) << "an empty row keeps nothing";
  // In place, and both -inf.
  const Tensor3 before = c.lse;
  ASSERT_TRUE(is_ok(kept_mass(c.lse.view(), dense.view(), c.lse.view())));
  EXPECT_EQ(c.lse.bits(), recall.bits());
  Tensor3 none({1, 1, 1}, Dtype::kF32);
  none.set({0, 0, 0}, -kInf);
  ASSERT_TRUE(is_ok(kept_mass(none.view(), none.view(), none.view())));
  EXPECT_TRUE(std::isnan(none.get({0, 0, 0})));
  TensorView<3> wrong = before.view();
  wrong.size[2] = 129;
  expect_refusal(kept_mass(wrong, dense.view(), recall.view()), kInvalid, {"one shape"});
  wrong = before.view();
  wrong.dtype = Dtype::kBf16;
  expect_refusal(kept_mass(before.view(), wrong, recall.view()), kInvalid, {"bf16"});
  expect_refusal(kept_mass(before.view(), dense.view(), {}), kInvalid, {"three f32 tensors"});
}

struct Pair {
  Tensor4 a{{1, 2, 1, 64}, Dtype::kF32}, b{{1, 2, 1, 64}, Dtype::kBf16};
  Pair() {
    a.fill([](const auto&) { return 1.0f; });
    b.fill([](const auto&) { return 1.0f; });
  }
  ErrorStats compare() const {
    ErrorStats stats;
    EXPECT_TRUE(is_ok(compare_outputs(a.view(), b.view(), &stats)));
    return stats;
  }
};

TEST(CompareOutputs, HandCases_GiveTheFigures) {
  Pair p;
  ErrorStats s = p.compare();
  EXPECT_EQ(s.relative_l2, 0);
  EXPECT_DOUBLE_EQ(s.cosine, 1);
  EXPECT_EQ(s.max_abs, 0);
  EXPECT_EQ(s.non_finite, 0);
  p.a.set({0, 1, 0, 5}, -3);
  s = p.compare();
  EXPECT_NEAR(s.relative_l2, 4 / std::sqrt(128.0), 1e-12);
  EXPECT_NEAR(s.cosine, (127.0 - 3) / std::sqrt(128.0 * (127 + 9)), 1e-12);
  EXPECT_EQ(s.max_abs, 4);
  EXPECT_EQ(s.max_at, (std::array<int64_t, 4>{0, 1, 0, 5}));
  p.a.fill([](const auto&) { return -2.0f; });
  s = p.compare();
  EXPECT_DOUBLE_EQ(s.cosine, -1);
  EXPECT_DOUBLE_EQ(s.relative_l2, 3);
}

TEST(CompareOutputs, NanInfAndZeros_AreNotHidden) {
  Pair p;
  p.a.set({0, 1, 0, 2}, std::nanf(""));
  p.a.set({0, 1, 0, 9}, 100);             // a larger error behind a NaN must not hide it
  p.b.set({0, 1, 0, 11}, std::nanf(""));  // nor may a later one move its place
  ErrorStats s = p.compare();
  EXPECT_TRUE(std::isnan(s.max_abs));
  EXPECT_EQ(s.max_at, (std::array<int64_t, 4>{0, 1, 0, 2}));
  EXPECT_EQ(s.non_finite, 1);
  EXPECT_TRUE(std::isnan(s.relative_l2));
  Pair q;
  q.b.set({0, 0, 0, 1}, std::nanf(""));
  s = q.compare();
  EXPECT_TRUE(std::isnan(s.max_abs));
  EXPECT_TRUE(std::isnan(s.relative_l2));
  EXPECT_EQ(s.non_finite, 0) << "counts elements of a";
  Pair r;
  r.a.set({0, 0, 0, 0}, kInf);
  EXPECT_EQ(r.compare().max_abs, double{kInf});
  EXPECT_EQ(r.compare().non_finite, 1);
  Pair zero;
  zero.b.fill([](const auto&) { return 0.0f; });
  EXPECT_EQ(zero.compare().relative_l2, double{kInf});
  EXPECT_EQ(zero.compare().cosine, 0);
  zero.a.fill([](const auto&) { return 0.0f; });
  EXPECT_EQ(zero.compare().relative_l2, 0);
  EXPECT_EQ(zero.compare().cosine, 1);
}

TEST(CompareOutputs, DifferentShapes_AreRefused) {
  const Pair p;
  Bshd other = p.b.view();
  other.size[1] = 1;
  ErrorStats stats;
  expect_refusal(compare_outputs(p.a.view(), other, &stats), kInvalid,
                 {"[1, 2, 1, 64]", "[1, 1, 1, 64]"});
  expect_refusal(compare_outputs({}, other, &stats), kInvalid, {"a has no data"});
}

}  // namespace
}  // namespace tessera
