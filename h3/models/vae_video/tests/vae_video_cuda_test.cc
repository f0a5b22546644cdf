// The decoder under autocast on a CUDA device: precision, prepared weights, which attention runs.
#include <ATen/Functions.h>

#include "h3/layers/device_memory.h"
#include "h3/models/vae_video/pixels.h"
#include "h3/models/vae_video/tests/vae_video_test_util.h"

namespace h3::vae_video {
namespace {

VideoVaeConfig cuda_config() {
  VideoVaeConfig config = small_config();
  config.head_dim = 64;
  return config;
}

/// A VAE on the device, with the weights of the CPU's.
struct CudaEngine {
  explicit CudaEngine(const VideoVaeOptions& options, const std::string& backend = {})
      : attention(make_plan(cuda_config(), cuda_platform(9, 0), choices(backend)),
                  {.log = [](std::string_view) {}}),
        vae(cuda_config(), random_weights(cuda_config(), Part::kAll, at::Device("cuda:0"), kSeed),
            &attention, options) {}

  static AttentionChoices choices(const std::string& backend) {
    AttentionChoices choices;
    if (!backend.empty()) choices.components = parse_component_requests("video_vae=" + backend);
    return choices;
  }
  int64_t layer_calls() const {
    int64_t calls = 0;
    for (const LayerReport& report : attention.stats()) {
      if (report.layer.starts_with("video_vae.")) calls += report.counters.all_dense_calls();
    }
    return calls;
  }
  at::Tensor decoded(const at::Tensor& latents, int64_t batch) {
    std::vector<at::Tensor> parts;
    vae.decode(latents, [&](const FrameChunk& c) { parts.push_back(c.frames.cpu()); },
               {.tile_batch = batch, .raw = true});
    return at::cat(parts, 2);
  }

  AttentionRuntime attention;
  VideoVae vae;
};

class VideoVaeCuda : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!at::hasCUDA()) GTEST_SKIP() << "no CUDA device";
  }
  const at::Tensor latents_ = random_normal({1, 24, 12, 16, 20}, 1);
};

// Behaviours 5 and 24.
TEST_F(VideoVaeCuda, Half_IsPreparedAndCloseToF32) {
  CudaEngine exact({.decode_type = at::kFloat}), half({});
  EXPECT_EQ(exact.vae.decoder()->converted(), 0);
  EXPECT_EQ(half.vae.decoder()->converted(), 4 * cuda_config().layers);
  EXPECT_EQ(half.vae.decoder()->compute(), at::kHalf);
  const at::Tensor want = exact.decoded(latents_, 1), got = half.decoded(latents_, 1);
  EXPECT_EQ(got.scalar_type(), at::kFloat);
  EXPECT_TRUE(at::allclose(got, want, 1e-2, 2e-2)) << got.sub(want).abs().max().item<double>();
  EXPECT_GT(half.layer_calls(), 0);
  EXPECT_TRUE(got.equal(half.decoded(latents_, 1)));  // again, the same bits
}

TEST_F(VideoVaeCuda, F32_NeverRunsTheLayersBackend) {
  CudaEngine exact({.decode_type = at::kFloat}, "torch_cudnn_sdpa");
  EXPECT_NO_THROW(exact.decoded(latents_, 1));
  EXPECT_EQ(exact.layer_calls(), 0);
}

TEST_F(VideoVaeCuda, Backends_Agree) {
  CudaEngine sdpa({}, "torch_sdpa"), cudnn({}, "torch_cudnn_sdpa");
  const at::Tensor a = sdpa.decoded(latents_, 1), b = cudnn.decoded(latents_, 1);
  EXPECT_TRUE(at::allclose(a, b, 1e-2, 2e-2)) << a.sub(b).abs().max().item<double>();
}

TEST_F(VideoVaeCuda, TileBatches_Agree_AndMemoryIsBounded) {
  CudaEngine half({});
  const at::Device device("cuda:0");
  const at::Tensor one = half.decoded(latents_, 1);
  for (const int64_t batch : {0, 2, 4}) {
    EXPECT_TRUE(at::allclose(half.decoded(latents_, batch), one, 1e-2, 2e-2)) << batch;
  }
  const at::Tensor z = random_normal({1, 24, 47, 32, 48}, 2).to(device);
  const int64_t before = device_memory(device).allocated;
  reset_peak_memory(device);
  half.vae.decode(z, [](const FrameChunk&) {}, {.tile_batch = 2});
  synchronize(device);
  const int64_t peak = device_memory(device).peak - before - 3 * static_cast<int64_t>(z.nbytes());
  EXPECT_LE(peak, half.vae.memory_for(1, 32, 48).total(2) + (int64_t{4} << 20));
}

TEST_F(VideoVaeCuda, Encode_IsThatOfTheCpu) {
  CudaEngine cuda({});
  VideoVaeWeights weights =
      random_weights(cuda_config(), Part::kEncoder, at::Device("cuda:0"), kSeed);
  const auto host = [](WeightBias& p) {
    if (p.weight.defined()) p = {p.weight.cpu(), p.bias.cpu()};
  };
  EncoderWeights& e = *weights.encoder;
  for (WeightBias* p : {&e.conv_in, &e.norm_out, &e.conv_out, &e.quant}) host(*p);
  for (LevelWeights& level : e.levels) {
    host(level.downsample);
    for (ResidualWeights& b : level.blocks) {
      for (WeightBias* p : {&b.norm1, &b.conv1, &b.norm2, &b.conv2, &b.shortcut}) host(*p);
    }
  }
  VideoVae cpu(cuda_config(), std::move(weights), nullptr);
  const at::Tensor rgb = random_bytes({22, 32, 40, 3}, 3);
  const EncodeOptions mode{.seed = {}, .round_to_half = false};
  // Both parts are drawn from one stream, so the encoder alone has the same values.
  const at::Tensor want = cpu.encode_video(rgb, mode), got = cuda.vae.encode_video(rgb, mode);
  EXPECT_LT(got.sub(want).norm().item<double>() / want.norm().item<double>(), 1e-5);
}

}  // namespace
}  // namespace h3::vae_video

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  std::printf("seed %llu\n", static_cast<unsigned long long>(h3::vae_video::kSeed));
  return RUN_ALL_TESTS();
}
