// Counters of a layer: exact sums, also from many threads.
#include <nlohmann/json.hpp>
#include <thread>

#include "h3/attention/counters.h"
#include "h3/attention/tests/plan_test_util.h"

namespace h3 {
namespace {

TEST(Counters, Calls_AreCountedByKind) {
  LayerCounters counters;
  for (int i = 0; i < 10; ++i) counters.add_dense(DenseReason::kEarlyStep);
  counters.add_dense(DenseReason::kShort);
  for (int i = 0; i < 39; ++i) counters.add_sparse(1, 1, 152, 590);
  CounterValues v = counters.values();
  EXPECT_EQ(v.sparse_calls, 39);
  EXPECT_EQ(v.all_dense_calls(), 11);
  EXPECT_EQ(v.dense_calls[static_cast<size_t>(DenseReason::kEarlyStep)], 10);
  EXPECT_EQ(v.sparse_documents, 39);
  EXPECT_EQ(v.dense_documents, 39);
  EXPECT_DOUBLE_EQ(v.kept_ratio(), 152.0 / 590.0);
  EXPECT_FALSE(v.mean_mass());
  EXPECT_EQ(describe(v), "39 sparse calls (kept 0.2576), 11 dense (early_step 10, short 1)");
  counters.add_mass(1.9, 2);
  v = counters.values();
  ASSERT_TRUE(v.mean_mass());
  EXPECT_DOUBLE_EQ(*v.mean_mass(), 0.95);
  const auto json = nlohmann::json::parse(counters_json(v));
  EXPECT_EQ(json["dense_calls"], (nlohmann::json{{"early_step", 10}, {"short", 1}}));
  EXPECT_EQ(json["blocks_kept"], 39 * 152);
  counters.reset();
  EXPECT_EQ(describe(counters.values()), "0 sparse calls, 0 dense");
  EXPECT_TRUE(nlohmann::json::parse(counters_json(counters.values()))["estimated_mass"].is_null());
}

TEST(Counters, Sums_AddUp) {
  CounterValues a, b;
  a.sparse_calls = 1;
  a.dense_calls[2] = 3;
  a.mass_sum = 0.5;
  a.mass_rows = 1;
  b = a;
  b += a;
  EXPECT_EQ(b.sparse_calls, 2);
  EXPECT_EQ(b.dense_calls[2], 6);
  EXPECT_EQ(b.mean_mass(), 0.5);
}

TEST(Counters, ManyThreads_LoseNothing) {
  LayerCounters counters;
  constexpr int kThreads = 4, kCalls = 20000;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < kCalls; ++i) {
        counters.add_sparse(1, 0, 3, 7);
        counters.add_dense(DenseReason::kCausal);
        counters.add_mass(0.5, 1);
        if (i % 1000 == 0) static_cast<void>(counters.values());
      }
    });
  }
  for (std::thread& t : threads) t.join();
  const CounterValues v = counters.values();
  EXPECT_EQ(v.sparse_calls, kThreads * kCalls);
  EXPECT_EQ(v.all_dense_calls(), kThreads * kCalls);
  EXPECT_EQ(v.blocks_kept, 3 * kThreads * kCalls);
  EXPECT_EQ(v.mass_rows, kThreads * kCalls);
  EXPECT_DOUBLE_EQ(v.mass_sum, 0.5 * kThreads * kCalls);  // halves add exactly
}

TEST(DenseReasons, Labels_AreDistinct) {
  std::vector<std::string> labels;
  for (size_t i = 0; i < kDenseReasons; ++i) {
    const std::string label(to_text(static_cast<DenseReason>(i)));
    EXPECT_NE(label, "?");
    EXPECT_EQ(std::count(labels.begin(), labels.end(), label), 0) << label;
    labels.push_back(label);
  }
}

}  // namespace
}  // namespace h3
