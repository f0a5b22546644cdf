// config.json of the video VAE: both kinds of key names, the release's two files, and refusals.
#include "h3/models/vae_video/config.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "h3/common/error.h"

namespace h3::vae_video {
namespace {

using Json = nlohmann::json;

Error thrown_by(const Json& json, const std::string& source = {}) {
  try {
    parse_video_vae_config(json.dump(), "config.json", source);
  } catch (const Error& error) {
    return error;
  }
  ADD_FAILURE() << "nothing was thrown for " << json.dump();
  return Error(ErrorCode::kInternal, "nothing was thrown");
}

void expect_refused(const Json& json, ErrorCode code, const std::vector<std::string>& parts) {
  const Error error = thrown_by(json);
  EXPECT_EQ(error.code(), code) << error.what();
  const std::string text = error.what();
  EXPECT_TRUE(text.starts_with("MiniMax H3 video_vae")) << text;
  for (const std::string& part : parts) {
    EXPECT_NE(text.find(part), std::string::npos) << "missing: " << part << "\nin: " << text;
  }
}

TEST(VideoVaeConfig, Defaults_ArePublished) {
  const VideoVaeConfig c;
  EXPECT_EQ(c.space_ratio(), 16);
  EXPECT_EQ(c.time_ratio(), 4);
  EXPECT_EQ(c.dim(), 2048);
  EXPECT_EQ(c.ffn(), 8192);
  EXPECT_EQ(c.rope_dim(), 48);
  EXPECT_EQ(c.patch_channels(), 3072);
  EXPECT_EQ(c.latents_mean.size(), 24u);
  EXPECT_EQ(c.latents_std.size(), 24u);
  EXPECT_FLOAT_EQ(c.latents_mean[13], -0.4035342037677765f);
  EXPECT_FLOAT_EQ(c.latents_std[20], 3.276226282119751f);
  EXPECT_EQ(parse_video_vae_config("{}", "empty"), c);
}

TEST(VideoVaeConfig, BothNameStyles_RoundTrip) {
  for (VideoVaeConfig c :
       {VideoVaeConfig{}, tiny_video_vae_config(), tiny_released_ratio_config()}) {
    c.latents_mean[3] = 0.25f;
    c.layers = 5;
    c.decoder_eps = 2e-5;
    EXPECT_EQ(parse_video_vae_config(video_vae_config_json(c), "official"), c);
    EXPECT_EQ(parse_video_vae_config(video_vae_config_diffusers_json(c), "diffusers"), c);
  }
}

TEST(VideoVaeConfig, ReleaseFiles_AreMerged) {
  const std::string source =
      R"({"ch": 32, "ch_mult": [1, 2], "space_down": [2, 2], "time_down": [2, 2], "z_channels": 24,
          "num_res_blocks": 1, "causal_decoder": false, "_class_name": "AutoencoderKLLegacy",
          "vit_decoder_kwargs": {"num_layers": 3, "heads": 2, "dim_head": 64, "speed": 1}})";
  const VideoVaeConfig c = parse_video_vae_config(
      R"({"_class_name": "MiniMaxH3VideoVAE", "vae_tile_size": 128, "decoder_tile_overlap_min": 32,
          "vae_encoder_tiling": 0, "source_path": "source"})",
      "config.json", source);
  EXPECT_EQ(c.widths, (std::vector<int64_t>{32, 64}));
  EXPECT_EQ(c.layers, 3);
  EXPECT_EQ(c.blocks_per_level, 1);
  EXPECT_EQ(c.encode_tiles, (TileSettings{128, 64}));
  EXPECT_EQ(c.decode_tiles, (TileSettings{128, 32}));
  EXPECT_FALSE(c.encoder_tiling);
  EXPECT_EQ(c.unused_keys, (std::vector<std::string>{"speed"}));
  const Error error = thrown_by({{"z_channels", 16}}, source);
  EXPECT_NE(std::string(error.what()).find("z_channels is 16 but 24 in source"), std::string::npos)
      << error.what();
}

TEST(VideoVaeConfig, Aliases_MustAgree) {
  expect_refused({{"vae_clip_length", 17}, {"clip_length", 33}}, ErrorCode::kInvalidArgument,
                 {"vae_clip_length is 17 but clip_length is 33"});
  expect_refused({{"latent_channels", 24}, {"embed_dim", 16}}, ErrorCode::kInvalidArgument,
                 {"embed_dim is 16 but latent_channels is 24"});
  expect_refused({{"ch", 64}, {"block_out_channels", {128, 256, 256, 512, 512, 1024}}},
                 ErrorCode::kInvalidArgument, {"ch times ch_mult is [64,128"});
}

