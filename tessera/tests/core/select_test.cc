// Exact selection from one score row: set, ties, NaN, protected blocks, target mass.
#include "tessera/src/router/select.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "tessera/tests/support/attend_case.h"

namespace tessera {
namespace {

using internal::RowBudget;
using internal::select_row;
using internal::SelectScratch;
using testing::best_columns;
using testing::Random;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

struct Selected {
  std::vector<int32_t> ids;
  float mass = -1;
};

Selected select(const std::vector<float>& scores, const RowBudget& budget,
                const std::vector<int32_t>& protected_blocks = {}) {
  SelectScratch scratch;
  Selected s;
  s.ids.assign(std::max(1, budget.keep), -7);
  const int32_t n = select_row(scores, budget, protected_blocks, scratch, s.ids.data(), &s.mass);
  s.ids.resize(n);
  return s;
}

RowBudget keep(int32_t n) { return {BudgetKind::kKeep, n, 1, 1.0}; }
RowBudget reach(double mass, int32_t cap, int32_t floor = 1) {
  return {BudgetKind::kMass, cap, floor, mass};
}

std::vector<float> random_scores(Random& random, int n) {
  std::vector<float> scores(n);
  for (float& s : scores) s = random.normal();
  return scores;
}

double mass_of(const std::vector<float>& scores, const std::vector<int32_t>& ids) {
  double kept = 0, total = 0;
  for (float s : scores) total += std::exp(double{s});
  for (int32_t j : ids) kept += std::exp(double{scores[j]});
  return kept / total;
}

TEST(Selection, RandomRows_EqualTheSort_R6) {
  Random random(testing::test_seed(41));
  for (int32_t k : {295, 140, 59, 30, 12, 1, 590}) {
    for (int n = 0; n < 20; ++n) {
      const std::vector<float> scores = random_scores(random, 590);
      EXPECT_EQ(select(scores, keep(k)).ids, best_columns(scores, k));
    }
  }
}

TEST(Selection, PeakedRows_EqualTheSort_R12) {
  Random random(testing::test_seed(42));
  for (float peak : {20.0f, 40.0f, 80.0f}) {
    for (int n = 0; n < 40; ++n) {
      std::vector<float> scores = random_scores(random, 590);
      for (int p = 0; p <= n % 4; ++p) scores[random.integer(0, 589)] += peak;
      EXPECT_EQ(select(scores, keep(64)).ids, best_columns(scores, 64)) << peak;
    }
  }
}

TEST(Selection, ThresholdSearchOfThePublishedRouter_MissesPeakedRows) {
  // Control for R12: the secant search the exact selection replaces gets more than 30 % wrong.
  Random random(testing::test_seed(42));
  int wrong = 0;
  for (int n = 0; n < 100; ++n) {
    std::vector<float> s = random_scores(random, 590);
    s[random.integer(0, 589)] += 40;
    const float k = 64;
    float lo = *std::min_element(s.begin(), s.end()),
          hi = *std::max_element(s.begin(), s.end()) + 1;
    float clo = 590, chi = 0;
    for (int i = 0; i < 24; ++i) {
      const float t = std::clamp((clo - k) / std::max(clo - chi, 1.0f), 0.05f, 0.95f);
      const float mid = lo + (hi - lo) * t;
      const auto count =
          static_cast<float>(std::count_if(s.begin(), s.end(), [&](float x) { return x >= mid; }));
      (count >= k ? lo : hi) = mid;
      (count >= k ? clo : chi) = count;
    }
    std::vector<int32_t> ids;
    for (int32_t j = 0; j < 590 && ids.size() < 64; ++j) {
      if (s[j] >= lo) ids.push_back(j);
    }
    wrong += ids != best_columns(s, 64);
    EXPECT_EQ(select(s, keep(64)).ids, best_columns(s, 64));
  }
  EXPECT_GT(wrong, 30);
}

TEST(Selection, AnyRow_IsFilledDistinctAscendingInRange_R7) {
  Random random(testing::test_seed(43));
  for (int n = 0; n < 400; ++n) {
    const int columns = static_cast<int>(random.integer(1, 200));
    std::vector<float> scores(columns);
    const int64_t kind = random.integer(0, 5);
    for (float& s : scores) {
      switch (kind) {
        case 0: s = random.normal(); break;
        case 1: s = 3.25f; break;  // all equal
        case 2: s = kNan; break;   // all NaN
        case 3: s = random.chance(0.5) ? kNan : random.normal(); break;
        case 4: s = random.chance(0.5) ? -kInf : kInf; break;
        default: s = static_cast<float>(random.integer(-2, 2)); break;  // many ties
      }
    }
    const auto k = static_cast<int32_t>(random.integer(1, columns + 3));
    const Selected got = select(scores, keep(k));
    ASSERT_EQ(got.ids, best_columns(scores, k)) << "kind " << kind;
    ASSERT_EQ(static_cast<int32_t>(got.ids.size()), std::min(k, columns));
    ASSERT_EQ(std::adjacent_find(got.ids.begin(), got.ids.end(), std::greater_equal<>()),
              got.ids.end());
    ASSERT_GE(got.ids.front(), 0);
    ASSERT_LT(got.ids.back(), columns);
    ASSERT_FALSE(std::isnan(got.mass));
    ASSERT_GE(got.mass, 0);
    ASSERT_LE(got.mass, 1);
  }
}

TEST(Selection, ConstantRow_KeepsTheFirstColumns_R8) {
  for (float value : {0.0f, -1e30f, -kInf, kNan, kInf}) {
    EXPECT_EQ(select(std::vector<float>(40, value), keep(4)).ids,
              (std::vector<int32_t>{0, 1, 2, 3}))
        << value;
  }
  std::vector<float> zeros(10, 0.0f);
  zeros[1] = zeros[3] = -0.0f;  // equal to +0: ties, not lower
  EXPECT_EQ(select(zeros, keep(4)).ids, (std::vector<int32_t>{0, 1, 2, 3}));
}

TEST(Selection, SpecialValues_RankNanBelowMinusInfinity) {
  const std::vector<float> scores{kNan, -kInf, -1, kInf, -kNan, 1, -kInf};
  EXPECT_EQ(select(scores, keep(1)).ids, (std::vector<int32_t>{3}));
  EXPECT_EQ(select(scores, keep(3)).ids, (std::vector<int32_t>{2, 3, 5}));
  EXPECT_EQ(select(scores, keep(4)).ids, (std::vector<int32_t>{1, 2, 3, 5}));
  EXPECT_EQ(select(scores, keep(6)).ids, (std::vector<int32_t>{0, 1, 2, 3, 5, 6}));
}

TEST(Selection, ScoresStoredAsBf16_FavourEarlyColumns_R9) {
  // Control: with 8 mantissa bits scores tie at the threshold and ties go to low columns. The fp32
  // selection shows no such lean.
  Random random(testing::test_seed(44));
  double lean_f32 = 0, lean_bf16 = 0;
  constexpr int kRows = 300, kColumns = 590, kKept = 152;
  for (int n = 0; n < kRows; ++n) {
    std::vector<float> scores(kColumns), coarse(kColumns);
    for (int j = 0; j < kColumns; ++j) {
      scores[j] = 40.0f + random.normal();
      coarse[j] = round_bf16(scores[j]);
    }
    const auto mean_id = [](const std::vector<int32_t>& ids) {
      double sum = 0;
      for (int32_t j : ids) sum += j;
      return sum / static_cast<double>(ids.size()) - (kColumns - 1) / 2.0;
    };
    lean_f32 += mean_id(select(scores, keep(kKept)).ids) / kRows;
    lean_bf16 += mean_id(select(coarse, keep(kKept)).ids) / kRows;
  }
  // One row's mean id has a standard deviation of about 12, the mean of 300 rows 0.7.
  EXPECT_LT(std::abs(lean_f32), 3.0);
  EXPECT_LT(lean_bf16, -8.0);
}

TEST(TargetMass, EveryRow_KeepsTheFewestBlocksThatReachIt) {
  Random random(testing::test_seed(45));
  for (int n = 0; n < 200; ++n) {
    std::vector<float> scores = random_scores(random, static_cast<int>(random.integer(1, 80)));
    for (float& s : scores) s *= static_cast<float>(n % 5 + 1);
    const auto columns = static_cast<int32_t>(scores.size());
    const double p = random.uniform() * 0.98 + 0.01;
    const Selected got = select(scores, reach(p, columns));
    // By brute force: k best blocks carry the most mass any k blocks can, so the smallest k whose
    // best set reaches p is minimal over all sets.
    int32_t fewest = columns;
    for (int32_t k = columns; k >= 1; --k) {
      if (mass_of(scores, best_columns(scores, k)) >= p) fewest = k;
    }
    EXPECT_EQ(static_cast<int32_t>(got.ids.size()), fewest) << p;
    EXPECT_EQ(got.ids, best_columns(scores, fewest));
    EXPECT_NEAR(got.mass, mass_of(scores, got.ids), 1e-5);
    EXPECT_GE(got.mass, p - 1e-6);
  }
}

TEST(TargetMass, FloorAndCap_BoundTheCount) {
  std::vector<float> scores(20, 0.0f);
  scores[7] = 30;  // alone almost all mass
  EXPECT_EQ(select(scores, reach(0.9, 20)).ids, (std::vector<int32_t>{7}));
  EXPECT_EQ(select(scores, reach(0.9, 20, 3)).ids, (std::vector<int32_t>{0, 1, 7}));
  const std::vector<float> flat(20, 0.0f);
  EXPECT_EQ(select(flat, reach(0.9, 20)).ids.size(), 18u);
  EXPECT_EQ(select(flat, reach(0.9, 5)).ids, (std::vector<int32_t>{0, 1, 2, 3, 4}));
  EXPECT_NEAR(select(flat, reach(0.9, 5)).mass, 0.25, 1e-6);
  EXPECT_EQ(select(flat, reach(1.0, 20)).ids.size(), 20u);
}

TEST(TargetMass, NanAndInfiniteScores_CountAsNoneAndAll) {
  std::vector<float> scores{0, kNan, 0, -kInf};
  EXPECT_EQ(select(scores, reach(1.0, 4)).ids, (std::vector<int32_t>{0, 2}));
  scores[2] = kInf;
  EXPECT_EQ(select(scores, reach(0.99, 4)).ids, (std::vector<int32_t>{2}));
  EXPECT_EQ(select(scores, reach(0.99, 4)).mass, 1.0f);
  const Selected none = select(std::vector<float>(5, kNan), reach(0.9, 5, 2));
  EXPECT_EQ(none.ids, (std::vector<int32_t>{0, 1})) << "the floor holds without any mass";
  EXPECT_EQ(none.mass, 0.0f);
}

TEST(ProtectedBlocks, Listed_AreKeptInsideTheBudget) {
  Random random(testing::test_seed(46));
  for (int n = 0; n < 100; ++n) {
    const std::vector<float> scores = random_scores(random, 60);
    std::vector<int32_t> blocks = random.sample(60, static_cast<int32_t>(random.integer(0, 10)));
    std::sort(blocks.begin(), blocks.end());
    std::vector<float> raised = scores;
    for (int32_t j : blocks) raised[j] = kInf;
    const Selected got = select(scores, keep(10), blocks);
    EXPECT_EQ(got.ids.size(), 10u);
    EXPECT_EQ(got.ids, best_columns(raised, 10));
    EXPECT_NEAR(got.mass, mass_of(scores, got.ids), 1e-5) << "their own mass, not more";
  }
}

TEST(ProtectedBlocks, WithTargetMass_CountTowardsIt) {
  std::vector<float> scores(10, 0.0f);
  scores[9] = 10;
  // Blocks 3 and 9: nearly all mass after two.
  EXPECT_EQ(select(scores, reach(0.9, 10), {3, 9}).ids, (std::vector<int32_t>{3, 9}));
  // Protected blocks stay although the target is reached by the first of them.
  EXPECT_EQ(select(scores, reach(0.5, 10), {2, 3, 9}).ids, (std::vector<int32_t>{2, 3, 9}));
  // They take slots under the cap before better blocks.
  EXPECT_EQ(select(scores, reach(0.9, 2), {2, 3}).ids, (std::vector<int32_t>{2, 3}));
  EXPECT_EQ(select(scores, reach(0.9, 3), {2, 3}).ids, (std::vector<int32_t>{2, 3, 9}));
  scores[4] = kNan;
  EXPECT_EQ(select(scores, keep(2), {4}).ids, (std::vector<int32_t>{4, 9}));
}

}  // namespace
}  // namespace tessera
