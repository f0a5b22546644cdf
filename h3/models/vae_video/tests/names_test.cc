// Names, shapes and counts of the video VAE's tensors; opening checkpoints of both layouts.
#include "h3/models/vae_video/names.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "h3/common/error.h"
#include "h3/models/vae_video/checkpoint.h"
#include "h3/weights/recipes.h"
#include "tessera/io/safetensors.h"

namespace h3::vae_video {
namespace {

namespace fs = std::filesystem;
using weights::SourceTensor;

int64_t elements(const std::vector<SourceTensor>& tensors) {
  int64_t sum = 0;
  for (const SourceTensor& t : tensors) {
    const auto [rows, columns] = weights::as_matrix(t.shape);
    sum += rows * columns;
  }
  return sum;
}

const SourceTensor* find(const std::vector<SourceTensor>& tensors, const std::string& name) {
  const auto at = std::find_if(tensors.begin(), tensors.end(),
                               [&](const SourceTensor& t) { return t.name == name; });
  return at == tensors.end() ? nullptr : &*at;
}

TEST(VideoVaeNames, Published_CountsAndElements) {
  const VideoVaeConfig c;
  const auto official = checkpoint_tensors(c, NameStyle::kOfficial);
  EXPECT_EQ(official.size(), 559u);  // and mask_token
  EXPECT_EQ(elements(official), 2603871032 - 2048);
  EXPECT_EQ(optional_tensors(c, NameStyle::kOfficial),
            (std::vector<std::string>{"decoder.mask_token"}));
  const auto diffusers = checkpoint_tensors(c, NameStyle::kDiffusers);
  EXPECT_EQ(diffusers.size(), 703u);
  EXPECT_EQ(elements(diffusers), 2603868984);
  EXPECT_TRUE(optional_tensors(c, NameStyle::kDiffusers).empty());
  const auto encoder = model_recipes(c, NameStyle::kOfficial, Part::kEncoder);
  const auto decoder = model_recipes(c, NameStyle::kOfficial, Part::kDecoder);
  EXPECT_EQ(encoder.size(), 116u + 2u);
  EXPECT_EQ(decoder.size(), 439u + 2u);
}

TEST(VideoVaeNames, Published_Shapes) {
  const VideoVaeConfig c;
  const auto official = checkpoint_tensors(c, NameStyle::kOfficial);
  const auto diffusers = checkpoint_tensors(c, NameStyle::kDiffusers);
  using Shape = std::vector<int64_t>;
  const std::pair<const char*, Shape> expected[] = {
      {"encoder.conv_in.weight", {128, 3, 3, 3, 3}},
      {"encoder.down.5.block.0.nin_shortcut.weight", {1024, 512, 1, 1, 1}},
      {"encoder.down.3.downsample.conv.weight", {512, 512, 3, 3, 3}},
      {"encoder.norm_out.bias", {1024}},
      {"quant_conv.weight", {48, 48, 1, 1, 1}},
      {"decoder.x_embedder.weight", {2048, 24}},
      {"decoder.transformer_blocks.35.attn.to_qkv.bias", {6144}},
      {"decoder.transformer_blocks.0.ff.w1.weight", {16384, 2048}},
      {"decoder.transformer_blocks.0.scale1", {2048}},
      {"decoder.register_tokens", {1, 4, 2048}},
      {"decoder.proj_out.weight", {3072, 2048}}};
  for (const auto& [name, shape] : expected) {
    const SourceTensor* t = find(official, name);
    ASSERT_NE(t, nullptr) << name;
    EXPECT_EQ(t->shape, shape) << name;
  }
  for (const char* name :
       {"encoder.down.4.downsample.conv.weight", "encoder.down.1.block.1.nin_shortcut.weight"}) {
    EXPECT_EQ(find(official, name), nullptr) << name;
  }
  for (const char* name : {"encoder.down_blocks.5.resnets.0.conv_shortcut.bias",
                           "encoder.down_blocks.0.downsamplers.0.conv.weight",
                           "decoder.proj_in.weight", "decoder.transformer_blocks.7.attn.to_k.bias",
                           "decoder.transformer_blocks.7.attn.to_out.0.weight",
                           "decoder.transformer_blocks.7.ff.net.0.proj.bias",
                           "decoder.transformer_blocks.7.ff.net.2.weight"}) {
    EXPECT_NE(find(diffusers, name), nullptr) << name;
  }
}

// Row r of the model's [q; k; v] against the interleaved rows of the release.
TEST(VideoVaeNames, Qkv_IsTakenApartPerHead) {
  const VideoVaeConfig c = tiny_video_vae_config();  // 4 heads x 32
  for (const auto& recipe : model_recipes(c, NameStyle::kOfficial)) {
    if (!recipe.name.ends_with("to_qkv.weight")) continue;
    ASSERT_EQ(recipe.pieces.size(), 12u);
    for (const weights::Piece& p : recipe.pieces) {
      const int64_t matrix = p.target_row / 128, head = p.target_row % 128 / 32;
      EXPECT_EQ(p.row, head * 96 + matrix * 32);
      EXPECT_EQ(p.rows, 32);
      EXPECT_EQ(p.columns, 128);
    }
  }
}

class VideoVaeFolder : public ::testing::Test {
 protected:
  VideoVaeFolder() {
    std::string name = ::testing::TempDir() + "h3_vae_video_XXXXXX";
    EXPECT_NE(mkdtemp(name.data()), nullptr);
    folder_ = name;
  }
  ~VideoVaeFolder() override { fs::remove_all(folder_); }

