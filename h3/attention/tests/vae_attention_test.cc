// The VAE attention contract: which implementation runs, in which dtype, under which context.
#include "h3/attention/vae_attention.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <stdexcept>

#include "h3/attention/h3_layers.h"
#include "h3/attention/sdpa_impl.h"
#include "h3/attention/tests/plan_test_util.h"
#include "h3/attention/tests/reference.h"

namespace h3 {
namespace {

using testing::expect_parts;
using testing::max_error;
using testing::random_qkv;
using testing::reference_attention;
using testing::thrown_by;

constexpr uint64_t kSeed = 20261130;

/// Stands for a fused backend: notes what it was given, and answers in that dtype.
class Recorder final : public AttentionImpl {
 public:
  explicit Recorder(bool causal) : sdpa_(make_sdpa_impl({.causal = causal})) {}
  at::Tensor forward(const Qkv& qkv, const AttentionContext& context) override {
    dtypes.push_back(qkv.q.scalar_type());
    EXPECT_EQ(qkv.k.scalar_type(), qkv.q.scalar_type());
    EXPECT_EQ(qkv.v.scalar_type(), qkv.q.scalar_type());
    steps.push_back(context.step.value);
    return sdpa_->forward(qkv, context);
  }
  at::Tensor forward_packed(const Qkv& qkv, const PackedBounds& bounds,
                            const AttentionContext& context) override {
    return sdpa_->forward_packed(qkv, bounds, context);
  }
  std::vector<at::ScalarType> dtypes;
  std::vector<int64_t> steps;

