// How many blocks a row may keep (catalogue R5 and the budget rules of the configuration).
#include <gtest/gtest.h>

#include "tessera/src/router/select.h"
#include "tessera/tests/support/attend_case.h"

namespace tessera {
namespace {

using internal::resolve_budget;
using internal::RowBudget;
using testing::expect_refusal;
using testing::is_ok;

TEST(Budget, PublishedVectors_R5) {
  struct Vector {
    double sparsity;
    int32_t key_blocks, granularity, kept, kept_exact;
  };
  for (const Vector& v : {Vector{0.75, 590, 8, 152, 152},
                          {0.8, 590, 8, 120, 120},
                          {0.85, 590, 8, 96, 96},
                          {0.9, 590, 8, 64, 64},
                          {0.95, 590, 8, 32, 32},
                          // (1 - 0.7) * 80 = 24.000000000000004 in IEEE double.
                          {0.7, 80, 8, 32, 24},
                          {0.7, 160, 8, 56, 48},
                          {0.95, 160, 8, 16, 8},
                          // One block at a time, as the Sage kernels bill.
                          {0.75, 295, 1, 74, 74},
                          {0.75, 590, 1, 148, 148},
                          // The cap wins over the granularity.
                          {0.0, 590, 8, 590, 590},
                          {1e-6, 590, 8, 590, 590},
                          {0.006, 590, 8, 590, 590},
                          {0.0, 5, 8, 5, 5},
                          {0.4, 5, 8, 5, 5},
                          {0.9999, 590, 8, 8, 8},
                          {0.9999, 590, 1, 1, 1},
                          {0.75, 64, 8, 16, 16},
                          {0.99, 1, 8, 1, 1},
                          {0.5, 40, 3, 21, 21}}) {
    EXPECT_EQ(blocks_for_sparsity(v.sparsity, v.key_blocks, v.granularity), v.kept)
        << v.sparsity << " of " << v.key_blocks << " by " << v.granularity;
    EXPECT_EQ(blocks_for_sparsity(v.sparsity, v.key_blocks, v.granularity, true), v.kept_exact)
        << v.sparsity << " of " << v.key_blocks << " exact";
  }
}

TEST(Budget, AnySparsity_KeepsAtLeastTheAskedShare) {
  for (int32_t blocks = 1; blocks <= 200; ++blocks) {
    for (double sparsity = 0; sparsity < 0.999; sparsity += 0.013) {
      for (int32_t granularity : {1, 4, 8}) {
        const int32_t kept = blocks_for_sparsity(sparsity, blocks, granularity);
        ASSERT_GE(kept, 1);
        ASSERT_LE(kept, blocks);
        ASSERT_GE(kept, (1.0 - sparsity) * blocks - 1e-9);
        ASSERT_TRUE(kept == blocks || kept % granularity == 0);
        ASSERT_LE(kept, (1.0 - sparsity) * blocks + 1 + granularity);
      }
    }
  }
}

TEST(Budget, KeepAndMass_ClampToTheDocument) {
  RowBudget row;
  Budget budget;
  budget.kind = BudgetKind::kKeep;
  budget.keep = 12;
  ASSERT_TRUE(is_ok(resolve_budget(budget, 20, {}, &row)));
  EXPECT_EQ(row.keep, 12);
  ASSERT_TRUE(is_ok(resolve_budget(budget, 7, {}, &row)));
  EXPECT_EQ(row.keep, 7);
  budget.kind = BudgetKind::kMass;
  budget.mass = 0.6;
  budget.min_keep = 5;
  ASSERT_TRUE(is_ok(resolve_budget(budget, 20, {}, &row)));
  EXPECT_EQ(row.keep, 20) << "no cap";
  EXPECT_EQ(row.min_keep, 5);
  EXPECT_EQ(row.mass, 0.6);
  ASSERT_TRUE(is_ok(resolve_budget(budget, 3, {}, &row)));
  EXPECT_EQ(row.min_keep, 3);
  budget.max_keep = 9;
  ASSERT_TRUE(is_ok(resolve_budget(budget, 20, {}, &row)));
  EXPECT_EQ(row.keep, 9);
  ASSERT_TRUE(is_ok(resolve_budget(budget, 6, {}, &row)));
  EXPECT_EQ(row.keep, 6);
}

TEST(Budget, MoreProtectedBlocksThanBudget_IsRefused) {
  RowBudget row;
  Budget budget;
  budget.kind = BudgetKind::kKeep;
  budget.keep = 2;
  const std::vector<int32_t> blocks{0, 4, 5};
  expect_refusal(resolve_budget(budget, 9, blocks, &row), StatusCode::kInvalidArgument,
                 {"3 protected blocks", "budget of 2 of 9", "protect fewer or keep more"});
  budget.keep = 3;
  EXPECT_TRUE(is_ok(resolve_budget(budget, 9, blocks, &row)));
  budget = {};
  budget.kind = BudgetKind::kMass;
  budget.max_keep = 2;
  EXPECT_FALSE(resolve_budget(budget, 9, blocks, &row).ok());
}

}  // namespace
}  // namespace tessera
