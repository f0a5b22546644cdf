// `h3 make-tiny` as users run it.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "h3/cli/tests/run_h3.h"

namespace h3::cli {
namespace {

namespace fs = std::filesystem;

class MakeTinyCommand : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = testing::TempDir() + "h3_make_tiny_XXXXXX";
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    root_ = name;
  }
  void TearDown() override { fs::remove_all(root_); }
  std::string path(const std::string& name) const { return root_ + "/" + name; }
  size_t entries() const {
    return static_cast<size_t>(std::distance(fs::directory_iterator(root_), {}));
  }
  std::string content(const std::string& name) const {
    std::ifstream file(path(name), std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }

  std::string root_;
};

TEST_F(MakeTinyCommand, Native_IsAPartition) {
  const Outcome o = run_h3({"make-tiny", path("m"), "--seed", "3"});
  ASSERT_EQ(o.exit_code, 0) << o.err;
  EXPECT_EQ(o.out, "");
  const auto index = nlohmann::json::parse(content("m/model_index.json"));
  EXPECT_EQ(index["_minimax_h3"]["partition"], "fl2va");
  EXPECT_EQ(index["_minimax_h3"]["sigma_shift_scales"]["video"], 12.0);
  const auto shards = nlohmann::json::parse(content("m/transformer/model.safetensors.index.json"));
  EXPECT_EQ(shards["weight_map"].size(), 65u);
  EXPECT_EQ(shards["weight_map"]["blocks.0.norm1.weight"].get<std::string>().substr(0, 6),
            "model-");
  EXPECT_TRUE(fs::exists(path("m/transformer/config.json")));
  EXPECT_TRUE(fs::exists(path("m/transformer/model-00003-of-00003.safetensors")));
  EXPECT_EQ(entries(), 1u) << "something was left beside";
}

TEST_F(MakeTinyCommand, Diffusers_HasItsSchedulers) {
  ASSERT_EQ(run_h3({"make-tiny", path("d"), "--style", "diffusers", "--dtype", "bf16"}).exit_code,
            0);
  EXPECT_EQ(nlohmann::json::parse(content("d/scheduler/scheduler_config.json"))["shift"], 12.0);
  EXPECT_EQ(nlohmann::json::parse(content("d/audio_scheduler/scheduler_config.json"))["shift"],
            3.0);
  const auto config = nlohmann::json::parse(content("d/transformer/config.json"));
  EXPECT_EQ(config["_class_name"], "MiniMaxH3Transformer3DModel");
  ASSERT_EQ(
      run_h3({"make-tiny", path("r"), "--style", "diffusers", "--partition", "ref2va"}).exit_code,
      0);
  EXPECT_TRUE(fs::exists(path("r/transformer_ref/config.json")));
}

TEST_F(MakeTinyCommand, Seed_DecidesTheFiles) {
  const std::string shard = "/transformer/model-00002-of-00003.safetensors";
  for (const char* name : {"a", "b"}) {
    ASSERT_EQ(run_h3({"make-tiny", path(name), "--seed", "1"}).exit_code, 0);
  }
  const std::string first = content("a" + shard);
  EXPECT_GT(first.size(), 1000000u);
  EXPECT_TRUE(first == content("b" + shard));
  ASSERT_EQ(run_h3({"make-tiny", path("b"), "--seed", "2"}).exit_code, 0);  // replaces its own
  EXPECT_FALSE(first == content("b" + shard));
}

TEST_F(MakeTinyCommand, OthersFolders_AreRefused) {
  fs::create_directory(path("full"));
  std::ofstream(path("full/note")) << "mine";
  const Outcome full = run_h3({"make-tiny", path("full")});
  EXPECT_EQ(full.exit_code, 2);
  expect_parts(full.err, {"h3: error: ", "not empty", "new or an empty folder"});
  EXPECT_EQ(content("full/note"), "mine");
  EXPECT_EQ(entries(), 1u);
  EXPECT_EQ(run_h3({"make-tiny", path("no/such/parent")}).exit_code, 2);
  EXPECT_EQ(run_h3({"make-tiny", path("full/note")}).exit_code, 2);
}

TEST_F(MakeTinyCommand, BadOptions_AreUsageErrors) {
  for (const std::vector<std::string>& args :
       std::vector<std::vector<std::string>>{{"make-tiny"},
                                             {"make-tiny", path("x"), "--style", "comfy"},
                                             {"make-tiny", path("x"), "--dtype", "f16"},
                                             {"make-tiny", path("x"), "--partition", "hybrid"},
                                             {"make-tiny", path("x"), "--seed", "-1"},
                                             {"make-tiny", path("x"), "--sed", "1"}}) {
    const Outcome o = run_h3(args);
    EXPECT_EQ(o.exit_code, 2) << o.err;
    EXPECT_TRUE(o.err.starts_with("h3: error: ")) << o.err;
  }
  EXPECT_EQ(entries(), 0u);
}

}  // namespace
}  // namespace h3::cli
