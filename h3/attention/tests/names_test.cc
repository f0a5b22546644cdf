// Names, aliases, devices, static facts and module names.
#include <set>

#include "h3/attention/h3_layers.h"
#include "h3/attention/registry.h"
#include "h3/attention/report.h"
#include "h3/attention/tests/plan_test_util.h"

namespace h3 {
namespace {

using testing::denoise_layer;
using testing::dense_layer;
using testing::expect_parts;
using testing::thrown_by;

TEST(BackendNames, AnySpelling_IsFound) {
  const struct {
    const char* text;
    BackendId id;
  } cases[] = {{"fa", BackendId::kFa},
               {" FA ", BackendId::kFa},
               {"fa3", BackendId::kFa},
               {"Fa4\n", BackendId::kFa},
               {"torch_sdpa", BackendId::kTorchSdpa},
               {"TORCH_SDPA", BackendId::kTorchSdpa},
               {"cudnn_sdpa", BackendId::kTorchCudnnSdpa},
               {" Cudnn_Sdpa", BackendId::kTorchCudnnSdpa},
               {"torch_cudnn_sdpa", BackendId::kTorchCudnnSdpa},
               {"SubBlock_Sparse_Attn", BackendId::kSubBlock}};
  for (const auto& c : cases) EXPECT_EQ(backend_from_text(c.text, "x"), c.id) << c.text;
}

TEST(BackendNames, AllPublishedNames_AreKnown) {
  const std::set<std::string> sparse = {"sliding_tile_attn",
                                        "sparge_attn",
                                        "video_sparse_attn",
                                        "video_sparse_attn_h3",
                                        "hybrid_window_attn_h3",
                                        "sparse_video_gen_2_attn",
                                        "vmoba_attn",
                                        "sla_attn",
                                        "sage_sla_attn",
                                        "laser_attn",
                                        "block_sparse_attn",
                                        "rain_fusion_attn",
                                        "sol_attn",
                                        "subblock_sparse_attn",
                                        "cube_sparse_attn"};
  const std::set<std::string> dense = {
      "fa2",         "fa",    "torch_sdpa", "torch_cudnn_sdpa", "dynamic_cudnn_sdpa", "sage_attn",
      "sage_attn_3", "aiter", "aiter_sage", "fp8_fa_sm120",     "no_attention"};
  std::set<std::string> got_sparse, got_dense;
  for (const BackendName& n : backend_names()) {
    (n.sparse ? got_sparse : got_dense).insert(std::string(n.name));
    if (n.id) {
      EXPECT_EQ(to_text(*n.id), n.name);
      continue;
    }
    const Error e = thrown_by([&] { backend_from_text(n.name, "--attention-backend"); });
    EXPECT_EQ(e.code(), ErrorCode::kUnsupported) << n.name;
    expect_parts(e.what(), {std::string(n.name), "not in this engine",
                            "fa, subblock_sparse_attn, torch_cudnn_sdpa, torch_sdpa"});
  }
  EXPECT_EQ(got_sparse, sparse);
  EXPECT_EQ(got_dense, dense);
}

TEST(BackendNames, UnknownName_ListsAllNamesAndTheNearest) {
  const Error e =
      thrown_by([] { backend_from_text("subblock_sparse_atn", "--attention-backend"); });
  EXPECT_EQ(e.code(), ErrorCode::kInvalidArgument);
  std::vector<std::string> parts = {
      "--attention-backend: unknown attention backend 'subblock_sparse_atn'",
      "nearest is subblock_sparse_attn", "fa3 = fa", "cudnn_sdpa = torch_cudnn_sdpa"};
  for (const BackendName& n : backend_names()) parts.emplace_back(n.name);
  expect_parts(e.what(), parts);
  expect_parts(thrown_by([] { backend_from_text("", "x"); }).what(), {"unknown", "''"});
  const Error odd = thrown_by([] { backend_from_text("a\x01\xff", "x"); });
  EXPECT_EQ(std::string(odd.what()).find('\xff'), std::string::npos) << odd.what();
}

TEST(Capability, Texts_AreReadOrRefused) {
  EXPECT_EQ(capability_from_text(" 9.0 "), (Capability{9, 0}));
  EXPECT_EQ(capability_from_text("10.3"), (Capability{10, 3}));
  for (const char* bad :
       {"", "9", "9.", ".0", "9.0.1", "90", "sm90", "-9.0", "9.-1", "9.10", "0.0"}) {
    const Error e = thrown_by([&] { capability_from_text(bad); });
    EXPECT_EQ(e.code(), ErrorCode::kInvalidArgument) << bad;
    expect_parts(e.what(), {"9.0"});
  }
}

std::string first_refusal(BackendId id, const LayerDescriptor& layer, const Platform& platform,
                          bool ring = false) {
  const auto refusals = admit(id, layer, platform, ring);
  return refusals.empty() ? "" : refusals.front().text;
}

// D1: the devices of the sub-block backend.
TEST(Registry, SubBlockDevices_AreExact_D1) {
  const LayerDescriptor layer = denoise_layer(0);
  EXPECT_EQ(first_refusal(BackendId::kSubBlock, layer, cpu_platform()), "");
  EXPECT_EQ(first_refusal(BackendId::kSubBlock, layer, cuda_platform(9, 0)), "");
  for (const auto& [major, minor] : {std::pair{10, 0}, std::pair{12, 0}}) {
    expect_parts(first_refusal(BackendId::kSubBlock, layer, cuda_platform(major, minor)),
                 {"later version", std::to_string(major) + ".0", "9.0"});
  }
  for (const auto& [major, minor] :
       {std::pair{10, 3}, std::pair{12, 1}, std::pair{8, 0}, std::pair{8, 9}, std::pair{7, 5}}) {
    expect_parts(
        first_refusal(BackendId::kSubBlock, layer, cuda_platform(major, minor)),
        {"does not run on capability " + std::to_string(major) + "." + std::to_string(minor),
         "9.0 (10.0 and 12.0 later)"});
  }
}

TEST(Registry, KernelMissingInBuild_IsItsOwnKind) {
  const auto refusals =
      admit(BackendId::kSubBlock, denoise_layer(0), cuda_platform(9, 0, false), false);
  ASSERT_EQ(refusals.size(), 1u);
  EXPECT_EQ(refusals[0].kind, RefusalKind::kBuild);
  expect_parts(refusals[0].text, {"-DTESSERA_CUDA=ON"});
}

struct FactCase {
  const char* name;
  BackendId id;
  void (*change)(LayerDescriptor*);
  Platform platform;
  bool ring;
  const char* refusal;  // nullptr: admitted
};

TEST(Registry, LayerRequirements_AreMetOrNamed) {
  const Platform h100 = cuda_platform(9, 0), cpu = cpu_platform();
  const FactCase cases[] = {
      {"sdpa plain", BackendId::kTorchSdpa, [](auto*) {}, cpu, false, nullptr},
      {"sdpa packed", BackendId::kTorchSdpa, [](auto* l) { l->needs_packed = true; }, h100, false,
       nullptr},
      {"sdpa causal", BackendId::kTorchSdpa, [](auto* l) { l->causal = true; }, cpu, false,
       nullptr},
      {"sdpa odd width", BackendId::kTorchSdpa, [](auto* l) { l->head_dim = 72; }, cpu, false,
       nullptr},
      {"sdpa lse", BackendId::kTorchSdpa, [](auto* l) { l->needs_lse = true; }, cpu, false,
       "log-sum-exp"},
      {"sdpa ring", BackendId::kTorchSdpa, [](auto*) {}, cpu, true, "ring"},
      {"sdpa ring, local layer", BackendId::kTorchSdpa,
       [](auto* l) { l->sequence_parallel = false; }, cpu, true, nullptr},
      {"fa ring", BackendId::kFa, [](auto*) {}, h100, true, nullptr},
      {"fa lse", BackendId::kFa, [](auto* l) { l->needs_lse = true; }, h100, false, nullptr},
      {"fa mask", BackendId::kFa, [](auto* l) { l->needs_mask = true; }, h100, false,
       "attention mask"},
      {"cudnn", BackendId::kTorchCudnnSdpa, [](auto*) {}, h100, false, nullptr},
      {"cudnn cpu", BackendId::kTorchCudnnSdpa, [](auto*) {}, cpu, false, "CUDA device"},
      {"cudnn old", BackendId::kTorchCudnnSdpa, [](auto*) {}, cuda_platform(7, 5), false, "7.5"},
      {"cudnn f32", BackendId::kTorchCudnnSdpa, [](auto* l) { l->dtype = tessera::Dtype::kF32; },
       h100, false, "f32"},
      {"cudnn width", BackendId::kTorchCudnnSdpa, [](auto* l) { l->head_dim = 132; }, h100, false,
       "132"},
      {"cudnn causal", BackendId::kTorchCudnnSdpa, [](auto* l) { l->causal = true; }, h100, false,
       "causal"},
      {"subblock f16", BackendId::kSubBlock, [](auto* l) { l->dtype = tessera::Dtype::kF16; }, h100,
       false, "f16"},
      {"subblock width", BackendId::kSubBlock, [](auto* l) { l->head_dim = 64; }, h100, false,
       "64"},
      {"subblock ring", BackendId::kSubBlock, [](auto*) {}, h100, true, "ring"},
      {"subblock causal", BackendId::kSubBlock, [](auto* l) { l->causal = true; }, h100, false,
       "causal"},
      {"subblock cross", BackendId::kSubBlock, [](auto* l) { l->role = AttentionRole::kCross; },
       h100, false, "cross-attention"},
      {"subblock elsewhere", BackendId::kSubBlock, [](auto* l) { l->stack = LayerStack::kOther; },
       h100, false, "denoising transformer"},
      {"subblock refiner", BackendId::kSubBlock, [](auto* l) { l->stack = LayerStack::kRefiner; },
       h100, false, nullptr},
      {"subblock grouped heads", BackendId::kSubBlock, [](auto* l) { l->kv_heads = 2; }, h100,
       false, nullptr},
  };
  for (const FactCase& c : cases) {
    LayerDescriptor layer = denoise_layer(0);
    layer.needs_packed = false;
    c.change(&layer);
    const std::string got = first_refusal(c.id, layer, c.platform, c.ring);
    if (c.refusal == nullptr) {
      EXPECT_EQ(got, "") << c.name;
    } else {
      EXPECT_NE(got.find(c.refusal), std::string::npos) << c.name << ": " << got;
    }
  }
}

// D2, D3: where `fa` is itself, and where it means torch_sdpa.
TEST(Registry, FaResolution_FollowsTheRules_D2_D3) {
  const struct {
    const char* name;
    Platform platform;
    int head_dim;
    tessera::Dtype dtype;
    bool causal;
    bool itself;
  } cases[] = {
      {"cpu", cpu_platform(), 128, tessera::Dtype::kBf16, false, true},
      {"cpu f32", cpu_platform(), 64, tessera::Dtype::kF32, false, true},
      {"9.0", cuda_platform(9, 0), 128, tessera::Dtype::kF16, false, true},
      {"9.0 f32", cuda_platform(9, 0), 128, tessera::Dtype::kF32, false, false},
      {"9.0 width 64", cuda_platform(9, 0), 64, tessera::Dtype::kBf16, false, false},
      {"cpu width 72", cpu_platform(), 72, tessera::Dtype::kBf16, false, false},
      {"causal", cpu_platform(), 128, tessera::Dtype::kBf16, true, false},
      {"8.0", cuda_platform(8, 0), 128, tessera::Dtype::kBf16, false, false},
      {"10.0", cuda_platform(10, 0), 128, tessera::Dtype::kBf16, false, false},
      {"12.0", cuda_platform(12, 0), 128, tessera::Dtype::kBf16, false, false},
      {"9.0 without kernels", cuda_platform(9, 0, false), 128, tessera::Dtype::kBf16, false, false},
  };
  for (const auto& c : cases) {
    LayerDescriptor layer = dense_layer("x");
    layer.head_dim = c.head_dim;
    layer.dtype = c.dtype;
    layer.causal = c.causal;
    const auto why = resolves_elsewhere(BackendId::kFa, layer, c.platform);
    EXPECT_EQ(!why.has_value(), c.itself) << c.name << why.value_or("");
    EXPECT_FALSE(resolves_elsewhere(BackendId::kTorchSdpa, layer, c.platform)) << c.name;
    EXPECT_FALSE(resolves_elsewhere(BackendId::kSubBlock, layer, c.platform)) << c.name;
  }
  EXPECT_EQ(platform_default(cpu_platform()), BackendId::kFa);
  EXPECT_EQ(platform_default(cuda_platform(10, 0)), BackendId::kFa);
  EXPECT_EQ(platform_default(cuda_platform(12, 0)), BackendId::kTorchSdpa);
}

TEST(ModuleNames, AnchoredPattern_GivesStackAndIndex_G1) {
  const struct {
    const char* name;
    std::optional<StackPosition> want;
  } cases[] = {
      {"blocks.7.attn", StackPosition{LayerStack::kDenoise, 7}},
      {"blocks.49.attn.core", StackPosition{LayerStack::kDenoise, 49}},
      {"transformer_blocks.3.attn1", StackPosition{LayerStack::kDenoise, 3}},
      {"token_refiner.blocks.1.attn", StackPosition{LayerStack::kRefiner, 1}},
      {"token_refiner.refiner_blocks.0.attn", StackPosition{LayerStack::kRefiner, 0}},
      {"", {}},
      {"blocks_extra.3.attn", {}},
      {"x.blocks.3.attn", {}},
      {"blocks.attn", {}},
      {"blocks.3", {}},
      {"blocks.-3.attn", {}},
      {"blocks.3x.attn", {}},
      {"blocks.99999999999.attn", {}},
  };
  for (const auto& c : cases) EXPECT_EQ(position_from_name(c.name), c.want) << c.name;
}

TEST(Components, NumberedOnes_InheritFromThePlainName) {
  EXPECT_EQ(parent_component("transformer_2"), "transformer");
  EXPECT_EQ(parent_component("text_encoder_12"), "text_encoder");
  for (const char* none : {"transformer", "text_encoder", "_2", "x_", "x_2b", ""}) {
    EXPECT_EQ(parent_component(none), "") << none;
  }
}

TEST(H3Layers, Counts_AreThoseOfTheCheckpoint) {
  const ModelLayers model = minimax_h3_layers(cuda_platform(9, 0));
  int denoise = 0, refiner = 0, text = 0, video = 0, audio = 0;
  for (const LayerDescriptor& l : model.layers) {
    if (l.component == "transformer") {
      (l.stack == LayerStack::kDenoise ? denoise : refiner)++;
      EXPECT_EQ(l.heads, 56);
      EXPECT_EQ(l.head_dim, 128);
      const auto position = position_from_name(l.name);
      ASSERT_TRUE(position) << l.name;
      EXPECT_EQ(*position, (StackPosition{l.stack, l.index}));
    }
    text += l.component == "text_encoder";
    video += l.component == "video_vae";
    audio += l.component == "audio_vae";
    EXPECT_EQ(l.sequence_parallel, l.stack == LayerStack::kDenoise) << l.name;
    EXPECT_FALSE(l.required) << l.name;
  }
  EXPECT_EQ(denoise, 50);
  EXPECT_EQ(refiner, 2);
  EXPECT_EQ(text, 50);
  EXPECT_EQ(video, 36);
  EXPECT_EQ(audio, 1);
  for (const LayerDescriptor& l : minimax_h3_layers(cpu_platform()).layers) {
    EXPECT_EQ(l.required.has_value(), l.component.ends_with("_vae")) << l.name;
  }
}

TEST(Backends, Matrix_NamesEveryBackendAndEveryOtherName) {
  const std::string text = backends_text();
  for (const BackendName& n : backend_names()) expect_parts(text, {std::string(n.name)});
  expect_parts(backends_json(), {"\"not_in_this_engine\"", "\"packed_emulated\": true"});
}

}  // namespace
}  // namespace h3
