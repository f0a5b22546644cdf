#include "h3/weights/checkpoint.h"

#include <gtest/gtest.h>

#include <cstring>
#include <nlohmann/json.hpp>

#include "h3/weights/sharded_writer.h"
#include "h3/weights/tests/checkpoint_files.h"

namespace h3::weights {
namespace {

using Json = nlohmann::json;

constexpr const char* kIndex = "model.safetensors.index.json";

// a, b in one shard; c in another.
struct TwoShards {
  Folder folder;
  Json index = {{"metadata", {{"total_size", 4 * (6 + 2 + 4)}}},
                {"weight_map",
                 {{"a", "one.safetensors"}, {"b", "one.safetensors"}, {"c", "two.safetensors"}}}};

  TwoShards() {
    write_tensors(folder / "one.safetensors", {counted("a", {2, 3}), counted("b", {2}, 10)});
    write_tensors(folder / "two.safetensors", {counted("c", {4}, 20)});
    save();
  }
  void save() { write_file(folder / kIndex, index.dump()); }
  std::string refused() {
    save();
    return refusal([&] { Checkpoint::open(folder.path()); });
  }
};

float first_value(const Checkpoint& checkpoint, const std::string& name) {
  float value;
  std::memcpy(&value, checkpoint.find(name)->data, sizeof value);
  return value;
}

TEST(Checkpoint, Shards_AreOneListOfTensors) {
  TwoShards files;
  const Checkpoint checkpoint = Checkpoint::open(files.folder.path());
  EXPECT_EQ(checkpoint.names(), (std::vector<std::string>{"a", "b", "c"}));
  EXPECT_EQ(checkpoint.files().size(), 2u);
  EXPECT_EQ(checkpoint.tensor_bytes(), 48u);
  EXPECT_EQ(first_value(checkpoint, "b"), 10);
  EXPECT_EQ(first_value(checkpoint, "c"), 20);
  const CheckpointTensor* c = checkpoint.find("c");
  EXPECT_EQ(c->shape, (std::vector<int64_t>{4}));
  EXPECT_EQ(c->bytes, 16u);
  // The offset is that of the file.
  std::ifstream file(checkpoint.files()[c->file].path, std::ios::binary);
  file.seekg(static_cast<std::streamoff>(c->offset));
  float value = 0;
  file.read(reinterpret_cast<char*>(&value), sizeof value);
  EXPECT_EQ(value, 20);
  EXPECT_EQ(checkpoint.find("d"), nullptr);
}

TEST(Checkpoint, IndexFileAndSingleFile_AreAccepted) {
  TwoShards files;
  EXPECT_EQ(Checkpoint::open(files.folder / kIndex).tensors().size(), 3u);
  EXPECT_EQ(Checkpoint::open(files.folder / "two.safetensors").tensors().size(), 1u);
  Folder single;
  write_tensors(single / "anything.safetensors", {counted("x", {1})});
  EXPECT_EQ(Checkpoint::open(single.path()).tensors().size(), 1u);
  Folder diffusers;
  write_tensors(diffusers / "s.safetensors", {counted("x", {1})});
  write_file(diffusers / "diffusion_pytorch_model.safetensors.index.json",
             R"({"weight_map": {"x": "s.safetensors"}})");
  EXPECT_EQ(Checkpoint::open(diffusers.path()).tensors().size(), 1u);
}

TEST(Checkpoint, ComfyPrefix_IsStripped) {
  Folder folder;
  write_tensors(folder / "m.safetensors",
                {counted("model.diffusion_model.a", {1}), counted("b", {1})});
  const Checkpoint checkpoint = Checkpoint::open(folder.path());
  EXPECT_TRUE(checkpoint.prefixed());
  EXPECT_EQ(checkpoint.names(), (std::vector<std::string>{"a", "b"}));
  TwoShards plain;
  EXPECT_FALSE(Checkpoint::open(plain.folder.path()).prefixed());
  Folder twice;
  write_tensors(twice / "m.safetensors",
                {counted("model.diffusion_model.a", {1}), counted("a", {1})});
  expect_parts(refusal([&] { Checkpoint::open(twice.path()); }), {"there twice: 'a'"});
}

TEST(Checkpoint, SeveralFaults_AreToldAtOnce) {
  TwoShards files;
  files.index["weight_map"]["gone"] = "three.safetensors";
  files.index["weight_map"]["lost"] = "one.safetensors";
  files.index["weight_map"]["a"] = "two.safetensors";
  files.index["weight_map"].erase("b");
  expect_parts(
      files.refused(),
      {"4 faults", "three.safetensors': No such file",
       "1 tensors that the index puts into a file that lacks them: 'lost' (one.safetensors)",
       "puts into another file: 'a' (two.safetensors, found in one.safetensors)",
       "no entry of the index lists: 'b' (one.safetensors)", "fetch or write"});
}

TEST(Checkpoint, TruncatedShard_IsNamed) {
  TwoShards files;
  const std::string path = files.folder / "two.safetensors";
  const auto bytes = std::filesystem::file_size(path);
  for (const auto left : {bytes - 1, bytes - 16, uintmax_t{20}, uintmax_t{3}, uintmax_t{0}}) {
    std::filesystem::resize_file(path, left);
    expect_parts(files.refused(), {"two.safetensors"});
  }
}

TEST(Checkpoint, LyingTotal_IsRefused) {
  TwoShards files;
  files.index["metadata"]["total_size"] = 47;
  expect_parts(files.refused(), {"total_size of the index is 47", "48 bytes"});
  files.index["metadata"]["total_size"] = "48";
  expect_parts(files.refused(), {"total_size is \"48\"", "integer"});
  files.index.erase("metadata");  // older writers have none
  files.save();
  EXPECT_NO_THROW(Checkpoint::open(files.folder.path()));
}

TEST(Checkpoint, SameTensorInTwoShards_IsRefused) {
  TwoShards files;
  write_tensors(files.folder / "two.safetensors", {counted("c", {4}), counted("a", {2, 3})});
  expect_parts(files.refused(), {"there twice: 'a'"});
}

TEST(Checkpoint, BadIndexes_AreRefused) {
  TwoShards files;
  files.index["weight_map"]["a"] = "../one.safetensors";
  files.index["weight_map"]["b"] = 7;
  files.index["weight_map"]["c"] = "";
  expect_parts(files.refused(), {"3 faults", "weight_map['a'] is \"../one.safetensors\"",
                                 "weight_map['b'] is 7", "a file in the same folder"});
  files.index["weight_map"] = Json::object();
  expect_parts(files.refused(), {"weight_map is missing, empty"});
  files.index.erase("weight_map");
  files.refused();
  write_file(files.folder / kIndex, "{");
  expect_parts(refusal([&] { Checkpoint::open(files.folder.path()); }), {"not JSON at byte"});
}

TEST(Checkpoint, AmbiguousOrEmptyFolders_AreRefused) {
  Folder empty;
  expect_parts(refusal([&] { Checkpoint::open(empty.path()); }), {"no .safetensors file"});
  expect_parts(refusal([&] { Checkpoint::open(empty / "absent"); }), {"no such file or folder"});
  TwoShards files;
  write_file(files.folder / "diffusion_pytorch_model.safetensors.index.json", files.index.dump());
  expect_parts(refusal([&] { Checkpoint::open(files.folder.path()); }), {"two indexes"});
  TwoShards lost;
  std::filesystem::remove(lost.folder / kIndex);
  expect_parts(refusal([&] { Checkpoint::open(lost.folder.path()); }),
               {"2 .safetensors files (one.safetensors, two.safetensors) but no index"});
}

TEST(Checkpoint, LongLists_AreCut) {
  TwoShards files;
  for (int i = 0; i < 25; ++i) {
    files.index["weight_map"]["x" + std::to_string(100 + i)] = "one.safetensors";
  }
  const std::string text = files.refused();
  expect_parts(text, {"25 tensors that the index", "'x119' (one.safetensors) and 5 more"});
  EXPECT_EQ(text.find("x120"), std::string::npos);
}

TEST(ShardedWriter, Output_OpensAgain) {
  Folder folder;
  std::vector<F32Tensor> tensors;
  std::vector<tessera::io::SafetensorsItem> items;
  for (int i = 0; i < 7; ++i)
    tensors.push_back(counted("t" + std::to_string(i), {i == 0 ? 90 : 5}));
  for (const auto& t : tensors) {
    items.push_back({t.name, tessera::Dtype::kF32, t.shape, t.values.data()});
  }
  for (const size_t shards : {1u, 3u, 7u}) {
    Folder into;
    write_sharded(into.path(), "model", shards, items);
    const Checkpoint checkpoint = Checkpoint::open(into.path());
    EXPECT_EQ(checkpoint.files().size(), shards);
    EXPECT_EQ(checkpoint.tensors().size(), 7u);
    EXPECT_EQ(checkpoint.tensor_bytes(), 4u * (90 + 30));
  }
  EXPECT_TRUE(refusal([&] { write_sharded(folder.path(), "m", 8, items); }).size() > 0);
  refusal([&] { write_sharded(folder.path(), "m", 0, items); });
  refusal([&] { write_sharded(folder / "none", "m", 1, items); }, ErrorCode::kUnavailable);
}

}  // namespace
}  // namespace h3::weights
