// The CUDA router: scores against fp64 and the CPU, selection against its own scores, budgets,
// documents, strides, ties.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>
#include <numbers>

#include "tessera/tests/gpu/gpu_case.h"

namespace tessera {
namespace {

using testing::best_columns;
using testing::GpuRoute;
using testing::is_ok;
using testing::on;
using testing::Random;
using testing::RouteBuffers;
using testing::RouterCase;

class GpuRouter : public testing::GpuTest {};

constexpr float kInf = std::numeric_limits<float>::infinity();

RouterConfig keep_config(int32_t keep) {
  RouterConfig config;
  config.budget.kind = BudgetKind::kKeep;
  config.budget.keep = keep;
  return config;
}

/// exp-weights of a score row, relative to its largest.
std::vector<double> weights(const float* scores, int32_t n) {
  float top = -kInf;
  for (int32_t j = 0; j < n; ++j) top = std::max(top, scores[j]);
  std::vector<double> w;
  for (int32_t j = 0; j < n; ++j) w.push_back(std::exp(double{scores[j]} - double{top}));
  return w;
}

double share(const std::vector<double>& w, const std::vector<int32_t>& ids) {
  double total = 0, kept = 0;
  for (double x : w) total += x;
  for (int32_t j : ids) kept += w[j];
  return kept / total;
}

/// What `route` promises about its outputs, given its own scores; 0 key blocks: not scored.
void check_consistency(const RouteBuffers& got, const BlockLayout& layout,
                       const RouteParams& params) {
  const PlanShape& s = got.shape;
  const std::vector<int32_t> pinned(params.protected_blocks.begin(), params.protected_blocks.end());
  for (int64_t row = 0; row < s.rows(); ++row) {
    const int64_t block = row % s.query_blocks, batch = row / s.query_blocks / s.heads;
    const Document& d = layout.owner(static_cast<int32_t>(block));
    const bool dense_document = d.key_length < params.min_seq_len;
    const bool dense = dense_document || (!params.dense_query_blocks.empty() &&
                                          params.dense_query_blocks[block] != 0);
    ASSERT_EQ(got.plan.dense_rows[batch * s.query_blocks + block], dense ? 1 : 0);
    const int32_t scored = dense_document ? 0 : d.key_blocks;
    const float* own = &got.scores[row * s.key_blocks];
    for (int32_t j = scored; j < s.key_blocks; ++j) ASSERT_EQ(own[j], -kInf) << "row " << row;
    std::vector<float> ranked(own, own + scored);
    for (int32_t id : pinned) {
      if (scored > 0) ranked[id] = kInf;
    }
    const int32_t count = got.plan.count[row];
    if (dense) {
      ASSERT_EQ(count, 0) << "row " << row;
      ASSERT_EQ(got.mass[row], 1.0f) << "row " << row;
    } else {
      ASSERT_GE(count, 1) << "row " << row;
      ASSERT_LE(count, s.width) << "row " << row;
      ASSERT_EQ(got.ids(row), best_columns(ranked, count)) << "row " << row;
      if (params.config.budget.kind == BudgetKind::kKeep) {
        ASSERT_EQ(count, std::min(params.config.budget.keep, d.key_blocks)) << "row " << row;
      }
      const bool finite = std::all_of(own, own + scored, [](float x) { return std::isfinite(x); });
      if (finite) {
        ASSERT_NEAR(got.mass[row], share(weights(own, scored), got.ids(row)), 1e-4)
            << "row " << row;
      }
    }
    for (int32_t n = count; n < s.width; ++n) {
      ASSERT_EQ(got.plan.index[row * s.width + n], -1) << "unused slots are -1, row " << row;
    }
    std::vector<uint32_t> words(s.words(), 0);
    for (int32_t j : got.ids(row)) words[j / 32] |= 1u << (j % 32);
    ASSERT_TRUE(std::equal(words.begin(), words.end(), got.bitmap.begin() + row * s.words()))
        << "row " << row;
  }
}

/// Routes on both devices: consistent outputs, close scores, equally good selections.
void check_against_cpu(const RouterCase& c, const RouteParams& params, RouteBuffers* out = nullptr,
                       double score_error = 5e-4) {
  GpuRoute gpu(c, params);
  ASSERT_TRUE(is_ok(gpu.run()));
  RouteBuffers cpu(params);
  ASSERT_TRUE(is_ok(route(params, on("cpu_highway", 0), cpu.outputs())));
  BlockLayout layout = single_document(params.q.size[1], params.k.size[1]);
  if (!params.cu_seqlens.empty()) {
    ASSERT_TRUE(is_ok(packed_documents(params.cu_seqlens, params.q.size[1], 0, &layout)));
  }
  ASSERT_NO_FATAL_FAILURE(check_consistency(gpu.got, layout, params));
  const PlanShape& s = cpu.shape;
  ASSERT_EQ(gpu.got.plan.dense_rows, cpu.plan.dense_rows);
  double worst = 0;
  for (size_t i = 0; i < cpu.scores.size(); ++i) {
    if (cpu.scores[i] == gpu.got.scores[i]) continue;  // infinities included
    worst = std::max(worst, std::abs(double{cpu.scores[i]} - double{gpu.got.scores[i]}));
  }
  EXPECT_LE(worst, score_error);
  for (int64_t row = 0; row < s.rows(); ++row) {
    const int32_t key_blocks = layout.owner(static_cast<int32_t>(row % s.query_blocks)).key_blocks;
    if (cpu.plan.count[row] == 0) continue;
    const auto w = weights(&cpu.scores[row * s.key_blocks], key_blocks);
    const double want = share(w, cpu.ids(row)), have = share(w, gpu.got.ids(row));
    if (params.config.budget.kind == BudgetKind::kMass) {
      // One block more or less where the target falls on a rounding.
      EXPECT_NEAR(gpu.got.plan.count[row], cpu.plan.count[row], 1) << "row " << row;
    } else {
      EXPECT_EQ(gpu.got.plan.count[row], cpu.plan.count[row]) << "row " << row;
      EXPECT_GE(have, want - 2 * score_error) << "row " << row;
    }
    EXPECT_NEAR(gpu.got.mass[row], have, 2 * score_error + 1e-4) << "row " << row;
  }
  if (out != nullptr) *out = gpu.got;
}

TEST_F(GpuRouter, ExactCells_MatchFp64_R1R2R3R4) {
  Random random(testing::test_seed(441));
  double worst = 0;
  for (int n_q : {1, 2, 4, 8}) {
    for (int n_k : {1, 2, 4, 8}) {
      for (auto [weighted, amplitude] :
           {std::pair{false, 2.0}, {true, 2.0}, {false, 8.0}, {true, 40.0}}) {
        // The larger ones leave the range of fp32 powers, in some tiles or in all.
        SCOPED_TRACE("n_q " + std::to_string(n_q) + " n_k " + std::to_string(n_k) + " amplitude " +
                     std::to_string(amplitude));
        // A one-token tail on one side, a ragged one on the other; values constant in a cell, so
        // that every mean is exact and both sides round the same numbers.
        const int64_t sq = 64 * 5 - 63, sk = 64 * 21 + random.integer(1, 63);
        RouterCase c({.sq = sq, .sk = sk, .heads = 1, .kv_heads = 1, .dtype = Dtype::kBf16});
        testing::Tensor4 q_means({1, 64, 1, 128}, Dtype::kBf16);
        testing::Tensor4 k_means({1, 22 * 8, 1, 128}, Dtype::kBf16);
        q_means.fill_random(random, amplitude);
        k_means.fill_random(random, amplitude);
        c.q.fill([&](const auto& at) { return q_means.get({0, at[1] / (64 / n_q), 0, at[3]}); });
        c.k.fill([&](const auto& at) { return k_means.get({0, at[1] / (64 / n_k), 0, at[3]}); });
        RouteParams p = c.params();
        p.config = keep_config(3);
        p.config.n_q = n_q;
        p.config.n_k = n_k;
        p.config.weight_partial_cells = weighted;
        GpuRoute gpu(c, p);
        ASSERT_TRUE(is_ok(gpu.run()));
        ASSERT_NO_FATAL_FAILURE(check_consistency(gpu.got, single_document(sq, sk), p));
        const float scale =
            static_cast<float>(double{1.0f / std::sqrt(128.0f)} * std::numbers::log2e);
        std::vector<float> q_cells, k_cells;
        for (double x : testing::cell_means(c.q, 0, 0, 0, sq, n_q, 1)) {
          q_cells.push_back(round_bf16(static_cast<float>(x) * scale));
        }
        for (double x : testing::cell_means(c.k, 0, 0, 0, sk, n_k, 1)) {
          k_cells.push_back(round_bf16(static_cast<float>(x)));
        }
        const std::vector<double> want = testing::score_oracle({.q_cells = q_cells,
                                                                .k_cells = k_cells,
                                                                .n_q = n_q,
                                                                .n_k = n_k,
                                                                .sq = sq,
                                                                .sk = sk,
                                                                .weight_partial_cells = weighted});
        ASSERT_EQ(want.size(), gpu.got.scores.size());
        for (size_t i = 0; i < want.size(); ++i) {
          const double error = std::abs(gpu.got.scores[i] - want[i]);
          if (amplitude <= 2) worst = std::max(worst, error);
          // Large terms may cancel in a product; what they leave is rounded like them.
          ASSERT_LE(error, 1e-5 * std::max({1.0, std::abs(want[i]), amplitude / 2}))
              << "pair " << i << ", score " << want[i];
        }
        // Controls: the base-2 logarithm, and a tail whose missing cells count as exp(0).
        EXPECT_GT(std::abs(gpu.got.scores[0] - want[0] / std::log(2.0)), 1e-3);
      }
    }
  }
  std::printf("[          ] largest score error %.2e\n", worst);
}

TEST_F(GpuRouter, CountsShapesDtypes_MatchTheCpu_R5R6R7) {
  Random random(testing::test_seed(442));
  struct Row {
    testing::CaseShape shape;
    double sparsity;
    int32_t kept;
  };
  const Row table[] = {
      {{.sq = 500, .sk = 1900, .heads = 3, .kv_heads = 3}, 0.75, 8},
      {{.batch = 2, .sq = 300, .sk = 64 * 37 + 9, .heads = 4, .kv_heads = 2}, 0.75, 16},
      {{.batch = 2, .sq = 1, .sk = 1, .heads = 2, .kv_heads = 1}, 0.75, 1},
      {{.sq = 64, .sk = 65, .heads = 2, .kv_heads = 2}, 0.9, 2},
      {{.sq = 2000, .sk = 5120, .heads = 2, .kv_heads = 1}, 0.7, 32},
      {{.sq = 700, .sk = 64 * 590, .heads = 1, .kv_heads = 1}, 0.75, 152},
      {{.batch = 3, .sq = 130, .sk = 64 * 150, .heads = 2, .kv_heads = 2}, 1e-6, 150},
  };
  for (const Row& row : table) {
    for (Dtype dtype : {Dtype::kBf16, Dtype::kF16}) {
      SCOPED_TRACE("Sk " + std::to_string(row.shape.sk) + " " + std::string(dtype_name(dtype)));
      testing::CaseShape shape = row.shape;
      shape.dtype = dtype;
      RouterCase c(shape);
      c.fill_random(random, 2);
      RouteParams p = c.params();
      p.config.budget.sparsity = row.sparsity;
      EXPECT_EQ(blocks_for_sparsity(row.sparsity, static_cast<int32_t>((shape.sk + 63) / 64), 8),
                row.kept);
      RouteBuffers got(p);
      check_against_cpu(c, p, &got);
      for (int32_t count : got.plan.count) ASSERT_EQ(count, row.kept);
    }
  }
}

TEST_F(GpuRouter, RandomCallsOfEveryKind_MatchTheCpu) {
  Random random(testing::test_seed(443));
  constexpr std::array kCells{1, 2, 4, 8};
  for (int round = 0; round < 40; ++round) {
    SCOPED_TRACE("round " + std::to_string(round));
    const int64_t kv_heads = random.integer(1, 2);
    const int64_t sk = random.integer(1, 6000);
    RouterCase c({.batch = random.integer(1, 2),
                  .sq = random.integer(1, 900),
                  .sk = sk,
                  .heads = kv_heads * random.integer(1, 2),
                  .kv_heads = kv_heads,
                  .dtype = random.chance(0.5) ? Dtype::kBf16 : Dtype::kF16});
    c.fill_random(random, 2);
    RouteParams p = c.params();
    const auto blocks = static_cast<int32_t>((sk + 63) / 64);
    p.config.n_q = kCells[random.integer(0, 3)];
    p.config.n_k = kCells[random.integer(0, 3)];
    p.config.weight_partial_cells = random.chance(0.5);
    p.config.budget.kind = static_cast<BudgetKind>(random.integer(0, 2));
    p.config.budget.sparsity = random.uniform();
    p.config.budget.keep = static_cast<int32_t>(random.integer(1, 100));
    p.config.budget.mass = 0.05 + 0.9 * random.uniform();
    p.config.budget.min_keep = static_cast<int32_t>(random.integer(1, 5));
    p.config.budget.max_keep = random.chance(0.5) ? 0 : 40;
    std::vector<uint8_t> dense((c.q.size()[1] + 63) / 64);
    for (uint8_t& flag : dense) flag = random.chance(0.3);
    if (random.chance(0.5)) p.dense_query_blocks = dense;
    const std::vector<int32_t> pinned{static_cast<int32_t>(random.integer(0, blocks - 1))};
    if (random.chance(0.5)) p.protected_blocks = pinned;
    check_against_cpu(c, p);
  }
}

TEST_F(GpuRouter, ConstantInput_KeepsTheFirstColumns_R8) {
  for (int32_t key_blocks : {2, 5, 33, 64, 100, 590, 1100, 2100}) {
    SCOPED_TRACE(key_blocks);
    RouterCase c(
        {.sq = 100, .sk = 64 * key_blocks, .heads = 2, .kv_heads = 1, .dtype = Dtype::kBf16});
    for (float value : {0.0f, 1.0f}) {
      c.fill_constant(value);
      RouteParams p = c.params();
      p.config = keep_config(std::max(1, key_blocks / 3));
      GpuRoute gpu(c, p);
      ASSERT_TRUE(is_ok(gpu.run()));
      for (int64_t row = 0; row < gpu.got.shape.rows(); ++row) {
        const std::vector<int32_t> ids = gpu.got.ids(row);
        ASSERT_EQ(ids.size(), static_cast<size_t>(p.config.budget.keep));
        for (size_t n = 0; n < ids.size(); ++n) ASSERT_EQ(ids[n], static_cast<int32_t>(n));
      }
      p.config.budget = {.kind = BudgetKind::kMass, .mass = 0.5};
      GpuRoute by_mass(c, p);
      ASSERT_TRUE(is_ok(by_mass.run()));
      for (int32_t count : by_mass.got.plan.count) ASSERT_NEAR(count, key_blocks / 2.0, 1);
    }
  }
}

TEST_F(GpuRouter, PartialTies_GoToTheLowerIndex_R8) {
  Random random(testing::test_seed(444));
  // Every key block is one of four, so that each score appears many times in a row.
  constexpr int64_t kBlocks = 150;
  RouterCase c({.sq = 300, .sk = 64 * kBlocks, .heads = 2, .kv_heads = 2, .dtype = Dtype::kBf16});
  c.fill_random(random, 2);
  std::vector<int64_t> kind(kBlocks);
  for (int64_t& k : kind) k = random.integer(0, 3);
  testing::Tensor4 four({1, 256, 2, 128}, Dtype::kBf16);
  four.fill_random(random, 2);
  c.k.fill([&](const auto& at) {
    return four.get({0, kind[at[1] / 64] * 64 + at[1] % 64, at[2], at[3]});
  });
  for (int32_t keep : {1, 7, 40, 75, 149}) {
    RouteParams p = c.params();
    p.config = keep_config(keep);
    RouteBuffers got(p);
    check_against_cpu(c, p, &got);
    RouteBuffers cpu(p);
    ASSERT_TRUE(is_ok(route(p, on("cpu_highway", 0), cpu.outputs())));
    int compared = 0;
    for (int64_t row = 0; row < got.shape.rows(); ++row) {
      std::vector<float> distinct(cpu.scores.begin() + row * kBlocks,
                                  cpu.scores.begin() + (row + 1) * kBlocks);
      std::sort(distinct.begin(), distinct.end());
      distinct.erase(std::unique(distinct.begin(), distinct.end()), distinct.end());
      ASSERT_LE(distinct.size(), 4u);
      float gap = kInf;
      for (size_t n = 1; n < distinct.size(); ++n) {
        gap = std::min(gap, distinct[n] - distinct[n - 1]);
      }
      if (gap < 2e-3f) continue;  // rounding may swap two kinds
      EXPECT_EQ(got.ids(row), cpu.ids(row)) << "row " << row;
      ++compared;
    }
    EXPECT_GE(compared, 5);
  }
}

TEST_F(GpuRouter, PeakedRows_EqualTheSort_R12) {
  Random random(testing::test_seed(445));
  constexpr int64_t kBlocks = 590;
  RouterCase c({.sq = 640, .sk = 64 * kBlocks, .heads = 1, .kv_heads = 1, .dtype = Dtype::kBf16});
  // Key block 7 i stands 40 above everything in the row of query block i: 256 * 1.77 / 11.3 = 40.
  c.q.fill([&](const auto& at) {
    return (at[3] == at[1] / 64 ? 16.0f : 0.0f) + 0.2f * random.normal();
  });
  c.k.fill([&](const auto& at) {
    const int64_t block = at[1] / 64;
    return (block % 7 == 0 && at[3] == block / 7 && block / 7 < 10 ? 28.3f : 0.0f) +
           0.2f * random.normal();
  });
  RouteParams p = c.params();
  p.config = keep_config(64);
  RouteBuffers got(p);
  check_against_cpu(c, p, &got);
  for (int64_t row = 0; row < 10; ++row) {
    const std::vector<int32_t> ids = got.ids(row);
    EXPECT_EQ(ids.size(), 64u);
    EXPECT_NE(std::find(ids.begin(), ids.end(), row * 7), ids.end()) << "row " << row;
    const float* scores = &got.scores[row * kBlocks];
    EXPECT_GT(scores[row * 7], 30 + scores[row * 7 + 1]) << "a peak";
    EXPECT_GT(got.mass[row], 0.999f);
  }
}

TEST_F(GpuRouter, PackedViewOfQkv_BitEqualToContiguous_R10) {
  Random random(testing::test_seed(446));
  testing::Tensor4 fused({2, 1000, 3 * 4, 128}, Dtype::kBf16);
  fused.fill_random(random, 2);
  RouterCase c(
      {.batch = 2, .sq = 1000, .sk = 1000, .heads = 4, .kv_heads = 4, .dtype = Dtype::kBf16});
  c.q.fill([&](const auto& at) { return fused.get(at); });
  c.k.fill([&](const auto& at) { return fused.get({at[0], at[1], at[2] + 4, at[3]}); });
  RouteParams p = c.params();
  p.config = keep_config(5);
  GpuRoute gpu(c, p);
  ASSERT_TRUE(is_ok(gpu.run()));
  const RouteBuffers want = gpu.got;
  const testing::DeviceTensor<4> device(fused);
  const auto part = [&](int64_t n) {
    Bshd view = device.view();
    view.size[2] = 4;
    view.data = static_cast<uint16_t*>(view.data) + n * 4 * 128;
    return view;
  };
  GpuRoute views(c, p);
  views.use_tensors(part(0), part(1));
  ASSERT_TRUE(is_ok(views.run()));
  EXPECT_EQ(views.got.scores, want.scores);
  EXPECT_EQ(views.got.plan.index, want.plan.index);
  EXPECT_EQ(views.got.bitmap, want.bitmap);
  EXPECT_EQ(views.got.mass, want.mass);
  ASSERT_TRUE(is_ok(views.run()));
  EXPECT_EQ(views.got.scores, want.scores) << "the second run";
  EXPECT_EQ(views.got.plan.index, want.plan.index) << "the second run";
  views.use_tensors(part(1), part(0));
  ASSERT_TRUE(is_ok(views.run()));
  EXPECT_NE(views.got.plan.index, want.plan.index) << "control: q and k swapped";
}

TEST_F(GpuRouter, PackedDocuments_MatchTheCpuAndTheirOwnCall) {
  Random random(testing::test_seed(447));
  RouterCase c({.sq = 1000, .sk = 1000, .heads = 2, .kv_heads = 1, .dtype = Dtype::kBf16});
  c.fill_random(random, 2);
  c.cu = {0, 100, 100, 612, 990};  // lengths 100, 0, 512, 378; ten rows outside
  for (testing::Tensor4* t : {&c.q, &c.k}) {
    for (int64_t s = 990; s < 1000; ++s) t->set({0, s, 0, 11}, std::nanf(""));
  }
  RouteParams p = c.params();
  p.config = keep_config(3);
  p.min_seq_len = 378;
  RouteBuffers got(p);
  check_against_cpu(c, p, &got);
  EXPECT_EQ(got.plan.dense_rows[0], 1);
  EXPECT_EQ(got.plan.dense_rows[2], 0) << "the limit itself is routed";
  RouterCase alone({.sq = 378, .sk = 378, .heads = 2, .kv_heads = 1, .dtype = Dtype::kBf16});
  alone.q.fill([&](const auto& at) { return c.q.get({0, at[1] + 612, at[2], at[3]}); });
  alone.k.fill([&](const auto& at) { return c.k.get({0, at[1] + 612, at[2], at[3]}); });
  RouteParams one = alone.params();
  one.config = keep_config(3);
  GpuRoute single(alone, one);
  ASSERT_TRUE(is_ok(single.run()));
  for (int h = 0; h < 2; ++h) {
    for (int i = 0; i < 6; ++i) EXPECT_EQ(got.ids(h * 16 + 10 + i), single.got.ids(h * 6 + i));
  }
  // All documents dense, and none at all.
  p.min_seq_len = 5000;
  GpuRoute dense(c, p);
  ASSERT_TRUE(is_ok(dense.run()));
  EXPECT_EQ(dense.got.shape.width, 0);
  for (uint8_t flag : dense.got.plan.dense_rows) EXPECT_EQ(flag, 1);
  c.cu = {0, 0};
  RouteParams none = c.params();
  GpuRoute empty(c, none);
  ASSERT_TRUE(is_ok(empty.run()));
  EXPECT_EQ(empty.got.shape.rows(), 0);
}

TEST_F(GpuRouter, NaNScores_RankLowestAndRowsStayFull_R7) {
  Random random(testing::test_seed(448));
  RouterCase c({.sq = 200, .sk = 640, .heads = 1, .kv_heads = 1, .dtype = Dtype::kBf16});
  c.fill_random(random, 2);
  c.k.set({0, 64 * 3 + 5, 0, 9}, std::nanf(""));
  c.k.set({0, 64 * 8 + 63, 0, 0}, std::nanf(""));
  c.q.set({0, 70, 0, 1}, std::nanf(""));  // all scores of query block 1
  for (int32_t keep : {4, 8, 9, 10}) {
    RouteParams p = c.params();
    p.config = keep_config(keep);
    GpuRoute gpu(c, p);
    ASSERT_TRUE(is_ok(gpu.run()));
    ASSERT_NO_FATAL_FAILURE(check_consistency(gpu.got, single_document(200, 640), p));
    for (int64_t row : {0, 2, 3}) {
      const std::vector<int32_t> ids = gpu.got.ids(row);
      EXPECT_EQ(std::count(ids.begin(), ids.end(), 3), keep > 8) << "keep " << keep;
      EXPECT_EQ(std::count(ids.begin(), ids.end(), 8), keep > 9) << "keep " << keep;
    }
    for (int32_t n = 0; n < keep; ++n) EXPECT_EQ(gpu.got.ids(1)[n], n) << "all equal";
  }
}

}  // namespace
}  // namespace tessera
