// Tensor lists of the audio VAE's checkpoints.
#include "h3/models/vae_audio/names.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>

#include "h3/common/error.h"
#include "h3/models/vae_audio/tiny.h"
#include "tessera/io/safetensors.h"

namespace h3::vae_audio {
namespace {

using weights::SourceTensor;

int64_t elements(const std::vector<SourceTensor>& tensors) {
  int64_t sum = 0;
  for (const SourceTensor& t : tensors) {
    int64_t count = 1;
    for (const int64_t size : t.shape) count *= size;
    sum += count;
  }
  return sum;
}

std::map<std::string, std::vector<int64_t>> by_name(const std::vector<SourceTensor>& tensors) {
  std::map<std::string, std::vector<int64_t>> shapes;
  for (const SourceTensor& t : tensors) shapes[t.name] = t.shape;
  return shapes;
}

TEST(AudioVaeNames, PublishedModel_HasThePublishedCounts) {
  const auto tensors = checkpoint_tensors(published_audio_vae_config(), NormStyle::kPair);
  EXPECT_EQ(tensors.size(), 1087u);
  EXPECT_EQ(elements(tensors), 151326585);
  const auto count = [&](const char* prefix) {
    return std::count_if(tensors.begin(), tensors.end(),
                         [&](const SourceTensor& t) { return t.name.starts_with(prefix); });
  };
  EXPECT_EQ(count("encoder."), 147);
  EXPECT_EQ(count("pre_block."), 22);
  EXPECT_EQ(count("decoder."), 912);
  const auto shapes = by_name(tensors);
  EXPECT_EQ(shapes.size(), 1087u);
  EXPECT_EQ(shapes.at("encoder.block.5.block.4.weight_v"), (std::vector<int64_t>{2048, 1024, 10}));
  EXPECT_EQ(shapes.at("encoder.block.6.alpha"), (std::vector<int64_t>{1, 2048, 1}));
  EXPECT_EQ(shapes.at("decoder.ups.0.0.weight_v"), (std::vector<int64_t>{1024, 512, 9}));
  EXPECT_EQ(shapes.at("decoder.ups.0.0.weight_g"), (std::vector<int64_t>{1024, 1, 1}));
  EXPECT_EQ(shapes.at("decoder.resblocks.20.activations.5.act.beta"), (std::vector<int64_t>{8}));
  EXPECT_FALSE(shapes.contains("decoder.conv_post.bias"));
}

TEST(AudioVaeNames, Styles_DifferInTheNormedWeightsOnly) {
  const AudioVaeConfig config = tiny_audio_vae_config();
  const auto pair = by_name(checkpoint_tensors(config, NormStyle::kPair));
  const auto other = by_name(checkpoint_tensors(config, NormStyle::kParametrized));
  const auto folded = by_name(checkpoint_tensors(config, NormStyle::kFolded));
  EXPECT_EQ(pair.size(), other.size());
  size_t pairs = 0;
  for (const auto& [name, shape] : pair) {
    if (name.ends_with(".weight_v")) {
      const std::string base = name.substr(0, name.size() - 9);
      EXPECT_EQ(other.at(base + ".parametrizations.weight.original1"), shape);
      EXPECT_EQ(folded.at(base + ".weight"), shape);
      ++pairs;
    } else if (!name.ends_with(".weight_g")) {
      EXPECT_EQ(other.at(name), shape);
      EXPECT_EQ(folded.at(name), shape);
    }
  }
  EXPECT_EQ(folded.size() + pairs, pair.size());
  EXPECT_GT(pairs, 10u);
}

TEST(AudioVaeNames, Recipes_TakeEveryTensorWhole) {
  for (const NormStyle style : {NormStyle::kPair, NormStyle::kParametrized, NormStyle::kFolded}) {
    const auto sources = by_name(checkpoint_tensors(tiny_audio_vae_config(), style));
    std::set<std::string> used;
    for (const auto& recipe : model_recipes(tiny_audio_vae_config(), style)) {
      ASSERT_EQ(recipe.pieces.size(), 1u);
      EXPECT_EQ(sources.at(recipe.pieces[0].source), recipe.shape) << recipe.name;
      EXPECT_TRUE(used.insert(recipe.pieces[0].source).second);
      EXPECT_EQ(recipe.name.find("parametrizations"), std::string::npos);
    }
    EXPECT_EQ(used.size(), sources.size());
  }
}

class AudioVaeFolder : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = ::testing::TempDir() + "vae_audio_names_" +
              ::testing::UnitTest::GetInstance()->current_test_info()->name();
    std::filesystem::create_directories(folder_);
    const std::string json = audio_vae_config_json(tiny_audio_vae_config());
    ASSERT_TRUE(
        tessera::io::write_file_atomic(folder_ + "/config.json", json.data(), json.size()).ok());
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  void write(std::vector<SourceTensor> tensors) {
    std::vector<std::vector<float>> data;
    std::vector<tessera::io::SafetensorsItem> items;
    for (const SourceTensor& t : tensors) {
      data.emplace_back(static_cast<size_t>(elements({t})));
    }
    for (size_t i = 0; i < tensors.size(); ++i) {
      items.push_back({tensors[i].name, tensors[i].dtype, tensors[i].shape, data[i].data()});
    }
    const auto s = tessera::io::write_safetensors(folder_ + "/model.safetensors", items);
    ASSERT_TRUE(s.ok()) << s.message();
  }

