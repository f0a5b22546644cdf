// Catalogue K3: routing finds the mass. 64 topics; the keys a query block wants lie half a sequence
// away, so neither locality nor sinks can help.
#include <gtest/gtest.h>

#include "tessera/quality.h"
#include "tessera/router.h"
#include "tessera/tests/support/attend_case.h"

namespace tessera {
namespace {

using testing::AttendCase;
using testing::is_ok;
using testing::on;
using testing::Random;

TEST(Topics, RoutingFindsTheMassRandomListsDoNot_K3) {
  Random random(testing::test_seed(141));
  constexpr int64_t kTokens = 2048, kTopics = 64;
  AttendCase c({.sq = kTokens, .sk = kTokens, .heads = 2, .kv_heads = 2, .dtype = Dtype::kBf16});
  testing::Tensor4 topics({1, kTopics, 2, 128}, Dtype::kF32), content = topics;
  topics.fill_random(random, 1.3f);
  content.fill_random(random);
  const auto topic_of_key = [](int64_t s) { return s * kTopics / kTokens; };
  const auto topic_of_query = [&](int64_t s) { return topic_of_key((s + kTokens / 2) % kTokens); };
  c.q.fill([&](const auto& at) {
    return topics.get({0, topic_of_query(at[1]), at[2], at[3]}) + 0.3f * random.normal();
  });
  c.k.fill([&](const auto& at) {
    return topics.get({0, topic_of_key(at[1]), at[2], at[3]}) + 0.3f * random.normal();
  });
  c.v.fill([&](const auto& at) {
    return content.get({0, topic_of_key(at[1]), at[2], at[3]}) + 0.1f * random.normal();
  });
  ASSERT_TRUE(is_ok(c.run(std::nullopt, {})));
  const testing::Tensor4 dense = c.out;
  const testing::Tensor3 dense_lse = c.lse;
  RouteParams p;
  p.q = c.q.view();
  p.k = c.k.view();
  Plan routed, chance;
  ASSERT_TRUE(is_ok(route(p, {}, &routed)));
  ASSERT_EQ(routed.count[0], 8);
  ASSERT_TRUE(is_ok(c.run(routed.view(), {})));
  ErrorStats stats;
  ASSERT_TRUE(is_ok(compare_outputs(c.out.view(), dense.view(), &stats)));
  EXPECT_GT(stats.cosine, 0.99);
  EXPECT_EQ(stats.non_finite, 0);
  // The estimate of the kept mass is close to the true one on such data.
  testing::Tensor3 recall({1, 2, kTokens}, Dtype::kF32);
  ASSERT_TRUE(is_ok(kept_mass(c.lse.view(), dense_lse.view(), recall.view())));
  double mean = 0;
  for (double m : recall.values()) mean += m / (2.0 * kTokens);
  EXPECT_GT(mean, 0.9);

  ASSERT_TRUE(
      is_ok(random_plan(single_document(kTokens, kTokens), 1, 2, 8, random.next(), &chance)));
  ASSERT_TRUE(is_ok(c.run(chance.view(), {})));
  ASSERT_TRUE(is_ok(compare_outputs(c.out.view(), dense.view(), &stats)));
  EXPECT_LT(stats.cosine, 0.9) << "control";
}

}  // namespace
}  // namespace tessera
