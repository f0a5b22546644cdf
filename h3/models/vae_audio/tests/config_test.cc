// config.json and metadata.json of the audio VAE.
#include "h3/models/vae_audio/config.h"

#include <gtest/gtest.h>

#include "h3/common/error.h"

namespace h3::vae_audio {
namespace {

std::string refusal(const std::string& json, const std::string& metadata = "") {
  try {
    parse_audio_vae_config(json, "config.json", metadata);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    return error.what();
  }
  ADD_FAILURE() << "accepted: " << json;
  return "";
}

void expect_refusal(const std::string& json, std::initializer_list<const char*> parts) {
  const std::string text = refusal(json);
  EXPECT_EQ(text.find("MiniMax H3 audio_vae"), 0u) << text;
  for (const char* part : parts) EXPECT_NE(text.find(part), std::string::npos) << text;
}

std::string list_of(int count, const std::string& value) {
  std::string text = "[";
  for (int i = 0; i < count; ++i) text += (i > 0 ? ", " : "") + value;
  return text + "]";
}

TEST(AudioVaeConfig, EmptyObject_IsThePublishedModel) {
  const AudioVaeConfig config = parse_audio_vae_config("{}", "config.json");
  EXPECT_EQ(config, published_audio_vae_config());
  EXPECT_EQ(config.hop(), 800);
  EXPECT_EQ(config.head_dim(), 256);
  EXPECT_EQ(config.latents(1), 1);
  EXPECT_EQ(config.latents(800), 1);
  EXPECT_EQ(config.latents(801), 2);
  EXPECT_FLOAT_EQ(config.latents_mean[31], 0.3979258376211797f);
  EXPECT_FLOAT_EQ(config.latents_std[0], 1.6895524230479284f);
}

TEST(AudioVaeConfig, OwnJson_ComesBack) {
  for (const AudioVaeConfig& config : {tiny_audio_vae_config(), published_audio_vae_config()}) {
    EXPECT_EQ(parse_audio_vae_config(audio_vae_config_json(config), "c"), config);
  }
}

TEST(AudioVaeConfig, Metadata_GivesTheShape) {
  const AudioVaeConfig config = parse_audio_vae_config(
      R"({"sample_rate": 32000, "latent_channels": 32})", "c",
      R"({"metadata": {"kwargs": {"vae_latent_channels": 32, "latent_dim": 1024,
          "decoder_type": "bigvgan", "attn_proj": true}}})");
  EXPECT_EQ(config.latent_dim, 1024);
  EXPECT_NE(refusal(R"({"latent_channels": 32})",
                    R"({"metadata": {"kwargs": {"vae_latent_channels": 16}}})")
                .find("mean the same"),
            std::string::npos);
  EXPECT_NE(refusal("{}", R"({"metadata": {"kwargs": {"decoder_type": "dac"}}})").find("bigvgan"),
            std::string::npos);
}

TEST(AudioVaeConfig, Statistics_AreChecked) {
  const std::string good = list_of(32, "1.5");
  EXPECT_EQ(parse_audio_vae_config(
                R"({"latents_mean": )" + good + R"(, "latents_std": )" + good + "}", "c")
                .latents_std,
            std::vector<float>(32, 1.5f));
  expect_refusal(R"({"latents_mean": )" + good + "}", {"latents_std is missing"});
  expect_refusal(R"({"latents_std": )" + good + "}", {"latents_mean is missing"});
  const auto with_std = [&](const std::string& std) {
    return R"({"latents_mean": )" + good + R"(, "latents_std": )" + std + "}";
  };
  expect_refusal(with_std(list_of(31, "1")), {"latents_std", "list of 31", "32 numbers"});
  expect_refusal(with_std(list_of(32, "0")), {"latents_std[0] is 0", "positive"});
  expect_refusal(with_std(list_of(32, "true")), {"latents_std[0] is true"});
  expect_refusal(with_std(list_of(32, "1e60")), {"latents_std[0]", "finite"});
  expect_refusal(with_std("3"), {"latents_std is 3"});
  // Other channels: no published values to stand in.
  EXPECT_TRUE(parse_audio_vae_config(R"({"latent_channels": 16})", "c").latents_mean.empty());
}

TEST(AudioVaeConfig, ShapesThatDoNotFit_AreNamed) {
  expect_refusal(R"({"sample_rate": 16000})", {"sample_rate is 16000", "32000"});
  expect_refusal(R"({"sample_rate": 32000, "sampling_rate": 16000})", {"mean the same"});
  expect_refusal(R"({"encoder_rates": [2, 4, 4, 5]})", {"800", "160"});
  expect_refusal(R"({"decoder_kernel_sizes": [9, 9, 4, 4, 4, 4]})", {"6 entries", "7"});
  expect_refusal(R"({"decoder_kernel_sizes": [8, 9, 4, 4, 4, 4, 4]})", {"8 for the rate 5"});
  expect_refusal(R"({"decoder_dim": 1000})", {"decoder_dim is 1000", "7 times"});
  expect_refusal(R"({"latent_dim": 2050})", {"latent_dim is 2050"});
  expect_refusal(R"({"latent_dim": 32})", {"latent_dim is 32"});
  expect_refusal(R"({"num_attention_heads": 3})", {"num_attention_heads is 3", "2048"});
  expect_refusal(R"({"resblock_kernel_sizes": [3, 7, 10]})", {"has 10", "odd"});
  expect_refusal(R"({"resblock_dilation_sizes": [[1], [1]]})", {"2 entries"});
  expect_refusal(R"({"resblock_dilation_sizes": [[1], [], [1]]})", {"resblock_dilation_sizes"});
  expect_refusal(R"({"encoder_dim": "64"})", {"encoder_dim is \"64\"", "integer from 1"});
  expect_refusal(R"({"encoder_dim": 0, "heads": 1, "latent_dim": -4})",
                 {"encoder_dim is 0", "latent_dim is -4"});
  EXPECT_NE(refusal("[]").find("config.json"), std::string::npos);
}

TEST(AudioVaeConfig, LayersOfTheComponent_TakeItsHeads) {
  ModelLayers layers;
  layers.layers.resize(2);
  layers.layers[0].component = "video_vae";
  layers.layers[1].component = "audio_vae";
  size_audio_layers(tiny_audio_vae_config(), &layers);
  EXPECT_EQ(layers.layers[0].heads, 0);
  EXPECT_EQ(layers.layers[1].heads, 2);
  EXPECT_EQ(layers.layers[1].kv_heads, 2);
  EXPECT_EQ(layers.layers[1].head_dim, 16);
}

}  // namespace
}  // namespace h3::vae_audio
