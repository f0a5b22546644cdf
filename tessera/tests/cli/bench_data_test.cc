// Data of the CUDA benchmark: normal values, never constant, and lists that neighbours share.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "tessera/cli/common/cuda_bench_data.h"
#include "tessera/types.h"

namespace tessera::cli {
namespace {

constexpr uint64_t kSeed = 5;

TEST(BenchData, Elements_AreStandardNormal) {
  for (Dtype dtype : {Dtype::kBf16, Dtype::kF16}) {
    const std::vector<uint16_t> bits = normal_elements(1 << 20, dtype, kSeed, 2);
    double sum = 0, squares = 0, fourth = 0;
    for (uint16_t b : bits) {
      const double x = dtype == Dtype::kF16 ? f16_to_f32(b) : bf16_to_f32(b);
      sum += x;
      squares += x * x;
      fourth += x * x * x * x;
    }
    const double n = double(bits.size());
    EXPECT_NEAR(sum / n, 0, 2e-2) << dtype_name(dtype);
    EXPECT_NEAR(squares / n, 1, 2e-2) << dtype_name(dtype);
    EXPECT_NEAR(fourth / n, 3, 0.15) << dtype_name(dtype);
  }
}

TEST(BenchData, Elements_DependOnTheSeedOnly) {
  const int64_t count = (3 << 20) + 5;  // several chunks and a ragged end
  const std::vector<uint16_t> one = normal_elements(count, Dtype::kBf16, kSeed, 1);
  EXPECT_EQ(normal_elements(count, Dtype::kBf16, kSeed, 3), one);
  EXPECT_NE(normal_elements(count, Dtype::kBf16, kSeed + 1, 1), one);
}

TEST(BenchData, NeighbourPlan_IsValidAndShared) {
  const BlockLayout layout = single_document(100 * kBlockTokens, 100 * kBlockTokens);
  Plan shared, random;
  ASSERT_TRUE(neighbour_plan(layout, 2, 25, kSeed, &shared).ok());
  ASSERT_TRUE(random_plan(layout, 1, 2, 25, kSeed, &random).ok());
  const Status valid = validate_plan(shared.view(), layout, 1, 2);
  ASSERT_TRUE(valid.ok()) << valid.message();
  for (size_t row = 0; row < shared.count.size(); ++row) {
    EXPECT_EQ(shared.count[row], 25);
    const auto ids = shared.index.begin() + row * 25;
    EXPECT_TRUE(std::is_sorted(ids, ids + 25)) << row;
  }
  EXPECT_GT(sharing_factor(shared.view(), layout, 3), 2.0);
  EXPECT_LT(sharing_factor(random.view(), layout, 3), 1.5);
}

TEST(BenchData, NeighbourPlan_KeepsNoMoreThanThereIs) {
  const BlockLayout layout = single_document(5 * kBlockTokens, 5 * kBlockTokens);
  Plan plan;
  ASSERT_TRUE(neighbour_plan(layout, 1, 9, kSeed, &plan).ok());
  EXPECT_EQ(plan.shape.width, 5);
  EXPECT_TRUE(validate_plan(plan.view(), layout, 1, 1).ok());
}

}  // namespace
}  // namespace tessera::cli
