// The benchmark face must do the work it is timed for: known answers through every function.
#include "tessera/bench/c_api.h"

#include <gtest/gtest.h>

#include <array>
#include <string>
#include <vector>

namespace {

constexpr int64_t kTokens = 256, kHeads = 2, kWidth = 128, kBlocks = 4;

TbTensor view(std::vector<float>& values) {
  return {values.data(),
          {1, kTokens, kHeads, kWidth},
          {kTokens * kHeads * kWidth, kHeads * kWidth, kWidth, 1},
          2};
}

// q = k = 0 makes every softmax uniform, so a row is the mean of the kept blocks' values 2^block.
struct BenchFace : testing::Test {
  std::vector<float> q, k, v, out;
  std::array<char, 256> text{};
  TbMessage message{text.data(), text.size()};

  void SetUp() override {
    const size_t n = kTokens * kHeads * kWidth;
    q.assign(n, 0.0f);
    k.assign(n, 0.0f);
    v.resize(n);
    out.assign(n, -1.0f);
    for (size_t i = 0; i < n; ++i) v[i] = float(1 << (i / (kHeads * kWidth) / 64));
  }
};

TEST_F(BenchFace, Dense_AveragesAllKeys) {
  TbTensor tq = view(q), tk = view(k), tv = view(v), to = view(out);
  ASSERT_EQ(tb_attend_dense(&tq, &tk, &tv, &to, 2, &message), 0) << text.data();
  for (float value : out) ASSERT_NEAR(value, 15.0f / 4, 1e-5f);
}

TEST_F(BenchFace, GivenLists_ReplaceTheRoutersOwn) {
  TbTensor tq = view(q), tk = view(k), tv = view(v), to = view(out);
  std::vector<int32_t> index, count(kHeads * kBlocks, 2);
  for (int row = 0; row < kHeads * kBlocks; ++row) index.insert(index.end(), {3, 1});
  const TbRouteConfig config{2, 4, 4};
  TbTimes times{};
  ASSERT_EQ(tb_route_and_attend(&tq, &tk, &tv, &to, &config, index.data(), count.data(), 2, &times,
                                &message),
            0)
      << text.data();
  for (float value : out) ASSERT_NEAR(value, (8.0f + 2.0f) / 2, 1e-5f);
  EXPECT_GT(times.route_s, 0);
  EXPECT_GT(times.attend_s, 0);
}

TEST_F(BenchFace, OwnLists_KeepTheLowestBlocksOfAConstantRow) {
  TbTensor tq = view(q), tk = view(k), tv = view(v), to = view(out);
  const TbRouteConfig config{2, 4, 4};
  std::vector<int32_t> index(kHeads * kBlocks * 2, -7), count(kHeads * kBlocks, -7);
  ASSERT_EQ(tb_route_only(&tq, &tk, &config, index.data(), count.data(), 2, &message), 0)
      << text.data();
  for (size_t row = 0; row < count.size(); ++row) {
    EXPECT_EQ(count[row], 2);
    EXPECT_EQ(index[2 * row], 0);
    EXPECT_EQ(index[2 * row + 1], 1);
  }
  ASSERT_EQ(
      tb_route_and_attend(&tq, &tk, &tv, &to, &config, nullptr, nullptr, 2, nullptr, &message), 0)
      << text.data();
  for (float value : out) ASSERT_NEAR(value, (1.0f + 2.0f) / 2, 1e-5f);
}

TEST_F(BenchFace, UnknownDtype_IsRefusedWithItsCode) {
  TbTensor tq = view(q), tk = view(k), tv = view(v), to = view(out);
  tq.dtype = 9;
  ASSERT_EQ(tb_attend_dense(&tq, &tk, &tv, &to, 1, &message), 1);
  EXPECT_NE(std::string(text.data()).find("dtype code 9"), std::string::npos) << text.data();
}

// Runs everywhere: the pointers are host memory, so no call may get as far as a device.
TEST_F(BenchFace, CudaCalls_RefuseF32AndMissingParts) {
  TbTensor tq = view(q), tk = view(k), tv = view(v), to = view(out);
  const TbCudaCall call{0, nullptr, nullptr, 0, "", 1};
  EXPECT_EQ(tb_cuda_attend(&tq, &tk, &tv, &to, nullptr, nullptr, &call, &message), 2)
      << text.data();
  EXPECT_EQ(tb_cuda_attend(&tq, &tk, &tv, &to, nullptr, nullptr, nullptr, &message), 1);
  EXPECT_STREQ(text.data(), "the call settings are null");
  const TbRouteConfig config{2, 4, 4};
  EXPECT_EQ(tb_cuda_route(&tq, &tk, &config, nullptr, nullptr, &call, &message), 1);
  EXPECT_NE(std::string(text.data()).find("dense_rows"), std::string::npos) << text.data();
  for (float value : out) ASSERT_EQ(value, -1.0f);
}

TEST_F(BenchFace, LongMessage_IsCutAndTerminated) {
  std::array<char, 8> small{};
  small.fill('x');
  TbMessage cut{small.data(), small.size()};
  ASSERT_EQ(tb_attend_dense(nullptr, nullptr, nullptr, nullptr, 1, &cut), 1);
  EXPECT_EQ(std::string(small.data()), "q is nu");
}

}  // namespace