 private:
  std::unique_ptr<AttentionImpl> sdpa_;
};

ResolvedLayer resolved(bool causal, BackendId backend, bool explicit_request) {
  ResolvedLayer r;
  r.layer.component = causal ? "audio_vae" : "video_vae";
  r.layer.name = "block.attn";
  r.layer.causal = causal;
  r.backend = r.dense = backend;
  r.explicit_request = explicit_request;
  return r;
}

ResolvedLayer from_model(const Platform& platform, const std::string& component) {
  const AttentionPlan plan = resolve_attention(minimax_h3_layers(platform), {}, platform);
  for (const ResolvedLayer& r : plan.layers) {
    if (r.layer.component == component) return r;
  }
  throw std::logic_error("no such component");
}

TEST(VideoVae, F32AndCpu_RunSdpaInTheirDtype_V1) {
  testing::start_test(kSeed);
  const auto fused = std::make_shared<Recorder>(false);
  VaeContext context;
  VideoVaeAttention attention({fused, resolved(false, BackendId::kFa, false)}, context);
  const VaeContext::Scope scope(context);
  for (const at::ScalarType dtype : {at::kFloat, at::kHalf, at::kBFloat16}) {
    const Qkv qkv = random_qkv(2, 50, 50, 4, 4, 64, dtype);
    const at::Tensor out = attention.forward(qkv);
    EXPECT_EQ(out.scalar_type(), dtype);
    EXPECT_EQ(out.sizes(), qkv.q.sizes());
    EXPECT_LT(max_error(out, reference_attention(qkv).out), dtype == at::kFloat ? 1e-5 : 2e-2);
  }
  EXPECT_TRUE(fused->dtypes.empty());
}

TEST(VideoVae, HalfOnCuda_RunsTheBackendAndF32DoesNot_V1) {
  if (!at::hasCUDA()) GTEST_SKIP() << "no CUDA device";
  testing::start_test(kSeed);
  const auto fused = std::make_shared<Recorder>(false);
  VaeContext context;
  VideoVaeAttention attention({fused, resolved(false, BackendId::kFa, false)}, context);
  const VaeContext::Scope scope(context);
  for (const at::ScalarType dtype : {at::kHalf, at::kBFloat16, at::kFloat}) {
    const Qkv host = random_qkv(1, 50, 50, 4, 4, 64, dtype);
    attention.forward({host.q.cuda(), host.k.cuda(), host.v.cuda()});
  }
  EXPECT_EQ(fused->dtypes, (std::vector<at::ScalarType>{at::kHalf, at::kBFloat16}));
}

TEST(VideoVae, LayerOfTheRuntime_Counts) {
  testing::start_test(kSeed);
  const Platform platform = cpu_platform();
  const auto layer = std::make_shared<RuntimeLayer>(from_model(platform, "video_vae"),
                                                    SubBlockSettings{}, platform);
  EXPECT_EQ(layer->backend(), BackendId::kTorchSdpa);
  VaeContext context;
  VideoVaeAttention attention(vae_layer(layer), context);
  const VaeContext::Scope scope(context);
  const Qkv qkv = random_qkv(1, 40, 40, 2, 2, 64);
  EXPECT_LT(max_error(attention.forward(qkv), reference_attention(qkv).out), 1e-5);
  EXPECT_EQ(layer->stats().values().all_dense_calls(), 1);
}

TEST(VideoVae, TCausal_IsRefused) {
  const VaeContext context;
  const VaeLayer layer{std::make_shared<Recorder>(false),
                       resolved(false, BackendId::kTorchSdpa, false)};
  const Error e = thrown_by([&] { VideoVaeAttention(layer, context, /*t_causal=*/true); });
  EXPECT_EQ(e.code(), ErrorCode::kUnsupported);
  expect_parts(e.what(), {"video_vae.block.attn", "t_causal"});
  const VaeLayer causal{std::make_shared<Recorder>(true),
                        resolved(true, BackendId::kTorchSdpa, false)};
  EXPECT_THROW(VideoVaeAttention(causal, context), Error);
}

TEST(AudioVae, Default_IsCausalF32SdpaWithoutACast_V1) {
  testing::start_test(kSeed);
  for (const Platform& platform : {cpu_platform(), cuda_platform(9, 0)}) {
    const ResolvedLayer layer = from_model(platform, "audio_vae");
    ASSERT_EQ(layer.backend, BackendId::kTorchSdpa);
    const auto impl = std::make_shared<RuntimeLayer>(layer, SubBlockSettings{}, platform);
    VaeContext context;
    AudioVaeAttention attention({impl, layer}, context);
    const VaeContext::Scope scope(context);
    const Qkv qkv = random_qkv(2, 45, 45, 2, 2, 256);
    const at::Tensor mask = at::ones({1, 1, 45, 45}, at::kBool).tril();
    const at::Tensor out = attention.forward(qkv);
    EXPECT_EQ(out.scalar_type(), at::kFloat);
    EXPECT_LT(max_error(out, reference_attention(qkv, mask).out), 1e-5);
  }
}

TEST(AudioVae, ExplicitFusedBackend_GetsCastOperandsAndTheDtypeReturns_V1) {
  testing::start_test(kSeed);
  const auto fused = std::make_shared<Recorder>(true);
  VaeContext context;
  AudioVaeAttention attention({fused, resolved(true, BackendId::kFa, true)}, context);
  const VaeContext::Scope scope(context);
  const Qkv qkv = random_qkv(1, 45, 45, 2, 2, 256);
  const at::Tensor out = attention.forward(qkv);
  EXPECT_EQ(fused->dtypes, (std::vector<at::ScalarType>{at::kBFloat16}));
  EXPECT_EQ(out.scalar_type(), at::kFloat);
  const at::Tensor want = reference_attention(qkv, at::ones({1, 1, 45, 45}, at::kBool).tril()).out;
  EXPECT_LT(max_error(out, want), 3e-2);
  EXPECT_GT(max_error(out, want), 1e-5);  // the cast costs precision: it was made
}

TEST(AudioVae, FusedBackendThatNobodyAskedFor_IsADefect) {
  const VaeContext context;
  const auto impl = std::make_shared<Recorder>(true);
  EXPECT_EQ(thrown_by([&] {
              AudioVaeAttention({impl, resolved(true, BackendId::kFa, false)}, context);
            }).code(),
            ErrorCode::kInternal);
  EXPECT_EQ(thrown_by([&] {
              AudioVaeAttention({impl, resolved(false, BackendId::kTorchSdpa, false)}, context);
            }).code(),
            ErrorCode::kInternal);
}

TEST(VaeContext, Missing_IsAnErrorThatNamesTheLayer) {
  VaeContext context;
  const auto impl = std::make_shared<Recorder>(false);
  VideoVaeAttention video({impl, resolved(false, BackendId::kTorchSdpa, false)}, context);
  AudioVaeAttention audio({impl, resolved(true, BackendId::kTorchSdpa, false)}, context);
  const Qkv qkv = random_qkv(1, 8, 8, 1, 1, 64);
  for (int round = 0; round < 2; ++round) {
    const Error v = thrown_by([&] { video.forward(qkv); });
    EXPECT_EQ(v.code(), ErrorCode::kInternal);
    expect_parts(v.what(), {"video_vae.block.attn", "without a forward context", "Scope"});
    EXPECT_THROW(audio.forward(qkv), Error);
    const VaeContext::Scope scope(context);
    EXPECT_NO_THROW(video.forward(qkv));
    EXPECT_NO_THROW(audio.forward(qkv));
  }
}

TEST(VaeContext, Scopes_NestAndRestoreAlsoAfterAnException) {
  VaeContext context;
  const auto impl = std::make_shared<Recorder>(false);
  VideoVaeAttention attention({impl, resolved(false, BackendId::kTorchSdpa, false)}, context);
  const Qkv qkv = random_qkv(1, 8, 8, 1, 1, 64);
  const VaeContext::Scope outer(context, {{7}, false, {}});
  attention.forward(qkv);
  try {
    const VaeContext::Scope inner(context);
    attention.forward(qkv);
    throw std::runtime_error("decode failed");
  } catch (const std::runtime_error&) {
  }
  attention.forward(qkv);
  EXPECT_EQ(impl->steps, (std::vector<int64_t>{7, 0, 7}));
}

}  // namespace
}  // namespace h3
