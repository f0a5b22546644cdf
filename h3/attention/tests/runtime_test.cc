// The runtime over real layers: FC-5, counters, the table, and switching per request.
#include "h3/attention/runtime.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <limits>
#include <nlohmann/json.hpp>

#include "h3/attention/dense_impl.h"
#include "h3/attention/h3_layers.h"
#include "h3/attention/report.h"
#include "h3/attention/sdpa_impl.h"
#include "h3/attention/tests/allocations.h"
#include "h3/attention/tests/plan_test_util.h"
#include "h3/attention/tests/reference.h"

namespace h3 {
namespace {

using testing::denoise_layer;
using testing::expect_parts;
using testing::packed;
using testing::random_qkv;
using testing::thrown_by;
using testing::with_backend;
using testing::with_sparsity;

constexpr uint64_t kSeed = 20261130;

AttentionChoices subblock_choices(int64_t min_seq_len = 512, double sparsity = 0.5,
                                  int64_t skip_first_steps = 0) {
  AttentionChoices c;
  c.global = RequestedBackend{BackendId::kSubBlock};
  c.subblock_given = true;
  c.subblock.options.min_seq_len = min_seq_len;
  c.subblock.options.sparsity = sparsity;
  c.subblock.options.skip_first_steps = skip_first_steps;
  return c;
}

struct Small {
  explicit Small(const AttentionChoices& choices, int layers = 3,
                 std::optional<BackendId> required_of_last = {}, bool graphs = false,
                 bool needs_mask = false) {
    ModelLayers model;
    model.components = {{"transformer", false}};
    for (int i = 0; i < layers; ++i) {
      LayerDescriptor d = denoise_layer(i);
      d.needs_query_block_mask = needs_mask;
      model.layers.push_back(d);
    }
    model.layers.back().required = required_of_last;
    RuntimeOptions options;
    options.log = [this](std::string_view text) { logged.emplace_back(text); };
    options.graphs = graphs;
    runtime = std::make_unique<AttentionRuntime>(resolve_attention(model, choices, cpu_platform()),
                                                 options);
  }
  RuntimeLayer& layer(int i) const { return *runtime->layers()[static_cast<size_t>(i)]; }
  at::Tensor run(int i, const Qkv& qkv, int64_t step = 0) const {
    return layer(i).forward(qkv, {{step}, false, {}});
  }
  void set(const AttentionOverride& o) const { runtime->apply(runtime->prepare(o)); }
  CounterValues counters(int i) const { return layer(i).stats().values(); }

