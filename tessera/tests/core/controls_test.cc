// Negative controls: deliberately wrong calls that the acceptance rules have to notice. If one of
// these passes, the tolerances are too wide to prove anything.
#include <gtest/gtest.h>

#include <cmath>
#include <numbers>

#include "tessera/tests/support/attend_case.h"

namespace tessera {
namespace {

using testing::AttendCase;
using testing::AttentionOracle;
using testing::BlockLists;
using testing::is_ok;
using testing::kernels;
using testing::on;
using testing::oracle_error;
using testing::Random;
using testing::Tensor4;

/// True if the acceptance rules would let the case pass.
bool accepted(const AttendCase& c, const AttentionOracle& oracle) {
  const auto error = oracle_error(c, oracle);
  const auto limit = testing::tolerance_of(c.out.dtype());
  return error.relative_l2 <= limit.relative_l2 && error.max_abs <= limit.max_abs &&
         error.lse <= limit.lse;
}

class Control : public ::testing::TestWithParam<std::string> {
 protected:
  Control() : c_({.sq = 130, .sk = 130, .dtype = Dtype::kBf16}) {
    Random random(testing::test_seed(131));
    c_.fill_random(random);
    oracle_ = c_.oracle(testing::all_keys(130));
  }
  Execution exec() const { return on(GetParam()); }
  AttendCase c_;
  AttentionOracle oracle_;
};

TEST_P(Control, UnbrokenRun_Passes) {
  ASSERT_TRUE(is_ok(c_.run(std::nullopt, exec())));
  EXPECT_TRUE(accepted(c_, oracle_));
}

TEST_P(Control, PhantomTailKeys_GiveTheDilutedMeanOfFC1) {
  // The tail mask left out: 65 keys rounded up to 128 with zero keys and values.
  AttendCase c({.sq = 65, .sk = 128, .dtype = Dtype::kBf16});
  c.fill_uniform();
  c.v.fill([](const auto& at) { return at[1] == 64 ? 66.0f : at[1] < 64 ? 1.0f : 0.0f; });
  ASSERT_TRUE(is_ok(c.run(std::nullopt, exec())));
  EXPECT_EQ(c.out.get({0, 3, 1, 77}), 1.015625f);
  AttentionParams p = c.params();
  p.k.size[1] = p.v.size[1] = 65;
  ASSERT_TRUE(is_ok(attend(p, exec())));
  EXPECT_EQ(c.out.get({0, 3, 1, 77}), 2.0f);
}

TEST_P(Control, TailDropped_IsRejected) {
  AttentionParams p = c_.params();
  p.k.size[1] = p.v.size[1] = 128;
  ASSERT_TRUE(is_ok(attend(p, exec())));
  EXPECT_FALSE(accepted(c_, oracle_));
}

TEST_P(Control, GuardRowRead_IsNan) {
  AttentionParams p = c_.params();
  p.k.size[1] = p.v.size[1] = 131;  // the first guard row
  ASSERT_TRUE(is_ok(attend(p, exec())));
  EXPECT_TRUE(std::isnan(c_.out.get({0, 0, 0, 0})));
  EXPECT_FALSE(accepted(c_, oracle_));
}

TEST_P(Control, WrongStride_IsRejected) {
  AttentionParams p = c_.params();
  p.v.stride[1] = 128;  // as if there were one head
  p.v.stride[2] = 0;
  ASSERT_TRUE(is_ok(attend(p, exec())));
  EXPECT_FALSE(accepted(c_, oracle_));
}

TEST_P(Control, HeadsSwapped_IsRejected) {
  AttentionParams p = c_.params();
  p.v.data = static_cast<uint16_t*>(p.v.data) + p.v.stride[2];
  p.v.stride[2] = -p.v.stride[2];
  ASSERT_TRUE(is_ok(attend(p, exec())));
  EXPECT_FALSE(accepted(c_, oracle_));
}

TEST_P(Control, BaseTwoLse_IsRejected) {
  ASSERT_TRUE(is_ok(c_.run(std::nullopt, exec())));
  c_.lse.fill([&](const auto& at) { return c_.lse.get(at) / std::numbers::ln2_v<float>; });
  EXPECT_FALSE(accepted(c_, oracle_));
}

TEST_P(Control, ScaleOffByLog2E_IsRejected) {
  c_.scale = static_cast<float>(std::numbers::log2e / std::sqrt(128.0));
  ASSERT_TRUE(is_ok(c_.run(std::nullopt, exec())));
  EXPECT_FALSE(accepted(c_, oracle_));
}

TEST_P(Control, ScaleOffByOnePercent_IsRejected) {
  c_.scale = static_cast<float>(1.01 / std::sqrt(128.0));
  ASSERT_TRUE(is_ok(c_.run(std::nullopt, exec())));
  EXPECT_FALSE(accepted(c_, oracle_));
}

TEST_P(Control, UnionOfListsInsteadOfEachHeadsOwn_IsRejected) {
  BlockLists own(1, 2, 130, 130), joined(1, 2, 130, 130);
  for (int i = 0; i < 3; ++i) {
    own.at(0, 0, i) = {0};
    own.at(0, 1, i) = {1, 2};
    joined.at(0, 0, i) = joined.at(0, 1, i) = {0, 1, 2};
  }
  const auto oracle = c_.oracle(own.keys(130));
  const Plan right = own.plan(), wrong = joined.plan();
  ASSERT_TRUE(is_ok(c_.run(right.view(), exec())));
  EXPECT_TRUE(accepted(c_, oracle));
  ASSERT_TRUE(is_ok(c_.run(wrong.view(), exec())));
  EXPECT_FALSE(accepted(c_, oracle));
}

TEST_P(Control, OneKeyOfOneBlockMissing_IsRejected) {
  AttentionParams p = c_.params();
  p.k.size[1] = p.v.size[1] = 129;
  ASSERT_TRUE(is_ok(attend(p, exec())));
  EXPECT_FALSE(accepted(c_, oracle_));
}

TEST_P(Control, RowLeftUnwritten_IsRejected) {
  AttentionParams p = c_.params();
  c_.out.poison();
  p.q.size[1] = p.out.size[1] = 129;
  p.lse.size[2] = 129;
  ASSERT_TRUE(is_ok(attend(p, exec())));
  EXPECT_FALSE(accepted(c_, oracle_));
}

INSTANTIATE_TEST_SUITE_P(Kernels, Control, ::testing::ValuesIn(kernels()),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace tessera
