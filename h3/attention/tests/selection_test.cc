// The plan phase: precedence, explicit and implicit requests, component and role overrides.
#include "h3/attention/h3_layers.h"
#include "h3/attention/report.h"
#include "h3/attention/tests/plan_test_util.h"

namespace h3 {
namespace {

using testing::component_backends;
using testing::cross_layer;
using testing::denoise_layer;
using testing::dense_layer;
using testing::expect_parts;
using testing::global;
using testing::refusal;
using testing::requests;
using testing::thrown_by;

constexpr auto kFa = BackendId::kFa, kSdpa = BackendId::kTorchSdpa, kSub = BackendId::kSubBlock,
               kCudnn = BackendId::kTorchCudnnSdpa;

// Two self layers and one cross layer in the transformer, and one layer of a text encoder.
ModelLayers small_model() {
  ModelLayers model;
  model.components = {{"transformer", false}, {"text_encoder", true}};
  model.layers = {denoise_layer(0), denoise_layer(1), cross_layer(0), dense_layer("text_encoder")};
  return model;
}

// "fa fa torch_sdpa": one word per layer.
std::string resolved(const ModelLayers& model, const AttentionChoices& choices,
                     const Platform& platform = cuda_platform(9, 0)) {
  std::string text;
  for (const ResolvedLayer& r : resolve_attention(model, choices, platform).layers) {
    text += (text.empty() ? "" : " ") + std::string(to_text(r.backend));
  }
  return text;
}

ResolvedLayer one(const LayerDescriptor& layer, const AttentionChoices& choices,
                  bool auxiliary = false, const Platform& platform = cuda_platform(9, 0)) {
  return resolve_layer(layer, auxiliary, choices, platform);
}

// Every step takes precedence over all later ones: they are switched on from the last to the first.
TEST(Selection, NineSteps_EachBeatsTheLater) {
  LayerDescriptor layer = dense_layer("transformer");
  layer.supported.clear();
  AttentionChoices c;
  const auto expect = [&](SelectionStep step, BackendId backend) {
    const ResolvedLayer r = one(layer, c);
    EXPECT_EQ(r.step, step);
    EXPECT_EQ(r.backend, backend) << to_text(step);
  };
  expect(SelectionStep::kPlatformDefault, kFa);
  layer.supported = {kSdpa};
  expect(SelectionStep::kOnlySupported, kSdpa);
  layer.supported = {kFa, kSdpa};
  layer.default_backend = kCudnn;  // counts as torch_sdpa in the set
  expect(SelectionStep::kLayerDefault, kCudnn);
  c.global = RequestedBackend{kFa};
  expect(SelectionStep::kGlobal, kFa);
  c.components = parse_component_requests("transformer=torch_sdpa");
  expect(SelectionStep::kComponent, kSdpa);
  c.components = parse_component_requests("transformer=torch_sdpa,transformer.self=cudnn_sdpa");
  expect(SelectionStep::kRole, kCudnn);
  c.forced = kFa;
  expect(SelectionStep::kForced, kFa);
  layer.selected = kSdpa;
  expect(SelectionStep::kLayerArgument, kSdpa);
  layer.required = kCudnn;
  expect(SelectionStep::kLayerRequired, kCudnn);
}

TEST(Selection, ImplicitPreference_FallsBackWithReason_S1) {
  const ResolvedLayer r = one(denoise_layer(0), global(kSub, false), false, cuda_platform(10, 3));
  EXPECT_EQ(r.backend, kSdpa);
  EXPECT_EQ(r.fallback_reason, "platform default fallback");
  EXPECT_FALSE(r.explicit_request);
  ASSERT_EQ(r.passed_over.size(), 2u);  // sub-block, then fa that resolves elsewhere
  expect_parts(r.passed_over[0].why[0], {"10.3"});
  expect_parts(r.passed_over[1].why[0], {"resolves to torch_sdpa"});
}

TEST(Selection, ExplicitOutsideTheAutomaticSet_IsAdmitted_S2) {
  LayerDescriptor layer = denoise_layer(0);
  layer.supported = {kSdpa};
  EXPECT_EQ(one(layer, global(kFa)).backend, kFa);                            // dense
  EXPECT_EQ(one(layer, global(kSub)).backend, kSub);                          // sparse self
  EXPECT_EQ(one(layer, requests("transformer=cudnn_sdpa")).backend, kCudnn);  // component
  EXPECT_EQ(one(layer, global(kFa, false)).backend, kSdpa);                   // a preference is not
}

TEST(Selection, ExplicitWithMissingRequirement_IsRefused_S3) {
  LayerDescriptor layer = denoise_layer(0);
  layer.needs_lse = true;
  for (const AttentionChoices& c : {global(kSdpa), requests("transformer=torch_sdpa")}) {
    const Error e = thrown_by([&] { one(layer, c); });
    EXPECT_EQ(e.code(), ErrorCode::kInvalidArgument);
    expect_parts(e.what(), {"transformer", "blocks.0.attn", "log-sum-exp", "--allow-fallback"});
  }
  // The requirement is named before the device, whatever else is wrong.
  const Error e = thrown_by([&] { one(layer, global(kSub), false, cuda_platform(10, 3)); });
  EXPECT_EQ(e.code(), ErrorCode::kInvalidArgument);
  EXPECT_LT(std::string(e.what()).find("log-sum-exp"), std::string(e.what()).find("10.3"));
}

TEST(Selection, ExplicitGlobal_FallsBackToALayerDefault_S4) {
  LayerDescriptor layer = denoise_layer(0);
  layer.default_backend = kSdpa;
  const ResolvedLayer r = one(layer, global(kSub), false, cuda_platform(10, 0));
  EXPECT_EQ(r.backend, kSdpa);
  EXPECT_EQ(r.fallback_reason, "global backend fallback");
}

TEST(Selection, ExplicitGlobal_FallsBackInAuxiliaryComponentsOnly_S5_S13) {
  const ResolvedLayer r = one(dense_layer("text_encoder"), global(kSub), true);
  EXPECT_EQ(r.backend, kFa);
  EXPECT_EQ(r.fallback_reason, "global backend fallback");
  const Error strict = thrown_by([&] { one(dense_layer("other"), global(kSub), false); });
  expect_parts(strict.what(), {"denoising transformer"});
}

TEST(Selection, SupportedSetOfAnAuxiliaryLayer_BindsTheGlobalFlagToo) {
  LayerDescriptor layer = dense_layer("video_vae");
  layer.supported = {kSdpa};
  const ResolvedLayer r = one(layer, global(kFa), true);
  EXPECT_EQ(r.backend, kSdpa);
  EXPECT_EQ(r.fallback_reason, "global backend fallback");
  EXPECT_EQ(one(layer, requests("video_vae=fa"), true).backend,
            kFa);  // an explicit component entry
}

TEST(Selection, ExplicitComponent_IsStrict_S6) {
  LayerDescriptor layer = dense_layer("text_encoder");
  layer.default_backend = kSdpa;
  expect_parts(
      thrown_by([&] { one(layer, requests("text_encoder=subblock_sparse_attn"), true); }).what(),
      {"text_encoder", "component option asks for subblock_sparse_attn"});
  layer.component = "transformer";
  layer.causal = true;  // fa would mean torch_sdpa here
  const Error e = thrown_by([&] { one(layer, requests("transformer=fa")); });
  EXPECT_EQ(e.code(), ErrorCode::kUnsupported);
  expect_parts(e.what(), {"fa has no causal kernel", "resolves to torch_sdpa", "--allow-fallback"});
}

// Published commands ask for fa in text encoder and VAEs: no error there, and never in silence.
TEST(Selection, ExplicitFaWithoutKernel_BecomesSdpaInAuxiliaryComponents) {
  const Platform h100 = cuda_platform(9, 0);
  const ModelLayers model = minimax_h3_layers(h100);
  for (const char* component : {"text_encoder", "video_vae", "audio_vae"}) {
    for (const char* role : {"", ".self"}) {
      const std::string text = std::string(component) + role + "=fa";
      SCOPED_TRACE(text);
      const AttentionPlan plan = resolve_attention(model, requests(text), h100);
      for (const ResolvedLayer& r : plan.layers) {
        if (r.layer.component != component) continue;
        EXPECT_EQ(r.backend, kSdpa);
        EXPECT_EQ(r.requested, kFa);
        EXPECT_EQ(r.fallback_reason, kAuxiliaryKernelFallback);
        ASSERT_EQ(r.passed_over.size(), 1u);
        expect_parts(r.passed_over[0].why[0], {"resolves to torch_sdpa"});
      }
      expect_parts(plan_text(plan), {"fa (" + std::string(kAuxiliaryKernelFallback) + ")",
                                     "passed over: fa", "it resolves to torch_sdpa here"});
    }
  }
  // Where fa has the kernel it runs, and the device alone is a reason as well.
  EXPECT_EQ(one(dense_layer("text_encoder"), requests("text_encoder=fa"), true).backend, kFa);
  const ResolvedLayer device =
      one(dense_layer("text_encoder"), requests("text_encoder=fa"), true, cuda_platform(10, 0));
  EXPECT_EQ(device.backend, kSdpa);
  EXPECT_EQ(device.fallback_reason, kAuxiliaryKernelFallback);
  AttentionChoices forced;
  forced.forced = kFa;
  EXPECT_EQ(component_backends(resolve_attention(model, forced, h100), "audio_vae"), "torch_sdpa");
  // An argument of the layer's constructor is no command line.
  LayerDescriptor built = dense_layer("text_encoder");
  built.causal = true;
  built.selected = kFa;
  EXPECT_THROW(one(built, {}, true), Error);
}

TEST(Selection, SparseAtCrossAttention_BecomesDense_S7_S8) {
  for (const std::vector<BackendId>& set : {std::vector<BackendId>{}, std::vector{kSdpa}}) {
    LayerDescriptor layer = cross_layer(0);
    layer.supported = set;
    for (const AttentionChoices& c : {global(kSub), requests("transformer=subblock_sparse_attn")}) {
      const ResolvedLayer r = one(layer, c);
      EXPECT_EQ(r.backend, set.empty() ? kFa : kSdpa);
      EXPECT_EQ(r.fallback_reason, "dense cross-attention fallback");
    }
  }
}

TEST(Selection, UnsupportedDevice_IsAnErrorForExplicitRequests_S9) {
  for (const auto& [major, minor] : {std::pair{10, 0}, std::pair{10, 3}, std::pair{12, 0}}) {
    const Error e =
        thrown_by([&] { one(denoise_layer(0), global(kSub), false, cuda_platform(major, minor)); });
    EXPECT_EQ(e.code(), ErrorCode::kUnsupported);
    expect_parts(e.what(), {"capability " + std::to_string(major), "9.0", "fa or torch_sdpa"});
  }
  EXPECT_EQ(one(denoise_layer(0), global(kSub), false, cpu_platform()).backend, kSub);
  // fa where it has no kernel: strict for the transformer, replaced where nobody insisted.
  expect_parts(
      thrown_by([&] { one(denoise_layer(0), global(kFa), false, cuda_platform(10, 0)); }).what(),
      {"fa has no kernel for capability 10.0", "resolves to torch_sdpa"});
  EXPECT_EQ(one(denoise_layer(0), {}, false, cuda_platform(10, 0)).backend, kSdpa);
  EXPECT_EQ(one(denoise_layer(0), {}, false, cuda_platform(12, 0)).backend, kSdpa);
}

TEST(Selection, AllowFallback_IsRecorded) {
  AttentionChoices c = global(kFa);
  c.allow_fallback = true;
  const ResolvedLayer fa = one(denoise_layer(0), c, false, cuda_platform(10, 0));
  EXPECT_EQ(fa.backend, kSdpa);
  EXPECT_EQ(fa.fallback_reason, "fallback allowed by --allow-fallback");
  c.global = RequestedBackend{kSub};
  const ResolvedLayer sub = one(denoise_layer(0), c, false, cuda_platform(10, 3));
  EXPECT_EQ(sub.backend, kSdpa);
  EXPECT_EQ(sub.fallback_reason, "fallback allowed by --allow-fallback");
  EXPECT_EQ(one(denoise_layer(0), c).fallback_reason, "");  // not needed, not recorded
  c = requests("text_encoder=fa");
  c.allow_fallback = true;
  ModelLayers model = small_model();
  model.layers[3].causal = true;
  EXPECT_EQ(resolved(model, c), "fa fa fa torch_sdpa");
}

TEST(Selection, KernelMissingInBuild_NeverFallsBack_S20) {
  AttentionChoices c = global(kSub, false);
  c.allow_fallback = true;
  const Error e = thrown_by([&] { one(denoise_layer(0), c, false, cuda_platform(9, 0, false)); });
  EXPECT_EQ(e.code(), ErrorCode::kUnsupported);
  expect_parts(e.what(), {"-DTESSERA_CUDA=ON"});
}

TEST(Overrides, UnusedOnes_AreErrors_S10) {
  ModelLayers model = small_model();
  model.components.push_back({"vocoder", true});
  const struct {
    const char* text;
    std::vector<std::string> parts;
  } cases[] = {
      {"vocoder=fa", {"vocoder=fa was not applied", "no selectable attention layers"}},
      {"transfomer=fa",
       {"'transfomer' does not exist", "transformer, text_encoder, vocoder",
        "nearest is transformer"}},
      {"vae.cross=fa", {"'vae' does not exist"}},
      {"text_encoder.cross=fa",
       {"text_encoder.cross=fa was not applied", "no cross-attention layers"}},
      {"vocoder.self=fa", {"no self-attention layers"}},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.text);
    const Error e =
        thrown_by([&] { resolve_attention(model, requests(c.text), cuda_platform(9, 0)); });
    EXPECT_EQ(e.code(), ErrorCode::kInvalidArgument);
    expect_parts(e.what(), c.parts);
  }
  // What the server chose by itself may find no layer.
  AttentionChoices c;
  c.components.components["vocoder"] = {kFa, false};
  EXPECT_EQ(resolved(model, c), "fa fa fa fa");
}

TEST(Overrides, OtherBackendOrMixture_IsRefused_S12) {
  ModelLayers model = small_model();
  model.layers[3].required = kSdpa;
  model.layers[3].required_why = "its precision contract";
  expect_parts(
      refusal(model, requests("text_encoder=fa")),
      {"text_encoder=fa was not applied", "run torch_sdpa instead", "its precision contract"});
  EXPECT_EQ(resolved(model, requests("text_encoder=torch_sdpa")), "fa fa fa torch_sdpa");
  model = small_model();
  model.layers[1].selected = kSdpa;
  expect_parts(refusal(model, requests("transformer=fa")),
               {"some of its layers run torch_sdpa without an allowed fallback"});
  // Only cross layers: a sparse request is applied nowhere.
  model = small_model();
  model.layers.erase(model.layers.begin(), model.layers.begin() + 2);
  expect_parts(refusal(model, requests("transformer=subblock_sparse_attn")),
               {"was not applied", "run fa instead", "dense cross-attention fallback"});
}

TEST(Overrides, ExplainedMixture_Passes_S12) {
  EXPECT_EQ(resolved(small_model(), requests("transformer=subblock_sparse_attn")),
            "subblock_sparse_attn subblock_sparse_attn fa fa");
}

TEST(Overrides, Forced_BeatsTheClaim_S19) {
  AttentionChoices c = requests("transformer=subblock_sparse_attn");
  c.forced = kSdpa;
  EXPECT_EQ(resolved(small_model(), c), "torch_sdpa torch_sdpa torch_sdpa torch_sdpa");
}

TEST(Overrides, Roles_HitTheirLayersAndHideNothing_S15_S17) {
  const ModelLayers model = small_model();
  EXPECT_EQ(resolved(model, requests("transformer.cross=torch_sdpa")), "fa fa torch_sdpa fa");
  EXPECT_EQ(
      resolved(model, requests("transformer=subblock_sparse_attn,transformer.cross=torch_sdpa")),
      "subblock_sparse_attn subblock_sparse_attn torch_sdpa fa");
  EXPECT_EQ(
      resolved(model, requests("transformer.self=torch_sdpa,transformer.cross=fa,transformer=fa")),
      "torch_sdpa torch_sdpa fa fa");  // all layers diverted: the component entry passes
  // A fault of the component-wide entry stays a fault.
  ModelLayers mixed = small_model();
  mixed.layers[1].selected = kSdpa;
  expect_parts(refusal(mixed, requests("transformer=fa,transformer.cross=torch_sdpa")),
               {"some of its layers run torch_sdpa"});
  // An explicit sparse role request at cross-attention is never met in silence.
  const AttentionPlan plan = resolve_attention(
      model, requests("transformer.cross=subblock_sparse_attn"), cuda_platform(9, 0));
  EXPECT_EQ(plan.layers[2].backend, kFa);
  EXPECT_EQ(plan.layers[2].fallback_reason, "dense cross-attention fallback");
}

// A role entry is checked as a component entry is: applied, or refused with the reason.
TEST(Overrides, RoleEntryWithoutEffect_IsRefused_S15) {
  ModelLayers model = small_model();
  for (size_t i : {0, 1}) {
    model.layers[i].required = kSdpa;
    model.layers[i].required_why = "its precision contract";
  }
  expect_parts(
      refusal(model, requests("transformer.self=fa")),
      {"transformer.self=fa was not applied", "run torch_sdpa instead", "its precision contract"});
  model.layers[1].required.reset();  // one layer takes it, the other does not
  expect_parts(refusal(model, requests("transformer.self=fa")),
               {"transformer.self=fa was not applied", "some of its layers run torch_sdpa"});
  AttentionChoices forced = requests("transformer.self=fa");
  forced.forced = kSdpa;  // a stronger request that somebody made
  EXPECT_EQ(resolved(small_model(), forced), "torch_sdpa torch_sdpa torch_sdpa torch_sdpa");
  // An entry whose layers all have an entry of their own reaches nothing.
  ModelLayers numbered;
  numbered.components = {{"transformer_2", false}};
  numbered.layers = {denoise_layer(0, "transformer_2")};
  expect_parts(refusal(numbered, requests("transformer.self=fa,transformer_2.self=torch_sdpa")),
               {"transformer.self=fa was not applied"});
}

TEST(Overrides, NumberedComponents_Inherit) {
  ModelLayers model;
  model.components = {{"transformer", false}, {"transformer_2", false}};
  model.layers = {denoise_layer(0), denoise_layer(0, "transformer_2"),
                  cross_layer(0, "transformer_2")};
  EXPECT_EQ(resolved(model, requests("transformer=torch_sdpa")),
            "torch_sdpa torch_sdpa torch_sdpa");
  EXPECT_EQ(resolved(model, requests("transformer=torch_sdpa,transformer_2=fa")),
            "torch_sdpa fa fa");
  EXPECT_EQ(resolved(model, requests("transformer.cross=torch_sdpa")), "fa fa torch_sdpa");
  EXPECT_EQ(resolved(model, requests("transformer_2.cross=fa,transformer_2=cudnn_sdpa")),
            "fa torch_cudnn_sdpa fa");
}

TEST(Overrides, ConfigWithoutASparseLayer_IsAnError) {
  AttentionChoices c = global(kFa);
  c.subblock_given = true;
  expect_parts(refusal(small_model(), c),
               {"--attention-backend-config", "no layer runs subblock_sparse_attn"});
  c.allow_fallback = true;  // does not make options of something else useful
  expect_parts(refusal(small_model(), c), {"no layer runs subblock_sparse_attn"});
}

TEST(Overrides, ConfigOfAReplacedSparseRequest_Passes) {
  AttentionChoices c = global(kSub);
  c.subblock_given = true;
  c.allow_fallback = true;
  EXPECT_EQ(resolved(small_model(), c, cuda_platform(10, 3)),
            "torch_sdpa torch_sdpa torch_sdpa torch_sdpa");
  c = requests("transformer=subblock_sparse_attn");
  c.subblock_given = true;
  c.allow_fallback = true;
  EXPECT_EQ(resolved(small_model(), c, cuda_platform(12, 0)),
            "torch_sdpa torch_sdpa torch_sdpa torch_sdpa");
}

// U6, U7: ring needs the log-sum-exp; capabilities decide, no list of names.
TEST(Ring, Admission_FollowsCapabilities_U6_U7) {
  for (const BackendId id : kAllBackends) {
    AttentionChoices c = global(id);
    c.ring_degree = 2;
    ModelLayers model = small_model();
    model.layers.erase(model.layers.begin() + 2);  // no cross layer, which would fall back
    if (facts(id).ring) {
      EXPECT_EQ(id, kFa);
      EXPECT_NO_THROW(resolve_attention(model, c, cuda_platform(9, 0)));
    } else {
      const Error e = thrown_by([&] { resolve_attention(model, c, cuda_platform(9, 0)); });
      EXPECT_EQ(e.code(), ErrorCode::kInvalidArgument) << to_text(id);
      expect_parts(e.what(), {std::string(to_text(id)), "ring"});
    }
  }
  // The component entry counts, whatever the global flag says (U7).
  AttentionChoices c = requests("transformer=subblock_sparse_attn");
  c.global = RequestedBackend{kFa};
  c.ring_degree = 2;
  expect_parts(refusal(small_model(), c), {"subblock_sparse_attn cannot run under ring attention"});
  // Local layers (VAE, text encoder) do not take part in the ring (U6).
  AttentionChoices local = requests("text_encoder=torch_sdpa");
  local.ring_degree = 4;
  EXPECT_EQ(resolved(small_model(), local), "fa fa fa torch_sdpa");
  // Ulysses alone restricts nothing.
  AttentionChoices ulysses = global(kSub);
  ulysses.ulysses_degree = 8;
  EXPECT_EQ(resolved(small_model(), ulysses), "subblock_sparse_attn subblock_sparse_attn fa fa");
  // Without any ring backend for the device the plan fails instead of running something wrong.
  AttentionChoices none;
  none.ring_degree = 2;
  expect_parts(refusal(small_model(), none, cuda_platform(12, 0)), {"ring", "torch_sdpa"});
}

}  // namespace
}  // namespace h3
