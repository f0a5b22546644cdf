// The test catalogue's attention rules (K1 to K14) on the device, against fp64 and the CPU kernel.
#include <gtest/gtest.h>

#include <cmath>

#include "tessera/quality.h"
#include "tessera/tests/gpu/gpu_case.h"

namespace tessera {
namespace {

using testing::AttendCase;
using testing::BlockLists;
using testing::CaseLayouts;
using testing::CaseShape;
using testing::cpu_oracle;
using testing::expect_gpu_matches;
using testing::gpu_kernels;
using testing::GpuCase;
using testing::is_ok;
using testing::on_gpu;
using testing::Random;

class GpuAttention : public testing::GpuTest {};

constexpr Dtype kDtypes[] = {Dtype::kBf16, Dtype::kF16};

/// Dense, then the lists, by every kernel, each against fp64.
void check_both_forms(AttendCase& c, const BlockLists& lists, int64_t sk) {
  GpuCase gpu(c);
  const Plan plan = lists.plan();
  const auto dense = c.oracle(testing::all_keys(sk)), sparse = c.oracle(lists.keys(sk));
  for (const std::string& kernel : gpu_kernels()) {
    SCOPED_TRACE(kernel);
    ASSERT_TRUE(is_ok(gpu.run(std::nullopt, on_gpu(kernel))));
    expect_gpu_matches(c, dense);
    ASSERT_TRUE(is_ok(gpu.run_plan(plan.view(), on_gpu(kernel))));
    expect_gpu_matches(c, sparse);
  }
}

TEST_F(GpuAttention, ShapesBatchesGroupedHeads_MatchFp64_K8K9) {
  Random random(testing::test_seed(401));
  const CaseShape shapes[] = {
      {.sq = 1, .sk = 1, .heads = 2, .kv_heads = 1},
      {.sq = 1, .sk = 300, .heads = 1, .kv_heads = 1},
      {.sq = 300, .sk = 1, .heads = 3, .kv_heads = 3},
      {.sq = 64, .sk = 64, .heads = 1, .kv_heads = 1},
      {.batch = 2, .sq = 200, .sk = 333, .heads = 4, .kv_heads = 2},
      {.batch = 2, .sq = 450, .sk = 129, .heads = 6, .kv_heads = 1},
      {.batch = 3, .sq = 127, .sk = 640, .heads = 2, .kv_heads = 2},
  };
  for (CaseShape shape : shapes) {
    for (Dtype dtype : kDtypes) {
      SCOPED_TRACE("B " + std::to_string(shape.batch) + " Sq " + std::to_string(shape.sq) + " Sk " +
                   std::to_string(shape.sk) + " H " + std::to_string(shape.heads) + "/" +
                   std::to_string(shape.kv_heads) + " " + std::string(dtype_name(dtype)));
      shape.dtype = dtype;
      AttendCase c(shape);
      c.fill_random(random, 1.5f);
      BlockLists lists(shape.batch, shape.heads, shape.sq, shape.sk);
      lists.fill_random(random, 0, lists.key_blocks);
      check_both_forms(c, lists, shape.sk);
    }
  }
}

TEST_F(GpuAttention, RandomStridesAndScales_MatchFp64) {
  Random random(testing::test_seed(402));
  for (int round = 0; round < 12; ++round) {
    SCOPED_TRACE("round " + std::to_string(round));
    CaseLayouts layouts;
    for (testing::Layout4* l : {&layouts.q, &layouts.k, &layouts.v, &layouts.out}) {
      // Any order of batch, token and head; gaps that are multiples of eight elements.
      std::vector<int> order{0, 1, 2};
      random.shuffle(order);
      l->order = {order[0], order[1], order[2], 3};
      l->extra = {0, 64, random.integer(0, 3), 8 * random.integer(0, 2)};
      l->step = {1, random.integer(1, 2), random.integer(1, 3), 1};
    }
    std::vector<int> order{0, 1, 2};
    random.shuffle(order);
    layouts.lse.order = {order[0], order[1], order[2]};
    layouts.lse.extra = {1, 2, 3};
    layouts.lse.step[2] = random.integer(1, 2);
    const int64_t ratio = random.integer(1, 3), kv_heads = random.integer(1, 3);
    const int64_t sk = random.integer(1, 500);
    AttendCase c({.batch = random.integer(1, 3),
                  .sq = random.integer(1, 500),
                  .sk = sk,
                  .heads = kv_heads * ratio,
                  .kv_heads = kv_heads,
                  .dtype = random.chance(0.5) ? Dtype::kBf16 : Dtype::kF16},
                 layouts);
    c.scale = random.chance(0.5) ? 0.0f : 0.03f;
    c.fill_random(random, 1.5f);
    BlockLists lists(c.q.size()[0], c.q.size()[2], c.q.size()[1], sk);
    lists.fill_random(random, 0, lists.key_blocks);
    check_both_forms(c, lists, sk);
  }
}

TEST_F(GpuAttention, EveryTailLength_MatchesFp64_K2) {
  Random random(testing::test_seed(403));
  for (int64_t tokens = 129; tokens <= 192; tokens += 3) {
    SCOPED_TRACE("S " + std::to_string(tokens));
    AttendCase c({.sq = tokens, .sk = tokens, .heads = 1, .kv_heads = 1, .dtype = Dtype::kBf16});
    c.fill_random(random, 1.5f);
    BlockLists lists(1, 1, tokens, tokens);
    lists.rows = {{2}, {0, 2}, {2, 1, 0}};
    check_both_forms(c, lists, tokens);
  }
}

TEST_F(GpuAttention, Tokens257_AllForms_K14) {
  Random random(testing::test_seed(404));
  AttendCase c({.sq = 257, .sk = 257, .dtype = Dtype::kBf16});
  c.fill_random(random, 1.5f);
  BlockLists lists(1, 2, 257, 257);
  lists.fill_all();
  check_both_forms(c, lists, 257);
}

TEST_F(GpuAttention, TailBlockInAnySlotManyWaves_IsMasked_K4) {
  // 23 query blocks x 40 heads = 920 tiles, more than two waves of 132.
  constexpr int64_t kTokens = 64 * 22 + 9, kHeads = 40;
  Random random(testing::test_seed(405));
  AttendCase c(
      {.sq = kTokens, .sk = kTokens, .heads = kHeads, .kv_heads = kHeads, .dtype = Dtype::kBf16});
  c.fill_uniform();
  c.v.fill([](const auto&) { return 1.0f; });
  BlockLists lists(1, kHeads, kTokens, kTokens);
  for (auto& row : lists.rows) {
    row = random.sample(22, static_cast<int32_t>(random.integer(1, 6)));
    row.insert(row.begin() + random.integer(0, static_cast<int64_t>(row.size())), 22);
  }
  const Plan plan = lists.plan();
  GpuCase gpu(c);
  for (const std::string& kernel : gpu_kernels()) {
    ASSERT_TRUE(is_ok(gpu.run_plan(plan.view(), on_gpu(kernel))));
    for (double x : c.out.values()) ASSERT_NEAR(x, 1.0, 2e-3) << kernel;
    for (int64_t h = 0; h < kHeads; ++h) {
      for (int64_t i = 0; i < lists.query_blocks; ++i) {
        const double keys = static_cast<double>(lists.at(0, h, i).size() - 1) * 64 + 9;
        ASSERT_NEAR(c.lse.get({0, h, i * 64}), std::log(keys), 1e-3) << kernel;
      }
    }
  }
}

TEST_F(GpuAttention, TailCountedAsFull_IsNoticed_K4Control) {
  // The oracle of a tail one key longer must be outside the tolerance of the LSE.
  Random random(testing::test_seed(406));
  AttendCase c({.sq = 100, .sk = 100, .heads = 1, .kv_heads = 1, .dtype = Dtype::kBf16});
  c.fill_random(random);
  AttendCase longer({.sq = 100, .sk = 101, .heads = 1, .kv_heads = 1, .dtype = Dtype::kBf16});
  longer.q.copy_from(c.q);
  longer.k.fill([&](const auto& at) { return at[1] < 100 ? c.k.get(at) : 0.0f; });
  longer.v.fill([&](const auto& at) { return at[1] < 100 ? c.v.get(at) : 0.0f; });
  GpuCase gpu(c);
  ASSERT_TRUE(is_ok(gpu.run(std::nullopt, on_gpu())));
  const testing::OracleError e = oracle_error(c, longer.oracle(testing::all_keys(101)));
  EXPECT_GT(e.relative_l2, testing::tolerance_of(Dtype::kBf16).relative_l2);
  EXPECT_GT(e.lse, 1e-3);
}

TEST_F(GpuAttention, FullBudget8192And8229_EqualDense_K1K2) {
  Random random(testing::test_seed(407));
  for (int64_t tokens : {8192, 8229}) {
    AttendCase c({.sq = tokens, .sk = tokens, .heads = 1, .kv_heads = 1, .dtype = Dtype::kBf16});
    c.fill_random(random);
    testing::RouterCase routed(
        {.sq = tokens, .sk = tokens, .heads = 1, .kv_heads = 1, .dtype = Dtype::kBf16});
    routed.q.copy_from(c.q);
    routed.k.copy_from(c.k);
    RouteParams p = routed.params();
    p.config.budget.sparsity = 1e-6;
    testing::GpuRoute route(routed, p);
    ASSERT_TRUE(is_ok(route.run()));
    const auto oracle = cpu_oracle(c, std::nullopt);
    GpuCase gpu(c);
    for (const std::string& kernel : gpu_kernels()) {
      SCOPED_TRACE(kernel);
      ASSERT_TRUE(is_ok(gpu.run(std::nullopt, on_gpu(kernel))));
      expect_gpu_matches(c, oracle);
      const testing::ResultBits dense = bits_of(c);
      ASSERT_TRUE(is_ok(gpu.run(route.list_view(), on_gpu(kernel))));
      EXPECT_EQ(bits_of(c), dense) << "the full plan is dense attention, bit for bit";
    }
  }
}

TEST_F(GpuAttention, MixedDenseAndSparseRows_MatchFp64_K5) {
  Random random(testing::test_seed(408));
  AttendCase c(
      {.batch = 2, .sq = 190, .sk = 1000, .heads = 2, .kv_heads = 2, .dtype = Dtype::kBf16});
  c.fill_random(random, 1.5f);
  BlockLists lists(2, 2, 190, 1000);
  lists.fill_random(random, 0, 5);
  Plan plan = lists.plan();
  plan.dense_rows = {1, 0, 1, 0, 1, 0};
  plan.index[0] = 4000;  // the list of a dense row is not looked at
  for (int64_t b = 0; b < 2; ++b) {
    for (int64_t h = 0; h < 2; ++h) {
      for (int64_t i = 0; i < 3; ++i) {
        auto& row = lists.at(b, h, i);
        if (plan.dense_rows[b * 3 + i] == 0) continue;
        row.resize(16);
        std::iota(row.begin(), row.end(), 0);
      }
    }
  }
  const auto oracle = c.oracle(lists.keys(1000));
  GpuCase gpu(c);
  for (const std::string& kernel : gpu_kernels()) {
    SCOPED_TRACE(kernel);
    ASSERT_TRUE(is_ok(gpu.run_plan(plan.view(), on_gpu(kernel))));
    expect_gpu_matches(c, oracle);
    Plan swapped = plan;
    for (uint8_t& dense : swapped.dense_rows) dense ^= 1;
    swapped.index[0] = 0;
    swapped.count.assign(swapped.count.size(), 1);
    for (size_t row = 0; row < swapped.count.size(); ++row) {
      swapped.index[row * swapped.shape.width] = 0;
    }
    ASSERT_TRUE(is_ok(gpu.run_plan(swapped.view(), on_gpu(kernel))));
    EXPECT_GT(oracle_error(c, oracle).relative_l2, 0.1) << "control: the swapped mask";
  }
}

TEST_F(GpuAttention, ListsDifferPerHead_EachHeadReadsItsOwn_K11) {
  constexpr int64_t kHeads = 7;
  AttendCase c({.batch = 2,
                .sq = 448,
                .sk = 448,
                .heads = kHeads,
                .kv_heads = kHeads,
                .dtype = Dtype::kBf16});
  c.fill_uniform();
  c.v.fill([](const auto& at) { return static_cast<float>(at[1] / 64 + 10 * at[0]); });
  BlockLists lists(2, kHeads, 448, 448);
  for (int64_t b = 0; b < 2; ++b) {
    for (int64_t h = 0; h < kHeads; ++h) {
      for (int64_t i = 0; i < 7; ++i) lists.at(b, h, i) = {static_cast<int32_t>((h + i + b) % 7)};
    }
  }
  const Plan plan = lists.plan();
  GpuCase gpu(c);
  for (const std::string& kernel : gpu_kernels()) {
    ASSERT_TRUE(is_ok(gpu.run_plan(plan.view(), on_gpu(kernel))));
    testing::for_each_index<4>(c.out.size(), [&](const auto& at) {
      const double want = static_cast<double>((at[2] + at[1] / 64 + at[0]) % 7 + 10 * at[0]);
      ASSERT_EQ(c.out.get(at), want) << kernel << " row " << at[1] << " head " << at[2];
    });
  }
}

TEST_F(GpuAttention, LargeScoresOfEitherSign_GiveTheRightLse_K9) {
  Random random(testing::test_seed(409));
  for (float value : {6.0f, -6.0f}) {
    AttendCase c({.sq = 130, .sk = 200, .heads = 2, .kv_heads = 2, .dtype = Dtype::kBf16});
    // Scores near +-400, each key block a little higher than the one before it.
    c.q.fill([&](const auto&) { return 6.0f + 0.25f * random.normal(); });
    c.k.fill([&](const auto& at) {
      return value + 0.25f * random.normal() + 0.125f * static_cast<float>(at[1] / 64);
    });
    c.v.fill_random(random);
    BlockLists lists(1, 2, 130, 200);
    lists.fill_random(random, 0, 3);
    check_both_forms(c, lists, 200);
  }
}

TEST_F(GpuAttention, ScoresAroundEveryBound_MatchFp64) {
  // Norm products from far below to far above 75 log2 units, where kernels may change their way of
  // normalising; a sign of -1 puts all scores of a row at the lower end.
  Random random(testing::test_seed(413));
  for (float spread : {0.1f, 1.0f, 1.9f, 2.1f, 2.3f, 4.0f}) {
    for (float mean : {0.0f, 1.0f, -1.0f}) {
      SCOPED_TRACE("spread " + std::to_string(spread) + " mean " + std::to_string(mean));
      AttendCase c({.sq = 200, .sk = 400, .heads = 2, .kv_heads = 1, .dtype = Dtype::kBf16});
      const float noise = mean == 0 ? spread : spread / 8;
      c.q.fill([&](const auto&) { return std::abs(mean) * spread + noise * random.normal(); });
      c.k.fill([&](const auto&) { return mean * spread + noise * random.normal(); });
      c.v.fill_random(random);
      BlockLists lists(1, 2, 200, 400);
      lists.fill_random(random, 0, 7);
      check_both_forms(c, lists, 400);
    }
  }
}

TEST_F(GpuAttention, ValuesOfAnyMagnitude_AreAveragedExactly) {
  // All rows of v equal x: the answer is x, however large, small or negative the scores are.
  for (float value : {1e30f, 1e20f, 1.0f, 1e-12f, 1e-20f, 1e-30f}) {
    for (float sign : {0.0f, 1.0f, -1.0f}) {
      SCOPED_TRACE("value " + std::to_string(std::log10(value)) + " sign " + std::to_string(sign));
      AttendCase c({.sq = 100, .sk = 300, .heads = 1, .kv_heads = 1, .dtype = Dtype::kBf16});
      c.q.fill([](const auto&) { return 2.0f; });
      c.k.fill([&](const auto&) { return 2.0f * sign; });  // |score| 45, 65 in log2 units
      const float x = round_bf16(value);
      c.v.fill([&](const auto&) { return x; });
      GpuCase gpu(c);
      for (const std::string& kernel : gpu_kernels()) {
        ASSERT_TRUE(is_ok(gpu.run(std::nullopt, on_gpu(kernel))));
        for (double y : c.out.values()) ASSERT_NEAR(y / x, 1.0, 0x1p-8) << kernel;
      }
    }
  }
}

TEST_F(GpuAttention, NaNInOneBlock_ReachesOnlyRowsThatReadIt) {
  Random random(testing::test_seed(410));
  AttendCase c({.sq = 320, .sk = 320, .heads = 2, .kv_heads = 2, .dtype = Dtype::kBf16});
  c.fill_random(random);
  for (int64_t d = 0; d < 128; ++d) {
    c.k.set({0, 130, 0, d}, std::nanf(""));  // block 2, head 0
    c.v.set({0, 200, 1, d}, std::nanf(""));  // block 3, head 1
  }
  c.q.set({0, 5, 0, 7}, std::nanf(""));
  BlockLists lists(1, 2, 320, 320);
  lists.fill_random(random, 1, 4);
  const Plan plan = lists.plan();
  GpuCase gpu(c);
  for (const std::string& kernel : gpu_kernels()) {
    ASSERT_TRUE(is_ok(gpu.run_plan(plan.view(), on_gpu(kernel))));
    for (int64_t h = 0; h < 2; ++h) {
      for (int64_t s = 0; s < 320; ++s) {
        const auto& row = lists.at(0, h, s / 64);
        const bool reads = std::find(row.begin(), row.end(), h == 0 ? 2 : 3) != row.end();
        const bool want = reads || (h == 0 && s == 5);
        ASSERT_EQ(std::isnan(c.out.get({0, s, h, 64})), want)
            << kernel << " row " << s << " head " << h;
      }
    }
  }
}

TEST_F(GpuAttention, PackedDocuments_EachLikeAloneAndMore32) {
  Random random(testing::test_seed(411));
  // 2 documents, then 71 with lengths 0 to 129: three launches.
  for (const int documents : {2, 71}) {
    std::vector<int32_t> cu{0};
    for (int i = 0; i < documents; ++i) {
      cu.push_back(cu.back() + (documents == 2 ? 190 - 60 * i : (i * 37) % 130));
    }
    const int64_t tokens = cu.back() + 5;
    AttendCase c({.sq = tokens, .sk = tokens, .heads = 4, .kv_heads = 2, .dtype = Dtype::kBf16});
    c.fill_random(random, 1.5f);
    c.cu = cu;
    for (testing::Tensor4* t : {&c.q, &c.k, &c.v}) {
      for (int64_t s = cu.back(); s < tokens; ++s) {
        for (int64_t h = 0; h < t->size()[2]; ++h) t->set({0, s, h, 3}, std::nanf(""));
      }
    }
    BlockLayout layout;
    ASSERT_TRUE(is_ok(packed_documents(cu, tokens, 0, &layout)));
    Plan plan;
    ASSERT_TRUE(is_ok(random_plan(layout, 1, 4, 2, random.next(), &plan)));
    for (int32_t& count : plan.count) count -= count > 0 && random.chance(0.2);
    const auto dense = c.oracle(testing::document_keys(cu));
    const auto sparse = cpu_oracle(c, plan.view());
    GpuCase gpu(c);
    for (const std::string& kernel : gpu_kernels()) {
      SCOPED_TRACE(kernel + " documents " + std::to_string(documents));
      ASSERT_TRUE(is_ok(gpu.run(std::nullopt, on_gpu(kernel))));
      expect_gpu_matches(c, dense);
      ASSERT_TRUE(is_ok(gpu.run_plan(plan.view(), on_gpu(kernel))));
      expect_gpu_matches(c, sparse);
    }
  }
}

TEST_F(GpuAttention, WithoutLse_WritesTheSameOutput) {
  Random random(testing::test_seed(412));
  AttendCase c({.sq = 200, .sk = 200, .dtype = Dtype::kF16});
  c.fill_random(random);
  GpuCase gpu(c);
  for (const std::string& kernel : gpu_kernels()) {
    ASSERT_TRUE(is_ok(gpu.run(std::nullopt, on_gpu(kernel))));
    const auto want = c.out.bits();
    AttentionParams p = gpu.params();
    p.lse = {};
    const auto scratch = gpu.workspace(p);
    Execution exec = on_gpu(kernel);
    exec.workspace = {scratch.data(), scratch.bytes()};
    gpu.poison_outputs();
    ASSERT_TRUE(is_ok(attend(p, exec)));
    testing::cuda_ok(cudaDeviceSynchronize(), "attend");
    gpu.fetch();
    EXPECT_EQ(c.out.bits(), want) << kernel;
    EXPECT_TRUE(testing::all_nan(c.lse.values())) << "untouched";
  }
}

}  // namespace
}  // namespace tessera