  std::string refusal() {
    try {
      open_audio_vae(folder_);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
      return error.what();
    }
    return "";
  }

  std::string folder_;
};

TEST_F(AudioVaeFolder, EveryStyle_IsRecognised) {
  for (const NormStyle style : {NormStyle::kPair, NormStyle::kParametrized, NormStyle::kFolded}) {
    write(checkpoint_tensors(tiny_audio_vae_config(), style));
    const AudioVaeCheckpoint model = open_audio_vae(folder_);
    EXPECT_EQ(model.style, style) << norm_style_text(style);
    EXPECT_EQ(model.config, tiny_audio_vae_config());
  }
}

TEST_F(AudioVaeFolder, RandomModel_IsCompleteAndRepeatable) {
  const auto values = [&](NormStyle style, uint64_t seed) {
    write_random_audio_vae(folder_, tiny_audio_vae_config(), style, seed);
    const AudioVaeCheckpoint model = open_audio_vae(folder_);
    EXPECT_EQ(model.style, style);
    std::vector<float> all;
    for (const auto& recipe : model_recipes(model.config, style)) {
      const auto* t = model.checkpoint.find(recipe.pieces[0].source);
      const auto* data = reinterpret_cast<const float*>(t->data);
      all.insert(all.end(), data, data + t->bytes / sizeof(float));
    }
    return all;
  };
  const auto first = values(NormStyle::kPair, 1);
  EXPECT_EQ(values(NormStyle::kParametrized, 1), first);
  EXPECT_NE(values(NormStyle::kPair, 2), first);
  // The filter's published taps.
  const AudioVaeCheckpoint model = open_audio_vae(folder_);
  const auto* taps = reinterpret_cast<const float*>(
      model.checkpoint.find("decoder.activation_post.upsample.filter")->data);
  const float published[] = {0.00202896469f,  0.00938946567f, -0.02554345876f,
                             -0.05765738338f, 0.12857258320f, 0.44320979714f};
  for (int i = 0; i < 6; ++i) {
    EXPECT_NEAR(taps[i], published[i], 6e-8);
    EXPECT_EQ(taps[i], taps[11 - i]);
  }
}

TEST_F(AudioVaeFolder, MissingAndUnexpectedTensors_AreRefusedTogether) {
  auto tensors = checkpoint_tensors(tiny_audio_vae_config(), NormStyle::kPair);
  tensors.back().name = "decoder.conv_last.weight_v";
  tensors.front().shape[0] += 1;
  write(tensors);
  const std::string text = refusal();
  EXPECT_NE(text.find("decoder.conv_post.weight_v"), std::string::npos) << text;
  EXPECT_NE(text.find("decoder.conv_last.weight_v"), std::string::npos) << text;
  EXPECT_NE(text.find("encoder.block.0.weight_g"), std::string::npos) << text;
}

TEST_F(AudioVaeFolder, OtherModels_AreRefused) {
  write({{"encoder.conv_in.weight", {2, 2}, tessera::Dtype::kF32}});
  EXPECT_NE(refusal().find("is no MiniMax-H3 audio VAE"), std::string::npos) << refusal();
  auto tensors = checkpoint_tensors(tiny_audio_vae_config(), NormStyle::kPair);
  tensors.push_back({"encoder.block.0.weight", {4, 1, 7}, tessera::Dtype::kF32});
  write(tensors);
  EXPECT_NE(refusal().find("several forms"), std::string::npos) << refusal();
}

}  // namespace
}  // namespace h3::vae_audio
