#include "h3/models/dit/names.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <limits>
#include <map>
#include <set>
#include <string>

#include "h3/common/error.h"
#include "h3/models/dit/tiny.h"
#include "h3/weights/recipes.h"
#include "h3/weights/sharded_writer.h"

namespace h3::dit {
namespace {

using tessera::Dtype;
using weights::SourceTensor;
using weights::TensorRecipe;

constexpr uint64_t kSeed = 20261130;
constexpr double kUnset = std::numeric_limits<double>::infinity();

// A matrix of whole numbers that say where each element came from.
struct Matrix {
  int64_t rows = 0, columns = 0;
  std::vector<double> values;
  double at(int64_t row, int64_t column) const {
    return values[static_cast<size_t>(row * columns + column)];
  }
};

using Model = std::map<std::string, Matrix>;

DitConfig small_config() {
  DitConfig config = tiny_dit_config();
  config.layers = 1;
  config.refiner_layers = 1;
  config.heads = 4;
  config.hidden = 64;
  config.ffn = 96;
  config.text_dim = 16;
  config.timestep_input = 8;
  config.time_hidden = 12;
  config.time_embed = 8;
  return config;
}

// Every element of the checkpoint has a value of its own.
Model numbered_checkpoint(const DitConfig& config, NameStyle style) {
  Model checkpoint;
  double next = 0;
  for (const SourceTensor& source : checkpoint_tensors(config, style)) {
    const auto [rows, columns] = weights::as_matrix(source.shape);
    Matrix m{rows, columns, {}};
    for (int64_t i = 0; i < rows * columns; ++i) m.values.push_back(next++);
    checkpoint[source.name] = m;
  }
  return checkpoint;
}

// What a loader does, one element at a time.
Model interpret(const std::vector<TensorRecipe>& recipes, const Model& checkpoint) {
  Model model;
  for (const TensorRecipe& recipe : recipes) {
    const auto [rows, columns] = weights::as_matrix(recipe.shape);
    Matrix m{rows, columns, std::vector<double>(static_cast<size_t>(rows * columns), kUnset)};
    for (const auto& p : recipe.pieces) {
      const Matrix& source = checkpoint.at(p.source);
      EXPECT_EQ(p.columns, columns) << recipe.name;
      for (int64_t row = 0; row < p.rows; ++row) {
        for (int64_t column = 0; column < p.columns; ++column) {
          double& to = m.values[static_cast<size_t>((p.target_row + row) * columns + column)];
          EXPECT_EQ(to, kUnset) << recipe.name << ": written twice";
          to = source.at(p.row + row, p.column + column);
        }
      }
    }
    EXPECT_EQ(std::count(m.values.begin(), m.values.end(), kUnset), 0) << recipe.name;
    model[recipe.name] = std::move(m);
  }
  return model;
}

uint64_t source_bytes(const std::vector<SourceTensor>& sources) {
  uint64_t bytes = 0;
  for (const SourceTensor& s : sources) {
    const auto [rows, columns] = weights::as_matrix(s.shape);
    bytes += static_cast<uint64_t>(rows * columns) * dtype_bytes(s.dtype);
  }
  return bytes;
}

TEST(DitNames, Published_CountsAndBytes) {
  const DitConfig config;
  const auto native = checkpoint_tensors(config, NameStyle::kNative);
  const auto diffusers = checkpoint_tensors(config, NameStyle::kDiffusers);
  EXPECT_EQ(native.size(), 535u);
  EXPECT_EQ(diffusers.size(), 638u);
  EXPECT_EQ(source_bytes(native), 66280430144u);
  EXPECT_EQ(source_bytes(diffusers), 66280430080u);
  for (const NameStyle style : {NameStyle::kNative, NameStyle::kDiffusers}) {
    EXPECT_EQ(weights::model_bytes(model_recipes(config, style, Dtype::kBf16)), 66280430080u);
  }
  EXPECT_EQ(std::count_if(native.begin(), native.end(),
                          [](const SourceTensor& t) { return t.dtype == Dtype::kF32; }),
            13);
}

TEST(DitNames, Tiny_Counts) {
  EXPECT_EQ(checkpoint_tensors(tiny_dit_config(), NameStyle::kNative).size(), 65u);
  EXPECT_EQ(checkpoint_tensors(tiny_dit_config(), NameStyle::kDiffusers).size(), 74u);
}

// Every shape and type of the published inventory, one representative each.
TEST(DitNames, Published_ShapesAndTypes) {
  std::map<std::string, SourceTensor> native, diffusers;
  for (const auto& t : checkpoint_tensors({}, NameStyle::kNative)) native[t.name] = t;
  for (const auto& t : checkpoint_tensors({}, NameStyle::kDiffusers)) diffusers[t.name] = t;
  const auto expect = [](const auto& list, const std::string& name, std::vector<int64_t> shape,
                         Dtype dtype) {
    ASSERT_TRUE(list.contains(name)) << name;
    EXPECT_EQ(list.at(name).shape, shape) << name;
    EXPECT_EQ(list.at(name).dtype, dtype) << name;
  };
  const Dtype f32 = Dtype::kF32, bf16 = Dtype::kBf16;
  expect(native, "video_patch_proj.weight", {5376, 96}, f32);
  expect(native, "audio_patch_proj.bias", {5376}, f32);
  expect(native, "condition_proj.weight", {5376, 5120}, bf16);
  expect(native, "time_embedder.proj_in.weight", {5376, 256}, f32);
  expect(native, "time_embedder.proj_out.weight", {2688, 5376}, f32);
  expect(native, "rope.inv_freq", {16}, f32);
  expect(native, "token_refiner.blocks.1.attn.qkv_proj.weight", {21504, 5376}, bf16);
  expect(native, "token_refiner.final_norm.weight", {5376}, bf16);
  expect(native, "blocks.49.norm2.weight", {5376}, bf16);
  expect(native, "blocks.49.attn.k_norm.weight", {128}, bf16);
  expect(native, "blocks.0.attn.out_proj.weight", {5376, 7168}, bf16);
  expect(native, "blocks.0.mlp.fc1.weight", {28672, 5376}, bf16);
  expect(native, "blocks.0.mlp.fc2.weight", {5376, 14336}, bf16);
  expect(native, "blocks.0.adaln_proj.linear.weight", {96768, 2688}, bf16);
  expect(native, "blocks.0.adaln_proj.linear.bias", {96768}, bf16);
  expect(native, "final_layer.adaln_proj.linear.weight", {10752, 2688}, bf16);
  expect(native, "final_layer.video_out.weight", {96, 5376}, f32);
  expect(native, "final_layer.audio_out.bias", {32}, f32);
  expect(diffusers, "proj_in.weight", {5376, 96}, f32);
  expect(diffusers, "audio_proj_in.bias", {5376}, f32);
  expect(diffusers, "context_embedder.bias", {5376}, bf16);
  expect(diffusers, "time_embedder.linear_2.weight", {2688, 5376}, f32);
  expect(diffusers, "token_refiner.refiner_blocks.1.attn.to_k.weight", {7168, 5376}, bf16);
  expect(diffusers, "transformer_blocks.49.attn.norm_q.weight", {128}, bf16);
  expect(diffusers, "transformer_blocks.0.attn.to_out.0.weight", {5376, 7168}, bf16);
  expect(diffusers, "transformer_blocks.0.ff.net.0.proj.weight", {28672, 5376}, bf16);
  expect(diffusers, "transformer_blocks.0.ff.net.2.weight", {5376, 14336}, bf16);
  expect(diffusers, "transformer_blocks.0.adaln_proj.linear.bias", {96768}, bf16);
  expect(diffusers, "norm_out.norm.weight", {5376}, bf16);
  expect(diffusers, "norm_out.linear.bias", {10752}, bf16);
  expect(diffusers, "audio_proj_out.weight", {32, 5376}, f32);
}

TEST(DitRecipes, EveryElement_IsUsedExactlyOnce) {
  const DitConfig config = small_config();
  for (const NameStyle style : {NameStyle::kNative, NameStyle::kDiffusers, NameStyle::kComfy}) {
    const Model checkpoint = numbered_checkpoint(config, style);
    std::set<double> used;
    size_t count = 0;
    for (const auto& [name, m] : interpret(model_recipes(config, style, Dtype::kF32), checkpoint)) {
      used.insert(m.values.begin(), m.values.end());
      count += m.values.size();
    }
    size_t there = 0;
    for (const auto& [name, m] : checkpoint) {
      if (name != "rope.inv_freq") there += m.values.size();
    }
    EXPECT_EQ(count, there) << name_style_text(style);
    EXPECT_EQ(used.size(), there) << name_style_text(style);
  }
}

// Row m 4 128 + h 128 + d of [q; k; v] is row (3 h + m) 128 + d of a native file, row h 128 + d of
// the m-th matrix of diffusers.
TEST(DitRecipes, Qkv_ComesFromTheRightRows) {
  const DitConfig config = small_config();
  const std::string name = "blocks.0.attn.qkv_proj.weight";
  const Model native = numbered_checkpoint(config, NameStyle::kNative);
  const Model other = numbered_checkpoint(config, NameStyle::kDiffusers);
  const Matrix from_native =
      interpret(model_recipes(config, NameStyle::kNative, Dtype::kF32), native).at(name);
  const Matrix from_other =
      interpret(model_recipes(config, NameStyle::kDiffusers, Dtype::kF32), other).at(name);
  for (int64_t m = 0; m < 3; ++m) {
    const std::string matrix = std::string("transformer_blocks.0.attn.to_") + "qkv"[m] + ".weight";
    for (int64_t h = 0; h < 4; ++h) {
      for (const int64_t d : {0, 1, 127}) {
        const int64_t row = (m * 4 + h) * 128 + d;
        ASSERT_EQ(from_native.at(row, 5), native.at(name).at((3 * h + m) * 128 + d, 5));
        ASSERT_EQ(from_other.at(row, 5), other.at(matrix).at(h * 128 + d, 5));
      }
    }
  }
  const Model comfy = numbered_checkpoint(config, NameStyle::kComfy);
  EXPECT_EQ(interpret(model_recipes(config, NameStyle::kComfy, Dtype::kF32), comfy).at(name).values,
            comfy.at(name).values);
}

TEST(DitRecipes, Fc1_IsGateThenUp) {
  const DitConfig config = small_config();
  const std::string name = "token_refiner.blocks.0.mlp.fc1.weight";
  const std::string proj = "token_refiner.refiner_blocks.0.ff.net.0.proj.weight";
  const Model native = numbered_checkpoint(config, NameStyle::kNative);
  EXPECT_EQ(
      interpret(model_recipes(config, NameStyle::kNative, Dtype::kF32), native).at(name).values,
      native.at(name).values);
  const Model other = numbered_checkpoint(config, NameStyle::kDiffusers);
  const Matrix swapped =
      interpret(model_recipes(config, NameStyle::kDiffusers, Dtype::kF32), other).at(name);
  for (int64_t row = 0; row < 192; ++row) {
    ASSERT_EQ(swapped.at(row, 3), other.at(proj).at((row + 96) % 192, 3));
  }
}

// The files of `h3 make-tiny` are laid out by code of their own: both must give the same model.
TEST(DitRecipes, RandomCheckpoints_GiveOneModel) {
  SCOPED_TRACE("seed " + std::to_string(kSeed));
  const DitConfig config = small_config();
  const auto model = [&](NameStyle style, Dtype dtype) {
    Model checkpoint;
    for (const RandomTensor& t : random_checkpoint(config, style, dtype, kSeed)) {
      const auto [rows, columns] = weights::as_matrix(t.shape);
      Matrix m{rows, columns, {}};
      for (int64_t i = 0; i < rows * columns; ++i) {
        if (t.dtype == Dtype::kF32) {
          float value;
          std::memcpy(&value, t.data.data() + 4 * i, sizeof value);
          m.values.push_back(value);
        } else {
          uint16_t bits;
          std::memcpy(&bits, t.data.data() + 2 * i, sizeof bits);
          m.values.push_back(tessera::bf16_to_f32(bits));
        }
      }
      checkpoint[t.name] = std::move(m);
    }
    return interpret(model_recipes(config, style, Dtype::kF32), checkpoint);
  };
  for (const Dtype dtype : {Dtype::kF32, Dtype::kBf16}) {
    const Model native = model(NameStyle::kNative, dtype);
    const Model diffusers = model(NameStyle::kDiffusers, dtype);
    ASSERT_EQ(native.size(), diffusers.size());
    for (const auto& [name, m] : native) EXPECT_EQ(m.values, diffusers.at(name).values) << name;
  }
}

TEST(DitRecipes, RandomValues_HaveTheStatedMoments) {
  SCOPED_TRACE("seed " + std::to_string(kSeed));
  const auto tensors = random_checkpoint(tiny_dit_config(), NameStyle::kNative, Dtype::kF32, kSeed);
  const auto moments = [&](const std::string& name) {
    const auto at = std::find_if(tensors.begin(), tensors.end(),
                                 [&](const RandomTensor& t) { return t.name == name; });
    const size_t n = at->data.size() / 4;
    double sum = 0, squares = 0;
    for (size_t i = 0; i < n; ++i) {
      float value;
      std::memcpy(&value, at->data.data() + 4 * i, sizeof value);
      sum += value;
      squares += static_cast<double>(value) * value;
    }
    const double mean = sum / static_cast<double>(n);
    return std::pair(mean, std::sqrt(squares / static_cast<double>(n) - mean * mean));
  };
  const auto expect = [&](const std::string& name, double mean, double deviation, double within) {
    const auto [m, d] = moments(name);
    EXPECT_NEAR(m, mean, within * deviation) << name;
    EXPECT_NEAR(d, deviation, within * deviation) << name;
  };
  expect("blocks.2.mlp.fc2.weight", 0, 1 / std::sqrt(512.0), 0.02);
  expect("blocks.2.attn.qkv_proj.weight", 0, 1.0 / 16, 0.02);
  expect("blocks.0.adaln_proj.linear.bias", 0, 0.1, 0.1);
  expect("blocks.0.norm1.weight", 1, 0.1, 0.3);
  expect("blocks.0.attn.q_norm.weight", 2, 0.3, 0.4);
}

// The rank order of each tensor's dimension, whatever it is, gives the whole back.
TEST(DitRecipes, TensorShards_AreTheWhole) {
  const DitConfig config = small_config();
  const std::set<std::string> columns{".attn.out_proj.weight", ".mlp.fc2.weight"};
  const std::set<std::string> kept{"norm", "time_embedder", "video_out", "audio_out"};
  for (const NameStyle style : {NameStyle::kNative, NameStyle::kDiffusers, NameStyle::kComfy}) {
    const Model checkpoint = numbered_checkpoint(config, style);
    const Model whole = interpret(model_recipes(config, style, Dtype::kF32), checkpoint);
    const Model first = interpret(model_recipes(config, style, Dtype::kF32, {0, 2}), checkpoint);
    const Model second = interpret(model_recipes(config, style, Dtype::kF32, {1, 2}), checkpoint);
    for (const auto& [name, all] : whole) {
      SCOPED_TRACE(name);
      const Matrix &a = first.at(name), &b = second.at(name);
      const auto named = [&](const std::string& part) {
        return name.find(part) != std::string::npos;
      };
      if (std::any_of(kept.begin(), kept.end(), named)) {
        EXPECT_EQ(a.values, all.values);
        EXPECT_EQ(b.values, all.values);
        continue;
      }
      const bool by_columns = std::any_of(columns.begin(), columns.end(), named);
      // q, k and v (gate and up) are split each on its own.
      const int64_t parts = named("qkv_proj") ? 3 : named("fc1") ? 2 : 1;
      ASSERT_EQ(a.values.size() * 2, all.values.size());
      for (int64_t row = 0; row < all.rows; ++row) {
        for (int64_t column = 0; column < all.columns; ++column) {
          double got;
          if (by_columns) {
            const int64_t half = all.columns / 2;
            got = column < half ? a.at(row, column) : b.at(row, column - half);
          } else {
            const int64_t part = all.rows / parts, half = part / 2;
            const int64_t inside = row % part, base = row / part * half;
            got = inside < half ? a.at(base + inside, column) : b.at(base + inside - half, column);
          }
          ASSERT_EQ(got, all.at(row, column)) << row << ", " << column;
        }
      }
    }
  }
}

TEST(DitRecipes, Types_KeepTheIslands) {
  for (const TensorRecipe& r : model_recipes({}, NameStyle::kNative, Dtype::kBf16)) {
    EXPECT_EQ(r.dtype, is_fp32_island(r.name) ? Dtype::kF32 : Dtype::kBf16) << r.name;
  }
  EXPECT_TRUE(is_fp32_island("time_embedder.proj_out.bias"));
  EXPECT_TRUE(is_fp32_island("final_layer.audio_out.weight"));
  EXPECT_FALSE(is_fp32_island("condition_proj.weight"));
  EXPECT_FALSE(is_fp32_island("final_layer.norm.weight"));
  EXPECT_FALSE(is_fp32_island("blocks.0.attn.out_proj.weight"));
}

TEST(DitRecipes, BadRequests_AreRefused) {
  const DitConfig config;
  for (const TensorShard shard :
       {TensorShard{0, 0}, {2, 2}, {-1, 2}, {0, 3}, {0, 5}, {0, 7}, {0, 64}}) {
    EXPECT_THROW(model_recipes(config, NameStyle::kNative, Dtype::kBf16, shard), Error)
        << shard.rank << " of " << shard.size;
  }
  for (const int64_t size : {1, 2, 4, 8}) {
    EXPECT_NO_THROW(model_recipes(config, NameStyle::kNative, Dtype::kBf16, {size - 1, size}));
  }
  EXPECT_THROW(model_recipes(config, NameStyle::kNative, Dtype::kF16), Error);
  EXPECT_THROW(random_checkpoint(config, NameStyle::kComfy, Dtype::kF32, 0), Error);
}

// Only names matter here.
weights::Checkpoint checkpoint_with(const std::vector<std::string>& names) {
  const std::string path =
      testing::TempDir() + "h3_names_" + std::to_string(::getpid()) + ".safetensors";
  const float value = 1;
  std::vector<tessera::io::SafetensorsItem> items;
  for (const std::string& name : names) items.push_back({name, Dtype::kF32, {1}, &value});
  EXPECT_TRUE(tessera::io::write_safetensors(path, items).ok());
  weights::Checkpoint checkpoint = weights::Checkpoint::open(path);
  std::filesystem::remove(path);
  return checkpoint;
}

TEST(DitNameStyle, IsToldByTheNames) {
  EXPECT_EQ(name_style_of(checkpoint_with({"video_patch_proj.weight"})), NameStyle::kNative);
  EXPECT_EQ(name_style_of(checkpoint_with({"proj_in.weight"})), NameStyle::kDiffusers);
  EXPECT_EQ(name_style_of(checkpoint_with({"model.diffusion_model.video_patch_proj.weight"})),
            NameStyle::kComfy);
  EXPECT_THROW(name_style_of(checkpoint_with({"video_patch_proj.weight", "proj_in.weight"})),
               Error);
  EXPECT_THROW(name_style_of(checkpoint_with({"encoder.weight"})), Error);
}

}  // namespace
}  // namespace h3::dit