  void write_text(const fs::path& path, const std::string& text) {
    fs::create_directories(path.parent_path());
    std::ofstream(path) << text;
  }
  void write_tensors(const fs::path& path, std::vector<SourceTensor> tensors) {
    fs::create_directories(path.parent_path());
    const std::vector<float> zeros(1 << 20);
    std::vector<tessera::io::SafetensorsItem> items;
    for (const SourceTensor& t : tensors) items.push_back({t.name, t.dtype, t.shape, zeros.data()});
    ASSERT_TRUE(tessera::io::write_safetensors(path.string(), items).ok());
  }
  std::string refusal(const std::string& path) {
    try {
      open_video_vae(path);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
      return error.what();
    }
    ADD_FAILURE() << "nothing was thrown";
    return "";
  }

  fs::path folder_;
  const VideoVaeConfig config_ = tiny_video_vae_config();
};

TEST_F(VideoVaeFolder, Official_IsFoundUnderTheVariant) {
  write_text(folder_ / "video_vae/config.json", video_vae_config_json(config_));
  write_text(folder_ / "video_vae/source/config.json", R"({"z_channels": 24})");
  auto tensors = checkpoint_tensors(config_, NameStyle::kOfficial);
  tensors.push_back({"decoder.mask_token", {1, 1, 128}, tessera::Dtype::kF32});
  write_tensors(folder_ / "video_vae/source/model.safetensors", tensors);
  for (const fs::path& path : {folder_, folder_ / "video_vae"}) {
    const VideoVaeCheckpoint vae = open_video_vae(path.string());
    EXPECT_EQ(vae.style, NameStyle::kOfficial);
    EXPECT_EQ(vae.config, config_);
    EXPECT_NO_THROW(weights::check_recipes(vae.checkpoint, model_recipes(vae.config, vae.style)));
  }
}

TEST_F(VideoVaeFolder, Diffusers_IsFoundInVae) {
  write_text(folder_ / "vae/config.json", video_vae_config_diffusers_json(config_));
  write_tensors(folder_ / "vae/diffusion_pytorch_model.safetensors",
                checkpoint_tensors(config_, NameStyle::kDiffusers));
  const VideoVaeCheckpoint vae = open_video_vae(folder_.string());
  EXPECT_EQ(vae.style, NameStyle::kDiffusers);
  EXPECT_NO_THROW(weights::check_recipes(vae.checkpoint, model_recipes(vae.config, vae.style)));
}

TEST_F(VideoVaeFolder, Faults_AreAllNamed) {
  EXPECT_NE(refusal(folder_.string()).find("holds no video VAE"), std::string::npos);
  write_text(folder_ / "config.json", video_vae_config_json(config_));
  auto tensors = checkpoint_tensors(config_, NameStyle::kOfficial);
  std::erase_if(tensors, [](const SourceTensor& t) { return t.name == "quant_conv.bias"; });
  tensors.push_back({"decoder.pos_embed", {4}, tessera::Dtype::kF32});
  tensors[0].shape[0] = 16;
  tensors[1].dtype = tessera::Dtype::kBf16;
  write_tensors(folder_ / "model.safetensors", tensors);
  const std::string text = refusal(folder_.string());
  for (const char* part : {"quant_conv.bias", "decoder.pos_embed", "encoder.conv_in.weight is [16",
                           "encoder.conv_in.bias is bf16, needed f32"}) {
    EXPECT_NE(text.find(part), std::string::npos) << "missing: " << part << "\nin: " << text;
  }
}

}  // namespace
}  // namespace h3::vae_video
