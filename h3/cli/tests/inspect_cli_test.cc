// `h3 inspect` as users run it, on models of `h3 make-tiny`.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "h3/cli/tests/run_h3.h"

namespace h3::cli {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

class InspectCommand : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = testing::TempDir() + "h3_inspect_XXXXXX";
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    root_ = name;
  }
  void TearDown() override { fs::remove_all(root_); }
  std::string path(const std::string& name) const { return root_ + "/" + name; }
  void make(const std::string& name, std::vector<std::string> more = {}) {
    more.insert(more.begin(), {"make-tiny", path(name)});
    const Outcome o = run_h3(more);
    ASSERT_EQ(o.exit_code, 0) << o.err;
  }
  Json read(const std::string& name) const {
    std::ifstream file(path(name));
    return Json::parse(file);
  }
  void write(const std::string& name, const Json& json) const {
    std::ofstream(path(name)) << json.dump();
  }

  std::string root_;
};

TEST_F(InspectCommand, Native_ShowsWhatIsThere) {
  make("m");
  const Outcome o = run_h3({"inspect", path("m")});
  EXPECT_EQ(o.exit_code, 0) << o.err;
  EXPECT_EQ(o.err, "");
  expect_parts(o.out,
               {"native partition", "fl2va; tasks t2va, fl2va; flow shift 12 video, 3 audio",
                "hidden 256, 3 blocks, 2 refiner blocks, 8 heads x 128, ffn 512", "65 in 3 files",
                "37107776 bytes", "native names", "adaln", "estimate", "complete: every tensor"});
}

TEST_F(InspectCommand, Json_IsOneDocument) {
  make("d", {"--style", "diffusers", "--dtype", "bf16", "--partition", "ref2va"});
  const Outcome o =
      run_h3({"inspect", path("d"), "--json", "--model-variant", "ref2va", "--rows", "6400"});
  ASSERT_EQ(o.exit_code, 0) << o.err;
  const Json json = Json::parse(o.out);
  EXPECT_EQ(json["layout"], "diffusers");
  EXPECT_EQ(json["partition"], "ref2va");
  EXPECT_EQ(json["tasks"], Json{"ref2va"});
  EXPECT_EQ(json["name_style"], "diffusers");
  EXPECT_EQ(json["tensors"], 74);
  EXPECT_EQ(json["config"]["ffn_hidden_size"], 512);
  EXPECT_EQ(json["faults"], Json::array());
  uint64_t bytes = 0;
  int tensors = 0;
  for (const auto& group : json["groups"]) {
    bytes += group["bytes"].get<uint64_t>();
    tensors += group["tensors"].get<int>();
    EXPECT_EQ(group["bytes"],
              group["bf16_bytes"].get<uint64_t>() + group["f32_bytes"].get<uint64_t>());
  }
  EXPECT_EQ(bytes, json["bytes"]);
  EXPECT_EQ(tensors, 74);
  // Weights of a bf16 model in memory are what the files hold.
  EXPECT_EQ(json["memory"]["bf16"]["weight_bytes"], json["bytes"]);
  EXPECT_EQ(json["memory"]["bf16"]["estimated_activation_bytes"],
            6400 * (256 + 4 * 1024) * 2 * 9 / 8);
  // 3 blocks: two norms, qkv, out, fc1, fc2, two head norms.
  EXPECT_EQ(json["groups"]["blocks"]["bf16_bytes"],
            3 * 2 * (2 * 256 + 3072 * 256 + 256 * 1024 + 1024 * 256 + 256 * 512 + 2 * 128));
}

TEST_F(InspectCommand, Faults_AreToldTogetherWithWhatIsKnown) {
  make("m");
  const std::string config = "m/transformer/config.json";
  Json changed = read(config);
  changed["text_dim"] = 100;
  changed["num_layers"] = 4;
  write(config, changed);
  const Outcome wrong = run_h3({"inspect", path("m")});
  EXPECT_EQ(wrong.exit_code, 2);
  expect_parts(wrong.out, {"65 in 3 files", "text 100"});
  EXPECT_EQ(wrong.out.find("complete"), std::string::npos);
  expect_parts(wrong.err, {"h3: error: ", "2 faults", "10 tensors missing: blocks.3.norm1.weight",
                           "condition_proj.weight is [256, 192], needed [256, 100]"});

  changed["num_layers"] = 0;
  write(config, changed);
  fs::resize_file(path("m/transformer/model-00001-of-00003.safetensors"), 1000);
  const Outcome two = run_h3({"inspect", path("m"), "--json"});
  EXPECT_EQ(two.exit_code, 2);
  const Json json = Json::parse(two.out);
  ASSERT_EQ(json["faults"].size(), 2u);
  expect_parts(json["faults"][0], {"num_layers is 0"});
  expect_parts(json["faults"][1], {"model-00001-of-00003", "truncated"});
  EXPECT_TRUE(json["config"].is_null());
  expect_parts(two.err, {"num_layers is 0", "model-00001-of-00003"});
}

TEST_F(InspectCommand, LyingIndex_IsNamed) {
  make("m");
  const std::string index = "m/transformer/model.safetensors.index.json";
  Json json = read(index);
  json["weight_map"]["blocks.9.made.up"] = "model-00001-of-00003.safetensors";
  json["weight_map"]["rope.inv_freq"] = "model-00001-of-00003.safetensors";
  json["weight_map"].erase("condition_proj.bias");
  write(index, json);
  const Outcome o = run_h3({"inspect", path("m")});
  EXPECT_EQ(o.exit_code, 2);
  expect_parts(o.err,
               {"3 faults", "lacks them: 'blocks.9.made.up'", "another file: 'rope.inv_freq'",
                "no entry of the index lists: 'condition_proj.bias'"});
}

TEST_F(InspectCommand, BareFolderAndVariant_AreToldApart) {
  make("m");
  const Outcome bare = run_h3({"inspect", path("m/transformer")});
  EXPECT_EQ(bare.exit_code, 0) << bare.err;
  expect_parts(bare.out, {"transformer folder", "say it with --model-variant"});
  const Outcome wrong = run_h3({"inspect", path("m"), "--model_variant=ref2va"});
  EXPECT_EQ(wrong.exit_code, 2);
  EXPECT_EQ(wrong.out, "");
  expect_parts(wrong.err, {"--model-variant ref2va contradicts", "fl2va"});
  const Outcome folder = run_h3({"inspect", root_, "--model-subfolder", "m"});
  EXPECT_EQ(folder.exit_code, 0) << folder.err;
}

TEST_F(InspectCommand, BadCalls_AreRefused) {
  for (const std::vector<std::string>& args :
       std::vector<std::vector<std::string>>{{"inspect"},
                                             {"inspect", path("absent")},
                                             {"inspect", root_},
                                             {"inspect", root_, "--rows", "0"},
                                             {"inspect", root_, "--model-variant", "x"}}) {
    const Outcome o = run_h3(args);
    EXPECT_EQ(o.exit_code, 2) << o.err;
    EXPECT_EQ(o.out, "");
    EXPECT_TRUE(o.err.starts_with("h3: error: ")) << o.err;
    EXPECT_EQ(std::count(o.err.begin(), o.err.end(), '\n'), 1) << o.err;
  }
}

}  // namespace
}  // namespace h3::cli
