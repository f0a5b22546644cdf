// Plans on the device: bad values, both forms, order of ids, same bits twice and across kernels.
#include <gtest/gtest.h>

#include <climits>

#include "tessera/tests/gpu/gpu_case.h"

namespace tessera {
namespace {

using testing::AttendCase;
using testing::BlockLists;
using testing::expect_refusal;
using testing::gpu_kernels;
using testing::GpuCase;
using testing::is_ok;
using testing::on_gpu;
using testing::Random;
using testing::ResultBits;

class GpuPlan : public testing::GpuTest {};

struct BadPlan {
  const char* name;
  void (*change)(Plan&);
};

// 2 samples, 3 heads, 5 query blocks, width 6, 8 key blocks; row = (b * 3 + h) * 5 + i.
constexpr int64_t kRow = (1 * 3 + 2) * 5 + 3;
constexpr BadPlan kBadPlans[] = {
    {"id too large", [](Plan& p) { p.index[kRow * 6 + 1] = 8; }},
    {"id far too large", [](Plan& p) { p.index[kRow * 6 + 1] = INT_MAX; }},
    {"id negative", [](Plan& p) { p.index[kRow * 6 + 1] = -1; }},
    {"id most negative", [](Plan& p) { p.index[kRow * 6 + 1] = INT_MIN; }},
    {"count over the width", [](Plan& p) { p.count[kRow] = 7; }},
    {"count huge", [](Plan& p) { p.count[kRow] = INT_MAX; }},
    {"count negative", [](Plan& p) { p.count[kRow] = -1; }},
    {"id twice", [](Plan& p) { p.index[kRow * 6 + 2] = p.index[kRow * 6]; }},
    {"first row", [](Plan& p) { p.index[0] = 9; }},
    {"last row", [](Plan& p) { p.index[29 * 6] = 9; }},
};

AttendCase bad_plan_case(Random& random) {
  AttendCase c(
      {.batch = 2, .sq = 300, .sk = 500, .heads = 3, .kv_heads = 1, .dtype = Dtype::kBf16});
  c.fill_random(random);
  return c;
}

BlockLists good_lists(Random& random) {
  BlockLists lists(2, 3, 300, 500);
  lists.fill_random(random, 3, 6);
  return lists;
}

TEST_F(GpuPlan, BadValues_AreNamedLikeOnTheCpu_K10) {
  Random random(testing::test_seed(421));
  AttendCase c = bad_plan_case(random);
  const BlockLists lists = good_lists(random);
  const BlockLayout layout = single_document(300, 500);
  GpuCase gpu(c);
  for (const BadPlan& bad : kBadPlans) {
    SCOPED_TRACE(bad.name);
    Plan plan = lists.plan(6);
    bad.change(plan);
    const Status want = validate_plan(plan.view(), layout, 2, 3);
    ASSERT_FALSE(want.ok());
    for (const std::string& kernel : gpu_kernels()) {
      const Status got = gpu.run_plan(plan.view(), on_gpu(kernel));
      EXPECT_EQ(describe(got.code()), describe(want.code())) << kernel;
      if (std::string(bad.name) == "id twice") {
        EXPECT_TRUE(testing::contains(got.message(), "twice inside its count")) << kernel;
        EXPECT_TRUE(testing::contains(got.message(), "[batch 1, head 2, query block 3]"));
      } else {
        EXPECT_EQ(got.message(), want.message()) << kernel;
      }
      EXPECT_TRUE(testing::all_nan(c.out.values())) << "refused before the launch";
    }
  }
  const Plan good = lists.plan(6);
  ASSERT_TRUE(is_ok(gpu.run_plan(good.view(), on_gpu()))) << "nothing of a refusal stays behind";
  expect_gpu_matches(c, c.oracle(lists.keys(500)));
}

TEST_F(GpuPlan, BadValuesUnchecked_GiveOnlyNaN_K10) {
  Random random(testing::test_seed(422));
  AttendCase c = bad_plan_case(random);
  const BlockLists lists = good_lists(random);
  GpuCase gpu(c);
  for (const BadPlan& bad : kBadPlans) {
    Plan plan = lists.plan(6);
    bad.change(plan);
    for (const std::string& kernel : gpu_kernels()) {
      SCOPED_TRACE(std::string(bad.name) + " " + kernel);
      // Finite numbers in the buffers, so that a kernel that writes nothing fails too.
      const testing::DevicePlan device(plan.view());
      const AttentionParams p = gpu.params(device.view());
      const auto scratch = gpu.workspace(p);
      Execution exec = on_gpu(kernel, false);
      exec.workspace = {scratch.data(), scratch.bytes()};
      AttendCase zeros = c;
      zeros.out.fill([](const auto&) { return 0.0f; });
      zeros.lse.fill([](const auto&) { return 0.0f; });
      const testing::DeviceTensor<4> out(zeros.out);
      const testing::DeviceTensor<3> lse(zeros.lse);
      AttentionParams with_zeros = p;
      with_zeros.out = out.view();
      with_zeros.lse = lse.view();
      ASSERT_TRUE(is_ok(attend(with_zeros, exec)));
      testing::cuda_ok(cudaDeviceSynchronize(), "attend");
      out.download(&c.out);
      lse.download(&c.lse);
      EXPECT_TRUE(testing::all_nan(c.out.values()));
      EXPECT_TRUE(testing::all_nan(c.lse.values())) << "a finite LSE would pass for a result";
      EXPECT_TRUE(c.out.guards_intact());
    }
  }
}

TEST_F(GpuPlan, BadBitmap_IsRefusedAndUncheckedNeverReadsPastTheEnd_K10) {
  Random random(testing::test_seed(423));
  AttendCase c = bad_plan_case(random);
  const BlockLists lists = good_lists(random);
  const std::vector<uint32_t> good = lists.bitmap();
  std::vector<uint32_t> words = good;
  words[kRow] |= 1u << 31;
  const PlanView bad = lists.bitmap_view(words);
  const Status want = validate_plan(bad, single_document(300, 500), 2, 3);
  const std::vector<uint8_t> flags(2 * 5, 0);
  PlanView bad_with_flags = bad;
  bad_with_flags.dense_rows = contiguous_view<2>(flags.data(), {2, 5}, Dtype::kU8);
  GpuCase gpu(c);
  for (const std::string& kernel : gpu_kernels()) {
    SCOPED_TRACE(kernel);
    ASSERT_TRUE(is_ok(gpu.run_plan(lists.bitmap_view(good), on_gpu(kernel))));
    const ResultBits cut = bits_of(c);
    const Status got = gpu.run_plan(bad, on_gpu(kernel));
    EXPECT_EQ(got.message(), want.message());
    EXPECT_TRUE(testing::contains(got.message(), "has bit 31 set"));
    // Unchecked, a bit that stands for no block is either left out or turns the output NaN.
    for (const PlanView& plan : {bad, bad_with_flags}) {
      ASSERT_TRUE(is_ok(gpu.run_plan(plan, on_gpu(kernel, false))));
      EXPECT_TRUE(bits_of(c) == cut || testing::all_nan(c.out.values()));
    }
  }
}

TEST_F(GpuPlan, PlanForAnotherShape_IsRefused_K10) {
  Random random(testing::test_seed(424));
  AttendCase c = bad_plan_case(random);
  BlockLists other(2, 3, 400, 500);
  other.fill_random(random, 1, 3);
  const Plan plan = other.plan();
  GpuCase gpu(c);
  const testing::DevicePlan device(plan.view());
  expect_refusal(attend(gpu.params(device.view()), on_gpu()), StatusCode::kInvalidArgument,
                 {"[2, 3, 7]", "[2, 3, 5]", "route these tensors anew"});
  PlanView both = device.view();
  both.bitmap = contiguous_view<4>(device.view().index.data, {2, 3, 5, 1}, Dtype::kU32);
  expect_refusal(attend(gpu.params(both), on_gpu()), StatusCode::kInvalidArgument, {"not both"});
}

TEST_F(GpuPlan, ListsBitmapsAndAnyOrder_GiveTheSameBits) {
  Random random(testing::test_seed(425));
  for (Dtype dtype : {Dtype::kBf16, Dtype::kF16}) {
    AttendCase c(
        {.batch = 2, .sq = 900, .sk = 64 * 70 + 17, .heads = 4, .kv_heads = 2, .dtype = dtype});
    c.fill_random(random, 1.5f);
    BlockLists lists(2, 4, 900, 64 * 70 + 17);
    lists.fill_random(random, 0, 40);
    const Plan plan = lists.plan();
    const std::vector<uint32_t> words = lists.bitmap();
    BlockLists shuffled = lists;
    for (auto& row : shuffled.rows) random.shuffle(row);
    const Plan other = shuffled.plan(45, 77);
    const auto oracle = testing::cpu_oracle(c, plan.view());
    GpuCase gpu(c);
    ResultBits plain;
    for (const std::string& kernel : gpu_kernels()) {
      SCOPED_TRACE(kernel);
      ASSERT_TRUE(is_ok(gpu.run_plan(plan.view(), on_gpu(kernel))));
      expect_gpu_matches(c, oracle);
      const ResultBits want = bits_of(c);
      ASSERT_TRUE(is_ok(gpu.run_plan(plan.view(), on_gpu(kernel))));
      EXPECT_EQ(bits_of(c), want) << "the second run";
      ASSERT_TRUE(is_ok(gpu.run_plan(other.view(), on_gpu(kernel))));
      EXPECT_EQ(bits_of(c), want) << "another order of ids, rubbish behind the counts";
      ASSERT_TRUE(is_ok(gpu.run_plan(lists.bitmap_view(words), on_gpu(kernel))));
      EXPECT_EQ(bits_of(c), want) << "the bitmap form";
      ASSERT_TRUE(is_ok(gpu.run_plan(plan.view(), on_gpu(kernel, false))));
      EXPECT_EQ(bits_of(c), want) << "without the check";
      if (kernel == "sm90_union_plain") plain = want;
      if (kernel == "sm90_list") {
        EXPECT_EQ(want, plain) << "documented as bit-identical";
      }
    }
  }
}

TEST_F(GpuPlan, PlainAndListKernel_GiveTheSameBitsOnRandomShapes) {
  Random random(testing::test_seed(426));
  for (int round = 0; round < 20; ++round) {
    SCOPED_TRACE("round " + std::to_string(round));
    const int64_t kv_heads = random.integer(1, 3), sq = random.integer(1, 700);
    const int64_t sk = random.integer(1, 5000);
    AttendCase c({.batch = random.integer(1, 2),
                  .sq = sq,
                  .sk = sk,
                  .heads = kv_heads * random.integer(1, 2),
                  .kv_heads = kv_heads,
                  .dtype = random.chance(0.5) ? Dtype::kBf16 : Dtype::kF16});
    c.fill_random(random, 2);
    BlockLists lists(c.q.size()[0], c.q.size()[2], sq, sk);
    lists.fill_random(random, 0, lists.key_blocks);
    const Plan plan = lists.plan();
    GpuCase gpu(c);
    ASSERT_TRUE(is_ok(gpu.run_plan(plan.view(), on_gpu("sm90_list"))));
    const ResultBits list = bits_of(c);
    ASSERT_TRUE(is_ok(gpu.run_plan(plan.view(), on_gpu("sm90_union_plain"))));
    EXPECT_EQ(bits_of(c), list);
    const auto oracle = testing::cpu_oracle(c, plan.view());
    expect_gpu_matches(c, oracle);
    ASSERT_TRUE(is_ok(gpu.run_plan(plan.view(), on_gpu("sm90_union"))));
    expect_gpu_matches(c, oracle);
  }
}

TEST_F(GpuPlan, WrongListOfOneRow_IsNoticed_Control) {
  Random random(testing::test_seed(427));
  AttendCase c({.sq = 640, .sk = 640, .heads = 1, .kv_heads = 1, .dtype = Dtype::kBf16});
  c.fill_random(random);
  BlockLists lists(1, 1, 640, 640);
  lists.fill_random(random, 4, 4);
  const auto oracle = c.oracle(lists.keys(640));
  for (int32_t id = 0; id < 10; ++id) {
    auto& row = lists.rows[7];
    if (std::find(row.begin(), row.end(), id) == row.end()) {
      row[0] = id;
      break;
    }
  }
  const Plan plan = lists.plan();
  GpuCase gpu(c);
  ASSERT_TRUE(is_ok(gpu.run_plan(plan.view(), on_gpu())));
  EXPECT_GT(oracle_error(c, oracle).relative_l2, 4e-3) << "one block of one row";
}

}  // namespace
}  // namespace tessera
