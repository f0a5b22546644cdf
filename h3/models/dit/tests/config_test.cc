#include "h3/models/dit/config.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "h3/common/error.h"
#include "h3/models/dit/memory.h"

namespace h3::dit {
namespace {

using Json = nlohmann::json;

const char* const kPublished = R"({"_class_name": "MiniMaxH3DiTModel",
  "hidden_size": 5376, "num_layers": 50, "token_refiner_num_layers": 2, "num_attention_heads": 56,
  "attention_head_dim": 128, "ffn_hidden_size": 14336, "latents_dim": 24, "audio_latents_dim": 32,
  "patch_size": [1, 2, 2], "text_dim": 5120, "timestep_input_dim": 256,
  "time_embed_hidden_size": 5376, "time_embed_dim": 2688, "adaln_out_features": 96768,
  "final_adaln_out_features": 10752, "rope_inv_freq_len": 16, "norm_eps": 1e-5,
  "qk_norm_eps": 1e-5, "final_norm_eps": 1e-5})";

DitConfig parse(const Json& json) { return parse_dit_config(json.dump(), "config.json"); }

std::string refusal(const std::string& text) {
  try {
    parse_dit_config(text, "config.json");
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    return error.what();
  }
  ADD_FAILURE() << "accepted: " << text;
  return "";
}

// The published config with some keys changed.
std::string refusal(const Json& change) {
  Json json = Json::parse(kPublished);
  json.update(change);
  return refusal(json.dump());
}

void expect_parts(const std::string& text, const std::vector<std::string>& parts) {
  for (const std::string& part : parts) {
    EXPECT_NE(text.find(part), std::string::npos) << "missing: " << part << "\nin: " << text;
  }
}

TEST(DitConfigFile, Published_IsTheDefault) {
  EXPECT_EQ(parse_dit_config(kPublished, "config.json"), DitConfig{});
  EXPECT_EQ(DitConfig{}.inner(), 7168);
  EXPECT_EQ(DitConfig{}.video_row(), 96);
  EXPECT_EQ(DitConfig{}.adaln_out(), 96768);
}

TEST(DitConfigFile, BothKeySets_RoundTrip) {
  DitConfig config = tiny_dit_config();
  config.refiner_layers = 1;
  config.rope_theta = 500;
  config.norm_eps = 1e-6;
  config.qk_norm_eps = 2e-6;
  config.final_norm_eps = 3e-6;
  EXPECT_EQ(parse_dit_config(dit_config_json(config), "native"), config);
  const std::string diffusers = dit_config_diffusers_json(config);
  EXPECT_EQ(parse_dit_config(diffusers, "diffusers"), config);
  expect_parts(diffusers, {"\"ffn_dim\": 512", "\"freq_dim\": 256", "\"in_channels\": 24",
                           "\"num_refiner_layers\": 1", "\"rope_freq_dim\": 16"});
  EXPECT_EQ(diffusers.find("adaln_out_features"), std::string::npos);
}

TEST(DitConfigFile, Tiny_IsAsSpecified) {
  const Json json = Json::parse(dit_config_json(tiny_dit_config()));
  EXPECT_EQ(json["adaln_out_features"], 4608);
  EXPECT_EQ(json["final_adaln_out_features"], 512);
  EXPECT_EQ(json["time_embed_hidden_size"], 256);
  EXPECT_NE(tiny_dit_config().inner(), tiny_dit_config().hidden);
}

TEST(DitConfigFile, BothKeys_MustAgree) {
  EXPECT_EQ(
      parse(Json::parse(kPublished)
                .patch(Json::parse(R"([{"op": "add", "path": "/ffn_dim", "value": 14336}])"))),
      DitConfig{});
  expect_parts(refusal(Json{{"ffn_dim", 512}}),
               {"ffn_hidden_size is 14336 but ffn_dim is 512", "config.json"});
}

TEST(DitConfigFile, AbsentKeys_NeedAKnownClass) {
  EXPECT_EQ(parse({{"_class_name", "MiniMaxH3Transformer3DModel"}, {"num_layers", 4}}).layers, 4);
  const std::string unknown = refusal(std::string(R"({"num_layers": 4})"));
  expect_parts(unknown, {"hidden_size is missing", "ffn_hidden_size (ffn_dim) is missing",
                         "patch_size is missing", "norm_eps is missing", "MiniMaxH3DiTModel"});
  EXPECT_EQ(unknown.find("num_layers is"), std::string::npos);
  Json complete = Json::parse(kPublished);  // all there: no class is needed
  complete.erase("_class_name");
  EXPECT_EQ(parse(complete), DitConfig{});
}

TEST(DitConfigFile, Faults_AreToldAtOnce) {
  const std::string text = refusal(Json{{"hidden_size", 0},
                                        {"num_layers", "50"},
                                        {"num_attention_heads", 56.0},
                                        {"text_dim", true},
                                        {"latents_dim", -1},
                                        {"time_embed_dim", 18446744073709551615u},
                                        {"patch_size", {2, 2, 2}},
                                        {"norm_eps", 0},
                                        {"qk_norm_eps", "x"}});
  expect_parts(text, {"config.json: 9 faults", "hidden_size is 0; an integer from 1 to",
                      "num_layers is \"50\"", "num_attention_heads is 56.0", "text_dim is true",
                      "latents_dim is -1", "time_embed_dim is 18446744073709551615",
                      "patch_size is [2,2,2]; [1, 2, 2]", "norm_eps is 0; a positive number",
                      "qk_norm_eps is \"x\""});
}

TEST(DitConfigFile, Relations_AreChecked) {
  expect_parts(refusal(Json{{"adaln_out_features", 96767}, {"final_adaln_out_features", 5376}}),
               {"adaln_out_features is 96767; 18 * hidden_size = 96768",
                "final_adaln_out_features is 5376; 2 * hidden_size = 10752"});
  expect_parts(refusal(Json{{"attention_head_dim", 64}}), {"attention_head_dim is 64", "128"});
  expect_parts(refusal(Json{{"rope_inv_freq_len", 22}}), {"132 of the 128 dimensions"});
  expect_parts(refusal(Json{{"timestep_input_dim", 255}}), {"timestep_input_dim is 255", "even"});
  expect_parts(refusal(Json{{"adaln_rank", 8}}), {"adaln_rank is 8", "pruned checkpoint"});
}

TEST(DitConfigFile, Damage_IsNamed) {
  expect_parts(refusal(std::string("{\"a\": }")), {"config.json: not JSON at byte 7"});
  expect_parts(refusal(std::string("[1]")), {"holds no JSON object but [1]"});
  expect_parts(refusal(std::string(R"({"num_layers": 1, "num_layers": 2})")),
               {"key 'num_layers' is given twice"});
  expect_parts(refusal(std::string("{}\0{}", 5)), {"NUL byte"});
  refusal(std::string());
  refusal(std::string(100000, '['));
}

TEST(DitMemory, Published_IsTheStatedEstimate) {
  const DitConfig config;
  // 37760 x (5376 + 4 x 7168) x 2 bytes.
  EXPECT_EQ(estimated_activation_bytes(config, 37760, tessera::Dtype::kBf16), 2571304960 * 9 / 8);
  EXPECT_EQ(estimated_activation_bytes(config, 37760, tessera::Dtype::kF32),
            2 * 2571304960 * 9 / 8);
}

}  // namespace
}  // namespace h3::dit
