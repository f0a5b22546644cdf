// Attention against the fp64 oracle (catalogue K1, K2, K5, K8, K9, K11, K14, G5), both kernels.
#include "tessera/attention.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tessera/router.h"
#include "tessera/tests/support/attend_case.h"

namespace tessera {
namespace {

using testing::AttendCase;
using testing::BlockLists;
using testing::CaseShape;
using testing::expect_matches;
using testing::is_ok;
using testing::kernels;
using testing::on;
using testing::Random;

constexpr Dtype kFloats[] = {Dtype::kF32, Dtype::kBf16, Dtype::kF16};

void check_dense(const CaseShape& shape, Random& random, float spread = 1) {
  AttendCase c(shape);
  c.fill_random(random, spread);
  const auto oracle = c.oracle(testing::all_keys(shape.sk));
  for (const std::string& kernel : kernels()) {
    SCOPED_TRACE(kernel + " " + std::string(dtype_name(shape.dtype)) + " sq " +
                 std::to_string(shape.sq) + " sk " + std::to_string(shape.sk));
    ASSERT_TRUE(is_ok(c.run(std::nullopt, on(kernel))));
    expect_matches(c, oracle);
  }
}

TEST(Attention, DenseEveryDtypeAndWidth_MatchesFp64) {
  Random random(testing::test_seed(71));
  for (Dtype dtype : kFloats) {
    for (int64_t dim : {64, 128}) {
      check_dense({.sq = 150, .sk = 150, .dim = dim, .dtype = dtype}, random, 1.5);
    }
  }
}

TEST(Attention, EveryTailLength_MatchesFp64_K2) {
  Random random(testing::test_seed(72));
  for (int64_t length :
       {1, 2, 5, 6, 7, 31, 63, 64, 65, 66, 100, 127, 128, 129, 191, 255, 256, 257, 258, 319, 321}) {
    check_dense({.sq = length, .sk = length, .heads = 1, .kv_heads = 1}, random);
  }
}

TEST(Attention, EveryKeyTail_MatchesFp64_K2) {
  Random random(testing::test_seed(73));
  for (int64_t keys = 1; keys <= 64; ++keys) {
    check_dense({.sq = 5, .sk = 64 + keys, .heads = 1, .kv_heads = 1, .dim = 64}, random);
  }
}

TEST(Attention, CrossLengths_MatchFp64) {
  Random random(testing::test_seed(74));
  for (const auto& [sq, sk] : {std::pair{1, 300}, std::pair{300, 1}, std::pair{70, 513},
                               std::pair{513, 70}, std::pair{64, 128}}) {
    check_dense({.sq = sq, .sk = sk, .dtype = Dtype::kBf16}, random);
  }
}

TEST(Attention, GroupedHeadsAndBatch_MatchFp64) {
  Random random(testing::test_seed(75));
  check_dense({.batch = 2, .sq = 100, .sk = 130, .heads = 6, .kv_heads = 2}, random);
  check_dense({.batch = 3, .sq = 65, .sk = 65, .heads = 4, .kv_heads = 1, .dim = 64}, random);
}

TEST(Attention, LargeLogits_MatchFp64) {
  // Peaked softmax: logits up to a few hundred; the running maximum must not overflow anything.
  Random random(testing::test_seed(76));
  AttendCase c({.sq = 130, .sk = 300, .heads = 1, .kv_heads = 1});
  c.fill_random(random, 6);
  const auto oracle = c.oracle(testing::all_keys(300));
  for (const std::string& kernel : kernels()) {
    ASSERT_TRUE(is_ok(c.run(std::nullopt, on(kernel))));
    const auto error = testing::oracle_error(c, oracle);
    // fp32 logits near 200 carry an error of about 1e-5 each, and the weights as much relatively.
    EXPECT_LE(error.relative_l2, 1e-4) << kernel;
    EXPECT_LE(error.lse, 1e-3) << kernel;
  }
}

TEST(Attention, FaintKeys_StillCount) {
  // One key at logit 0, 599 at -15: each weighs 3e-7, but their values are large.
  AttendCase c({.sq = 10, .sk = 600, .heads = 1, .kv_heads = 1});
  c.scale = 1;
  c.q.fill([](const auto& at) { return at[3] == 0 ? 1.0f : 0.0f; });
  c.k.fill([](const auto& at) { return at[3] == 0 && at[1] != 70 ? -15.0f : 0.0f; });
  c.v.fill([](const auto& at) { return at[1] == 70 ? 0.0f : 1000.0f; });
  const double faint = 599 * std::exp(-15.0), want = 1000 * faint / (1 + faint);
  for (const std::string& kernel : kernels()) {
    ASSERT_TRUE(is_ok(c.run(std::nullopt, on(kernel))));
    EXPECT_NEAR(c.out.get({0, 9, 0, 3}), want, 1e-5 * want) << kernel;
    EXPECT_NEAR(c.lse.get({0, 0, 9}), std::log1p(faint), 1e-5) << kernel;
  }
}

TEST(Attention, GivenScale_IsUsed) {
  Random random(testing::test_seed(77));
  AttendCase c({.sq = 80, .sk = 90});
  c.fill_random(random);
  c.scale = 0.31f;
  const auto oracle = c.oracle(testing::all_keys(90));
  for (const std::string& kernel : kernels()) {
    ASSERT_TRUE(is_ok(c.run(std::nullopt, on(kernel))));
    expect_matches(c, oracle);
  }
}

TEST(Attention, LargeScoresOfEitherSign_GiveTheRightLse_K9) {
  AttendCase c({.sq = 64, .sk = 70, .heads = 1, .kv_heads = 1});
  for (float sign : {-1.0f, 1.0f}) {
    c.q.fill([&](const auto&) { return sign * 3; });
    c.k.fill([](const auto&) { return 3.0f; });
    c.v.fill([](const auto&) { return 1.0f; });
    const double want = sign * 9 * 128 / std::sqrt(128.0) + std::log(70.0);
    for (const std::string& kernel : kernels()) {
      ASSERT_TRUE(is_ok(c.run(std::nullopt, on(kernel))));
      EXPECT_NEAR(c.lse.get({0, 0, 63}), want, 5e-4) << kernel;  // fp32 at 97: 1e-5 a step
      EXPECT_FLOAT_EQ(c.out.get({0, 63, 0, 127}), 1.0f) << kernel;
    }
  }
}

TEST(Attention, Tokens257_AllForms_K14) {
  Random random(testing::test_seed(78));
  AttendCase c({.sq = 257, .sk = 257, .dtype = Dtype::kBf16});
  c.fill_random(random);
  BlockLists lists(1, 2, 257, 257);
  lists.fill_all();
  const auto oracle = c.oracle(testing::all_keys(257));
  const Plan plan = lists.plan();
  for (const std::string& kernel : kernels()) {
    ASSERT_TRUE(is_ok(c.run(plan.view(), on(kernel))));
    expect_matches(c, oracle);
  }
}

TEST(Attention, FullBudgetByTheRouter_EqualsDenseBitForBit_K1) {
  Random random(testing::test_seed(79));
  AttendCase c({.sq = 330, .sk = 330, .heads = 1, .kv_heads = 1, .dtype = Dtype::kBf16});
  c.fill_random(random, 2);
  RouteParams p;
  p.q = c.q.view();
  p.k = c.k.view();
  p.config.budget.sparsity = 1e-6;
  Plan plan;
  ASSERT_TRUE(is_ok(route(p, {}, &plan)));
  for (const std::string& kernel : kernels()) {
    ASSERT_TRUE(is_ok(c.run(std::nullopt, on(kernel))));
    const auto dense = c.out.bits(), dense_lse = c.lse.bits();
    ASSERT_TRUE(is_ok(c.run(plan.view(), on(kernel))));
    EXPECT_EQ(c.out.bits(), dense);
    EXPECT_EQ(c.lse.bits(), dense_lse);
  }
}

TEST(Attention, VariableUnsortedCountsWithEmptyRows_MatchFp64_K8K9) {
  Random random(testing::test_seed(80));
  for (Dtype dtype : kFloats) {
    AttendCase c({.batch = 2, .sq = 260, .sk = 421, .heads = 2, .kv_heads = 1, .dtype = dtype});
    c.fill_random(random, 1.5);
    BlockLists lists(2, 2, 260, 421);
    lists.fill_random(random, 0, 7);
    lists.at(0, 1, 3).clear();  // at least one empty row, one full one, in one group of four
    lists.at(0, 1, 2) = {6, 0, 5, 1, 4, 2, 3};
    const Plan plan = lists.plan();
    const auto oracle = c.oracle(lists.keys(421));
    for (const std::string& kernel : kernels()) {
      SCOPED_TRACE(kernel);
      ASSERT_TRUE(is_ok(c.run(plan.view(), on(kernel))));
      expect_matches(c, oracle);
      for (int64_t row = 192; row < 256; ++row) {
        ASSERT_EQ(c.lse.get({0, 1, row}), -std::numeric_limits<float>::infinity());
        for (int64_t d = 0; d < 128; ++d) {
          const float zero = c.out.get({0, row, 1, d});
          ASSERT_EQ(std::bit_cast<uint32_t>(zero), 0u) << "exactly +0";
        }
      }
    }
  }
}

TEST(Attention, ListsDifferPerHead_EachHeadReadsItsOwn_K11) {
  // Head h keeps block h only, v of block j is j + 1: any mix of heads shows at once.
  AttendCase c({.sq = 320, .sk = 320, .heads = 5, .kv_heads = 5});
  c.fill_uniform();
  c.v.fill([](const auto& at) { return static_cast<float>(at[1] / 64 + 1); });
  BlockLists lists(1, 5, 320, 320);
  for (int h = 0; h < 5; ++h) {
    for (int i = 0; i < 5; ++i) lists.at(0, h, i) = {(h + i) % 5};
  }
  const Plan plan = lists.plan();
  for (const std::string& kernel : kernels()) {
    ASSERT_TRUE(is_ok(c.run(plan.view(), on(kernel))));
    testing::for_each_index<4>(c.out.size(), [&](const auto& at) {
      ASSERT_EQ(c.out.get(at), static_cast<float>((at[2] + at[1] / 64) % 5 + 1)) << kernel;
    });
  }
}

TEST(Attention, MixedDenseAndSparseRows_MatchFp64_K5) {
  Random random(testing::test_seed(81));
  AttendCase c({.batch = 2, .sq = 190, .sk = 1024, .dtype = Dtype::kBf16});
  c.fill_random(random);
  BlockLists lists(2, 2, 190, 1024);
  lists.fill_random(random, 3, 3);
  Plan plan = lists.plan();
  plan.dense_rows = {1, 0, 1, 0, 7, 0};  // TFT for the first sample, FTF for the second
  BlockLists truth = lists;
  for (int64_t h = 0; h < 2; ++h) {
    for (const auto& [b, i] : {std::pair{0, 0}, std::pair{0, 2}, std::pair{1, 1}}) {
      truth.at(b, h, i).resize(16);
      std::iota(truth.at(b, h, i).begin(), truth.at(b, h, i).end(), 0);
    }
  }
  const auto oracle = c.oracle(truth.keys(1024));
  const std::vector<uint32_t> words = lists.bitmap();
  PlanView bits = lists.bitmap_view(words);
  bits.dense_rows = plan.view().dense_rows;
  for (const std::string& kernel : kernels()) {
    SCOPED_TRACE(kernel);
    ASSERT_TRUE(is_ok(c.run(plan.view(), on(kernel))));
    expect_matches(c, oracle);
    const auto from_list = c.out.bits();
    ASSERT_TRUE(is_ok(c.run(bits, on(kernel))));
    EXPECT_EQ(c.out.bits(), from_list);
  }
  plan.dense_rows = {0, 1, 0, 1, 0, 1};  // control: the mask swapped
  ASSERT_TRUE(is_ok(c.run(plan.view(), {})));
  EXPECT_GT(testing::oracle_error(c, oracle).relative_l2, 0.1);
}

TEST(Attention, PackedDocuments_DoNotMix_G5) {
  Random random(testing::test_seed(82));
  AttendCase c({.sq = 600, .sk = 600, .heads = 4, .kv_heads = 2, .dtype = Dtype::kBf16});
  c.fill_random(random);
  c.cu = {0, 400, 400, 470, 597};
  const auto oracle = c.oracle(testing::document_keys(c.cu));
  for (const std::string& kernel : kernels()) {
    SCOPED_TRACE(kernel);
    ASSERT_TRUE(is_ok(c.run(std::nullopt, on(kernel))));
    expect_matches(c, oracle);
  }
  c.cu = std::vector<int32_t>();  // control: one joint document
  ASSERT_TRUE(is_ok(c.run(std::nullopt, {})));
  EXPECT_GT(testing::oracle_error(c, oracle).relative_l2, 0.1);
}

TEST(Attention, PackedWithPlan_ReadsIdsLocalToTheDocument) {
  AttendCase c({.sq = 450, .sk = 450, .heads = 1, .kv_heads = 1});
  c.fill_uniform();
  c.v.fill([](const auto& at) { return static_cast<float>(at[1]); });
  c.cu = {0, 130, 430};  // 3 and 5 blocks; 20 rows outside
  BlockLists lists(1, 1, 8 * 64, 5 * 64);
  lists.rows = {{2}, {0}, {1, 0}, {4}, {0}, {3}, {1}, {}};
  const Plan plan = lists.plan();
  const auto mean = [](double first, double last) { return (first + last) / 2; };
  const std::vector<double> want{mean(128, 129), mean(0, 63),    mean(0, 127),   mean(386, 429),
                                 mean(130, 193), mean(322, 385), mean(194, 257), 0};
  for (const std::string& kernel : kernels()) {
    ASSERT_TRUE(is_ok(c.run(plan.view(), on(kernel))));
    for (int64_t s = 0; s < 450; ++s) {
      const int64_t block = s < 130 ? s / 64 : s < 430 ? 3 + (s - 130) / 64 : 7;
      ASSERT_NEAR(c.out.get({0, s, 0, 9}), want[block], 1e-3) << kernel << " row " << s;
    }
    EXPECT_EQ(c.lse.get({0, 0, 449}), -std::numeric_limits<float>::infinity());
  }
}

TEST(Attention, LseLeftOut_ChangesNoOutputBit) {
  Random random(testing::test_seed(83));
  AttendCase c({.sq = 100, .sk = 100});
  c.fill_random(random);
  for (const std::string& kernel : kernels()) {
    ASSERT_TRUE(is_ok(c.run(std::nullopt, on(kernel))));
    const auto bits = c.out.bits();
    c.out.poison();
    AttentionParams p = c.params();
    p.lse = {};
    ASSERT_TRUE(is_ok(attend(p, on(kernel))));
    EXPECT_EQ(c.out.bits(), bits);
  }
}

TEST(Attention, Progress_ReachesItsTotalAndNeverFalls) {
  AttendCase c({.sq = 700, .sk = 64});
  c.fill_uniform();
  c.v.fill([](const auto&) { return 1.0f; });
  int64_t last = 0, final_total = 0;
  Execution exec = on("cpu_highway", 1);
  exec.progress = [&](int64_t done, int64_t total) {
    EXPECT_GE(done, last);
    EXPECT_LE(done, total);
    last = done;
    final_total = total;
  };
  ASSERT_TRUE(is_ok(c.run(std::nullopt, exec)));
  EXPECT_EQ(last, final_total);
  EXPECT_GT(final_total, 0);
}

}  // namespace
}  // namespace tessera
