// `route` as a whole: budgets, masks, documents, outputs, determinism and refusals.
#include "tessera/router.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>

#include "tessera/tests/support/router_case.h"

namespace tessera {
namespace {

using testing::best_columns;
using testing::expect_refusal;
using testing::is_ok;
using testing::kernels;
using testing::on;
using testing::Random;
using testing::RouteBuffers;
using testing::RouterCase;

constexpr StatusCode kInvalid = StatusCode::kInvalidArgument;
constexpr float kInf = std::numeric_limits<float>::infinity();

RouterConfig keep_config(int32_t keep) {
  RouterConfig config;
  config.budget.kind = BudgetKind::kKeep;
  config.budget.keep = keep;
  return config;
}

/// What `route` promises about its outputs, given its own scores.
void check_outputs(const RouteBuffers& got, const std::vector<int32_t>& key_blocks_of_row,
                   const std::vector<int32_t>& kept_of_row) {
  const PlanShape& s = got.shape;
  for (int64_t row = 0; row < s.rows(); ++row) {
    const int64_t block = row % s.query_blocks;
    const bool dense = got.plan.dense_rows[block] != 0;
    const std::vector<float> scores(
        got.scores.begin() + row * s.key_blocks,
        got.scores.begin() + row * s.key_blocks + key_blocks_of_row[block]);
    std::vector<int32_t> want = best_columns(scores, dense ? 0 : kept_of_row[block]);
    ASSERT_EQ(got.plan.count[row], static_cast<int32_t>(want.size())) << "row " << row;
    EXPECT_EQ(got.ids(row), want) << "row " << row;
    for (int32_t n = got.plan.count[row]; n < s.width; ++n) {
      EXPECT_EQ(got.plan.index[row * s.width + n], -1) << "unused slots are -1";
    }
    std::vector<uint32_t> words(s.words(), 0);
    for (int32_t j : want) words[j / 32] |= 1u << (j % 32);
    EXPECT_TRUE(std::equal(words.begin(), words.end(), got.bitmap.begin() + row * s.words()));
    for (int32_t j = key_blocks_of_row[block]; j < s.key_blocks; ++j) {
      EXPECT_EQ(got.scores[row * s.key_blocks + j], -kInf) << "outside the document";
    }
    double kept = 0, total = 0;
    for (int32_t j = 0; j < key_blocks_of_row[block]; ++j) total += std::exp(double{scores[j]});
    for (int32_t j : want) kept += std::exp(double{scores[j]});
    EXPECT_NEAR(got.mass[row], dense ? 1.0 : kept / total, 1e-5);
  }
}

TEST(Router, SparsityBudget_KeepsTheBestOfItsOwnScores) {
  Random random(testing::test_seed(61));
  RouterCase c({.batch = 2, .sq = 300, .sk = 64 * 37 + 9, .heads = 4, .kv_heads = 2});
  c.fill_random(random, 2);
  for (const std::string& kernel : kernels()) {
    RouteParams p = c.params();
    RouteBuffers got(p);
    EXPECT_EQ(got.shape.width, 16);  // ceil(0.25 * 38) = 10, up to a multiple of 8
    EXPECT_EQ(got.shape.key_blocks, 38);
    ASSERT_TRUE(is_ok(route(p, on(kernel), got.outputs())));
    check_outputs(got, std::vector<int32_t>(5, 38), std::vector<int32_t>(5, 16));
    EXPECT_TRUE(is_ok(validate_plan({got.plan.view().index, got.plan.view().count, {}, {}},
                                    single_document(300, 64 * 37 + 9), 2, 4)));
  }
}

TEST(Router, BothKernels_ChooseTheSameBlocks) {
  Random random(testing::test_seed(62));
  RouterCase c({.sq = 500, .sk = 1900, .heads = 3, .kv_heads = 3, .dtype = Dtype::kBf16});
  c.fill_random(random, 2);
  RouteParams p = c.params();
  RouteBuffers fast(p), slow(p);
  ASSERT_TRUE(is_ok(route(p, on("cpu_highway"), fast.outputs())));
  ASSERT_TRUE(is_ok(route(p, on("cpu_reference"), slow.outputs())));
  int differing = 0;
  for (int64_t row = 0; row < fast.shape.rows(); ++row) differing += fast.ids(row) != slow.ids(row);
  // A mean next to a bf16 boundary may round either way and swap two blocks at the threshold.
  EXPECT_LE(differing, 1);
}

TEST(Router, ThreadCounts_GiveTheSameBits) {
  Random random(testing::test_seed(63));
  RouterCase c({.batch = 2, .sq = 700, .sk = 900, .heads = 3, .kv_heads = 1});
  c.fill_random(random, 2);
  for (const std::string& kernel : kernels()) {
    RouteParams p = c.params();
    p.config.budget.kind = BudgetKind::kMass;
    RouteBuffers first(p);
    ASSERT_TRUE(is_ok(route(p, on(kernel, 1), first.outputs())));
    for (int threads : {2, 3, 7, 0}) {
      RouteBuffers got(p);
      ASSERT_TRUE(is_ok(route(p, on(kernel, threads), got.outputs())));
      EXPECT_EQ(got.plan.index, first.plan.index) << threads;
      EXPECT_EQ(got.plan.count, first.plan.count) << threads;
      EXPECT_EQ(got.scores, first.scores) << threads;
      EXPECT_EQ(got.mass, first.mass) << threads;
      EXPECT_EQ(got.bitmap, first.bitmap) << threads;
    }
  }
}

TEST(Router, MoreHeadsThanOneBatchOfCells_RouteLikeAlone) {
  // Pooled cells are kept for at most 24 MiB of heads: 48 here, so 100 heads take three batches,
  // and batches start inside a group of five query heads. Head h is the buffer shifted by h tokens.
  constexpr int64_t kTokens = 4096, kHeads = 100, kGroup = 5;
  Random random(testing::test_seed(69));
  testing::Tensor4 q({1, kTokens + kHeads, 1, 128}, Dtype::kBf16), k = q;
  q.fill_random(random, 2);
  k.fill_random(random, 2);
  const auto heads = [](const testing::Tensor4& buffer, int64_t first, int64_t count) {
    Bshd view = buffer.view();
    view.size = {1, kTokens, count, 128};
    view.stride = {0, 128, 128, 1};
    view.data = static_cast<uint16_t*>(view.data) + first * 128;
    return view;
  };
  RouteParams p;
  p.q = heads(q, 0, kHeads);
  p.k = heads(k, 0, kHeads / kGroup);
  p.config = keep_config(4);
  p.config.n_q = p.config.n_k = 8;
  Plan together;
  ASSERT_TRUE(is_ok(route(p, {}, &together)));
  for (int64_t h : {0, 47, 48, 49, 50, 95, 96, 99}) {
    p.q = heads(q, h, 1);
    p.k = heads(k, h / kGroup, 1);
    Plan alone;
    ASSERT_TRUE(is_ok(route(p, {}, &alone)));
    EXPECT_TRUE(
        std::equal(alone.index.begin(), alone.index.end(), together.index.begin() + h * 64 * 4))
        << "head " << h;
    EXPECT_TRUE(std::equal(alone.mass.begin(), alone.mass.end(), together.mass.begin() + h * 64))
        << "head " << h;
  }
}

TEST(Router, MassBudget_GivesPerRowCounts) {
  Random random(testing::test_seed(64));
  RouterCase c({.sq = 320, .sk = 1280, .heads = 2, .kv_heads = 2});
  c.fill_random(random, 1);
  // Half of the query blocks look straight at key block 3.
  c.k.fill([&](const auto& at) { return at[1] / 64 == 3 ? 1.0f : 0.3f * random.normal(); });
  c.q.fill([&](const auto& at) { return at[1] / 64 % 2 ? 1.0f : 0.3f * random.normal(); });
  for (const std::string& kernel : kernels()) {
    RouteParams p = c.params();
    p.config.budget.kind = BudgetKind::kMass;
    p.config.budget.mass = 0.8;
    p.config.budget.max_keep = 18;
    RouteBuffers got(p);
    ASSERT_TRUE(is_ok(route(p, on(kernel), got.outputs())));
    for (int64_t row = 0; row < 10; ++row) {
      if (row % 5 % 2) {
        EXPECT_EQ(got.ids(row), (std::vector<int32_t>{3})) << "row " << row;
      } else {
        EXPECT_GT(got.plan.count[row], 10);
      }
      EXPECT_GE(got.mass[row], 0.8f - 1e-6f);
    }
  }
}

TEST(Router, ProtectedBlocks_AreInEveryRowInsideTheBudget) {
  Random random(testing::test_seed(65));
  RouterCase c({.sq = 200, .sk = 1280, .heads = 2, .kv_heads = 2});
  c.fill_random(random, 2);
  const std::vector<int32_t> blocks{19, 0, 19, 7};  // unsorted, one twice
  RouteParams p = c.params();
  p.config = keep_config(3);
  p.protected_blocks = blocks;
  Plan plan;
  for (const std::string& kernel : kernels()) {
    ASSERT_TRUE(is_ok(route(p, on(kernel), &plan)));
    for (int64_t row = 0; row < plan.shape.rows(); ++row) {
      EXPECT_EQ(plan.index[row * 3], 0);
      EXPECT_EQ(plan.index[row * 3 + 1], 7);
      EXPECT_EQ(plan.index[row * 3 + 2], 19);
    }
  }
  p.config = keep_config(2);
  expect_refusal(route(p, {}, &plan), kInvalid, {"3 protected blocks", "budget of 2"});
  const std::vector<int32_t> outside{20};
  p.protected_blocks = outside;
  expect_refusal(route(p, {}, &plan), kInvalid, {"protected block 20", "[0, 20)"});
}

TEST(Router, DenseQueryBlocks_GetAFlagInsteadOfAList) {
  Random random(testing::test_seed(66));
  RouterCase c({.sq = 300, .sk = 640, .heads = 2, .kv_heads = 2});
  c.fill_random(random, 2);
  const std::vector<uint8_t> dense{0, 1, 0, 0, 255};
  RouteParams p = c.params();
  p.config = keep_config(4);
  p.dense_query_blocks = dense;
  RouteBuffers got(p);
  ASSERT_TRUE(is_ok(route(p, on("cpu_highway"), got.outputs())));
  EXPECT_EQ(got.plan.dense_rows, (std::vector<uint8_t>{0, 1, 0, 0, 1}));
  check_outputs(got, std::vector<int32_t>(5, 10), std::vector<int32_t>(5, 4));
  const std::vector<uint8_t> wrong{0, 1, 0, 0};
  p.dense_query_blocks = wrong;
  Plan plan;
  expect_refusal(route(p, {}, &plan), kInvalid,
                 {"dense_query_blocks has 4", "5 query blocks", "mask length"});
}

TEST(Router, PackedDocuments_ShortOnesAreDenseLimitIsSparse) {
  Random random(testing::test_seed(67));
  RouterCase c({.sq = 1000, .sk = 1000, .heads = 2, .kv_heads = 1});
  c.cu = {0, 100, 100, 612, 990};  // lengths 100, 0, 512, 378; ten rows outside
  c.fill_random(random, 2);
  for (const std::string& kernel : kernels()) {
    RouteParams p = c.params();
    p.config = keep_config(3);
    p.min_seq_len = 378;
    RouteBuffers got(p);
    EXPECT_EQ(got.shape.query_blocks, 2 + 8 + 6);
    EXPECT_EQ(got.shape.key_blocks, 8);
    ASSERT_TRUE(is_ok(route(p, on(kernel), got.outputs())));
    std::vector<uint8_t> dense(16, 0);
    dense[0] = dense[1] = 1;
    EXPECT_EQ(got.plan.dense_rows, dense);
    std::vector<int32_t> key_blocks(16, 8);
    key_blocks[0] = key_blocks[1] = 0;  // a dense document is not scored
    std::fill(key_blocks.begin() + 10, key_blocks.end(), 6);
    check_outputs(got, key_blocks, std::vector<int32_t>(16, 3));

    // A document routes as it would alone.
    RouterCase alone({.sq = 378, .sk = 378, .heads = 2, .kv_heads = 1});
    alone.q.fill([&](const auto& at) { return c.q.get({0, at[1] + 612, at[2], at[3]}); });
    alone.k.fill([&](const auto& at) { return c.k.get({0, at[1] + 612, at[2], at[3]}); });
    RouteParams one = alone.params();
    one.config = keep_config(3);
    RouteBuffers single(one);
    ASSERT_TRUE(is_ok(route(one, on(kernel), single.outputs())));
    for (int h = 0; h < 2; ++h) {
      for (int i = 0; i < 6; ++i) EXPECT_EQ(got.ids(h * 16 + 10 + i), single.ids(h * 6 + i));
    }
  }
}

TEST(Router, AllDocumentsDenseOrNone_GivesAPlanWithoutSlots) {
  RouterCase c({.sq = 100, .sk = 100});
  c.fill_constant(0);
  RouteParams p = c.params();
  p.min_seq_len = 101;
  Plan plan;
  ASSERT_TRUE(is_ok(route(p, {}, &plan)));
  EXPECT_EQ(plan.shape.width, 0);
  EXPECT_EQ(plan.dense_rows, (std::vector<uint8_t>{1, 1}));
  EXPECT_TRUE(is_ok(validate_plan(plan.view(), single_document(100, 100), 1, 2)));
  p.min_seq_len = 100;
  ASSERT_TRUE(is_ok(route(p, {}, &plan)));
  EXPECT_TRUE(plan.dense_rows.empty()) << "the limit itself is routed";
  c.cu = {0, 0};
  ASSERT_TRUE(is_ok(route(c.params(), {}, &plan)));
  EXPECT_EQ(plan.shape.rows(), 0);
}

TEST(Router, OwningForm_HoldsMassAndNoFlagsWithoutDenseRows) {
  Random random(testing::test_seed(68));
  RouterCase c({.sq = 300, .sk = 640});
  c.fill_random(random, 2);
  RouteParams p = c.params();
  p.config = keep_config(4);
  Plan plan;
  ASSERT_TRUE(is_ok(route(p, {}, &plan)));
  RouteBuffers want(p);
  ASSERT_TRUE(is_ok(route(p, {}, want.outputs())));
  EXPECT_TRUE(plan.dense_rows.empty());
  EXPECT_EQ(plan.mass, want.mass);
  EXPECT_EQ(plan.index, want.plan.index);
}

TEST(Router, SoftmaxScale_ChangesScoresByItsRatio) {
  RouterCase c({.sq = 64, .sk = 64, .heads = 1, .kv_heads = 1});
  c.fill_constant(1);
  RouteParams p = c.params();
  p.config.n_q = p.config.n_k = 1;
  for (float scale : {0.5f, 0.015625f}) {
    p.softmax_scale = scale;
    RouteBuffers got(p);
    ASSERT_TRUE(is_ok(route(p, {}, got.outputs())));
    EXPECT_NEAR(got.scores[0], 128 * scale, 128 * scale * 0x1p-8) << "one bf16 rounding of q";
  }
}

TEST(Router, BadConfig_IsRefusedWithTheAcceptedRange) {
  RouterCase c({.sq = 100, .sk = 100});
  c.fill_constant(0);
  const auto refuse = [&](auto change, std::vector<std::string> parts) {
    RouteParams p = c.params();
    change(p);
    PlanShape shape;
    Plan plan;
    expect_refusal(route_shape(p, &shape), kInvalid, parts);
    expect_refusal(route(p, {}, &plan), kInvalid, parts);
  };
  refuse([](RouteParams& p) { p.config.n_q = 3; }, {"n_q is 3", "1, 2, 4 and 8"});
  refuse([](RouteParams& p) { p.config.n_k = 16; }, {"n_k is 16", "1, 2, 4 and 8"});
  refuse([](RouteParams& p) { p.config.n_k = 0; }, {"n_k is 0"});
  for (double bad : {1.0, -0.1, 2.0, std::nan("")}) {
    refuse([=](RouteParams& p) { p.config.budget.sparsity = bad; }, {"sparsity is", "[0, 1)"});
  }
  refuse([](RouteParams& p) { p.config.budget.granularity = 0; }, {"granularity is 0"});
  refuse([](RouteParams& p) { p.config = keep_config(0); }, {"keep is 0", "at least 1"});
  for (double bad : {0.0, 1.01, -1.0, std::nan("")}) {
    refuse(
        [=](RouteParams& p) {
          p.config.budget.kind = BudgetKind::kMass;
          p.config.budget.mass = bad;
        },
        {"mass is", "(0, 1]"});
  }
  for (const auto& [low, high] : {std::pair{0, 0}, std::pair{1, -1}, std::pair{4, 3}}) {
    refuse(
        [low = low, high = high](RouteParams& p) {
          p.config.budget.kind = BudgetKind::kMass;
          p.config.budget.min_keep = low;
          p.config.budget.max_keep = high;
        },
        {"min_keep is", "1 <= min_keep <= max_keep"});
  }
  refuse([](RouteParams& p) { p.min_seq_len = -1; }, {"min_seq_len is -1"});
  refuse([](RouteParams& p) { p.softmax_scale = -1; }, {"softmax_scale is -1"});
  refuse([](RouteParams& p) { p.k.dtype = Dtype::kBf16; }, {"q is f32 but k is bf16"});
  const std::vector<int32_t> falling{0, 50, 40};
  refuse([&](RouteParams& p) { p.cu_seqlens = falling; }, {"falls from 50 to 40"});
}

TEST(Router, BadOutputsAndExecution_AreRefused) {
  RouterCase c({.sq = 100, .sk = 640});
  c.fill_constant(0);
  RouteParams p = c.params();
  p.config = keep_config(4);
  RouteBuffers got(p);
  const auto refuse = [&](auto change, std::vector<std::string> parts) {
    RouteOutputs out = got.outputs();
    change(out);
    expect_refusal(route(p, {}, out), kInvalid, parts);
  };
  refuse([](RouteOutputs& o) { o.plan.index.data = nullptr; }, {"plan.index", "without data"});
  refuse([](RouteOutputs& o) { o.plan.index.size[3] = 5; }, {"[1, 2, 2, 4]", "[1, 2, 2, 5]"});
  refuse([](RouteOutputs& o) { o.plan.count.dtype = Dtype::kI64; }, {"plan.count", "i64"});
  refuse([](RouteOutputs& o) { o.plan.count.stride[2] = 2; }, {"plan.count", "last stride 1"});
  refuse([](RouteOutputs& o) { o.plan.dense_rows.data = nullptr; }, {"plan.dense_rows"});
  refuse([](RouteOutputs& o) { o.plan.bitmap.size[3] = 2; }, {"plan.bitmap", "route_shape"});
  refuse([](RouteOutputs& o) { o.mass.dtype = Dtype::kF16; }, {"output mass must be f32"});
  refuse([](RouteOutputs& o) { o.scores.size[3] = 9; }, {"output scores", "[1, 2, 2, 10]"});
  Execution exec;
  exec.device.kind = DeviceKind::kCuda;
  expect_refusal(route(p, exec, got.outputs()), StatusCode::kUnsupported, {"cuda:0", "cpu"});
  exec = {};
  exec.threads = -2;
  expect_refusal(route(p, exec, got.outputs()), kInvalid, {"threads is -2"});
  exec = on("turbo");
  expect_refusal(route(p, exec, got.outputs()), kInvalid,
                 {"\"turbo\"", "cpu_highway, cpu_reference"});
}

}  // namespace
}  // namespace tessera