  std::vector<std::string> logged;
  std::unique_ptr<AttentionRuntime> runtime;
};

int64_t dense_calls(const CounterValues& v, DenseReason reason) {
  return v.dense_calls[static_cast<size_t>(reason)];
}

Qkv sample() {
  testing::start_test(kSeed);
  return random_qkv(1, 1024, 1024, 1, 1, 128, at::kBFloat16);
}

at::Tensor dense_of(const Qkv& qkv) { return make_dense_impl({})->forward(qkv, {}); }
at::Tensor sdpa_of(const Qkv& qkv) { return make_sdpa_impl({})->forward(qkv, {}); }

TEST(FieldCase5, PackedDocuments_ThroughTheRuntime) {
  testing::start_test(kSeed);
  const Small s(subblock_choices(4096, 0.75), 1);
  constexpr int64_t kRows = 4300;
  Qkv qkv{at::randn({kRows, 3, 128}).mul_(3).to(at::kBFloat16),
          at::randn({kRows, 3, 128}).mul_(3).to(at::kBFloat16),
          at::empty({kRows, 3, 128}, at::kBFloat16)};
  const PackedBounds bounds{{0, 100, 100, 4196, 4292}, 4096};
  const float values[] = {1, 2, 3, 4};
  for (size_t d = 0; d < 4; ++d) {
    qkv.v.narrow(0, bounds.cu[d], bounds.cu[d + 1] - bounds.cu[d]).fill_(values[d]);
  }
  for (at::Tensor* t : {&qkv.q, &qkv.k, &qkv.v}) {
    t->narrow(0, 4292, 8).fill_(std::numeric_limits<float>::quiet_NaN());
  }
  RuntimeLayer& layer = s.layer(0);
  const at::Tensor out = layer.forward_packed(qkv, bounds, {}).to(at::kFloat);
  at::Tensor want = at::zeros_like(out);
  want.narrow(0, 0, 100).fill_(1);
  want.narrow(0, 100, 4096).fill_(3);
  want.narrow(0, 4196, 96).fill_(4);
  EXPECT_TRUE(at::equal(out, want));
  const CounterValues v = s.counters(0);
  EXPECT_EQ(v.sparse_calls, 1);
  EXPECT_EQ(v.sparse_documents, 1);
  EXPECT_EQ(v.dense_documents, 2);
  EXPECT_EQ(v.blocks_kept, 3 * 64 * 16);
  EXPECT_EQ(v.blocks_total, 3 * 64 * 64);

  for (const PackedBounds& bad :
       {PackedBounds{{0, 100, 90, 4292}, 0}, PackedBounds{{1, 4292}, 0}, PackedBounds{{0, 4301}, 0},
        PackedBounds{{0, 100, 4196}, 4095}, PackedBounds{}}) {
    EXPECT_EQ(thrown_by([&] { layer.forward_packed(qkv, bad, {}); }).code(),
              ErrorCode::kInvalidArgument);
  }
  for (const PackedBounds& none : {PackedBounds{{0}, 0}, PackedBounds{{0, 0}, 0}}) {
    EXPECT_EQ(layer.forward_packed(qkv, none, {}).abs().max().item<float>(), 0.0f);
  }
}

TEST(Runtime, Table_IsLoggedOnce) {
  const Small s(subblock_choices());
  ASSERT_EQ(s.logged.size(), 1u);
  EXPECT_EQ(s.logged[0], plan_text(s.runtime->plan()));
  expect_parts(s.logged[0], {"transformer.blocks.0-2.attn", "subblock_sparse_attn"});
}

TEST(Runtime, LayersOfTheModel_AllExist) {
  const Platform platform = cpu_platform();
  AttentionChoices choices;
  choices.components.components["transformer"] = {BackendId::kSubBlock};
  const AttentionRuntime runtime(resolve_attention(minimax_h3_layers(platform), choices, platform),
                                 {.log = [](std::string_view) {}});
  EXPECT_EQ(runtime.layers().size(), 50u + 2 + 50 + 36 + 1);
  EXPECT_TRUE(runtime.layer("transformer", "blocks.49.attn")->may_be_sparse());
  EXPECT_FALSE(runtime.layer("transformer", "token_refiner.blocks.1.attn")->may_be_sparse());
  EXPECT_EQ(runtime.layer("audio_vae", "pre_block.attn")->backend(), BackendId::kTorchSdpa);
  const Error e = thrown_by([&] { runtime.layer("transformer", "blocks.50.attn"); });
  EXPECT_EQ(e.code(), ErrorCode::kInvalidArgument);
  expect_parts(e.what(), {"transformer.blocks.50.attn", "139", "nearest: transformer.blocks."});
}

// The text encoder's causal layers with grouped heads run what the plan says.
TEST(Runtime, CausalLayers_AreCausal) {
  testing::start_test(kSeed);
  const Platform platform = cpu_platform();
  const AttentionRuntime runtime(resolve_attention(minimax_h3_layers(platform), {}, platform),
                                 {.log = [](std::string_view) {}});
  const Qkv qkv = random_qkv(1, 30, 30, 8, 1, 128, at::kBFloat16);
  const auto layer = runtime.layer("text_encoder", "model.language_model.layers.0.self_attn");
  EXPECT_TRUE(
      at::equal(layer->forward(qkv, {}), make_sdpa_impl({.causal = true})->forward(qkv, {})));
  EXPECT_EQ(dense_calls(layer->stats().values(), DenseReason::kBackend), 1);
}

TEST(Runtime, Stats_NameLayersThatRan) {
  const Qkv qkv = sample();
  const Small s(subblock_choices(512, 0.5, 10));
  for (const int64_t step : {0, 9, 10, 49}) s.run(1, qkv, step);
  s.run(2, qkv, 0);
  const CounterValues v = s.counters(1);
  EXPECT_EQ(v.sparse_calls, 2);
  EXPECT_EQ(dense_calls(v, DenseReason::kEarlyStep), 2);
  ASSERT_TRUE(v.mean_mass());
  EXPECT_GT(*v.mean_mass(), 0.5);
  EXPECT_LT(*v.mean_mass(), 1.0);
  const auto json = nlohmann::json::parse(s.runtime->stats_json());
  EXPECT_EQ(json["layers"].size(), 3u);
  EXPECT_EQ(json["layers"][1]["layer"], "transformer.blocks.1.attn");
  EXPECT_EQ(json["layers"][1]["backend"], "subblock_sparse_attn");
  EXPECT_EQ(json["layers"][1]["counters"]["blocks_kept"], 2 * 16 * 8);
  EXPECT_EQ(json["total"]["dense_calls"]["early_step"], 3);
  expect_parts(s.runtime->stats_text(),
               {"transformer.blocks.1.attn subblock_sparse_attn: 2 sparse calls (kept 0.5000, "
                "estimated mass ",
                "2 of 3 layers ran: 2 sparse calls"});
  s.runtime->reset_stats();
  expect_parts(s.runtime->stats_text(), {"0 of 3 layers ran"});
}

// Nobody pays for provenance that nothing reads.
TEST(Runtime, Mask_ExistsOnlyForSparseLayersThatNeedIt_G9) {
  const std::vector<int64_t> video = {0, 1, 2};
  const auto has_mask = [&](const Small& s) {
    return s.runtime->context({3}, video, 100).has_query_block_mask;
  };
  EXPECT_FALSE(has_mask(Small({}, 3, {}, false, true)));
  EXPECT_FALSE(has_mask(Small(subblock_choices(), 3, {}, false, false)));
  const Small s(subblock_choices(), 3, {}, false, true);
  EXPECT_TRUE(has_mask(s));
  const AttentionContext context = s.runtime->context({3}, video, 2 * 64);
  EXPECT_EQ(context.step.value, 3);
  EXPECT_EQ(context.query_block_mask, (std::vector<uint8_t>{0, 0}));
  EXPECT_THROW(s.runtime->context({3}, video, 2), Error);
  AttentionOverride off;
  off.off = true;
  s.set(off);
  EXPECT_FALSE(has_mask(s));
  s.set(with_backend(BackendId::kFa));
  EXPECT_FALSE(has_mask(s));
  s.set({});
  EXPECT_TRUE(has_mask(s));
}

TEST(RuntimeSwitch, Backend_IsSwitchedAndRestored_P1_P2) {
  const Qkv qkv = sample();
  const Small s({});
  EXPECT_TRUE(at::equal(s.run(0, qkv), dense_of(qkv)));
  s.set(with_backend(BackendId::kTorchSdpa));
  EXPECT_TRUE(at::equal(s.run(0, qkv), sdpa_of(qkv)));
  EXPECT_FALSE(at::equal(s.run(0, qkv), dense_of(qkv)));  // the two differ in bits
  EXPECT_EQ(s.layer(2).backend(), BackendId::kTorchSdpa);
  s.set({});
  EXPECT_TRUE(at::equal(s.run(0, qkv), dense_of(qkv)));
  EXPECT_TRUE(s.runtime->active_override().empty());
}

TEST(RuntimeSwitch, EqualOverride_IsAFastPath_P3) {
  const Small s({});
  EXPECT_FALSE(s.runtime->prepare({}).changes_anything());
  s.set(with_backend(BackendId::kTorchSdpa));
  EXPECT_FALSE(s.runtime->prepare(with_backend(BackendId::kTorchSdpa)).changes_anything());
}

TEST(RuntimeSwitch, FailureInPrepare_LeavesEveryLayer_P4_P5) {
  const Qkv qkv = sample();
  const Small s({});
  s.set(with_backend(BackendId::kTorchSdpa));
  const Error e = thrown_by([&] { s.set(with_backend(BackendId::kTorchCudnnSdpa)); });
  EXPECT_EQ(e.code(), ErrorCode::kUnsupported);
  expect_parts(e.what(), {"torch_cudnn_sdpa needs a CUDA device"});
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(at::equal(s.run(i, qkv), sdpa_of(qkv)));
  EXPECT_EQ(s.runtime->active_override(), with_backend(BackendId::kTorchSdpa));
}

TEST(RuntimeSwitch, PrepareAlone_ChangesNothing_P4) {
  const Qkv qkv = sample();
  const Small s({});
  auto later = s.runtime->prepare(with_backend(BackendId::kTorchSdpa));
  // A second one does not take the first's place.
  auto other = s.runtime->prepare(with_backend(BackendId::kSubBlock));
  EXPECT_TRUE(at::equal(s.run(0, qkv), dense_of(qkv)));
  s.runtime->apply(std::move(later));
  EXPECT_TRUE(at::equal(s.run(0, qkv), sdpa_of(qkv)));
  s.runtime->apply(std::move(other));
  EXPECT_EQ(s.layer(0).backend(), BackendId::kSubBlock);
}

TEST(RuntimeSwitch, Apply_AllocatesNothingAndCannotThrow) {
  const Small s(subblock_choices(), 50);
  static_assert(
      noexcept(s.runtime->apply(s.runtime->prepare({}))) ||
      noexcept(std::declval<AttentionRuntime&>().apply(std::declval<AttentionSwitch::Prepared>())));
  static_assert(noexcept(std::declval<RuntimeLayer&>().apply(std::declval<LayerTarget&>())));
  for (const AttentionOverride& o : {with_sparsity(0.9), with_backend(BackendId::kFa), {}}) {
    auto prepared = s.runtime->prepare(o);
    const int64_t before = testing::allocations();
    s.runtime->apply(std::move(prepared));
    EXPECT_EQ(testing::allocations() - before, 0);
  }
}

TEST(RuntimeSwitch, RingGraphsAndMissingLayers_AreRefused_P6_P7_P8_P9) {
  AttentionChoices ring;
  ring.ring_degree = 2;
  const Small under_ring(ring);
  for (const BackendId id : {BackendId::kTorchSdpa, BackendId::kSubBlock}) {
    expect_parts(thrown_by([&] { under_ring.set(with_backend(id)); }).what(), {"ring"});
  }
  const Small graphs({}, 3, {}, /*graphs=*/true);
  expect_parts(thrown_by([&] { graphs.set(with_backend(BackendId::kTorchSdpa)); }).what(),
               {"captured in a graph"});
  AttentionRuntime none(AttentionPlan{}, {.log = [](std::string_view) {}});
  expect_parts(thrown_by([&] { none.prepare(with_backend(BackendId::kFa)); }).what(),
               {"no switchable attention layers"});
}

TEST(RuntimeSwitch, RequiredLayers_KeepTheirBackend_P10) {
  const Qkv qkv = sample();
  const Small s({}, 3, BackendId::kFa);
  s.set(with_backend(BackendId::kTorchSdpa));
  EXPECT_TRUE(at::equal(s.run(0, qkv), sdpa_of(qkv)));
  EXPECT_TRUE(at::equal(s.run(2, qkv), dense_of(qkv)));
}

TEST(RuntimeSwitch, SparsityAndSchedule_ReachTheCalls_P11) {
  const Qkv qkv = sample();
  const Small s(subblock_choices());
  s.run(1, qkv);
  EXPECT_EQ(s.counters(1).blocks_kept, 16 * 8);
  AttentionOverride o = with_sparsity(0.9);  // 16 blocks: 2, rounded up to 8
  o.skip_first_layers = 1;
  o.skip_first_steps = 5;
  s.set(o);
  s.runtime->reset_stats();
  s.run(0, qkv, 7);
  s.run(1, qkv, 4);
  s.run(1, qkv, 5);
  EXPECT_EQ(dense_calls(s.counters(0), DenseReason::kEarlyLayer), 1);
  EXPECT_EQ(dense_calls(s.counters(1), DenseReason::kEarlyStep), 1);
  EXPECT_EQ(s.counters(1).sparse_calls, 1);

  AttentionOverride mass;
  mass.target_mass = 0.75;
  s.set(mass);
  s.runtime->reset_stats();
  s.run(0, qkv);
  EXPECT_GE(s.counters(0).mean_mass().value(), 0.75);
  EXPECT_NE(s.counters(0).blocks_kept, 16 * 8);  // not the budget of the sparsity

  AttentionOverride longer;
  longer.min_seq_len = 1025;
  s.set(longer);
  s.runtime->reset_stats();
  EXPECT_TRUE(at::equal(s.run(0, qkv), dense_of(qkv)));
  EXPECT_EQ(dense_calls(s.counters(0), DenseReason::kShort), 1);
}

TEST(RuntimeSwitch, OffAndOn_AreBitwiseTheConstruction_P12) {
  const Qkv qkv = sample();
  const Small s(subblock_choices());
  const at::Tensor sparse = s.run(0, qkv);
  AttentionOverride off;
  off.off = true;
  s.set(off);
  EXPECT_TRUE(at::equal(s.run(0, qkv), dense_of(qkv)));
  EXPECT_EQ(dense_calls(s.counters(0), DenseReason::kOff), 1);
  s.set({});
  EXPECT_TRUE(at::equal(s.run(0, qkv), sparse));
  EXPECT_FALSE(at::equal(sparse, dense_of(qkv)));
}

TEST(RuntimeSwitch, DenseServer_BecomesSparseForARequest) {
  const Qkv qkv = sample();
  const Small s({});
  AttentionOverride o = with_backend(BackendId::kSubBlock);
  o.sparsity = 0.5;
  o.min_seq_len = 512;
  o.skip_first_steps = 0;
  s.set(o);
  const Small sparse_server(subblock_choices());
  EXPECT_TRUE(at::equal(s.run(0, qkv), sparse_server.run(0, qkv)));
  EXPECT_EQ(s.counters(0).sparse_calls, 1);
}

TEST(RuntimeSwitch, FieldsThatWouldDoNothing_AreRefused) {
  const Small dense({});
  expect_parts(thrown_by([&] { dense.set(with_sparsity(0.5)); }).what(),
               {"no layer runs subblock_sparse_attn"});
}

}  // namespace
}  // namespace h3
