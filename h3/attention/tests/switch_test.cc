// Per-request switching in two phases: prepare changes nothing, apply cannot fail.
#include <memory>

#include "h3/attention/switch.h"
#include "h3/attention/tests/plan_test_util.h"

namespace h3 {
namespace {

using testing::denoise_layer;
using testing::expect_parts;
using testing::thrown_by;
using testing::with_backend;
using testing::with_sparsity;

class FakeLayer : public SwitchableLayer {
 public:
  explicit FakeLayer(const LayerDescriptor& d) : descriptor_(d) {}
  const LayerDescriptor& descriptor() const override { return descriptor_; }
  void prepare(LayerTarget&) override {
    ++prepared_;
    if (fails_) throw Error(ErrorCode::kUnavailable, "no memory for " + descriptor_.name);
  }
  void apply(const LayerTarget& target) noexcept override {
    ++applied_;
    running_ = target;
  }

  LayerDescriptor descriptor_;
  int prepared_ = 0, applied_ = 0;
  bool fails_ = false;
  std::optional<LayerTarget> running_;
};

struct Fixture {
  explicit Fixture(AttentionChoices choices = {}, Platform platform = cuda_platform(9, 0),
                   bool graphs = false, std::optional<BackendId> required_of_last = {}) {
    ModelLayers model;
    model.components = {{"transformer", false}};
    model.layers = {denoise_layer(0), denoise_layer(1), denoise_layer(2)};
    model.layers[2].required = required_of_last;
    for (const LayerDescriptor& d : model.layers) layers.push_back(std::make_unique<FakeLayer>(d));
    std::vector<SwitchableLayer*> pointers;
    for (const auto& l : layers) pointers.push_back(l.get());
    attention = std::make_unique<AttentionSwitch>(resolve_attention(model, choices, platform),
                                                  pointers, graphs);
  }
  void set(const AttentionOverride& o) { attention->apply(attention->prepare(o)); }
  int prepared() const {
    int n = 0;
    for (const auto& l : layers) n += l->prepared_;
    return n;
  }
  int applied() const {
    int n = 0;
    for (const auto& l : layers) n += l->applied_;
    return n;
  }
  std::vector<std::unique_ptr<FakeLayer>> layers;
  std::unique_ptr<AttentionSwitch> attention;
};

AttentionChoices subblock() {
  AttentionChoices c;
  c.global = RequestedBackend{BackendId::kSubBlock};
  return c;
}

TEST(Switch, Backend_IsSwitchedAndRestored_P1_P2) {
  Fixture f;
  f.set(with_backend(BackendId::kTorchSdpa));
  for (const auto& l : f.layers) EXPECT_EQ(l->running_->backend, BackendId::kTorchSdpa);
  EXPECT_EQ(f.attention->active(), with_backend(BackendId::kTorchSdpa));
  f.set({});  // null restores the construction default
  for (const auto& l : f.layers) EXPECT_EQ(l->running_->backend, BackendId::kFa);
  EXPECT_TRUE(f.attention->active().empty());
}

TEST(Switch, EqualOverride_IsAFastPath_P3) {
  Fixture f;
  f.set({});
  EXPECT_EQ(f.prepared() + f.applied(), 0);
  f.set(with_backend(BackendId::kTorchSdpa));
  const int first = f.prepared();
  EXPECT_EQ(first, 6);  // this target, and once the defaults
  EXPECT_EQ(f.applied(), 3);
  const auto again = f.attention->prepare(with_backend(BackendId::kTorchSdpa));
  EXPECT_FALSE(again.changes_anything());
  EXPECT_EQ(f.prepared(), first);
}

// Results that wait side by side: what is applied last is in force, also when it was prepared while
// its override was the active one.
TEST(Switch, WaitingResults_ApplyInAnyOrder) {
  for (const bool defaults_first : {false, true}) {
    Fixture f(subblock());
    AttentionOverride off;
    off.off = true;
    AttentionSwitch::Prepared none, other;
    if (defaults_first) none = f.attention->prepare({});
    other = f.attention->prepare(off);
    if (!defaults_first) none = f.attention->prepare({});
    f.attention->apply(std::move(other));
    EXPECT_TRUE(f.layers[0]->running_->settings.off);
    auto off_again = f.attention->prepare(off);  // active now
    f.attention->apply(std::move(none));
    EXPECT_FALSE(f.layers[0]->running_->settings.off);
    EXPECT_TRUE(f.layers[0]->running_->gate.enabled);
    EXPECT_TRUE(f.attention->active().empty());
    f.attention->apply(std::move(off_again));
    EXPECT_TRUE(f.layers[0]->running_->settings.off);
    EXPECT_EQ(f.attention->active(), off);
  }
}

TEST(Switch, FailureInPrepare_LeavesEverything_P4) {
  Fixture f;
  f.set(with_backend(BackendId::kTorchSdpa));
  f.layers[2]->fails_ = true;
  const Error e = thrown_by([&] { f.attention->prepare(with_backend(BackendId::kFa)); });
  expect_parts(e.what(), {"no memory for blocks.2.attn"});
  EXPECT_EQ(f.applied(), 3);  // those of the first switch only
  EXPECT_EQ(f.attention->active(), with_backend(BackendId::kTorchSdpa));
  f.layers[2]->fails_ = false;
  f.set(with_backend(BackendId::kFa));
  EXPECT_EQ(f.applied(), 6);
}

TEST(Switch, PrepareAlone_AppliesNothing_P4) {
  Fixture f;
  const auto prepared = f.attention->prepare(with_backend(BackendId::kTorchSdpa));
  EXPECT_TRUE(prepared.changes_anything());
  EXPECT_EQ(f.applied(), 0);
  EXPECT_TRUE(f.attention->active().empty());
}

// A target that resolves to another backend is refused, as is one that the device cannot run.
TEST(Switch, TargetThatCannotRun_IsRefused_P5) {
  Fixture f({}, cuda_platform(10, 0));  // runs torch_sdpa
  const Error fa = thrown_by([&] { f.attention->prepare(with_backend(BackendId::kFa)); });
  EXPECT_EQ(fa.code(), ErrorCode::kUnsupported);
  expect_parts(fa.what(), {"fa has no kernel for capability 10.0", "resolves to torch_sdpa"});
  expect_parts(thrown_by([&] { f.attention->prepare(with_backend(BackendId::kSubBlock)); }).what(),
               {"later version"});
  EXPECT_EQ(f.prepared() + f.applied(), 0);
}

TEST(Switch, AllowFallbackOfTheServer_DoesNotReachRequests_P5) {
  AttentionChoices c;
  c.allow_fallback = true;
  Fixture f(c, cuda_platform(10, 0));
  EXPECT_THROW(f.attention->prepare(with_backend(BackendId::kFa)), Error);
}

TEST(Switch, RingWithoutRingBackend_IsRefused_P6) {
  AttentionChoices c;
  c.ring_degree = 2;
  Fixture f(c);
  for (const BackendId id : {BackendId::kTorchSdpa, BackendId::kSubBlock}) {
    expect_parts(thrown_by([&] { f.attention->prepare(with_backend(id)); }).what(),
                 {std::string(to_text(id)), "ring"});
  }
  EXPECT_NO_THROW(f.attention->prepare(with_backend(BackendId::kFa)));
}

TEST(Switch, GraphsOrNoLayers_AreRefusedTogether_P7_P8_P9) {
  AttentionOverride bad = with_backend(BackendId::kTorchSdpa);
  bad.min_seq_len = 1;
  const AttentionPlan plan;
  AttentionSwitch none(plan, {}, true);
  const Error e = thrown_by([&] { none.prepare(bad); });
  EXPECT_EQ(e.code(), ErrorCode::kUnsupported);
  expect_parts(e.what(), {"captured in a graph", "no switchable attention layers", "min_seq_len",
                          "backend torch_sdpa is dense"});
  EXPECT_NO_THROW(none.prepare({}));  // nothing asked for
  Fixture graphs({}, cuda_platform(9, 0), true);
  EXPECT_THROW(graphs.attention->prepare(with_backend(BackendId::kTorchSdpa)), Error);
}

TEST(Switch, RequiredLayers_IgnoreOverrides_P10) {
  Fixture f({}, cuda_platform(9, 0), false, BackendId::kFa);
  f.set(with_backend(BackendId::kTorchSdpa));
  EXPECT_EQ(f.layers[0]->running_->backend, BackendId::kTorchSdpa);
  EXPECT_EQ(f.layers[2]->running_->backend, BackendId::kFa);
}

TEST(Switch, SparsityAndSchedule_ReachSparseLayers) {
  Fixture f(subblock());
  AttentionOverride o = with_sparsity(0.9);
  o.skip_first_layers = 1;
  o.skip_first_steps = 0;
  f.set(o);
  EXPECT_FALSE(f.layers[0]->running_->gate.enabled);
  EXPECT_EQ(f.layers[0]->running_->gate.reason, DenseReason::kEarlyLayer);
  EXPECT_TRUE(f.layers[1]->running_->gate.enabled);
  EXPECT_EQ(f.layers[1]->running_->settings.options.sparsity, 0.9);
  EXPECT_EQ(f.layers[1]->running_->settings.options.skip_first_steps, 0);
  EXPECT_EQ(f.layers[1]->running_->dense, BackendId::kFa);
  AttentionOverride mass;
  mass.target_mass = 0.9;
  f.set(mass);
  EXPECT_EQ(f.layers[0]->running_->settings.target_mass, 0.9);
  EXPECT_EQ(f.layers[0]->running_->settings.options.sparsity, 0.75);  // not of the last request
  EXPECT_EQ(f.layers[0]->running_->settings.options.skip_first_layers, 0);
}

TEST(Switch, Off_RunsSparseLayersDense) {
  Fixture f(subblock());
  AttentionOverride off;
  off.off = true;
  f.set(off);
  for (const auto& l : f.layers) {
    EXPECT_EQ(l->running_->backend, BackendId::kSubBlock);
    EXPECT_FALSE(l->running_->gate.enabled);
    EXPECT_EQ(l->running_->gate.reason, DenseReason::kOff);
  }
  f.set({});
  for (const auto& l : f.layers) EXPECT_TRUE(l->running_->gate.enabled);
}

TEST(Switch, DenseServer_CanBeMadeSparseForARequest) {
  Fixture f;
  AttentionOverride o = with_backend(BackendId::kSubBlock);
  o.sparsity = 0.8;
  f.set(o);
  for (const auto& l : f.layers) {
    EXPECT_EQ(l->running_->backend, BackendId::kSubBlock);
    EXPECT_TRUE(l->running_->gate.enabled);
  }
}

TEST(Switch, FieldsThatWouldDoNothing_AreRefused) {
  Fixture dense;
  expect_parts(thrown_by([&] { dense.attention->prepare(with_sparsity(0.5)); }).what(),
               {"no layer runs subblock_sparse_attn"});
  Fixture sparse(subblock());
  AttentionOverride o = with_sparsity(0.5);
  o.skip_first_layers = 3;
  expect_parts(thrown_by([&] { sparse.attention->prepare(o); }).what(),
               {"no layer would be sparse", "skip_first_layers is 3"});
}

TEST(Switch, LayerOutsideThePlan_IsADefect) {
  FakeLayer stranger(denoise_layer(7));
  EXPECT_EQ(thrown_by([&] { AttentionSwitch s(AttentionPlan{}, {&stranger}); }).code(),
            ErrorCode::kInternal);
}

}  // namespace
}  // namespace h3
