// Pooling and scores against fp64 (catalogue R1 to R4, R10, partial cells).
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numbers>

#include "tessera/router.h"
#include "tessera/src/attention/problem.h"
#include "tessera/src/cpu/reference.h"
#include "tessera/tests/support/router_case.h"

namespace tessera {
namespace {

using testing::is_ok;
using testing::kernels;
using testing::on;
using testing::pooled_cells;
using testing::Random;
using testing::RouteBuffers;
using testing::RouterCase;
using testing::Tensor4;

constexpr int kCells[] = {1, 2, 4, 8};

TEST(Pooling, RaggedLengthsAllCellCounts_WithinOneUlp_R1) {
  Random random(testing::test_seed(51));
  for (Dtype dtype : {Dtype::kBf16, Dtype::kF16, Dtype::kF32}) {
    for (int64_t length : {1, 7, 63, 64, 65, 100, 129, 257}) {
      Tensor4 x({1, length, 2, 128}, dtype, testing::guarded_rows());
      x.fill_random(random, 2);
      for (int n : kCells) {
        const double scale = n == 2 ? 1.0 : std::numbers::log2e / std::sqrt(128.0);
        const auto means = testing::cell_means(x, 0, 1, 0, length, n, float(scale));
        for (const std::string& kernel : kernels()) {
          const std::vector<float> cells =
              pooled_cells(kernel, x, 0, 1, 0, length, n, static_cast<float>(scale));
          ASSERT_EQ(cells.size(), means.size());
          size_t inexact = 0;
          for (size_t i = 0; i < cells.size(); ++i) {
            const double want = testing::round_significant(means[i], 8);
            const double ulp = std::ldexp(1.0, std::ilogb(std::abs(want) + 1e-30) - 7);
            ASSERT_LE(std::abs(cells[i] - want), ulp)
                << kernel << " length " << length << " n " << n << " element " << i;
            inexact += cells[i] != want;
          }
          // Only sums that land next to a rounding boundary may differ at all.
          EXPECT_LE(inexact, 2 + cells.size() / 200);
        }
      }
    }
  }
}

TEST(Pooling, CellsWithoutARealRow_AreZeroAndReadNothing) {
  Tensor4 x({1, 65, 1, 128}, Dtype::kBf16, testing::guarded_rows());
  x.fill([](const auto&) { return 3.0f; });
  for (const std::string& kernel : kernels()) {
    const std::vector<float> cells = pooled_cells(kernel, x, 0, 0, 0, 65, 8, 1.0f);
    ASSERT_EQ(cells.size(), 16u * 128);
    for (int cell = 0; cell < 16; ++cell) {
      EXPECT_EQ(cells[cell * 128], cell <= 8 ? 3.0f : 0.0f) << kernel << " cell " << cell;
    }
  }
}

TEST(Pooling, MaskLeftOut_IsNoticed_R1Control) {
  // A tail cell averaged over 16 rows instead of its one real row is 16 times too small.
  Tensor4 x({1, 65, 1, 128}, Dtype::kBf16);
  x.fill([](const auto&) { return 3.0f; });
  const auto right = testing::cell_means(x, 0, 0, 0, 65, 4, 1.0);
  Tensor4 padded({1, 80, 1, 128}, Dtype::kBf16);
  padded.fill([&](const auto& at) { return at[1] < 65 ? 3.0f : 0.0f; });
  const auto wrong = testing::cell_means(padded, 0, 0, 0, 80, 4, 1.0);
  EXPECT_EQ(right[4 * 128], 3.0);
  EXPECT_NEAR(wrong[4 * 128], 3.0 / 16, 1e-9);
}

struct ScoreCheck {
  double worst = 0;       // |score - oracle|
  double worst_log2 = 0;  // as if the oracle had forgotten ln 2
};

ScoreCheck check_scores(const RouterCase& c, const std::string& kernel, const RouterConfig& config,
                        bool weighted_oracle) {
  RouteParams p = c.params();
  p.config = config;
  RouteBuffers got(p);
  EXPECT_TRUE(is_ok(route(p, on(kernel), got.outputs())));
  ScoreCheck check;
  const auto [batch, sq, heads, dim] = c.q.size();
  const int64_t sk = c.k.size()[1], ratio = heads / c.k.size()[2];
  const auto scale = static_cast<float>(std::numbers::log2e / std::sqrt(double(dim)));
  for (int64_t b = 0; b < batch; ++b) {
    for (int64_t h = 0; h < heads; ++h) {
      const auto q_cells = pooled_cells(kernel, c.q, b, h, 0, sq, config.n_q, scale);
      const auto k_cells = pooled_cells(kernel, c.k, b, h / ratio, 0, sk, config.n_k, 1.0f);
      const std::vector<double> want = testing::score_oracle(
          {q_cells, k_cells, config.n_q, config.n_k, sq, sk, dim, weighted_oracle});
      for (size_t i = 0; i < want.size(); ++i) {
        const double score = got.scores[(b * heads + h) * want.size() + i];
        const double error = std::abs(score - want[i]);
        check.worst = std::isnan(error) ? error : std::max(check.worst, error);
        check.worst_log2 =
            std::max(check.worst_log2, std::abs(score - want[i] / std::numbers::ln2));
      }
    }
  }
  return check;
}

TEST(Scores, AllCellCountsBothKernels_MatchFp64_R2R4) {
  Random random(testing::test_seed(52));
  RouterCase c({.batch = 2, .sq = 300, .sk = 421, .heads = 4, .kv_heads = 2});
  c.fill_random(random, 2);
  for (const std::string& kernel : kernels()) {
    for (int n_q : kCells) {
      for (int n_k : kCells) {
        RouterConfig config;
        config.n_q = n_q;
        config.n_k = n_k;
        const ScoreCheck check = check_scores(c, kernel, config, false);
        EXPECT_LE(check.worst, 1e-5) << kernel << " n_q " << n_q << " n_k " << n_k;
        if (n_q * n_k > 1) {
          EXPECT_GT(check.worst_log2, 0.1) << "control: base 2 must not pass";
        }
      }
    }
  }
}

TEST(Scores, MoreQueryBlocksThanOneTile_MatchFp64) {
  Random random(testing::test_seed(58));
  RouterCase c({.sq = 64 * 37 + 3, .sk = 900, .heads = 1, .kv_heads = 1, .dim = 64});
  c.fill_random(random, 2);
  for (const auto& [n_q, n_k] :
       {std::pair{1, 1}, std::pair{4, 4}, std::pair{8, 2}, std::pair{2, 8}}) {
    RouterConfig config;
    config.n_q = n_q;
    config.n_k = n_k;
    EXPECT_LE(check_scores(c, "cpu_highway", config, false).worst, 1e-5) << n_q << " " << n_k;
  }
}

TEST(Scores, Head64AndEveryDtype_MatchFp64) {
  Random random(testing::test_seed(53));
  for (Dtype dtype : {Dtype::kBf16, Dtype::kF16, Dtype::kF32}) {
    RouterCase c({.sq = 150, .sk = 210, .heads = 2, .kv_heads = 2, .dim = 64, .dtype = dtype});
    c.fill_random(random, 1.5);
    for (const std::string& kernel : kernels()) {
      EXPECT_LE(check_scores(c, kernel, {}, false).worst, 1e-5) << kernel;
    }
  }
}

TEST(Scores, OneTokenTail_CountsOnlyRealCells_R3) {
  // S = 64 G - 63: the last block owns one token; its padding cells would add exp(0) = 1 each.
  Random random(testing::test_seed(54));
  for (int64_t blocks : {1, 2, 5}) {
    RouterCase c({.sq = 64 * blocks - 63, .sk = 64 * blocks - 63, .heads = 2, .kv_heads = 2});
    c.fill_random(random, 3);
    for (const std::string& kernel : kernels()) {
      for (int n : kCells) {
        RouterConfig config;
        config.n_q = config.n_k = n;
        EXPECT_LE(check_scores(c, kernel, config, false).worst, 1e-5) << kernel << " n " << n;
      }
    }
  }
}

TEST(Scores, ZeroInput_CountsCellPairs_R3Control) {
  // q = k = 0: a score is ln(number of real cell pairs). With padding cells it would be ln 16.
  RouterCase c({.sq = 65, .sk = 65, .heads = 1, .kv_heads = 1});
  c.fill_constant(0);
  for (const std::string& kernel : kernels()) {
    RouteParams p = c.params();
    RouteBuffers got(p);
    ASSERT_TRUE(is_ok(route(p, on(kernel), got.outputs())));
    EXPECT_NEAR(got.scores[0], std::log(16.0), 1e-6);
    EXPECT_NEAR(got.scores[1], std::log(4.0), 1e-6);
    EXPECT_NEAR(got.scores[2], std::log(4.0), 1e-6);
    EXPECT_NEAR(got.scores[3], 0.0, 1e-6);
  }
}

TEST(Scores, WeightedPartialCells_MatchTheOracle) {
  Random random(testing::test_seed(55));
  for (const auto& [sq, sk] : {std::pair{65, 65}, std::pair{200, 333}, std::pair{128, 70},
                               std::pair{73, 256}, std::pair{1, 1}}) {
    RouterCase c({.sq = sq, .sk = sk, .heads = 2, .kv_heads = 1});
    c.fill_random(random, 2);
    for (const std::string& kernel : kernels()) {
      for (int n : kCells) {
        RouterConfig config;
        config.n_q = n;
        config.n_k = 8 / n;
        config.weight_partial_cells = true;
        EXPECT_LE(check_scores(c, kernel, config, true).worst, 1e-5)
            << kernel << " " << sq << "x" << sk << " n " << n;
      }
    }
  }
  RouterCase c({.sq = 65, .sk = 65, .heads = 1, .kv_heads = 1});
  c.fill_random(random, 2);
  EXPECT_GT(check_scores(c, "cpu_highway", {}, true).worst, 1.0) << "control: the switch is off";
}

TEST(Scores, NanInOneCell_ReachesOnlyItsBlocks) {
  Random random(testing::test_seed(56));
  RouterCase c({.sq = 256, .sk = 320, .heads = 1, .kv_heads = 1});
  c.fill_random(random, 1);
  c.k.set({0, 130, 0, 5}, std::numeric_limits<float>::quiet_NaN());  // key block 2
  for (const std::string& kernel : kernels()) {
    RouteParams p = c.params();
    p.config.budget.kind = BudgetKind::kKeep;
    p.config.budget.keep = 4;
    RouteBuffers got(p);
    ASSERT_TRUE(is_ok(route(p, on(kernel), got.outputs())));
    for (int i = 0; i < 4; ++i) {
      for (int j = 0; j < 5; ++j) EXPECT_EQ(std::isnan(got.scores[i * 5 + j]), j == 2);
      EXPECT_EQ(
          std::vector<int32_t>(got.plan.index.begin() + i * 4, got.plan.index.begin() + i * 4 + 4),
          (std::vector<int32_t>{0, 1, 3, 4}));
    }
  }
}

TEST(Router, PackedViewOfQkv_BitEqualToContiguous_R10) {
  Random random(testing::test_seed(57));
  constexpr int64_t kTokens = 333, kHeads = 3;
  // [S, H, 3 * 128]: q, k, v side by side inside every head.
  Tensor4 packed({1, kTokens, kHeads, 3 * 128}, Dtype::kBf16);
  packed.fill_random(random, 2);
  const auto part = [&](int64_t n) {
    Bshd view = packed.view();
    view.size[3] = 128;
    view.data = static_cast<uint16_t*>(view.data) + n * 128;
    return view;
  };
  RouterCase flat({.sq = kTokens, .sk = kTokens, .heads = 3, .kv_heads = 3, .dtype = Dtype::kBf16});
  flat.q.fill([&](const auto& at) { return packed.get(at); });
  flat.k.fill([&](const auto& at) { return packed.get({at[0], at[1], at[2], at[3] + 128}); });
  for (const std::string& kernel : kernels()) {
    RouteParams p = flat.params();
    p.config.budget.kind = BudgetKind::kKeep;
    p.config.budget.keep = 3;
    RouteBuffers want(p), got(p), wrong(p);
    ASSERT_TRUE(is_ok(route(p, on(kernel), want.outputs())));
    p.q = part(0);
    p.k = part(1);
    ASSERT_TRUE(is_ok(route(p, on(kernel), got.outputs())));
    EXPECT_EQ(got.plan.index, want.plan.index);
    EXPECT_EQ(got.scores, want.scores) << "fp32 bits";
    p.k.stride[2] = 128;  // control: the head stride of a contiguous tensor
    ASSERT_TRUE(is_ok(route(p, on(kernel), wrong.outputs())));
    EXPECT_NE(wrong.scores, want.scores);
  }
}

}  // namespace
}  // namespace tessera
