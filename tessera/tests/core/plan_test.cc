// Plan validation, conversion between its two forms, and the generators.
#include "tessera/plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <climits>
#include <set>

#include "tessera/tests/support/attend_case.h"

namespace tessera {
namespace {

using testing::BlockLists;
using testing::expect_refusal;
using testing::is_ok;
using testing::Random;

constexpr StatusCode kInvalid = StatusCode::kInvalidArgument;

/// Two heads, four query blocks, four key blocks, every row {0, 2}.
struct SmallPlan {
  BlockLayout layout = single_document(256, 250);
  Plan plan;
  SmallPlan() {
    BlockLists lists(1, 2, 256, 250);
    for (auto& row : lists.rows) row = {0, 2};
    plan = lists.plan(3);
  }
  Status check(const PlanView& view) const { return validate_plan(view, layout, 1, 2); }
  Status check() const { return check(plan.view()); }
};

TEST(PlanValidation, GoodPlan_IsAccepted) {
  SmallPlan s;
  EXPECT_TRUE(is_ok(s.check()));
  s.plan.count[0] = 0;
  EXPECT_TRUE(is_ok(s.check())) << "an empty row is legal";
}

TEST(PlanValidation, BadValues_NameTheirPlace) {
  const std::string place = "[batch 0, head 1, query block 2]";
  const int row = 1 * 4 + 2;
  for (const auto& [slot, id, text] :
       {std::tuple{1, 4, "is 4"}, std::tuple{1, -1, "is -1"},
        std::tuple{0, INT_MAX, "is 2147483647"}, std::tuple{0, INT_MIN, "is -2147483648"}}) {
    SmallPlan s;
    s.plan.index[row * 3 + slot] = id;
    expect_refusal(s.check(), kInvalid,
                   {place, "slot " + std::to_string(slot), text, "[0, 4)", "another length"});
  }
  for (int count : {4, -1, INT_MAX}) {
    SmallPlan s;
    s.plan.count[row] = count;
    expect_refusal(s.check(), kInvalid,
                   {"block_count", place, "is " + std::to_string(count), "[0, 3]"});
  }
  SmallPlan s;
  s.plan.index[row * 3 + 1] = 0;
  expect_refusal(s.check(), kInvalid, {place, "lists block 0 twice", "count of 2", "distinct"});
}

TEST(PlanValidation, SameBlockInDifferentRowsOrBehindTheCount_IsAccepted) {
  SmallPlan s;
  for (int row = 0; row < 8; ++row) s.plan.index[row * 3 + 2] = 2;  // behind the count of 2
  EXPECT_TRUE(is_ok(s.check()));
  for (int filler : {0, -1, INT_MAX}) {
    for (int row = 0; row < 8; ++row) s.plan.index[row * 3 + 2] = filler;
    EXPECT_TRUE(is_ok(s.check())) << filler;
  }
}

TEST(PlanValidation, WrongShapesAndDtypes_AreRefused) {
  const SmallPlan s;
  PlanView view = s.plan.view();
  expect_refusal(s.check({}), kInvalid, {"either block_index with block_count, or a bitmap"});
  view.index.dtype = Dtype::kI64;
  expect_refusal(s.check(view), kInvalid, {"block_index is i64", "must be i32"});
  view = s.plan.view();
  view.count.dtype = Dtype::kF32;
  expect_refusal(s.check(view), kInvalid, {"block_count is f32"});
  view = s.plan.view();
  view.count.data = nullptr;
  expect_refusal(s.check(view), kInvalid, {"needs both block_index and block_count"});
  view = s.plan.view();
  view.index.data = nullptr;
  expect_refusal(s.check(view), kInvalid, {"needs both block_index and block_count"});
  view = s.plan.view();
  view.count.size[2] = 3;
  expect_refusal(s.check(view), kInvalid, {"block_count has shape [1, 2, 3]", "[1, 2, 4]"});
  view = s.plan.view();
  view.index.stride[3] = 2;
  expect_refusal(s.check(view), kInvalid, {"last stride of 2"});
  expect_refusal(validate_plan(s.plan.view(), s.layout, 1, 3), kInvalid,
                 {"[1, 2, 4]", "[1, 3, 4]", "route these tensors anew"});
  expect_refusal(validate_plan(s.plan.view(), s.layout, 2, 2), kInvalid, {"[2, 2, 4]"});
  expect_refusal(validate_plan(s.plan.view(), single_document(300, 250), 1, 2), kInvalid,
                 {"[1, 2, 5]"});
}

TEST(PlanValidation, BothForms_AreRefused) {
  const SmallPlan s;
  const std::vector<uint32_t> words(8, 1u);
  PlanView view = s.plan.view();
  view.bitmap = contiguous_view<4>(words.data(), {1, 2, 4, 1}, Dtype::kU32);
  expect_refusal(s.check(view), kInvalid, {"and not both"});
}

TEST(PlanValidation, Bitmap_ChecksShapeDtypeAndStrayBits) {
  const SmallPlan s;
  std::vector<uint32_t> words(8, 0xfu);
  PlanView view;
  view.bitmap = contiguous_view<4>(words.data(), {1, 2, 4, 1}, Dtype::kU32);
  EXPECT_TRUE(is_ok(s.check(view)));
  words[6] = 0x10u;
  expect_refusal(s.check(view), kInvalid,
                 {"bitmap", "[batch 0, head 1, query block 2]", "bit 4", "4 key blocks"});
  words[6] = 0x80000000u;
  expect_refusal(s.check(view), kInvalid, {"bit 31"});
  words[6] = 0;
  view.bitmap.dtype = Dtype::kI32;
  expect_refusal(s.check(view), kInvalid, {"bitmap is i32", "u32"});
  view.bitmap = contiguous_view<4>(words.data(), {1, 2, 4, 2}, Dtype::kU32);
  expect_refusal(s.check(view), kInvalid, {"bitmap has shape [1, 2, 4, 2]", "[1, 2, 4, 1]"});
}

TEST(PlanValidation, IdOfALongerDocument_IsRefusedInAShorterOne) {
  BlockLayout layout;
  ASSERT_TRUE(is_ok(packed_documents(std::array<int32_t, 3>{0, 256, 320}, 320, 0, &layout)));
  BlockLists lists(1, 1, 320, 256);
  lists.at(0, 0, 0) = {3};
  lists.at(0, 0, 4) = {0};
  EXPECT_TRUE(is_ok(validate_plan(lists.plan().view(), layout, 1, 1)));
  lists.at(0, 0, 4) = {1};  // the second document has one key block
  expect_refusal(validate_plan(lists.plan().view(), layout, 1, 1), kInvalid,
                 {"query block 4", "is 1", "[0, 1)"});
  std::vector<uint32_t> words = lists.bitmap();
  expect_refusal(validate_plan(lists.bitmap_view(words), layout, 1, 1), kInvalid,
                 {"query block 4", "bit 1", "1 key blocks"});
}

TEST(PlanValidation, DenseRows_HideTheirListsAndAreChecked) {
  SmallPlan s;
  s.plan.dense_rows = {0, 0, 1, 0};
  s.plan.index[(1 * 4 + 2) * 3] = 99;
  s.plan.index[2 * 3] = 99;
  EXPECT_TRUE(is_ok(s.check())) << "the list of a dense row is ignored";
  s.plan.dense_rows = {0, 1, 0, 0};
  EXPECT_FALSE(s.check().ok());
  PlanView view = s.plan.view();
  view.dense_rows.dtype = Dtype::kI32;
  expect_refusal(s.check(view), kInvalid, {"dense_rows is i32", "u8 [1, 4]"});
  view = s.plan.view();
  view.dense_rows.size[1] = 3;
  expect_refusal(s.check(view), kInvalid, {"dense_rows is u8 [1, 3]"});
}

TEST(PlanConversion, RandomListsToBitmapAndBack_KeepEverySet) {
  Random random(testing::test_seed(21));
  for (const auto& [sq, sk] :
       {std::pair{100, 64}, std::pair{256, 2048}, std::pair{70, 2049}, std::pair{200, 6000}}) {
    BlockLists lists(2, 3, sq, sk);
    lists.fill_random(random, 0, lists.key_blocks);
    const BlockLayout layout = single_document(sq, sk);
    const Plan plan = lists.plan(lists.key_blocks, INT_MAX);
    std::vector<uint32_t> words(lists.rows.size() * ((lists.key_blocks + 31) / 32), 0xdeadbeefu);
    ASSERT_TRUE(is_ok(list_to_bitmap(plan.view(), layout, lists.bitmap_view(words))));
    EXPECT_EQ(words, lists.bitmap());
    Plan back;
    ASSERT_TRUE(is_ok(allocate_plan(plan.shape, &back)));
    std::fill(back.index.begin(), back.index.end(), 7);
    ASSERT_TRUE(is_ok(bitmap_to_list(lists.bitmap_view(words), layout, back.view())));
    for (size_t r = 0; r < lists.rows.size(); ++r) {
      std::vector<int32_t> want = lists.rows[r];
      std::sort(want.begin(), want.end());
      ASSERT_EQ(back.count[r], static_cast<int32_t>(want.size()));
      want.resize(plan.shape.width, -1);
      EXPECT_TRUE(std::equal(want.begin(), want.end(), back.index.begin() + r * plan.shape.width));
    }
  }
}

TEST(PlanConversion, DenseRows_BecomeFullRows) {
  SmallPlan s;
  s.plan.dense_rows = {0, 1, 0, 0};
  std::vector<uint32_t> words(8, 0);
  PlanView out;
  out.bitmap = contiguous_view<4>(words.data(), {1, 2, 4, 1}, Dtype::kU32);
  ASSERT_TRUE(is_ok(list_to_bitmap(s.plan.view(), s.layout, out)));
  EXPECT_EQ(words, (std::vector<uint32_t>{5, 15, 5, 5, 5, 15, 5, 5}));
}

TEST(PlanConversion, MissingOrNarrowOutput_IsRefused) {
  const SmallPlan s;
  expect_refusal(list_to_bitmap(s.plan.view(), s.layout, {}), kInvalid, {"no bitmap buffer"});
  std::vector<uint32_t> words(8, 7u);
  PlanView bits;
  bits.bitmap = contiguous_view<4>(words.data(), {1, 2, 4, 1}, Dtype::kU32);
  Plan narrow;
  ASSERT_TRUE(is_ok(allocate_plan({1, 2, 4, 4, 2}, &narrow)));
  expect_refusal(bitmap_to_list(bits, s.layout, narrow.view()), kInvalid,
                 {"keeps 3 blocks", "2 slots", "wider"});
  expect_refusal(bitmap_to_list(bits, s.layout, {}), kInvalid, {"either block_index"});
}

TEST(PlanGenerators, FullPlan_ListsEveryBlockOfEachDocument) {
  BlockLayout layout;
  ASSERT_TRUE(is_ok(packed_documents(std::array<int32_t, 3>{0, 130, 190}, 190, 0, &layout)));
  Plan plan;
  ASSERT_TRUE(is_ok(full_plan(layout, 1, 2, &plan)));
  EXPECT_EQ(plan.count, (std::vector<int32_t>{3, 3, 3, 1, 3, 3, 3, 1}));
  EXPECT_EQ(plan.shape.width, 3);
  for (int row : {0, 1, 2, 4, 5, 6}) {
    for (int n = 0; n < 3; ++n) EXPECT_EQ(plan.index[row * 3 + n], n);
  }
  EXPECT_EQ(plan.index[3 * 3], 0);
  EXPECT_EQ(plan.index[3 * 3 + 1], -1);
}

TEST(PlanGenerators, RandomPlan_IsDistinctAscendingSeededAndSpread) {
  const BlockLayout layout = single_document(64 * 40, 64 * 40);
  Plan a, b, c;
  ASSERT_TRUE(is_ok(random_plan(layout, 1, 2, 10, 5, &a)));
  ASSERT_TRUE(is_ok(random_plan(layout, 1, 2, 10, 5, &b)));
  ASSERT_TRUE(is_ok(random_plan(layout, 1, 2, 10, 6, &c)));
  EXPECT_EQ(a.index, b.index);
  EXPECT_NE(a.index, c.index);
  EXPECT_TRUE(is_ok(validate_plan(a.view(), layout, 1, 2)));
  std::vector<int> hits(40, 0);
  for (int row = 0; row < 80; ++row) {
    EXPECT_EQ(a.count[row], 10);
    EXPECT_TRUE(std::is_sorted(a.index.begin() + row * 10, a.index.begin() + row * 10 + 10));
    for (int n = 0; n < 10; ++n) ++hits[a.index[row * 10 + n]];
  }
  // 20 expected per block, standard deviation under 4.
  EXPECT_GT(*std::min_element(hits.begin(), hits.end()), 2);
  EXPECT_LT(*std::max_element(hits.begin(), hits.end()), 40);
  ASSERT_TRUE(is_ok(random_plan(layout, 1, 1, 100, 1, &a)));
  EXPECT_EQ(a.count[0], 40) << "clamped to the document";
  expect_refusal(random_plan(layout, 1, 1, -1, 1, &a), kInvalid, {"count is -1"});
}

TEST(PlanGenerators, TooLargePlan_IsOutOfMemory) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the sanitizers' allocators abort instead of throwing";
#endif
  Plan plan;
  const Status s = allocate_plan({1 << 20, 1 << 10, 1 << 20, 1 << 20, 4}, &plan);
  EXPECT_EQ(describe(s.code()), describe(StatusCode::kOutOfMemory)) << s.message();
}

}  // namespace
}  // namespace tessera