TEST(VideoVaeConfig, Statistics_AreChecked) {
  const std::vector<double> fine(24, 0.5);
  std::vector<double> zero = fine, few(23, 0.5);
  zero[7] = 0;
  Json flag = fine;
  flag[2] = true;
  Json text = fine;
  text[2] = "0.5";
  expect_refused({{"latents_mean", fine}, {"latents_std", few}}, ErrorCode::kInvalidArgument,
                 {"latents_std has 23 entries", "24 finite numbers"});
  expect_refused({{"latents_mean", fine}, {"latents_std", zero}}, ErrorCode::kInvalidArgument,
                 {"latents_std holds 0", "above 0"});
  expect_refused({{"latents_mean", flag}, {"latents_std", fine}}, ErrorCode::kInvalidArgument,
                 {"latents_mean holds true"});
  expect_refused({{"latents_mean", text}, {"latents_std", fine}}, ErrorCode::kInvalidArgument,
                 {"latents_mean holds"});
  expect_refused({{"latents_mean", fine}}, ErrorCode::kInvalidArgument, {"latents_std is missing"});
  expect_refused({{"latent_channels", 8}}, ErrorCode::kInvalidArgument,
                 {"of 24 channels, not of 8"});
  // Not a float any more.
  std::vector<double> huge = fine;
  huge[0] = 1e300;
  expect_refused({{"latents_mean", huge}, {"latents_std", fine}}, ErrorCode::kInvalidArgument,
                 {"latents_mean holds"});
}

// Behaviour 3 of the seed.
TEST(VideoVae, RejectsCausalDecoder) {
  for (const Json& json :
       {Json{{"causal_decoder", true}}, Json{{"vit_decoder_kwargs", {{"t_causal", true}}}}}) {
    expect_refused(json, ErrorCode::kUnsupported, {"causal", "released ViT decoder is non-causal"});
  }
  EXPECT_NO_THROW(parse_video_vae_config(
      R"({"causal_decoder": false, "vit_decoder_kwargs": {"t_causal": false}})", "config.json"));
}

TEST(VideoVaeConfig, OtherForms_AreRefused) {
  const auto vit = [](const char* key, const Json& value) {
    return Json{{"vit_decoder_kwargs", {{key, value}}}};
  };
  expect_refused({{"causal_encoder", false}}, ErrorCode::kUnsupported, {"causal_encoder is false"});
  expect_refused({{"padding_mode", "zeros"}}, ErrorCode::kUnsupported, {"reflect"});
  expect_refused({{"isolated_last_frame", true}}, ErrorCode::kUnsupported, {"isolated_last_frame"});
  expect_refused({{"pixel_norm_type", "simple"}}, ErrorCode::kUnsupported, {"imagenet"});
  expect_refused(vit("qk_norm_affine", true), ErrorCode::kUnsupported, {"qk_norm_affine"});
  expect_refused(vit("ffn_activation_fn", "gelu"), ErrorCode::kUnsupported, {"silu"});
  expect_refused(vit("norm_type", "layer_norm"), ErrorCode::kUnsupported, {"rms_norm"});
  expect_refused(vit("qk_norm_type", "batch_norm"), ErrorCode::kInvalidArgument,
                 {"none, layer_norm and rms_norm"});
  expect_refused({{"decoder_parallel", true}}, ErrorCode::kInvalidArgument,
                 {"complete-tile parallel decode"});
  EXPECT_EQ(parse_video_vae_config(vit("qk_norm_type", "layer_norm").dump(), "x").qk_norm,
            QkNorm::kLayerNorm);
  EXPECT_EQ(parse_video_vae_config(vit("qk_norm_type", nullptr).dump(), "x").qk_norm,
            QkNorm::kNone);
}

TEST(VideoVaeConfig, Sizes_AreChecked) {
  expect_refused({{"vae_tile_size", 250}}, ErrorCode::kInvalidArgument,
                 {"tiles of 250 pixels", "multiples of 16"});
  expect_refused({{"vae_tile_size", 64}}, ErrorCode::kInvalidArgument, {"overlap below the size"});
  expect_refused({{"vae_tile_size", 0}}, ErrorCode::kInvalidArgument, {"vae_tile_size is 0"});
  expect_refused({{"vae_token_drop", 5}}, ErrorCode::kInvalidArgument, {"1 to 4 is accepted"});
  expect_refused({{"vae_token_drop", true}}, ErrorCode::kInvalidArgument,
                 {"vae_token_drop is true"});
  expect_refused({{"space_down", {2, 2}}}, ErrorCode::kInvalidArgument, {"one of each per level"});
  expect_refused({{"space_down", {2, 2, 1, 2, 2, 1}}}, ErrorCode::kInvalidArgument,
                 {"level 2 halves time but not space"});
  expect_refused({{"decoder_rope_dim_ratio", 0.5}}, ErrorCode::kInvalidArgument,
                 {"32 of 64", "multiple of 6"});
  expect_refused({{"norm_num_groups", 48}}, ErrorCode::kInvalidArgument, {"48 groups"});
  // All faults at once.
  expect_refused({{"vae_tile_size", -1}, {"num_res_blocks", "two"}, {"norm_eps", 0}},
                 ErrorCode::kInvalidArgument,
                 {"vae_tile_size is -1", "num_res_blocks is", "norm_eps is 0"});
}

}  // namespace
}  // namespace h3::vae_video
