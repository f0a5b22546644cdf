// Parts of the audio VAE against loops and published numbers; parity of the whole is in
// h3/tests/parity/test_vae_audio.py.
#include "h3/models/vae_audio/model.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <filesystem>

#include "h3/attention/h3_layers.h"
#include "h3/attention/sdpa_impl.h"
#include "h3/common/error.h"
#include "h3/models/vae_audio/modules.h"
#include "h3/models/vae_audio/names.h"
#include "h3/models/vae_audio/ops.h"
#include "h3/models/vae_audio/tiny.h"
#include "h3/weights/loader.h"

namespace h3::vae_audio {
namespace {

constexpr uint64_t kSeed = 20261130;

void seed() {
  std::printf("seed %llu\n", static_cast<unsigned long long>(kSeed));
  at::manual_seed(kSeed);
}

double distance(const at::Tensor& got, const at::Tensor& want) {
  return ((got - want).norm() / want.norm()).item<double>();
}

// Taps of the published filters.
at::Tensor published_filter() {
  const float half[6] = {0.00202896469f,  0.00938946567f, -0.02554345876f,
                         -0.05765738338f, 0.12857258320f, 0.44320979714f};
  at::Tensor f = at::empty({1, 1, 12}, at::kFloat);
  for (int i = 0; i < 6; ++i) {
    f[0][0][i] = half[i];
    f[0][0][11 - i] = half[i];
  }
  return f;
}

ActivationWeights activation_weights(const at::Tensor& filter, const at::Tensor& alpha,
                                     const at::Tensor& beta) {
  return {alpha.exp().unsqueeze(1), (beta.exp() + 1e-9).reciprocal().unsqueeze(1),
          up_phases(filter), down_phases(filter)};
}

// The definition: interleaved signal, replicated ends, transposed and strided filters.
std::vector<double> activation_by_definition(const std::vector<double>& x,
                                             const std::vector<double>& f, double a, double b) {
  const auto n = static_cast<int64_t>(x.size());
  std::vector<double> full(static_cast<size_t>(2 * (n + 10) + 10), 0.0);
  for (int64_t j = 0; j < n + 10; ++j) {
    const double value = x[static_cast<size_t>(std::clamp<int64_t>(j - 5, 0, n - 1))];
    for (int64_t k = 0; k < 12; ++k) full[static_cast<size_t>(2 * j + k)] += 2 * value * f[k];
  }
  std::vector<double> u(full.begin() + 15, full.begin() + 15 + 2 * n);
  for (double& v : u) v += std::pow(std::sin(a * v), 2) / (b + 1e-9);
  std::vector<double> out;
  for (int64_t i = 0; i < n; ++i) {
    double sum = 0;
    for (int64_t k = 0; k < 12; ++k) {
      sum += f[k] * u[static_cast<size_t>(std::clamp<int64_t>(2 * i + k - 5, 0, 2 * n - 1))];
    }
    out.push_back(sum);
  }
  return out;
}

TEST(AudioActivation, AnyFilter_EqualsTheDefinition) {
  seed();
  for (const int64_t length : {1, 2, 5, 23}) {
    const at::Tensor filter = at::randn({1, 1, 12});  // no symmetry to hide a swapped phase
    const at::Tensor x = at::randn({2, 3, length}), before = x.clone();
    const at::Tensor alpha = at::randn({3}) * 0.3, beta = at::randn({3}) * 0.3;
    const at::Tensor got = activate(x, activation_weights(filter, alpha, beta));
    EXPECT_TRUE(x.equal(before));
    ASSERT_EQ(got.sizes(), x.sizes());
    std::vector<double> f;
    for (int k = 0; k < 12; ++k) f.push_back(filter[0][0][k].item<double>());
    for (int64_t b = 0; b < 2; ++b) {
      for (int64_t c = 0; c < 3; ++c) {
        std::vector<double> row;
        for (int64_t i = 0; i < length; ++i) row.push_back(x[b][c][i].item<double>());
        const auto want = activation_by_definition(row, f, std::exp(alpha[c].item<double>()),
                                                   std::exp(beta[c].item<double>()));
        for (int64_t i = 0; i < length; ++i) {
          EXPECT_NEAR(got[b][c][i].item<double>(), want[static_cast<size_t>(i)], 2e-4)
              << b << " " << c << " " << i;
        }
      }
    }
  }
}

TEST(AudioActivation, PublishedFilter_KeepsAConstant) {
  const at::Tensor filter = published_filter();
  EXPECT_NEAR(filter.sum().item<double>(), 1.0, 1e-6);
  // A beta so large that the snake adds nothing.
  const ActivationWeights w = activation_weights(filter, at::zeros({1}), at::full({1}, 60.0));
  const at::Tensor x = at::full({1, 1, 9}, 0.7);
  EXPECT_LT((activate(x, w) - x).abs().max().item<double>(), 1e-6);
}

TEST(AudioSnake, Values_EqualTheFormulaTwice) {
  seed();
  const at::Tensor x = at::randn({2, 4, 33}), before = x.clone();
  const at::Tensor alpha = at::rand({1, 4, 1}) + 0.1;
  const at::Tensor want =
      (x.to(at::kDouble) +
       (alpha.to(at::kDouble) * x.to(at::kDouble)).sin().square() / (alpha.to(at::kDouble) + 1e-9))
          .to(at::kFloat);
  const at::Tensor first = snake(x, alpha);
  EXPECT_LT(distance(first, want), 1e-6);
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(snake(x, alpha).equal(first));
  EXPECT_TRUE(x.equal(before));
}

TEST(AudioWeightNorm, Folding_DividesByTheNormOfARow) {
  seed();
  const at::Tensor v = at::randn({3, 4, 5}), g = at::rand({3, 1, 1}) + 0.5;
  const at::Tensor w = folded_weight(g, v, "conv");
  for (int64_t i = 0; i < 3; ++i) {
    EXPECT_NEAR(w[i].norm().item<double>(), g[i].item<double>(), 1e-6);
    EXPECT_LT(distance(w[i] / w[i].norm(), v[i] / v[i].norm()), 1e-6);
  }
  v[1].zero_();
  try {
    folded_weight(g, v, "decoder.ups.0.0");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    EXPECT_NE(std::string(error.what()).find("decoder.ups.0.0"), std::string::npos);
  }
}

struct Attention {
  explicit Attention(int heads) {
    VaeLayer layer;
    layer.impl = make_sdpa_impl({.causal = true});
    layer.resolved.layer.component = "audio_vae";
    layer.resolved.layer.name = "pre_block.attn";
    layer.resolved.layer.causal = true;
    layer.resolved.layer.heads = heads;
    layer.resolved.backend = BackendId::kTorchSdpa;
    attention = std::make_unique<AudioVaeAttention>(layer, context);
  }
  VaeContext context;
  std::unique_ptr<AudioVaeAttention> attention;
};

struct AttentionCase {
  int64_t in, out, heads, rows;
};

class AudioCausalAttention : public ::testing::TestWithParam<AttentionCase> {};

CausalAttentionWeights random_attention(const AttentionCase& c) {
  const int64_t inner = c.in > c.out ? c.in : c.out;
  CausalAttentionWeights w;
  w.qkv = at::randn({3 * inner, c.in}) * (1.5 / std::sqrt(static_cast<double>(c.in)));
  w.qkv_bias = at::randn({3 * inner}) * 0.3;
  w.qkv_bias.narrow(0, inner, inner).zero_();
  w.proj = {at::randn({c.out, c.out}) * 0.4, at::randn({c.out}) * 0.1};
  return w;
}

// One number at a time, in double.
at::Tensor attention_by_loops(const at::Tensor& x, const CausalAttentionWeights& w,
                              const AttentionCase& c) {
  const int64_t inner = c.in > c.out ? c.in : c.out, d = inner / c.heads;
  const at::Tensor qkv = at::linear(x, w.qkv, w.qkv_bias).to(at::kDouble);
  at::Tensor out = at::zeros({x.size(0), c.rows, c.out}, at::kDouble);
  for (int64_t b = 0; b < x.size(0); ++b) {
    for (int64_t n = 0; n < c.rows; ++n) {
      std::vector<double> features(static_cast<size_t>(c.in > c.out ? d : inner), 0.0);
      for (int64_t h = 0; h < c.heads; ++h) {
        std::vector<double> p;
        double sum = 0;
        for (int64_t m = 0; m <= n; ++m) {
          double dot = 0;
          for (int64_t k = 0; k < d; ++k) {
            dot +=
                qkv[b][n][h * d + k].item<double>() * qkv[b][m][inner + h * d + k].item<double>();
          }
          p.push_back(std::exp(dot / std::sqrt(static_cast<double>(d))));
          sum += p.back();
        }
        for (int64_t k = 0; k < d; ++k) {
          double value = 0;
          for (int64_t m = 0; m <= n; ++m) {
            value +=
                p[static_cast<size_t>(m)] / sum * qkv[b][m][2 * inner + h * d + k].item<double>();
          }
          if (c.in > c.out) {
            features[static_cast<size_t>(k)] += value / static_cast<double>(c.heads);
          } else {
            features[static_cast<size_t>(h * d + k)] = value;
          }
        }
      }
      for (int64_t j = 0; j < c.out; ++j) {
        double pooled = features[static_cast<size_t>(j)];
        if (c.in > c.out && d != c.out) {
          const int64_t begin = j * d / c.out, end = ((j + 1) * d + c.out - 1) / c.out;
          pooled = 0;
          for (int64_t k = begin; k < end; ++k) pooled += features[static_cast<size_t>(k)];
          pooled /= static_cast<double>(end - begin);
        }
        for (int64_t o = 0; o < c.out; ++o) {
          out[b][n][o] += pooled * w.proj.weight[o][j].to(at::kDouble);
        }
      }
      out[b][n] += w.proj.bias.to(at::kDouble);
    }
  }
  return out.to(at::kFloat);
}

TEST_P(AudioCausalAttention, Rows_EqualTheLoops) {
  seed();
  const AttentionCase c = GetParam();
  const CausalAttentionWeights w = random_attention(c);
  Attention a(static_cast<int>(c.heads));
  const VaeContext::Scope scope(a.context);
  at::Tensor x = at::randn({2, c.rows, c.in});
  const at::Tensor got = causal_attention(x, w, c.heads, *a.attention);
  const at::Tensor want = attention_by_loops(x, w, c);
  EXPECT_EQ(got.scalar_type(), at::kFloat);
  EXPECT_LT(distance(got, want), 2e-6);
  // No row sees a later one.
  x.narrow(1, c.rows - 1, 1).add_(1);
  const at::Tensor changed = causal_attention(x, w, c.heads, *a.attention);
  EXPECT_LT(distance(changed.narrow(1, 0, c.rows - 1), got.narrow(1, 0, c.rows - 1)), 1e-6);
  EXPECT_GT(distance(changed.narrow(1, c.rows - 1, 1), got.narrow(1, c.rows - 1, 1)), 1e-2);
}

INSTANTIATE_TEST_SUITE_P(Shapes, AudioCausalAttention,
                         ::testing::Values(AttentionCase{64, 32, 2, 4},   // D = out
                                           AttentionCase{20, 4, 2, 5},    // windows overlap
                                           AttentionCase{256, 32, 2, 6},  // windows of 4
                                           AttentionCase{16, 16, 2, 6},   // concatenated
                                           AttentionCase{8, 16, 2, 6}));

TEST(AudioCausalAttentionShape, WeightsThatDoNotFit_AreRefused) {
  CausalAttentionWeights w = random_attention({20, 4, 2, 5});
  Attention a(3);
  const VaeContext::Scope scope(a.context);
  EXPECT_THROW(causal_attention(at::randn({1, 5, 20}), w, 3, *a.attention), Error);
}

struct Model {
  explicit Model(AudioVaeWeights weights) {
    const Platform platform = cpu_platform();
    ModelLayers layers = minimax_h3_layers(platform);
    size_audio_layers(config, &layers);
    attention = std::make_unique<AttentionRuntime>(resolve_attention(layers, {}, platform),
                                                   RuntimeOptions{.log = [](std::string_view) {}});
    vae = std::make_unique<AudioVae>(config, std::move(weights), *attention);
  }
  Model() : Model(random_weights(tiny_audio_vae_config(), at::kCPU, kSeed)) {}
  AudioVaeConfig config = tiny_audio_vae_config();
  std::unique_ptr<AttentionRuntime> attention;
  std::unique_ptr<AudioVae> vae;
};

TEST(AudioVaeModel, Lengths_AreRoundedUpToLatents) {
  seed();
  Model m;
  for (const int64_t samples : {1, 4, 5, 32, 33}) {
    const at::Tensor z = m.vae->encode(at::rand({2, 1, samples}) - 0.5);
    EXPECT_EQ(z.sizes(), (at::IntArrayRef{2, 8, (samples + 3) / 4}));
    const at::Tensor wave = m.vae->decode(z);
    EXPECT_EQ(wave.sizes(), (at::IntArrayRef{2, 1, (samples + 3) / 4 * 4}));
    EXPECT_LE(wave.abs().max().item<double>(), 1.0);
    EXPECT_GT(wave.std().item<double>(), 0.0);
  }
}

TEST(AudioVaeModel, RandomCheckpoint_SoundsWithoutClipping) {
  seed();
  const std::string folder = ::testing::TempDir() + "vae_audio_model_test";
  std::filesystem::create_directories(folder);
  write_random_audio_vae(folder, tiny_audio_vae_config(), NormStyle::kPair, kSeed);
  const AudioVaeCheckpoint checkpoint = open_audio_vae(folder);
  Model m(take_weights(checkpoint.config,
                       weights::load_tensors(checkpoint.checkpoint,
                                             model_recipes(checkpoint.config, checkpoint.style))));
  std::filesystem::remove_all(folder);
  const at::Tensor wave = m.vae->decode(at::randn({2, 8, 50}));
  EXPECT_GT(wave.std().item<double>(), 0.02);
  EXPECT_LT(wave.abs().eq(1).to(at::kFloat).mean().item<double>(), 0.02);
}

TEST(AudioVaeModel, Channels_AreIndependent) {
  seed();
  Model m;
  const at::Tensor x = at::rand({2, 1, 40}) - 0.5;
  const at::Tensor both = m.vae->encode(x), alone = m.vae->encode(x.narrow(0, 1, 1));
  EXPECT_LT(distance(both.narrow(0, 1, 1), alone), 1e-6);
}

TEST(AudioVaeModel, BadInput_IsRefusedWithItsShape) {
  seed();
  Model m;
  const auto refusal = [&](const std::function<void()>& call) {
    try {
      call();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
      return std::string(error.what());
    }
    ADD_FAILURE();
    return std::string();
  };
  EXPECT_NE(refusal([&] {
              m.vae->encode(at::zeros({2, 2, 8}));
            }).find("[2, 2, 8]"),
            std::string::npos);
  EXPECT_NE(refusal([&] {
              m.vae->encode(at::zeros({2, 1, 0}));
            }).find("length >= 1"),
            std::string::npos);
  EXPECT_NE(refusal([&] {
              m.vae->decode(at::zeros({2, 8, 4}, at::kHalf));
            }).find("Half"),
            std::string::npos);
  EXPECT_NE(refusal([&] { m.vae->decode(at::zeros({2, 32, 4})); }).find("8"), std::string::npos);
  EXPECT_NE(refusal([&] {
              m.vae->decode(at::full({2, 8, 4}, NAN));
            }).find("not finite"),
            std::string::npos);
  EXPECT_NE(refusal([&] { m.vae->normalize(at::zeros({2, 7, 4})); }).find("8"), std::string::npos);
  EXPECT_NE(refusal([&] {
              stereo_batch(at::zeros({1, 4}));
            }).find("[2, samples]"),
            std::string::npos);
}

TEST(AudioVaeModel, LayerOfOtherHeads_IsRefused) {
  const Platform platform = cpu_platform();
  AttentionRuntime attention(resolve_attention(minimax_h3_layers(platform), {}, platform),
                             {.log = [](std::string_view) {}});
  const AudioVaeConfig config = tiny_audio_vae_config();
  EXPECT_THROW(AudioVae(config, random_weights(config, at::kCPU, 1), attention), Error);
}

TEST(AudioVaeModel, Statistics_AreAProductThenASum) {
  seed();
  Model m;
  const at::Tensor z = at::randn({2, 8, 5});
  const at::Tensor back = m.vae->denormalize(m.vae->normalize(z));
  EXPECT_LT(distance(back, z), 1e-6);
  const float mean = m.config.latents_mean[3], std = m.config.latents_std[3];
  const float value = z[1][3][2].item<float>();
  volatile float product = value * std;  // no fused multiply-add
  EXPECT_EQ(m.vae->denormalize(z)[1][3][2].item<float>(), product + mean);
  EXPECT_EQ(m.vae->normalize(z)[1][3][2].item<float>(), (value - mean) / std);
}

TEST(AudioVaeModel, StereoRows_AreLeftThenRight) {
  const at::Tensor latents = at::arange(24, at::kFloat).view({2, 4, 3});
  const at::Tensor rows = stereo_rows(latents);
  EXPECT_EQ(rows.sizes(), (at::IntArrayRef{6, 4}));
  EXPECT_TRUE(rows[1].equal(latents.select(0, 0).select(1, 1)));
  EXPECT_TRUE(rows[3].equal(latents.select(0, 1).select(1, 0)));
  EXPECT_TRUE(stereo_latents(rows).equal(latents));
  const at::Tensor pcm = at::arange(8, at::kFloat).view({2, 4});
  EXPECT_TRUE(stereo_channels(stereo_batch(pcm)).equal(pcm));
}

TEST(AudioVaeNumerics, EncodeScope_RestoresTheSwitches) {
  at::Context& context = at::globalContext();
  context.setSDPUseFlash(true);
  context.setSDPUseMath(false);
  {
    const EncodeScope scope;
    EXPECT_FALSE(context.userEnabledFlashSDP());
    EXPECT_FALSE(context.userEnabledMemEfficientSDP());
    EXPECT_TRUE(context.userEnabledMathSDP());
  }
  EXPECT_TRUE(context.userEnabledFlashSDP());
  EXPECT_FALSE(context.userEnabledMathSDP());
  context.setSDPUseMath(true);
}

TEST(AudioVaeWeights, MissingOrStrangeTensors_AreRefused) {
  const AudioVaeConfig config = tiny_audio_vae_config();
  const auto tensors = [&] {
    std::unordered_map<std::string, at::Tensor> map;
    for (const auto& recipe : model_recipes(config, NormStyle::kPair)) {
      map.emplace(recipe.name, at::ones(recipe.shape));
    }
    return map;
  };
  EXPECT_NO_THROW(take_weights(config, tensors()));
  auto map = tensors();
  map.erase("mean_proj.bias");
  EXPECT_THROW(take_weights(config, map), Error);
  map = tensors();
  map.emplace("extra", at::ones({1}));
  EXPECT_THROW(take_weights(config, map), Error);
  map = tensors();
  map["mean_proj.bias"] = at::ones({8}, at::kDouble);
  EXPECT_THROW(take_weights(config, map), Error);
}

}  // namespace
}  // namespace h3::vae_audio
