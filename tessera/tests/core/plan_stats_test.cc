// Figures about plans, against cases counted by hand.
#include <gtest/gtest.h>

#include <array>

#include "tessera/tests/support/attend_case.h"

namespace tessera {
namespace {

using testing::BlockLists;
using testing::is_ok;

TEST(PlanStats, HandCase_CountsSparseAndDenseRows) {
  BlockLists lists(1, 1, 256, 320);
  lists.rows = {{0, 1, 2}, {4}, {}, {1, 2}};
  Plan plan = lists.plan();
  const BlockLayout layout = single_document(256, 320);
  PlanStats stats = plan_stats(plan.view(), layout);
  EXPECT_EQ(stats.rows, 4);
  EXPECT_EQ(stats.dense_rows, 0);
  EXPECT_EQ(stats.kept_pairs, 6);
  EXPECT_EQ(stats.total_pairs, 20);
  EXPECT_EQ(stats.min_kept, 0);
  EXPECT_EQ(stats.max_kept, 3);
  EXPECT_DOUBLE_EQ(stats.mean_kept, 1.5);
  EXPECT_DOUBLE_EQ(stats.density(), 0.3);
  plan.dense_rows = {0, 0, 1, 0};
  stats = plan_stats(plan.view(), layout);
  EXPECT_EQ(stats.dense_rows, 1);
  EXPECT_EQ(stats.kept_pairs, 11);
  EXPECT_EQ(stats.min_kept, 1);
  EXPECT_DOUBLE_EQ(stats.mean_kept, 2.0);
  plan.dense_rows = {1, 1, 1, 1};
  stats = plan_stats(plan.view(), layout);
  EXPECT_EQ(stats.min_kept, 0);
  EXPECT_EQ(stats.max_kept, 0);
  EXPECT_DOUBLE_EQ(stats.mean_kept, 0);
  EXPECT_DOUBLE_EQ(stats.density(), 1.0);
}

TEST(PlanStats, BitmapAndList_GiveTheSameFigures) {
  testing::Random random(testing::test_seed(31));
  BlockLists lists(2, 2, 300, 2200);
  lists.fill_random(random, 0, 20);
  const std::vector<uint32_t> words = lists.bitmap();
  const Plan plan = lists.plan();
  const BlockLayout layout = single_document(300, 2200);
  const PlanStats a = plan_stats(plan.view(), layout);
  const PlanStats b = plan_stats(lists.bitmap_view(words), layout);
  int64_t kept = 0;
  for (const auto& row : lists.rows) kept += static_cast<int64_t>(row.size());
  EXPECT_EQ(a.kept_pairs, kept);
  EXPECT_EQ(b.kept_pairs, kept);
  EXPECT_EQ(a.rows, 20);
  EXPECT_EQ(b.max_kept, a.max_kept);
  EXPECT_DOUBLE_EQ(neighbour_overlap(plan.view(), layout),
                   neighbour_overlap(lists.bitmap_view(words), layout));
  EXPECT_DOUBLE_EQ(sharing_factor(plan.view(), layout, 4),
                   sharing_factor(lists.bitmap_view(words), layout, 4));
}

TEST(SharingFactor, HandCases_ListedOverUnion) {
  BlockLists lists(1, 1, 320, 320);
  const BlockLayout layout = single_document(320, 320);
  lists.rows = {{0, 1}, {1, 0}, {0, 1}, {0, 1}, {0, 1}};
  // Groups of 4 and 1 rows: (8 + 2) listed, (2 + 2) loaded.
  EXPECT_DOUBLE_EQ(sharing_factor(lists.plan().view(), layout, 4), 2.5);
  EXPECT_DOUBLE_EQ(sharing_factor(lists.plan().view(), layout, 1), 1.0);
  lists.rows = {{0}, {1}, {2}, {3}, {4}};
  EXPECT_DOUBLE_EQ(sharing_factor(lists.plan().view(), layout, 4), 1.0);
  lists.rows = {{0, 1}, {1, 2}, {}, {}, {}};
  EXPECT_DOUBLE_EQ(sharing_factor(lists.plan().view(), layout, 2), 4.0 / 3.0);
  Plan plan = lists.plan();
  plan.dense_rows = {0, 1, 0, 0, 0};
  EXPECT_DOUBLE_EQ(sharing_factor(plan.view(), layout, 2), 1.0) << "dense rows are left out";
  lists.rows = {{}, {}, {}, {}, {}};
  EXPECT_DOUBLE_EQ(sharing_factor(lists.plan(1).view(), layout, 2), 0.0);
}

TEST(SharingFactor, Groups_NeverCrossADocumentOrAHead) {
  BlockLayout layout;
  ASSERT_TRUE(is_ok(packed_documents(std::array<int32_t, 3>{0, 64, 128}, 128, 0, &layout)));
  BlockLists lists(1, 2, 128, 64);
  for (auto& row : lists.rows) row = {0};
  EXPECT_DOUBLE_EQ(sharing_factor(lists.plan().view(), layout, 2), 1.0);
  EXPECT_DOUBLE_EQ(sharing_factor(lists.plan().view(), single_document(128, 64), 2), 2.0);
}

TEST(NeighbourOverlap, HandCases_MeanJaccard) {
  BlockLists lists(1, 1, 256, 320);
  const BlockLayout layout = single_document(256, 320);
  lists.rows = {{0, 1}, {1, 2}, {2, 1}, {4}};
  EXPECT_DOUBLE_EQ(neighbour_overlap(lists.plan().view(), layout), (1.0 / 3 + 1 + 0) / 3);
  Plan plan = lists.plan();
  plan.dense_rows = {0, 0, 0, 1};
  EXPECT_DOUBLE_EQ(neighbour_overlap(plan.view(), layout), (1.0 / 3 + 1) / 2);
  lists.rows = {{}, {}, {}, {}};
  EXPECT_DOUBLE_EQ(neighbour_overlap(lists.plan(1).view(), layout), 0.0);
  const BlockLayout one = single_document(64, 320);
  BlockLists single(1, 1, 64, 320);
  single.rows = {{0}};
  EXPECT_DOUBLE_EQ(neighbour_overlap(single.plan().view(), one), 0.0);
}

}  // namespace
}  // namespace tessera
