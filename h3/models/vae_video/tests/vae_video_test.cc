// The parts of the video VAE: attention contract of the seed, rotary table, precision of the
// decoder's blocks, posterior, pixels, encoding.
#include <ATen/Functions.h>

#include <unistd.h>

#include <filesystem>
#include <type_traits>

#include "h3/models/vae_video/checkpoint.h"
#include "h3/models/vae_video/pixels.h"
#include "h3/models/vae_video/tests/vae_video_test_util.h"
#include "h3/models/vae_video/tiles.h"
#include "h3/models/vae_video/tiny.h"
#include "h3/weights/loader.h"

namespace h3::vae_video {
namespace {

ResolvedLayer first_block(const AttentionPlan& plan) {
  for (const ResolvedLayer& r : plan.layers) {
    if (r.layer.component == "video_vae") return r;
  }
  throw std::logic_error("no video VAE layer");
}

// Behaviour 1: attention and decoder take values and nothing that masks or packs.
TEST(VaeAttentionApi, HasNoMaskOrPackInfo) {
  EXPECT_TRUE((std::is_same_v<decltype(&VideoVaeAttention::forward),
                              at::Tensor (VideoVaeAttention::*)(const Qkv&)>));
  EXPECT_TRUE(
      (std::is_same_v<decltype(&Decoder::forward), at::Tensor (Decoder::*)(const at::Tensor&)>));
}

// Behaviour 2.
TEST(Vit3dDecoder, RejectsTCausal) {
  const AttentionRuntime attention(make_plan(small_config(), cpu_platform()),
                                   {.log = [](std::string_view) {}});
  const VaeContext context;
  const VaeLayer layer =
      vae_layer(attention.layer("video_vae", "decoder.transformer_blocks.0.attn"));
  expect_parts(thrown_by([&] { VideoVaeAttention(layer, context, /*t_causal=*/true); }),
               ErrorCode::kUnsupported, {"t_causal", "non-causal"});
  EXPECT_NO_THROW(VideoVaeAttention(layer, context, false));
}

// Behaviour 4: what a CUDA platform gives the layer.
TEST(VitAttention, UsesLocalUspBackendDispatch) {
  const ResolvedLayer r = first_block(make_plan(VideoVaeConfig{}, cuda_platform(9, 0)));
  EXPECT_EQ(r.layer.heads, 32);
  EXPECT_EQ(r.layer.head_dim, 64);
  EXPECT_FALSE(r.layer.causal);
  EXPECT_FALSE(r.layer.sequence_parallel);
  EXPECT_EQ(r.layer.dtype, tessera::Dtype::kF16);
  EXPECT_EQ(r.layer.supported, (std::vector<BackendId>{BackendId::kFa, BackendId::kTorchSdpa}));
  EXPECT_FALSE(r.layer.default_backend.has_value());
}

// Behaviour 6: outside CUDA torch_sdpa, and the runtime's layer is what counts the calls.
TEST(VitAttention, NonCudaUsesDirectSdpa) {
  Engine engine;
  EXPECT_EQ(first_block(engine.attention.plan()).backend, BackendId::kTorchSdpa);
  engine.vae.decode_clip(random_normal({1, 24, 2, 8, 8}, 1));
  int64_t layers = 0;
  for (const LayerReport& report : engine.attention.stats()) {
    if (!report.layer.starts_with("video_vae.")) continue;
    ++layers;
    EXPECT_EQ(report.counters.all_dense_calls(), 1) << report.layer;
  }
  EXPECT_EQ(layers, 2);
}

// Behaviour 8.
TEST(VideoVae, ComponentOverrideSelectsSdpa) {
  AttentionChoices choices;
  choices.components = parse_component_requests("video_vae=torch_sdpa");
  const AttentionPlan plan = make_plan(VideoVaeConfig{}, cuda_platform(9, 0), choices);
  for (const ResolvedLayer& r : plan.layers) {
    if (r.layer.component != "video_vae") continue;
    EXPECT_EQ(r.backend, BackendId::kTorchSdpa) << r.layer.name;
    EXPECT_EQ(r.step, SelectionStep::kComponent);
    EXPECT_TRUE(r.explicit_request);
  }
}

// Behaviours 9 and 18: the global choice is followed inside the dense set and never beyond it.
TEST(VideoVae, FollowsGlobalBackend) {
  const VideoVaeConfig config;
  AttentionChoices choices;
  choices.global = RequestedBackend{BackendId::kTorchSdpa, true};
  EXPECT_EQ(first_block(make_plan(config, cuda_platform(9, 0), choices)).backend,
            BackendId::kTorchSdpa);
  const BackendId unasked = first_block(make_plan(config, cuda_platform(9, 0))).backend;
  choices.global = RequestedBackend{BackendId::kFa, true};
  EXPECT_EQ(first_block(make_plan(config, cuda_platform(9, 0), choices)).backend, unasked);
  choices.global = RequestedBackend{BackendId::kSubBlock, true};
  const ResolvedLayer sparse = first_block(make_plan(config, cuda_platform(9, 0), choices));
  EXPECT_EQ(sparse.backend, unasked);
  EXPECT_NE(sparse.fallback_reason, "");
}

// Behaviour 10.
TEST(VitQkNorm, SupportsAffineFreeRmsNorm) {
  const at::Tensor x = random_normal({1, 2, 2, 64}, 1).mul(3);
  const at::Tensor wide = x.to(at::kDouble);
  const at::Tensor want = wide.mul(wide.pow(2).mean(-1, true).add(1e-5).rsqrt());
  const at::Tensor y = qk_norm(x, QkNorm::kRmsNorm, 1e-5);
  EXPECT_EQ(y.sizes(), x.sizes());
  EXPECT_LT(y.sub(want).abs().max().item<double>(), 1e-6);
  const at::Tensor half = x.to(at::kHalf);
  EXPECT_TRUE(qk_norm(half, QkNorm::kRmsNorm, 1e-5)
                  .equal(qk_norm(half.to(at::kFloat), QkNorm::kRmsNorm, 1e-5).to(at::kHalf)));
  EXPECT_TRUE(qk_norm(x, QkNorm::kNone, 1e-5).equal(x));
  const at::Tensor centred = qk_norm(x, QkNorm::kLayerNorm, 1e-5);
  EXPECT_LT(centred.mean(-1).abs().max().item<double>(), 1e-6);
}

TEST(Rotary, HalfCoordinates_ArePublished) {
  const at::Tensor half = rotary_coordinates(7, at::kHalf, at::kCPU).to(at::kDouble);
  const std::vector<double> want{-0.857421875, -0.5712890625, -0.28564453125, 0,
                                 0.2861328125, 0.5712890625,  0.857421875};
  EXPECT_TRUE(half.equal(at::tensor(want, at::kDouble))) << half;
  const at::Tensor full = rotary_coordinates(16, at::kFloat, at::kCPU);
  EXPECT_EQ(full[0].item<float>(), -0.9375f);
  EXPECT_EQ(full[15].item<float>(), 0.9375f);
}

TEST(Rotary, Table_AxesAndSuffix) {
  const VideoVaeConfig c;  // 48 channels, 8 frequencies an axis
  const RotaryTable table =
      rotary_table(c, {7, 16, 16}, 5, at::kFloat, RotaryRule::kComputeType, at::kCPU);
  ASSERT_EQ(table.cos.size(1), 1797);
  ASSERT_EQ(table.cos.size(-1), 24);
  const at::Tensor cos = table.cos.view({1797, 24}), sin = table.sin.view({1797, 2, 24});
  EXPECT_TRUE(cos.narrow(0, 1792, 5).equal(at::ones({5, 24})));
  EXPECT_TRUE(sin.narrow(0, 1792, 5).equal(at::zeros({5, 2, 24})));
  // Token (t, h, w) = (6, 3, 11), frequency 2 of every axis.
  const int64_t token = (6 * 16 + 3) * 16 + 11;
  const double p[] = {2 * 6.5 / 7 - 1, 2 * 3.5 / 16 - 1, 2 * 11.5 / 16 - 1};
  for (int axis = 0; axis < 3; ++axis) {
    const double angle = 2 * M_PI * p[axis] * std::pow(100.0, -2.0 / 8);
    EXPECT_NEAR(cos[token][axis * 8 + 2].item<double>(), std::cos(angle), 1e-6);
    EXPECT_NEAR(sin[token][1][axis * 8 + 2].item<double>(), std::sin(angle), 1e-6);
    EXPECT_NEAR(sin[token][0][axis * 8 + 2].item<double>(), -std::sin(angle), 1e-6);
  }
}

// The released rounding: coordinates and their product with 2 pi in half, then f32.
TEST(Rotary, HalfTable_RoundsAsReleased) {
  const VideoVaeConfig c;
  const RotaryTable table =
      rotary_table(c, {7, 1, 1}, 0, at::kHalf, RotaryRule::kComputeType, at::kCPU);
  const std::vector<double> scaled{-5.38671875,  -3.58984375, -1.794921875, 0,
                                   1.7978515625, 3.58984375,  5.38671875};
  for (int64_t frame = 0; frame < 7; ++frame) {
    for (int64_t k = 0; k < 8; ++k) {
      const double angle = scaled[static_cast<size_t>(frame)] * std::pow(100.0, -k / 8.0);
      const double got = table.cos[0][frame][0][0][k].item<double>();
      EXPECT_NEAR(got, std::cos(angle), 2.5e-4) << frame << " " << k;  // half an ulp below 1
    }
  }
}

TEST(Rotary, RulesDiffer_OnlyInHalf) {
  const VideoVaeConfig c;
  const auto tables = [&](at::ScalarType compute) {
    std::vector<at::Tensor> cos;
    for (const RotaryRule rule : {RotaryRule::kComputeType, RotaryRule::kF32}) {
      cos.push_back(rotary_table(c, {7, 4, 4}, 5, compute, rule, at::kCPU).cos.to(at::kDouble));
    }
    return cos[0].sub(cos[1]).abs().max().item<double>();
  };
  EXPECT_EQ(tables(at::kFloat), 0);
  EXPECT_GT(tables(at::kHalf), 1e-3);
  EXPECT_LT(tables(at::kHalf), 4e-3);
}

class HalfDecoder : public ::testing::TestWithParam<int> {};

// Half compute as under autocast, on the CPU's half operations; the residual stream is f32 with and
// without registers.
TEST_P(HalfDecoder, IsCloseToF32_AndReturnsF32) {
  VideoVaeConfig config = small_config();
  config.registers = GetParam();
  config.head_dim = 64;
  AttentionRuntime attention(make_plan(config, cpu_platform()), {.log = [](std::string_view) {}});
  VaeContext context;
  const auto decoder = [&](at::ScalarType compute) {
    return Decoder(config, *random_weights(config, Part::kDecoder, at::kCPU, kSeed).decoder,
                   attention, context, {.compute = compute});
  };
  Decoder exact = decoder(at::kFloat), half = decoder(at::kHalf);
  EXPECT_EQ(exact.converted(), 0);
  EXPECT_EQ(half.converted(), 4 * config.layers);
  const at::Tensor z = random_normal({2, 24, 2, 4, 4}, 1);
  const VaeContext::Scope scope(context);
  const at::Tensor want = exact.forward(z), got = half.forward(z);
  EXPECT_EQ(got.scalar_type(), at::kFloat);
  EXPECT_EQ(got.sizes(), (std::vector<int64_t>{2, 3, 8, 16, 16}));
  EXPECT_TRUE(at::allclose(got, want, 1e-2, 2e-2)) << got.sub(want).abs().max().item<double>();
  EXPECT_FALSE(got.equal(want));
}
INSTANTIATE_TEST_SUITE_P(Registers, HalfDecoder, ::testing::Values(0, 4));

// Behaviour 24, on the weights alone: autocast itself needs CUDA.
TEST(Decode, PreparesLinearWeightsOnlyWithAutocast) {
  const VideoVaeConfig config = small_config();
  VideoVaeWeights weights = random_weights(config, Part::kDecoder, at::kCPU, kSeed);
  const int64_t before = weights.bytes();
  expect_parts(thrown_by([&] { prepare_autocast_weights(*weights.decoder, at::kFloat); }),
               ErrorCode::kInvalidArgument, {"require fp16 or bf16"});
  EXPECT_EQ(prepare_autocast_weights(*weights.decoder, at::kHalf), 8);
  EXPECT_EQ(prepare_autocast_weights(*weights.decoder, at::kHalf), 0);
  EXPECT_LT(weights.bytes(), before);
  for (const DecoderBlockWeights& block : weights.decoder->blocks) {
    EXPECT_EQ(block.w2.bias.scalar_type(), at::kHalf);
    EXPECT_EQ(block.norm1.scalar_type(), at::kFloat);
    EXPECT_EQ(block.scale2.scalar_type(), at::kFloat);
  }
  EXPECT_EQ(weights.decoder->embed.weight.scalar_type(), at::kFloat);
  EXPECT_EQ(weights.decoder->proj_out.weight.scalar_type(), at::kFloat);
  Engine engine;
  EXPECT_EQ(engine.vae.decoder()->converted(), 0);
  EXPECT_EQ(engine.vae.decoder()->compute(), at::kFloat);
}

TEST(VideoVae, HalfOutsideCuda_IsRefused) {
  for (const at::ScalarType type : {at::kHalf, at::kBFloat16}) {
    expect_parts(thrown_by([&] { Engine(small_config(), Part::kAll, {.decode_type = type}); }),
                 ErrorCode::kUnsupported, {"on cpu", "decode in f32"});
  }
  expect_parts(thrown_by([&] { Engine(small_config(), Part::kAll, {.decode_type = at::kDouble}); }),
               ErrorCode::kInvalidArgument, {"f32, f16 and bf16"});
}

TEST(Posterior, Sample_IsThatOfPyTorch) {
  // torch.manual_seed(42); torch.randn(4)
  const at::Tensor moments = at::zeros({1, 8, 1, 1, 1});
  moments.narrow(1, 0, 4).fill_(1);
  const at::Tensor sample = posterior_of(moments).sample(make_cpu_generator(42)).view({4});
  const at::Tensor want = at::tensor({1.3367f, 1.1288f, 1.2345f, 1.2303f});
  EXPECT_LT(sample.sub(want).abs().max().item<double>(), 6e-5) << sample;
}

TEST(Posterior, LogVariance_IsClamped) {
  const at::Tensor moments = at::tensor({0.f, 0.f, 0.f, 50.f, -50.f, 2.f}).view({1, 6, 1, 1, 1});
  const Posterior p = posterior_of(moments);
  EXPECT_TRUE(p.logvar.view({3}).equal(at::tensor({20.f, -30.f, 2.f})));
  EXPECT_NEAR(p.std().view({3})[2].item<double>(), std::exp(1.0), 1e-6);
  EXPECT_TRUE(p.mode().equal(moments.narrow(1, 0, 3)));
}

TEST(Rgb24, Values_AreTruncated) {
  at::Tensor frames = at::zeros({1, 3, 1, 1, 4});
  frames.select(1, 1).copy_(at::tensor({254.99f / 255, 1.f, 0.5f / 255, 1.5f}).view({1, 1, 1, 4}));
  const at::Tensor rgb = rgb24(frames);
  EXPECT_EQ(rgb.sizes(), (std::vector<int64_t>{1, 1, 1, 4, 3}));
  EXPECT_TRUE(rgb.select(4, 1).view({4}).equal(at::tensor({254, 255, 0, 255}).to(at::kByte)));
}

TEST(Pixels, GoThereAndBack) {
  const at::Tensor rgb = random_bytes({2, 4, 6, 3}, 1);
  const at::Tensor x = normalised_pixels(rgb);
  EXPECT_EQ(x.sizes(), (std::vector<int64_t>{1, 3, 2, 4, 6}));
  const at::Tensor back = shown_pixels(x).mul(255).round().to(at::kByte);
  EXPECT_TRUE(back.squeeze(0).permute({1, 2, 3, 0}).equal(rgb));
  EXPECT_NEAR(x[0][2][1][3][5].item<double>(),
              (rgb[1][3][5][2].item<double>() / 255 - 0.406) / 0.225, 1e-5);
  expect_parts(thrown_by([&] { normalised_pixels(rgb.to(at::kFloat)); }),
               ErrorCode::kInvalidArgument, {"uint8 [T, H, W, 3]"});
  EXPECT_EQ(cropped(x, 3, 5).size(-1), 5);
  expect_parts(thrown_by([&] { cropped(x, 5, 5); }), ErrorCode::kInvalidArgument,
               {"6x4", "smaller than the target of 5x5"});
}

TEST(Latents, NormalisationRoundTrips) {
  const VideoVaeConfig c;
  const at::Tensor z = random_normal({1, 24, 2, 3, 3}, 1);
  const at::Tensor there = denormalised_latents(c, z);
  EXPECT_LT(normalised_latents(c, there).sub(z).abs().max().item<double>(), 2e-6);
  EXPECT_NEAR(there[0][5][0][1][2].item<double>(),
              z[0][5][0][1][2].item<double>() * 2.194143533706665 - 1.3675414323806763, 1e-5);
}

TEST(Blend, Weights_RunFromAToB) {
  const at::Tensor a = at::full({1, 6}, 8.f), b = at::zeros({1, 8});
  EXPECT_TRUE(
      blend(a, b, 4, -1).equal(at::tensor({8.f, 6.f, 4.f, 2.f, 0.f, 0.f, 0.f, 0.f}).view({1, 8})));
  EXPECT_TRUE(blend(a, b, 99, -1).narrow(1, 0, 1).equal(at::full({1, 1}, 8.f)));  // cut to 6
}

TEST(Encode, EveryPicture_HasNoiseOfItsOwnSeed) {
  Engine engine(small_config(), Part::kEncoder);
  const at::Tensor one = random_bytes({1, 21, 26, 3}, 1);
  const at::Tensor latents = engine.vae.encode_images(at::cat({one, one}));
  EXPECT_EQ(latents.sizes(), (std::vector<int64_t>{2, 24, 1, 5, 6}));  // cut to 20 x 24
  EXPECT_TRUE(latents[0].equal(latents[1]));
  EXPECT_FALSE(latents[0].equal(engine.vae.encode_images(one, {.seed = 43})[0]));
  EXPECT_FALSE(latents[0].equal(engine.vae.encode_images(one, {.seed = {}})[0]));
}

TEST(Encode, Video_IsCutToALegalLength) {
  Engine engine(small_config(), Part::kEncoder);
  const at::Tensor rgb = random_bytes({24, 16, 20, 3}, 2);
  const at::Tensor latents = engine.vae.encode_video(rgb);
  EXPECT_EQ(latents.sizes(), (std::vector<int64_t>{1, 24, 7, 4, 5}));
  EXPECT_TRUE(latents.equal(engine.vae.encode_video(rgb.narrow(0, 0, 22))));
  expect_parts(thrown_by([&] { engine.vae.encode_video(rgb.narrow(0, 0, 21)); }),
               ErrorCode::kInvalidArgument, {"21 frames", "not enough frames"});
}

// Causal in time: frames never change latents before them.
TEST(Encode, LaterFrames_DoNotChangeEarlierLatents) {
  Engine engine(small_config(), Part::kEncoder);
  const at::Tensor x = random_normal({1, 3, 17, 16, 16}, 3);
  at::Tensor other = x.clone();
  other.narrow(2, 9, 8).add_(1);
  const at::Tensor a = engine.vae.moments(at::cat({x, x}, 2));
  const at::Tensor b = engine.vae.moments(at::cat({other, x}, 2));
  // Latent k of a clip sees frames up to 4 k.
  EXPECT_TRUE(a.narrow(2, 0, 3).equal(b.narrow(2, 0, 3)));
  EXPECT_FALSE(a.narrow(2, 3, 1).equal(b.narrow(2, 3, 1)));
  EXPECT_TRUE(a.narrow(2, 5, 2).equal(b.narrow(2, 5, 2)));  // the next clip knows nothing of it
}

TEST(Encode, TooSmallPictures_AreRefused) {
  Engine engine(small_config(), Part::kEncoder);
  expect_parts(thrown_by([&] {
                 engine.vae.encode_images(random_bytes({1, 7, 32, 3}, 1));
               }),
               ErrorCode::kInvalidArgument, {"at least 8 pixels"});
  expect_parts(thrown_by([&] {
                 engine.vae.decode(random_normal({1, 24, 7, 4, 4}, 1), {});
               }),
               ErrorCode::kUnsupported, {"without its decoder"});
  Engine decoder(small_config(), Part::kDecoder);
  expect_parts(thrown_by([&] {
                 decoder.vae.encode_images(random_bytes({1, 16, 16, 3}, 1));
               }),
               ErrorCode::kUnsupported, {"without its encoder"});
}

// Behaviour of the loader as a whole: two layouts of one model.
TEST(Weights, OfficialAndDiffusersFiles_GiveTheSameTensors) {
  for (const VideoVaeConfig& config : {small_config(), tiny_released_ratio_config()}) {
    std::vector<std::unordered_map<std::string, at::Tensor>> loaded;
    for (const NameStyle style : {NameStyle::kOfficial, NameStyle::kDiffusers}) {
      std::string folder = ::testing::TempDir() + "h3_vae_video_files_XXXXXX";
      ASSERT_NE(mkdtemp(folder.data()), nullptr);
      write_random_video_vae(folder, config, style, kSeed);
      const VideoVaeCheckpoint vae = open_video_vae(folder);
      EXPECT_EQ(vae.config, config);
      EXPECT_EQ(vae.style, style);
      loaded.push_back(weights::load_tensors(vae.checkpoint, model_recipes(vae.config, vae.style)));
      std::filesystem::remove_all(folder);
    }
    ASSERT_EQ(loaded[0].size(), loaded[1].size());
    for (const auto& [name, t] : loaded[0]) {
      EXPECT_TRUE(t.equal(loaded[1].at(name))) << name;
      EXPECT_GT(t.norm().item<double>(), 0) << name;
    }
  }
}

TEST(Weights, LeftOverAndMissing_AreDefects) {
  const VideoVaeConfig config = small_config();
  std::unordered_map<std::string, at::Tensor> tensors;
  for (const auto& recipe : model_recipes(config, NameStyle::kOfficial, Part::kDecoder)) {
    tensors[recipe.name] = at::zeros(recipe.shape);
  }
  auto more = tensors, fewer = tensors, half = tensors;
  more["decoder.extra"] = at::zeros({1});
  fewer.erase("decoder.norm_out.bias");
  half["decoder.norm_out.bias"] = half["decoder.norm_out.bias"].to(at::kHalf);
  const auto take = [&](auto& from) { take_weights(config, Part::kDecoder, from); };
  EXPECT_NO_THROW(take(tensors));
  expect_parts(thrown_by([&] { take(more); }), ErrorCode::kInternal, {"decoder.extra"});
  expect_parts(thrown_by([&] { take(fewer); }), ErrorCode::kInternal, {"decoder.norm_out.bias"});
  expect_parts(thrown_by([&] { take(half); }), ErrorCode::kInternal, {"decoder.norm_out.bias"});
}

}  // namespace
}  // namespace h3::vae_video

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  std::printf("seed %llu\n", static_cast<unsigned long long>(h3::vae_video::kSeed));
  return RUN_ALL_TESTS();
}
