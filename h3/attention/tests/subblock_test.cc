// subblock_sparse_attn through the interface that layers use: which calls are sparse, what they
// give, and what they leave in the counters.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <memory>
#include <numeric>
#include <thread>

#include "h3/attention/dense_impl.h"
#include "h3/attention/sdpa_impl.h"
#include "h3/attention/subblock_impl.h"
#include "h3/attention/tests/plan_test_util.h"
#include "h3/attention/tests/reference.h"

namespace h3 {
namespace {

using testing::denoise_layer;
using testing::document_mask;
using testing::expect_parts;
using testing::max_error;
using testing::packed;
using testing::random_qkv;
using testing::reference_attention;
using testing::thrown_by;

constexpr uint64_t kSeed = 20261130;

/// min_seq_len 512 and no skipped steps: everything from 512 rows on is sparse.
SubBlockSettings small_settings(double sparsity = 0.5) {
  SubBlockSettings s;
  s.options.sparsity = sparsity;
  s.options.min_seq_len = 512;
  s.options.skip_first_steps = 0;
  return s;
}

/// Keeps every block, and yet goes through router and sparse kernel.
SubBlockSettings full_budget() { return small_settings(1e-6); }

int g_routes = 0, g_attends = 0;
std::vector<RoutePlan> g_plans;

RoutePlan counted_route(const at::Tensor& q, const at::Tensor& k, const RouteOptions& options,
                        const PackedBounds* bounds) {
  ++g_routes;
  g_plans.push_back(route(q, k, options, bounds));
  return g_plans.back();
}

AttentionPartial counted_attend(const Qkv& qkv, const AttendOptions& options) {
  ++g_attends;
  return attend(qkv, options);
}

struct Fixture {
  explicit Fixture(const SubBlockSettings& settings, bool needs_mask = false,
                   int64_t max_pairs = kMaxPairsPerCall, LayerDescriptor layer = denoise_layer(0),
                   bool causal = false) {
    g_routes = g_attends = 0;
    g_plans.clear();
    SubBlockOptions options;
    options.settings = settings;
    options.gate = layer_gate(layer, settings);
    options.needs_query_block_mask = needs_mask;
    options.max_pairs = max_pairs;
    options.attention.causal = causal;
    dense = causal ? make_sdpa_impl(options.attention) : make_dense_impl(options.attention);
    impl = make_subblock_impl(options, {dense, nullptr}, stats, {counted_route, counted_attend});
  }
  int64_t dense_calls(DenseReason reason) const {
    return stats->values().dense_calls[static_cast<size_t>(reason)];
  }

