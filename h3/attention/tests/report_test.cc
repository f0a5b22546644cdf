// The published layers of MiniMax-H3 as planned, and the plan's text, JSON and digest.
#include <nlohmann/json.hpp>

#include "h3/attention/h3_layers.h"
#include "h3/attention/report.h"
#include "h3/attention/tests/plan_test_util.h"

namespace h3 {
namespace {

using testing::component_backends;
using testing::expect_parts;
using testing::global;
using testing::refusal;
using testing::requests;

constexpr auto kFa = BackendId::kFa, kSdpa = BackendId::kTorchSdpa, kSub = BackendId::kSubBlock;

// The worked cases of the VAEs, with the head widths that our kernels have: fa has none for 64 on
// 9.0 and none that is causal, so a global fa falls back with its reason.
TEST(H3Plan, Vae_WorkedCases) {
  const Platform h100 = cuda_platform(9, 0);
  const ModelLayers model = minimax_h3_layers(h100);
  const ModelLayers v1 = minimax_h3_layers(h100, {.video_vae_default = kSdpa});
  const struct {
    AttentionChoices choices;
    const ModelLayers* model;
    const char *transformer, *video, *audio;
  } cases[] = {
      {{}, &model, "fa", "torch_sdpa", "torch_sdpa"},
      {global(kFa), &model, "fa", "torch_sdpa", "torch_sdpa"},
      {global(kSdpa), &model, "torch_sdpa", "torch_sdpa", "torch_sdpa"},
      {global(kSub), &model, "subblock_sparse_attn", "torch_sdpa", "torch_sdpa"},
      {global(kSub), &v1, "subblock_sparse_attn", "torch_sdpa", "torch_sdpa"},
      {requests("video_vae=torch_sdpa"), &model, "fa", "torch_sdpa", "torch_sdpa"},
      {requests("video_vae=cudnn_sdpa"), &model, "fa", "torch_cudnn_sdpa", "torch_sdpa"},
  };
  for (size_t i = 0; i < std::size(cases); ++i) {
    const AttentionPlan plan = resolve_attention(*cases[i].model, cases[i].choices, h100);
    EXPECT_EQ(component_backends(plan, "transformer"), cases[i].transformer) << "case " << i;
    EXPECT_EQ(component_backends(plan, "video_vae"), cases[i].video) << "case " << i;
    EXPECT_EQ(component_backends(plan, "audio_vae"), cases[i].audio) << "case " << i;
  }
  for (const std::string entry : {"video_vae", "video_vae.self", "audio_vae", "audio_vae.self"}) {
    const ModelLayers cpu = minimax_h3_layers(cpu_platform());
    expect_parts(refusal(cpu, requests(entry + "=fa"), cpu_platform()),
                 {entry + "=fa was not applied", "run torch_sdpa instead", "outside CUDA"});
    EXPECT_EQ(
        component_backends(resolve_attention(cpu, requests(entry + "=torch_sdpa"), cpu_platform()),
                           "video_vae"),
        "torch_sdpa");
  }
}

TEST(H3Plan, SubBlock_NamesGateAndDensePartner) {
  AttentionChoices c = global(kSub);
  c.subblock.options.skip_first_layers = 2;
  const Platform h100 = cuda_platform(9, 0);
  const AttentionPlan plan = resolve_attention(minimax_h3_layers(h100), c, h100);
  int open = 0, closed = 0;
  for (const ResolvedLayer& r : plan.layers) {
    if (r.backend != kSub) continue;
    EXPECT_EQ(r.dense, kFa);
    (r.gate.empty() ? open : closed)++;
  }
  EXPECT_EQ(open, 48);
  EXPECT_EQ(closed, 4);  // two early blocks, two refiner blocks
}

TEST(Report, TextAndJson_TellTheSame) {
  const Platform h100 = cuda_platform(9, 0);
  const AttentionPlan plan = resolve_attention(minimax_h3_layers(h100), global(kSub), h100);
  const std::string text = plan_text(plan);
  expect_parts(text,
               {"device   capability 9.0", "sparsity=0.75 n_k=4", "transformer.blocks.0-49.attn",
                "transformer.token_refiner.blocks.0-1.attn", "56 x 128 bf16", "64/8 x 128",
                "sparse from step 10", "always fa: not a layer of the denoise stack",
                "global backend fallback", "passed over: subblock_sparse_attn"});
  const auto json = nlohmann::json::parse(plan_json(plan));
  EXPECT_EQ(json["device"], "capability 9.0");
  ASSERT_EQ(json["groups"].size(), 5u);
  int layers = 0;
  for (const auto& g : json["groups"]) layers += g["count"].get<int>();
  EXPECT_EQ(layers, 50 + 2 + 50 + 36 + 1);
  EXPECT_EQ(json["groups"][0]["backend"], "subblock_sparse_attn");
  EXPECT_EQ(json["groups"][0]["sparse"], true);
  EXPECT_EQ(json["groups"][1]["sparse"], false);
  EXPECT_EQ(json["groups"][2]["fallback_reason"], "global backend fallback");
  EXPECT_FALSE(json["groups"][2]["passed_over"].empty());
}

TEST(Report, KeptText_IsThePublishedCount) {
  const Platform h100 = cuda_platform(9, 0);
  AttentionChoices c = global(kSub);
  const ModelLayers model = minimax_h3_layers(h100);
  EXPECT_EQ(kept_text(resolve_attention(model, c, h100), 37760),
            "152 of 590 key blocks, sparsity 0.7424 delivered for 0.75 asked");
  EXPECT_EQ(kept_text(resolve_attention(model, c, h100), 4095), "");
  EXPECT_EQ(kept_text(resolve_attention(model, {}, h100), 37760), "");
  c.subblock.options.sparsity = 0;
  EXPECT_EQ(kept_text(resolve_attention(model, c, h100), 37760), "");
}

TEST(Digest, AnyDifference_ChangesIt) {
  const Platform h100 = cuda_platform(9, 0);
  const ModelLayers model = minimax_h3_layers(h100);
  const auto digest = [&](const AttentionChoices& c) {
    return plan_digest(resolve_attention(model, c, h100));
  };
  AttentionChoices base = global(kSub);
  EXPECT_EQ(digest(base), digest(base));
  AttentionChoices other = base;
  other.subblock.options.sparsity = 0.8;
  EXPECT_NE(digest(base), digest(other));
  other = base;
  other.ulysses_degree = 2;
  EXPECT_NE(digest(base), digest(other));
  EXPECT_NE(digest(base), digest(global(kFa)));
  for (bool LayerDescriptor::*flag :
       {&LayerDescriptor::sequence_parallel, &LayerDescriptor::needs_packed,
        &LayerDescriptor::needs_lse, &LayerDescriptor::needs_mask,
        &LayerDescriptor::needs_query_block_mask}) {
    AttentionPlan changed = resolve_attention(model, base, h100);
    bool& value = changed.layers[3].layer.*flag;
    value = !value;
    EXPECT_NE(plan_digest(changed), digest(base));
  }
}

}  // namespace
}  // namespace h3
