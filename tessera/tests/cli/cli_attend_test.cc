// Answers that can be computed by hand (q = k = 0 makes every allowed key weigh the same), through
// `route` and `attend`: partial tails, list order, per-row counts, batches, grouped heads, packed
// documents. Strides cannot be expressed in a file; the library tests cover them.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "tessera/tests/cli/cli_run.h"
#include "tessera/types.h"

namespace tessera::cli_test {
namespace {

constexpr int64_t kWidth = 128;

// One bf16 rounding of the expected value.
void expect_rows(const Tensor& out, int64_t first, int64_t last, int64_t row_elements,
                 double expected, const std::string& what) {
  int64_t wrong = 0;
  for (int64_t i = first * row_elements; i < last * row_elements; ++i) {
    const double error = std::abs(out.values[i] - expected);
    if (!(error <= std::abs(expected) * 0x1p-8)) {
      if (wrong++ == 0) {
        ADD_FAILURE() << what << ": element " << i << " is " << out.values[i] << ", expected "
                      << expected;
      }
    }
  }
  EXPECT_EQ(wrong, 0) << what;
}

void expect_ok(const Outcome& run) { ASSERT_EQ(run.exit_code, 0) << run.err << run.out; }

class RaggedTail : public testing::TestWithParam<int64_t> {};

TEST_P(RaggedTail, DenseAndFullLists_GiveTheMean) {
  const int64_t tokens = GetParam(), heads = 2;
  const TempFolder folder;
  Tensor v = filled("v", {1, tokens, heads, kWidth}, 1);
  std::fill(v.values.end() - heads * kWidth, v.values.end(), round_bf16(float(tokens + 1)));
  write_file(folder.path("in"), {filled("q", v.shape, 0), filled("k", v.shape, 0), v});
  const double expected = (double(tokens - 1) + round_bf16(float(tokens + 1))) / double(tokens);
  for (const std::string choice : {"--dense", "--sparsity=0"}) {
    expect_ok(run_tessera({"attend", folder.path("in"), "-o", folder.path("out"), choice, "--lse"},
                          folder));
    const Tensor out = read_tensor(folder.path("out"), "out");
    EXPECT_EQ(out.dtype, Dtype::kBf16);
    EXPECT_EQ(out.shape, v.shape);
    expect_rows(out, 0, tokens, heads * kWidth, expected, choice);
    const Tensor lse = read_tensor(folder.path("out"), "lse");
    EXPECT_EQ(lse.shape, (std::vector<int64_t>{1, heads, tokens}));
    for (float value : lse.values) ASSERT_NEAR(value, std::log(double(tokens)), 1e-5) << choice;
  }
}
INSTANTIATE_TEST_SUITE_P(Tokens, RaggedTail,
                         testing::Values(1, 63, 64, 65, 100, 127, 128, 129, 255, 2049));

TEST(BlockList, AnyOrder_SameBits) {
  const int64_t tokens = 357, heads = 86, blocks = 6;
  const std::vector<std::vector<int32_t>> lists = {{5, 0, 3},          {1, 5}, {5},
                                                   {4, 5, 2, 1, 0, 3}, {2, 1}, {0, 5, 4}};
  const TempFolder folder;
  Tensor v = filled("v", {1, tokens, heads, kWidth}, 0);
  for (size_t i = 0; i < v.values.size(); ++i) {
    v.values[i] = std::exp2(float(int64_t(i) / (heads * kWidth) / 64));
  }
  std::vector<int32_t> index, count;
  for (int64_t h = 0; h < heads; ++h) {
    for (std::vector<int32_t> list : lists) {
      if (h % 2 == 1) std::reverse(list.begin(), list.end());
      count.push_back(static_cast<int32_t>(list.size()));
      list.resize(blocks, -1);
      index.insert(index.end(), list.begin(), list.end());
    }
  }
  write_file(folder.path("in"), {filled("q", v.shape, 0), filled("k", v.shape, 0), v});
  write_file(folder.path("plan"), {integers("block_index", {1, heads, blocks, blocks}, index),
                                   integers("block_count", {1, heads, blocks}, count)});
  const std::vector<std::string> args = {"attend", folder.path("in"), "--plan", folder.path("plan"),
                                         "-o"};
  for (const char* name : {"a", "b"}) {
    std::vector<std::string> with_output = args;
    with_output.push_back(folder.path(name));
    expect_ok(run_tessera(with_output, folder));
  }
  EXPECT_EQ(read_bytes(folder.path("a")), read_bytes(folder.path("b"))) << "two runs differ";
  const Tensor out = read_tensor(folder.path("a"), "out");
  const double expected[] = {32.0 / 3, 1312.0 / 101, 32, 1056.0 / 119, 3, 2272.0 / 165};
  for (int64_t b = 0; b < blocks; ++b) {
    expect_rows(out, b * 64, std::min(tokens, b * 64 + 64), heads * kWidth, expected[b],
                "query block " + std::to_string(b));
  }
  for (int64_t s = 0; s < tokens; ++s) {
    const float* even = out.values.data() + s * heads * kWidth;
    ASSERT_TRUE(std::equal(even, even + kWidth, even + kWidth)) << "heads 0 and 1, token " << s;
  }
}

struct CountsCase {
  std::vector<int32_t> index, count;
};

CountsCase counts_case(int32_t rubbish) {
  const int32_t x = rubbish;
  return {{2, x, x, x, 0, 1, 3, x, 3, 1, x, x, 0, 1, 2, 3}, {1, 3, 2, 4}};
}

void write_counts_input(const TempFolder& folder) {
  Tensor v = filled("v", {1, 256, 1, kWidth}, 0);
  for (size_t i = 0; i < v.values.size(); ++i) {
    v.values[i] = std::exp2(float(int64_t(i) / kWidth / 64));
  }
  write_file(folder.path("in"), {filled("q", v.shape, 0), filled("k", v.shape, 0), v});
}

void write_counts_plan(const TempFolder& folder, const CountsCase& plan) {
  // Integers travel as f32 in the helper, which would round 2^31 - 1 up; write the bits.
  const std::vector<io::SafetensorsItem> items = {
      {"block_index", Dtype::kI32, {1, 1, 4, 4}, plan.index.data()},
      {"block_count", Dtype::kI32, {1, 1, 4}, plan.count.data()}};
  ASSERT_TRUE(io::write_safetensors(folder.path("plan"), items).ok());
}

Outcome attend_counts(const TempFolder& folder, const std::string& output) {
  return run_tessera(
      {"attend", folder.path("in"), "--plan", folder.path("plan"), "-o", folder.path(output)},
      folder);
}

TEST(BlockCounts, RubbishBehindTheCount_IsNeverRead) {
  const TempFolder folder;
  write_counts_input(folder);
  std::string first;
  for (int32_t rubbish : {0, -1, std::numeric_limits<int32_t>::max()}) {
    write_counts_plan(folder, counts_case(rubbish));
    expect_ok(attend_counts(folder, "out"));
    const Tensor out = read_tensor(folder.path("out"), "out");
    const double expected[] = {4, 11.0 / 3, 5, 3.75};
    for (int64_t b = 0; b < 4; ++b) {
      expect_rows(out, b * 64, b * 64 + 64, kWidth, expected[b], "block " + std::to_string(b));
    }
    if (first.empty()) first = read_bytes(folder.path("out"));
    EXPECT_EQ(read_bytes(folder.path("out")), first) << "rubbish " << rubbish;
  }
}

TEST(BlockCounts, BadPlans_AreRefusedWithThePlace) {
  const TempFolder folder;
  write_counts_input(folder);
  struct Bad {
    size_t index_at;
    int32_t index_value;
    int32_t count_0;
    const char* place;
  };
  // Row 1 of the list is [0, 1, 3], width 4; the fourth case lists block 0 twice.
  for (const Bad& bad :
       {Bad{5, 4, 1, "4"}, Bad{5, -1, 1, "-1"}, Bad{0, 2, 5, "5"}, Bad{5, 0, 1, "twice"}}) {
    CountsCase plan = counts_case(0);
    plan.index[bad.index_at] = bad.index_value;
    plan.count[0] = bad.count_0;
    write_counts_plan(folder, plan);
    const Outcome run = attend_counts(folder, "never");
    EXPECT_EQ(run.exit_code, 2) << bad.place << run.out;
    EXPECT_NE(run.err.find(bad.place), std::string::npos) << run.err;
    EXPECT_NE(run.err.find(folder.path("plan")), std::string::npos) << run.err;
  }
  EXPECT_EQ(folder.names(), (std::vector<std::string>{"in", "plan"}));
}

TEST(Batch, SamplesWithTheirOwnLists_StayApart) {
  const TempFolder folder;
  Tensor v = filled("v", {2, 200, 4, kWidth}, 0);
  for (size_t i = 0; i < v.values.size(); ++i) {
    const int64_t row = int64_t(i) / (4 * kWidth);
    v.values[i] = float(10 * (row / 200 + 1) + row % 200 / 64);
  }
  std::vector<int32_t> index(2 * 4 * 4, 0);
  std::fill(index.begin() + 16, index.end(), 3);
  write_file(folder.path("in"), {filled("q", v.shape, 0), filled("k", v.shape, 0), v});
  write_file(folder.path("plan"),
             {integers("block_index", {2, 4, 4, 1}, index),
              integers("block_count", {2, 4, 4}, std::vector<int32_t>(32, 1))});
  expect_ok(run_tessera(
      {"attend", folder.path("in"), "--plan", folder.path("plan"), "-o", folder.path("out")},
      folder));
  const Tensor out = read_tensor(folder.path("out"), "out");
  expect_rows(out, 0, 200, 4 * kWidth, 10, "sample 0");
  expect_rows(out, 200, 400, 4 * kWidth, 23, "sample 1");
}

TEST(GroupedHeads, FourOverTwo_ReadTheRightGroup) {
  const TempFolder folder;
  Tensor v = filled("v", {1, 200, 2, kWidth}, 0);
  for (size_t i = 0; i < v.values.size(); ++i) v.values[i] = float(i / kWidth % 2 + 1);
  write_file(folder.path("in"), {filled("q", {1, 200, 4, kWidth}, 0), filled("k", v.shape, 0), v});
  for (const char* choice : {"--dense", "--keep=2"}) {
    expect_ok(run_tessera({"attend", folder.path("in"), choice, "-o", folder.path("out")}, folder));
    const Tensor out = read_tensor(folder.path("out"), "out");
    for (size_t i = 0; i < out.values.size(); ++i) {
      ASSERT_EQ(out.values[i], float(i / kWidth % 4 / 2 + 1)) << choice << " element " << i;
    }
  }
}

TEST(PackedDocuments, OneAtTheLimitIsRouted_OthersDense_RowsOutsideZero) {
  const int64_t tokens = 4300, heads = 3;
  const std::vector<int32_t> bounds = {0, 100, 100, 4196, 4292};
  const std::vector<int64_t> shape = {tokens, heads, kWidth};
  const TempFolder folder;
  Tensor q = random_tensor("q", shape, 51, 3), k = random_tensor("k", shape, 52, 3);
  Tensor v = filled("v", shape, 0);
  for (int64_t s = 0; s < tokens; ++s) {
    const float value = s < 100 ? 1.0f : s < 4196 ? 3.0f : s < 4292 ? 4.0f : std::nanf("");
    std::fill_n(v.values.begin() + s * heads * kWidth, heads * kWidth, value);
    if (s < 4292) continue;
    std::fill_n(q.values.begin() + s * heads * kWidth, heads * kWidth, std::nanf(""));
    std::fill_n(k.values.begin() + s * heads * kWidth, heads * kWidth, std::nanf(""));
  }
  write_file(folder.path("in"), {q, k, v, integers("cu_seqlens", {5}, bounds)});
  const Outcome run = run_tessera(
      {"attend", folder.path("in"), "-o", folder.path("out"), "--sparsity", "0.75", "--lse"},
      folder);
  expect_ok(run);
  EXPECT_NE(run.out.find("16 of 64 blocks"), std::string::npos) << run.out;
  EXPECT_NE(run.out.find("1 routed, 2 dense"), std::string::npos) << run.out;
  const Tensor out = read_tensor(folder.path("out"), "out");
  EXPECT_EQ(out.shape, shape);
  expect_rows(out, 0, 100, heads * kWidth, 1, "document 1");
  expect_rows(out, 100, 4196, heads * kWidth, 3, "document 3");
  expect_rows(out, 4196, 4292, heads * kWidth, 4, "document 4");
  expect_rows(out, 4292, 4300, heads * kWidth, 0, "outside");
  const Tensor lse = read_tensor(folder.path("out"), "lse");
  EXPECT_EQ(lse.shape, (std::vector<int64_t>{1, heads, tokens}));
  EXPECT_EQ(lse.values.back(), -std::numeric_limits<float>::infinity());
}

TEST(PackedDocuments, NoDocument_GivesZeros) {
  const std::vector<int64_t> shape = {70, 1, kWidth};
  for (const std::vector<int32_t>& bounds : {std::vector<int32_t>{0}, std::vector<int32_t>{0, 0}}) {
    const TempFolder folder;
    write_file(folder.path("in"),
               {random_tensor("q", shape, 1), random_tensor("k", shape, 2), filled("v", shape, 7),
                integers("cu_seqlens", {static_cast<int64_t>(bounds.size())}, bounds)});
    for (const char* choice : {"--dense", "--sparsity=0.5"}) {
      expect_ok(
          run_tessera({"attend", folder.path("in"), choice, "-o", folder.path("out")}, folder));
      expect_rows(read_tensor(folder.path("out"), "out"), 0, 70, kWidth, 0, choice);
    }
    expect_ok(run_tessera({"route", folder.path("in"), "-o", folder.path("plan")}, folder));
    expect_ok(run_tessera(
        {"attend", folder.path("in"), "--plan", folder.path("plan"), "-o", folder.path("out")},
        folder));
  }
}

TEST(Dtypes, EachOfThree_IsKeptInTheOutput) {
  for (Dtype dtype : {Dtype::kBf16, Dtype::kF16, Dtype::kF32}) {
    for (int64_t width : {64, 128}) {
      const TempFolder folder;
      const std::vector<int64_t> shape = {1, 130, 2, width};
      write_file(folder.path("in"),
                 {random_tensor("q", shape, 1, 1, dtype), random_tensor("k", shape, 2, 1, dtype),
                  filled("v", shape, 0.5f, dtype)});
      expect_ok(run_tessera({"attend", folder.path("in"), "--keep", "1", "-o", folder.path("out")},
                            folder));
      const Tensor out = read_tensor(folder.path("out"), "out");
      EXPECT_EQ(out.dtype, dtype);
      expect_rows(out, 0, 130, 2 * width, 0.5, std::string(dtype_name(dtype)));
    }
  }
}

}  // namespace
}  // namespace tessera::cli_test