  std::shared_ptr<LayerStats> stats = std::make_shared<LayerStats>();
  std::shared_ptr<AttentionImpl> dense;
  std::unique_ptr<AttentionImpl> impl;
};

AttentionContext at_step(int64_t step) { return {{step}, false, {}}; }

AttentionContext with_mask(std::vector<uint8_t> mask) { return {{0}, true, std::move(mask)}; }

double cosine(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor x = a.to(at::kDouble).flatten(), y = b.to(at::kDouble).flatten();
  return (x.dot(y) / (x.norm() * y.norm())).item<double>();
}

Qkv bf16(int64_t rows, int64_t heads = 2, int64_t kv_heads = 0, int64_t batch = 1) {
  return random_qkv(batch, rows, rows, heads, kv_heads == 0 ? heads : kv_heads, 128, at::kBFloat16);
}

TEST(SubBlock, Steps_DecideSparseOrBitwiseDense_G2_G4) {
  testing::start_test(kSeed);
  SubBlockSettings settings = small_settings();
  settings.options.skip_first_steps = 10;
  Fixture f(settings);
  const Qkv qkv = bf16(1024, 1);
  const at::Tensor dense = f.dense->forward(qkv, {});
  for (const int64_t step : {0, 3, 9}) {
    EXPECT_TRUE(at::equal(f.impl->forward(qkv, at_step(step)), dense)) << step;
  }
  EXPECT_EQ(f.dense_calls(DenseReason::kEarlyStep), 3);
  EXPECT_EQ(g_routes, 0);
  for (const int64_t step : {10, 49}) {
    EXPECT_FALSE(at::equal(f.impl->forward(qkv, at_step(step)), dense)) << step;
  }
  EXPECT_EQ(g_routes, 2);
  EXPECT_EQ(f.stats->values().sparse_calls, 2);
}

TEST(SubBlock, PackedSkippedStep_IsBitwiseDense_G4) {
  testing::start_test(kSeed);
  SubBlockSettings settings = small_settings();
  settings.options.skip_first_steps = 10;
  Fixture f(settings, /*needs_mask=*/true);  // no mask, but the call is dense
  const Qkv qkv = packed(bf16(700));
  const PackedBounds bounds{{0, 600, 640}, 600};
  EXPECT_TRUE(at::equal(f.impl->forward_packed(qkv, bounds, at_step(3)),
                        f.dense->forward_packed(qkv, bounds, {})));
  EXPECT_EQ(f.dense_calls(DenseReason::kEarlyStep), 1);
}

TEST(SubBlock, ShortOtherDtypeOrCausal_IsBitwiseDense_G3) {
  testing::start_test(kSeed);
  Fixture f(small_settings());
  const Qkv below = bf16(511, 1), f32 = random_qkv(1, 512, 512, 1, 1, 128);
  const Qkv f16 = random_qkv(1, 512, 512, 1, 1, 128, at::kHalf);
  for (const Qkv* qkv : {&below, &f32, &f16}) {
    EXPECT_TRUE(at::equal(f.impl->forward(*qkv, {}), f.dense->forward(*qkv, {})));
  }
  EXPECT_EQ(f.dense_calls(DenseReason::kShort), 1);
  EXPECT_EQ(f.dense_calls(DenseReason::kDtype), 2);
  const Qkv two_short = packed(bf16(900, 1));
  const PackedBounds bounds{{0, 450, 900}, 450};  // long enough together only
  EXPECT_TRUE(at::equal(f.impl->forward_packed(two_short, bounds, {}),
                        f.dense->forward_packed(two_short, bounds, {})));
  EXPECT_EQ(f.dense_calls(DenseReason::kShort), 2);
  EXPECT_EQ(g_routes, 0);

  Fixture causal(small_settings(), false, kMaxPairsPerCall, denoise_layer(0), true);
  const Qkv qkv = bf16(512, 1);
  EXPECT_TRUE(at::equal(causal.impl->forward(qkv, {}), causal.dense->forward(qkv, {})));
  EXPECT_EQ(causal.dense_calls(DenseReason::kCausal), 1);
}

TEST(SubBlock, F32OfADenseHalfWithoutIt_TakesTheOther) {
  testing::start_test(kSeed);
  SubBlockOptions options;
  options.settings = small_settings();
  options.gate = layer_gate(denoise_layer(0), options.settings);
  const std::shared_ptr<AttentionImpl> sdpa = make_sdpa_impl({});
  // cuDNN's backend refuses every CPU tensor, so only the other can have answered.
  const auto impl =
      make_subblock_impl(options, {make_cudnn_sdpa_impl({}), sdpa}, std::make_shared<LayerStats>());
  const Qkv f32 = random_qkv(1, 64, 64, 1, 1, 128);
  EXPECT_TRUE(at::equal(impl->forward(f32, {}), sdpa->forward(f32, {})));
  EXPECT_THROW(impl->forward(random_qkv(1, 64, 64, 1, 1, 128, at::kHalf), {}), Error);
}

TEST(SubBlock, ClosedLayers_NeverRoute) {
  testing::start_test(kSeed);
  LayerDescriptor refiner = denoise_layer(0);
  refiner.stack = LayerStack::kRefiner;
  Fixture f(small_settings(), false, kMaxPairsPerCall, refiner);
  const Qkv qkv = bf16(512, 1);
  EXPECT_TRUE(at::equal(f.impl->forward(qkv, {}), f.dense->forward(qkv, {})));
  EXPECT_EQ(f.dense_calls(DenseReason::kStack), 1);
  EXPECT_EQ(g_routes, 0);
}

TEST(SubBlock, FullBudget_IsDenseAttention) {
  testing::start_test(kSeed);
  Fixture f(full_budget());
  const Qkv qkv = bf16(550, 4, 2, 2);  // ragged, grouped heads, two batch entries
  EXPECT_GT(cosine(f.impl->forward(qkv, {}), reference_attention(qkv).out), 0.99999);
  const CounterValues v = f.stats->values();
  EXPECT_EQ(v.blocks_kept, 2 * 4 * 9 * 9);
  EXPECT_EQ(v.blocks_total, v.blocks_kept);
  EXPECT_NEAR(v.mean_mass().value(), 1.0, 1e-5);
}

// Each document against attention over that document alone; joint attention must not pass.
TEST(SubBlock, PackedDocuments_DecideEachForItself_G5) {
  testing::start_test(kSeed);
  Fixture f(full_budget());
  const Qkv batch = bf16(1100);
  const PackedBounds bounds{{0, 700, 1000}, 700};  // sparse, dense, 100 rows of nobody
  const at::Tensor out = f.impl->forward_packed(packed(batch), bounds, {});
  const at::Tensor want = reference_attention(batch, document_mask(bounds.cu, 1100)).out[0];
  const at::Tensor joint = reference_attention(batch).out[0];
  for (size_t d = 0; d < 2; ++d) {
    const int64_t start = bounds.cu[d], length = bounds.cu[d + 1] - start;
    EXPECT_GT(cosine(out.narrow(0, start, length), want.narrow(0, start, length)), 0.99999);
    EXPECT_LT(cosine(out.narrow(0, start, length), joint.narrow(0, start, length)), 0.99);
  }
  EXPECT_EQ(out.narrow(0, 1000, 100).abs().max().item<double>(), 0.0);
  EXPECT_EQ(g_routes, 1);
  EXPECT_EQ(g_attends, 1);
  const CounterValues v = f.stats->values();
  EXPECT_EQ(v.sparse_calls, 1);
  EXPECT_EQ(v.sparse_documents, 1);
  EXPECT_EQ(v.dense_documents, 1);
}

// The short document of a sparse call reads all its keys, in the bits of the dense kernel.
TEST(SubBlock, DenseRowsOfASparseCall_AreBitwiseDenseOnTheCpu) {
  testing::start_test(kSeed);
  Fixture f(small_settings(0.75));
  const Qkv qkv = packed(bf16(2400));
  const PackedBounds bounds{{0, 2048, 2400}, 2048};
  const at::Tensor dense = f.dense->forward_packed(qkv, bounds, {});
  const at::Tensor out = f.impl->forward_packed(qkv, bounds, {});
  EXPECT_TRUE(at::equal(out.narrow(0, 2048, 352), dense.narrow(0, 2048, 352)));
  EXPECT_FALSE(at::equal(out.narrow(0, 0, 2048), dense.narrow(0, 0, 2048)));
}

// One launch for all rows; masked-out query blocks are dense rows of the plan.
TEST(SubBlock, MixedRows_AreOneLaunch_K6) {
  testing::start_test(kSeed);
  Fixture f(small_settings(), /*needs_mask=*/true);
  const Qkv qkv = packed(bf16(1024, 1));
  const PackedBounds bounds{{0, 1000, 1024}, 1000};
  std::vector<uint8_t> mask(16, 1);
  mask[1] = mask[15] = 0;
  f.impl->forward_packed(qkv, bounds, with_mask(mask));
  EXPECT_EQ(g_routes, 1);
  EXPECT_EQ(g_attends, 1);
  ASSERT_EQ(g_plans.size(), 1u);
  const at::Tensor dense = g_plans[0].dense_rows[0], count = g_plans[0].count[0][0];
  for (int64_t i = 0; i < 17; ++i) {
    const bool sparse = i < 16 && mask[static_cast<size_t>(i)] != 0;
    EXPECT_EQ(dense[i].item<int>(), sparse ? 0 : 1) << i;
    EXPECT_EQ(count[i].item<int>(), sparse ? 8 : 0) << i;
  }
  const CounterValues v = f.stats->values();
  EXPECT_EQ(v.blocks_total, 16 * 16);
  EXPECT_EQ(v.blocks_kept, 14 * 8 + 2 * 16);
  EXPECT_EQ(v.mass_rows, 14);
}

// Query blocks of a mask T F T against what each of them must be: routed alone, or dense.
TEST(SubBlock, MixedMask_GivesEachBlockItsOwn_K5) {
  testing::start_test(kSeed);
  const Qkv batch = bf16(1024);
  const PackedBounds bounds{{0, 1024}, 1024};
  std::vector<uint8_t> mask(16, 1);
  for (size_t i = 1; i < 16; i += 3) mask[i] = 0;
  Fixture sparse(small_settings(0.75)), mixed(small_settings(0.75));
  const at::Tensor all_sparse = sparse.impl->forward_packed(packed(batch), bounds, {});
  const at::Tensor out = mixed.impl->forward_packed(packed(batch), bounds, with_mask(mask));
  const at::Tensor dense = reference_attention(batch).out[0];
  for (int64_t i = 0; i < 16; ++i) {
    const at::Tensor got = out.narrow(0, 64 * i, 64);
    const bool is_sparse = mask[static_cast<size_t>(i)] != 0;
    EXPECT_EQ(at::equal(got, all_sparse.narrow(0, 64 * i, 64)), is_sparse) << i;
    EXPECT_EQ(cosine(got, dense.narrow(0, 64 * i, 64)) > 0.9999, !is_sparse) << i;
  }
}

TEST(SubBlock, UnpackedCalls_FollowTheMaskToo) {
  testing::start_test(kSeed);
  Fixture f(small_settings(), /*needs_mask=*/true);
  const Qkv qkv = bf16(512, 1);
  EXPECT_THROW(f.impl->forward(qkv, {}), Error);
  f.impl->forward(qkv, with_mask({1, 1, 1, 0, 1, 1, 1, 1}));
  EXPECT_EQ(g_plans.back().dense_rows.sum().item<int>(), 1);
}

TEST(SubBlock, MissingMask_IsAnErrorOnlyWhereSparseWouldRun_G6) {
  testing::start_test(kSeed);
  SubBlockSettings settings = small_settings();
  settings.options.skip_first_steps = 5;
  Fixture f(settings, /*needs_mask=*/true);
  const Qkv qkv = packed(bf16(600, 1));
  const PackedBounds one_long{{0, 600}, 600}, all_short{{0, 300, 600}, 300};
  EXPECT_NO_THROW(f.impl->forward_packed(qkv, one_long, at_step(4)));   // dense step
  EXPECT_NO_THROW(f.impl->forward_packed(qkv, all_short, at_step(5)));  // short documents
  const Error e = thrown_by([&] { f.impl->forward_packed(qkv, one_long, at_step(5)); });
  EXPECT_EQ(e.code(), ErrorCode::kInvalidArgument);
  expect_parts(e.what(), {"requires subblock_sparse_query_block_mask when SubBlock sparse "
                          "attention is active"});
  AttentionContext context = at_step(5);
  context.has_query_block_mask = true;
  context.query_block_mask.assign(9, 1);
  expect_parts(thrown_by([&] { f.impl->forward_packed(qkv, one_long, context); }).what(),
               {"9 blocks", "10", "600 rows"});
  EXPECT_EQ(g_routes, 0);
  context.query_block_mask.assign(10, 1);
  EXPECT_NO_THROW(f.impl->forward_packed(qkv, one_long, context));
  EXPECT_EQ(g_routes, 1);
}

TEST(SubBlock, MaskWithoutVideo_MakesTheCallDense) {
  testing::start_test(kSeed);
  Fixture f(small_settings(), /*needs_mask=*/true);
  const Qkv qkv = packed(bf16(640, 1));
  const PackedBounds bounds{{0, 600, 640}, 600};
  EXPECT_TRUE(at::equal(f.impl->forward_packed(qkv, bounds, with_mask(std::vector<uint8_t>(10, 0))),
                        f.dense->forward_packed(qkv, bounds, {})));
  EXPECT_EQ(f.dense_calls(DenseReason::kNoVideo), 1);
  EXPECT_EQ(g_routes, 0);
}

TEST(SubBlock, MaskOfTheFirstDocument_LeavesTheOthersSparse) {
  testing::start_test(kSeed);
  Fixture f(small_settings(), /*needs_mask=*/true);
  const Qkv qkv = packed(bf16(1152, 1));
  const PackedBounds bounds{{0, 0, 576, 1152}, 576};  // an empty one in front
  f.impl->forward_packed(qkv, bounds, with_mask(std::vector<uint8_t>(9, 0)));
  const at::Tensor dense = g_plans.back().dense_rows[0];
  EXPECT_EQ(dense.narrow(0, 0, 9).sum().item<int>(), 9);
  EXPECT_EQ(dense.narrow(0, 9, 9).sum().item<int>(), 0);
  const CounterValues v = f.stats->values();
  EXPECT_EQ(v.blocks_kept, 9 * 9 + 9 * 8);
  EXPECT_EQ(v.sparse_documents, 2);
}

// One head (or group of heads) a call, half of the query blocks masked out.
TEST(SubBlock, HeadSplitting_ChangesNoBit_K6a) {
  testing::start_test(kSeed);
  std::vector<uint8_t> mask(12);
  for (size_t i = 0; i < mask.size(); ++i) mask[i] = i % 2 == 0;
  for (const int64_t kv_heads : {4, 2}) {
    const Qkv qkv = packed(bf16(800, 4, kv_heads));
    const PackedBounds bounds{{0, 720, 780}, 720};
    Fixture whole(small_settings(0.75)), split(small_settings(0.75), false, /*max_pairs=*/1);
    const at::Tensor want = whole.impl->forward_packed(qkv, bounds, with_mask(mask));
    EXPECT_EQ(g_routes, 1);
    g_routes = g_attends = 0;
    EXPECT_TRUE(at::equal(split.impl->forward_packed(qkv, bounds, with_mask(mask)), want));
    EXPECT_EQ(g_routes, kv_heads);
    EXPECT_EQ(g_attends, kv_heads);
    const CounterValues a = whole.stats->values(), b = split.stats->values();
    EXPECT_EQ(a.blocks_kept, b.blocks_kept);
    EXPECT_EQ(a.blocks_total, b.blocks_total);
    EXPECT_EQ(a.mass_rows, b.mass_rows);
    EXPECT_NEAR(a.mass_sum, b.mass_sum, 1e-4);
    EXPECT_EQ(b.sparse_calls, 1);
  }
  const Qkv qkv = bf16(576, 3);
  Fixture whole(small_settings()), split(small_settings(), false, 2 * 81);  // two heads, then one
  const at::Tensor want = whole.impl->forward(qkv, {});
  g_routes = 0;
  EXPECT_TRUE(at::equal(split.impl->forward(qkv, {}), want));
  EXPECT_EQ(g_routes, 2);
}

TEST(SubBlock, Counters_AgreeWithThePlan) {
  testing::start_test(kSeed);
  SubBlockSettings mass = small_settings();
  mass.target_mass = 0.6;
  for (const SubBlockSettings& settings : {small_settings(0.75), mass}) {
    Fixture f(settings);
    const Qkv qkv = packed(bf16(1700));
    const PackedBounds bounds{{0, 1000, 1100, 1650}, 1000};
    std::vector<uint8_t> mask(16, 1);
    mask[3] = 0;
    f.impl->forward_packed(qkv, bounds, with_mask(mask));
    const RoutePlan& plan = g_plans.back();
    const at::Tensor sparse = plan.dense_rows.eq(0).unsqueeze(1).expand_as(plan.count);
    const int64_t listed = plan.count.masked_select(sparse).sum().item<int64_t>();
    const double want_mass = plan.mass.masked_select(sparse).to(at::kDouble).mean().item<double>();
    const CounterValues v = f.stats->values();
    EXPECT_EQ(v.blocks_total, 2 * (16 * 16 + 9 * 9));
    EXPECT_EQ(v.blocks_kept, listed + 2 * 16);  // the masked block reads all 16
    EXPECT_EQ(v.mass_rows, 2 * (15 + 9));
    EXPECT_NEAR(v.mean_mass().value(), want_mass, 1e-5);
    EXPECT_LT(v.mean_mass().value(), 0.999);
    EXPECT_EQ(v.sparse_documents, 2);
    EXPECT_EQ(v.dense_documents, 1);
  }
}

TEST(SubBlock, MassTarget_IsReached) {
  testing::start_test(kSeed);
  SubBlockSettings settings = small_settings();
  settings.target_mass = 0.8;
  Fixture f(settings);
  f.impl->forward(bf16(1024), {});
  const CounterValues v = f.stats->values();
  EXPECT_GE(v.mean_mass().value(), 0.8);
  EXPECT_GT(v.kept_ratio(), 0.3);
  EXPECT_LT(v.kept_ratio(), 1.0);
}

// Slots are folded every 64 calls; threads and reads in between lose nothing.
TEST(LayerStats, ManyPlansFromManyThreads_AddUpExactly) {
  LayerStats stats;
  RoutePlan plan;
  plan.mass = at::full({1, 2, 4}, 0.5f);  // six sparse rows of eight: the dense ones hold 1
  plan.mass.select(2, 3).fill_(1.0f);
  plan.count = at::full({1, 2, 4}, 3, at::kInt);
  constexpr int kThreads = 4, kCalls = 200;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < kCalls; ++i) {
        stats.add_plan(plan, 6, 2, true);
        if (i % 50 == 0) static_cast<void>(stats.values());
      }
    });
  }
  for (std::thread& t : threads) t.join();
  const CounterValues v = stats.values();
  EXPECT_EQ(v.mass_rows, 6 * kThreads * kCalls);
  EXPECT_DOUBLE_EQ(v.mass_sum, 0.5 * 6 * kThreads * kCalls);
  EXPECT_EQ(v.blocks_kept, 24 * kThreads * kCalls);
  stats.add_plan(plan, 6, 2, true);
  stats.reset();
  EXPECT_FALSE(stats.values().mean_mass());
  EXPECT_EQ(stats.values().blocks_kept, 0);
}

}  // namespace
}  // namespace h3
