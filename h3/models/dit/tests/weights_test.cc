// From files to tensors: the tiny model in every layout and type that `h3 make-tiny` writes.
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "h3/common/error.h"
#include "h3/models/dit/checkpoint.h"
#include "h3/models/dit/tiny.h"
#include "h3/weights/loader.h"
#include "h3/weights/recipes.h"

namespace h3::dit {
namespace {

using tessera::Dtype;
using Tensors = std::unordered_map<std::string, at::Tensor>;

constexpr uint64_t kSeed = 7;

class Folder {
 public:
  Folder(NameStyle style, Dtype dtype) {
    std::string name = testing::TempDir() + "h3_dit_weights_XXXXXX";
    EXPECT_NE(mkdtemp(name.data()), nullptr);
    path_ = name;
    write_random_transformer(path_, tiny_dit_config(), style, dtype, kSeed);
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

Tensors load(const Folder& folder, Dtype compute, const TensorShard& shard = {}) {
  const DitCheckpoint model = open_dit_checkpoint({folder.path(), "", ""});
  const auto recipes = model_recipes(model.config, model.style, compute, shard);
  return weights::load_tensors(model.checkpoint, recipes);
}

void expect_same(const Tensors& a, const Tensors& b) {
  ASSERT_EQ(a.size(), b.size());
  for (const auto& [name, t] : a) {
    EXPECT_EQ(t.scalar_type(), b.at(name).scalar_type()) << name;
    EXPECT_TRUE(at::equal(t, b.at(name))) << name;
  }
}

TEST(DitWeightFiles, NativeAndDiffusers_GiveTheSameTensors) {
  for (const Dtype dtype : {Dtype::kF32, Dtype::kBf16}) {
    const Folder native(NameStyle::kNative, dtype), diffusers(NameStyle::kDiffusers, dtype);
    for (const Dtype compute : {Dtype::kF32, Dtype::kBf16}) {
      const Tensors a = load(native, compute);
      EXPECT_EQ(a.size(), 64u);  // all but rope.inv_freq
      expect_same(a, load(diffusers, compute));
    }
  }
}

TEST(DitWeightFiles, F32OfBf16Files_IsExact) {
  const Folder folder(NameStyle::kNative, Dtype::kBf16);
  const Tensors wide = load(folder, Dtype::kF32), kept = load(folder, Dtype::kBf16);
  for (const auto& [name, t] : kept) {
    EXPECT_EQ(t.scalar_type(), is_fp32_island(name) ? at::kFloat : at::kBFloat16) << name;
    EXPECT_TRUE(at::equal(t.to(at::kFloat), wide.at(name))) << name;
  }
  // The rounding on loading is that of torch.
  const Tensors f32 = load(Folder(NameStyle::kNative, Dtype::kF32), Dtype::kF32);
  for (const auto& [name, t] : f32) {
    EXPECT_TRUE(at::equal(t.to(kept.at(name).scalar_type()), kept.at(name))) << name;
  }
}

TEST(DitWeightFiles, TensorShards_AreTheWhole) {
  const Folder folder(NameStyle::kNative, Dtype::kF32);
  const Tensors whole = load(folder, Dtype::kF32);
  const Tensors a = load(folder, Dtype::kF32, {0, 2}), b = load(folder, Dtype::kF32, {1, 2});
  const auto joined = [&](const std::string& name, int64_t dimension) {
    return at::cat({a.at(name), b.at(name)}, dimension);
  };
  for (const char* name :
       {"blocks.1.mlp.fc2.weight", "token_refiner.blocks.0.attn.out_proj.weight"}) {
    EXPECT_TRUE(at::equal(joined(name, 1), whole.at(name))) << name;
  }
  for (const char* name :
       {"video_patch_proj.weight", "condition_proj.bias", "blocks.2.adaln_proj.linear.weight",
        "final_layer.adaln_proj.linear.bias"}) {
    EXPECT_TRUE(at::equal(joined(name, 0), whole.at(name))) << name;
  }
  const std::string fused = "blocks.0.attn.qkv_proj.weight";
  const at::Tensor parts =
      at::cat({a.at(fused).view({3, 4, 128, 256}), b.at(fused).view({3, 4, 128, 256})}, 1);
  EXPECT_TRUE(at::equal(parts.reshape({3072, 256}), whole.at(fused)));
  EXPECT_TRUE(
      at::equal(a.at("final_layer.video_out.weight"), whole.at("final_layer.video_out.weight")));
}

TEST(DitWeightFiles, WrongConfig_IsAnInventoryOfFaults) {
  const Folder folder(NameStyle::kNative, Dtype::kF32);
  DitConfig config = tiny_dit_config();
  config.layers = 4;
  config.text_dim = 200;
  const DitCheckpoint model = open_dit_checkpoint({folder.path(), "", ""});
  const weights::Inventory inventory = dit_inventory(model.checkpoint, config, model.style);
  EXPECT_EQ(inventory.missing.size(), 10u);
  EXPECT_EQ(inventory.wrong_shape,
            std::vector<std::string>{"condition_proj.weight is [256, 192], needed [256, 200]"});
  // A renamed style reads other names: nothing is guessed.
  EXPECT_FALSE(dit_inventory(model.checkpoint, model.config, NameStyle::kDiffusers).ok());
}

TEST(DitWeightFiles, TruncatedShard_IsRefusedOnOpening) {
  const Folder folder(NameStyle::kDiffusers, Dtype::kF32);
  const std::string shard = folder.path() + "/diffusion_pytorch_model-00002-of-00003.safetensors";
  std::filesystem::resize_file(shard, std::filesystem::file_size(shard) - 4);
  try {
    open_dit_checkpoint({folder.path(), "", ""});
    FAIL() << "a truncated shard was accepted";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("00002-of-00003"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace h3::dit
