#include "h3/weights/model_paths.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "h3/weights/tests/checkpoint_files.h"

namespace h3::weights {
namespace {

using Json = nlohmann::json;

Json block(const std::string& partition) {
  const bool ref = partition == "ref2va";
  return {{"schema_version", 1},
          {"partition", partition},
          {"tasks", ref ? Json{"ref2va"} : Json{"t2va", "fl2va"}},
          {"task_aliases", Json::object()},
          {"sigma_shift_scales", {{"video", ref ? 11.0 : 12.0}, {"audio", 3}}}};
}

void write_partition(const std::string& folder, const std::string& partition) {
  write_file(folder + "/model_index.json", Json{{"_minimax_h3", block(partition)}}.dump());
  write_file(folder + "/transformer/config.json", R"({"_class_name": "MiniMaxH3DiTModel"})");
}

void write_diffusers(const std::string& folder, const std::vector<std::string>& transformers) {
  for (const std::string& name : transformers) {
    write_file(folder + "/" + name + "/config.json",
               R"({"_class_name": "MiniMaxH3Transformer3DModel"})");
  }
  write_file(folder + "/model_index.json", R"({"_class_name": "Modular"})");
  write_file(folder + "/scheduler/scheduler_config.json", R"({"shift": 9.5})");
  write_file(folder + "/audio_scheduler/scheduler_config.json", R"({"shift": 2})");
}

ModelPaths resolve(const std::string& path, const std::string& variant = "",
                   const std::string& subfolder = "") {
  return resolve_model({path, variant, subfolder});
}

void refused(const std::string& path, const std::string& variant, const std::string& subfolder,
             const std::vector<std::string>& parts) {
  expect_parts(refusal([&] { resolve(path, variant, subfolder); }), parts);
}

TEST(ModelPaths, NativeRepository_VariantChoosesThePartition) {
  Folder root;
  write_partition(root / "FL2VA", "fl2va");
  write_partition(root / "Ref2VA", "ref2va");
  const ModelPaths first = resolve(root.path());
  EXPECT_EQ(first.layout, ModelLayout::kPartition);
  EXPECT_EQ(first.partition, Partition::kFl2va);
  EXPECT_EQ(first.tasks, (std::vector<std::string>{"t2va", "fl2va"}));
  EXPECT_EQ(first.transformer, root / "FL2VA/transformer");
  EXPECT_EQ(first.config, root / "FL2VA/transformer/config.json");
  EXPECT_EQ(first.root, root / "FL2VA");
  EXPECT_EQ(first.video_shift, 12);
  const ModelPaths ref = resolve(root.path(), "ref2va");
  EXPECT_EQ(ref.transformer, root / "Ref2VA/transformer");
  EXPECT_EQ(ref.video_shift, 11);
  EXPECT_EQ(ref.audio_shift, 3);
  EXPECT_EQ(resolve(root.path(), "", "Ref2VA/").partition, Partition::kRef2va);
  EXPECT_EQ(resolve(root.path(), "ref2va", "Ref2VA").partition, Partition::kRef2va);
  EXPECT_EQ(resolve(root / "Ref2VA").partition, Partition::kRef2va);
  EXPECT_EQ(resolve(root / "Ref2VA", "ref2va").partition, Partition::kRef2va);
}

TEST(ModelPaths, Contradictions_AreRefused) {
  Folder root;
  write_partition(root / "FL2VA", "fl2va");
  write_partition(root / "Ref2VA", "ref2va");
  write_partition(root / "mislabelled/FL2VA", "ref2va");
  refused(root.path(), "fl2va", "Ref2VA", {"--model-variant fl2va contradicts", "Ref2VA"});
  refused(root / "Ref2VA", "fl2va", "", {"contradicts", "which is ref2va"});
  refused(root / "mislabelled", "fl2va", "", {"contradicts", "model_index.json"});
  refused(root.path(), "hybrid", "", {"hybrid", "no merged weights"});
  refused(root.path(), "", "../FL2VA", {"--model-subfolder", "inside the model path"});
  refused(root.path(), "", "/tmp", {"inside the model path"});
  refused(root.path(), "", "fl2va", {"is no folder", "FL2VA/, Ref2VA/"});
  refused(root.path(), "FL2VA", "", {"--model-variant is 'FL2VA'", "fl2va, ref2va, hybrid"});
  refused(root / "absent", "", "", {"no such file or folder"});
  refused("", "", "", {"path is empty"});
}

TEST(ModelPaths, Diffusers_VariantChoosesTheTransformer) {
  Folder root;
  write_diffusers(root.path(), {"transformer", "transformer_ref"});
  const ModelPaths first = resolve(root.path());
  EXPECT_EQ(first.layout, ModelLayout::kDiffusers);
  EXPECT_EQ(first.transformer, root / "transformer");
  EXPECT_EQ(first.video_shift, 9.5);
  EXPECT_EQ(first.audio_shift, 2);
  const ModelPaths ref = resolve(root.path(), "ref2va");
  EXPECT_EQ(ref.transformer, root / "transformer_ref");
  EXPECT_EQ(ref.tasks, std::vector<std::string>{"ref2va"});
  const ModelPaths chosen = resolve(root.path(), "", "transformer_ref");
  EXPECT_EQ(chosen.layout, ModelLayout::kDiffusers);
  EXPECT_EQ(chosen.partition, Partition::kRef2va);
  EXPECT_EQ(chosen.video_shift, 9.5);
  refused(root.path(), "fl2va", "transformer_ref", {"contradicts"});

  write_partition(root / "FL2VA", "fl2va");  // the published repository has both
  EXPECT_EQ(resolve(root.path()).layout, ModelLayout::kPartition);
  EXPECT_EQ(resolve(root.path(), "ref2va").layout, ModelLayout::kDiffusers);
}

TEST(ModelPaths, IncompleteFolders_AreRefused) {
  Folder one;
  write_diffusers(one.path(), {"transformer_ref"});
  refused(one.path(), "", "", {"has no transformer/", "transformer_ref/", "--model-variant"});
  EXPECT_EQ(resolve(one.path(), "ref2va").partition, Partition::kRef2va);
  std::filesystem::remove_all(one / "audio_scheduler");
  refused(one.path(), "ref2va", "", {"flow shift is missing", "audio_scheduler"});
  write_file(one / "audio_scheduler/scheduler_config.json", R"({"shift": 0})");
  refused(one.path(), "ref2va", "", {"shift is 0", "positive"});
  write_file(one / "audio_scheduler/scheduler_config.json", "{}");
  refused(one.path(), "ref2va", "", {"shift is missing"});

  Folder half;
  write_partition(half / "FL2VA", "fl2va");
  refused(half.path(), "ref2va", "", {"neither Ref2VA/ nor transformer_ref/", "FL2VA/"});
  std::filesystem::remove(half / "FL2VA/transformer/config.json");
  refused(half.path(), "", "", {"no config.json"});
  std::filesystem::remove_all(half / "FL2VA/transformer");
  refused(half.path(), "", "", {"has no transformer/"});
  std::filesystem::remove(half / "FL2VA/model_index.json");
  refused(half.path(), "", "", {"model_index.json", "No such file"});
  Folder empty;
  refused(empty.path(), "", "", {"is no MiniMax-H3 model"});
}

// A native transformer without its block is no diffusers model.
TEST(ModelPaths, NativeTransformerWithoutBlock_IsRefused) {
  Folder root;
  write_partition(root.path(), "fl2va");
  write_file(root / "model_index.json", R"({"_class_name": "X"})");
  refused(root.path(), "", "", {"_minimax_h3 is missing"});
}

TEST(ModelPaths, BareWeights_KnowTheirTasksOnlyFromTheUser) {
  Folder root;
  write_file(root / "config.json", "{}");
  write_file(root / "m.safetensors", "x");
  const ModelPaths folder = resolve(root.path());
  EXPECT_EQ(folder.layout, ModelLayout::kTransformer);
  EXPECT_FALSE(folder.partition.has_value());
  EXPECT_TRUE(folder.tasks.empty());
  EXPECT_EQ(folder.config, root / "config.json");
  EXPECT_EQ(folder.video_shift, 12);
  EXPECT_EQ(resolve(root.path(), "ref2va").tasks, std::vector<std::string>{"ref2va"});
  EXPECT_EQ(resolve(root.path(), "hybrid").tasks.size(), 3u);
  const ModelPaths file = resolve(root / "m.safetensors");
  EXPECT_EQ(file.layout, ModelLayout::kFile);
  EXPECT_EQ(file.transformer, root / "m.safetensors");
  EXPECT_EQ(file.config, root / "config.json");
  std::filesystem::remove(root / "config.json");
  EXPECT_EQ(resolve(root / "m.safetensors").config, "");
  refused(root / "m.safetensors", "", "FL2VA", {"with the file"});
}

std::string block_refusal(const Json& changed) {
  return refusal([&] { parse_release_block(Json{{"_minimax_h3", changed}}.dump(), "index"); });
}

TEST(ReleaseBlock, EveryRejection_NamesTheField) {
  const auto changed = [](const std::string& key, const Json& value) {
    Json b = block("fl2va");
    b[key] = value;
    return b;
  };
  struct Case {
    const char* key;
    Json value;
    std::string part;
  };
  const Case cases[] = {
      {"schema_version", 2, "schema_version is 2; 1 is accepted"},
      {"schema_version", "1", "schema_version is \"1\""},
      {"schema_version", true, "schema_version is true"},
      {"schema_version", nullptr, "schema_version is missing"},
      {"partition", "both", "partition is \"both\"; fl2va and ref2va"},
      {"partition", 1, "partition is 1"},
      {"tasks", Json::array(), "tasks is []"},
      {"tasks", "t2va", "tasks is \"t2va\""},
      {"tasks", {"t2va", "t2va"}, "tasks names t2va twice"},
      {"tasks", {"t2va", "ref2va"}, "ref2va, which partition fl2va cannot do"},
      {"tasks", {"t2v"}, "tasks[] is \"t2v\""},
      {"tasks", Json::array({1}), "tasks[] is 1"},
      {"task_aliases", 1, "task_aliases is 1"},
      {"task_aliases", {{"x", "ref2va"}}, "task_aliases['x'] is \"ref2va\""},
      {"sigma_shift_scales", nullptr, "sigma_shift_scales.audio is missing"},
      {"sigma_shift_scales", {{"video", 12.0}}, "sigma_shift_scales.audio is missing"},
      {"sigma_shift_scales", {{"video", "12"}, {"audio", 3}}, "video is \"12\""},
      {"sigma_shift_scales", {{"video", true}, {"audio", 3}}, "video is true"},
      {"sigma_shift_scales", {{"video", -1}, {"audio", 3}}, "video is -1"},
      {"dmd_denoising_steps", {1000, 500, 500}, "dmd_denoising_steps is [1000,500,500]"},
      {"dmd_denoising_steps", {1001}, "dmd_denoising_steps"},
      {"dmd_denoising_steps", {500, 0}, "dmd_denoising_steps"},
      {"dmd_denoising_steps", {500.5}, "dmd_denoising_steps"},
      {"dmd_denoising_steps", Json::array(), "dmd_denoising_steps"},
      {"pdd_fused_heads", "/abs.safetensors", "pdd_fused_heads"},
      {"pdd_fused_heads", "../x.safetensors", "pdd_fused_heads"},
      {"pdd_fused_heads", "heads.bin", "pdd_fused_heads"},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.part);
    expect_parts(block_refusal(changed(c.key, c.value)), {"_minimax_h3.", c.part});
  }
  expect_parts(refusal([] { parse_release_block("{}", "index"); }),
               {"index: _minimax_h3 is missing"});
  expect_parts(block_refusal(Json::array()), {"_minimax_h3 is []"});
  Json several = block("ref2va");
  several["schema_version"] = 0;
  several["tasks"] = {"fl2va"};
  expect_parts(block_refusal(several), {"2 faults", "schema_version is 0", "fl2va, which"});
}

TEST(ReleaseBlock, DistilledFields_AreKept) {
  Json b = block("ref2va");
  b["task_aliases"] = {{"r2v", "ref2va"}};
  b["dmd_denoising_steps"] = {1000, 750, 1};
  b["pdd_fused_heads"] = "heads/fused.safetensors";
  const ReleaseBlock release = parse_release_block(Json{{"_minimax_h3", b}}.dump(), "index");
  EXPECT_EQ(release.partition, Partition::kRef2va);
  EXPECT_EQ(release.dmd_denoising_steps, (std::vector<int64_t>{1000, 750, 1}));
  EXPECT_EQ(release.pdd_fused_heads, "heads/fused.safetensors");
  EXPECT_EQ(release.video_shift, 11);
}

}  // namespace
}  // namespace h3::weights
