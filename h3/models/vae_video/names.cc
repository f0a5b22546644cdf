// Names and shapes of the checkpoint, and where every row of the model's tensors comes from.
#include "h3/models/vae_video/names.h"

#include <utility>

#include "h3/common/error.h"
#include "h3/weights/recipes.h"

namespace h3::vae_video {
namespace {

using tessera::Dtype;
using weights::Piece;
using weights::SourceTensor;
using weights::TensorRecipe;

constexpr const char* kMaskToken = "decoder.mask_token";
constexpr const char* kRegisters = "decoder.register_tokens";

// What a tensor of the model is made of in a checkpoint.
enum class Kind { kPlain, kQkv, kGated };

struct ModelTensor {
  std::string name;       // official
  std::string diffusers;  // of kQkv: up to the letter q, k or v
  std::vector<int64_t> shape;
  Kind kind = Kind::kPlain;
};

using Tensors = std::vector<ModelTensor>;

// Weight and bias; `shape` is the weight's.
void add_pair(Tensors& t, const std::string& official, const std::string& diffusers,
              std::vector<int64_t> shape) {
  const int64_t out = shape[0];
  t.push_back({official + ".weight", diffusers + ".weight", std::move(shape)});
  t.push_back({official + ".bias", diffusers + ".bias", {out}});
}

void add_encoder(Tensors& t, const VideoVaeConfig& c) {
  const auto conv = [&](const std::string& official, const std::string& diffusers, int64_t out,
                        int64_t in, int64_t kernel) {
    add_pair(t, official, diffusers, {out, in, kernel, kernel, kernel});
  };
  conv("encoder.conv_in", "encoder.conv_in", c.widths[0], VideoVaeConfig::kPixelChannels, 3);
  int64_t in = c.widths[0];
  for (size_t level = 0; level < c.widths.size(); ++level) {
    const int64_t out = c.widths[level];
    const std::string l = std::to_string(level);
    for (int64_t j = 0; j < c.blocks_per_level; ++j) {
      const std::string official = "encoder.down." + l + ".block." + std::to_string(j) + ".";
      const std::string other = "encoder.down_blocks." + l + ".resnets." + std::to_string(j) + ".";
      add_pair(t, official + "norm1", other + "norm1", {in});
      conv(official + "conv1", other + "conv1", out, in, 3);
      add_pair(t, official + "norm2", other + "norm2", {out});
      conv(official + "conv2", other + "conv2", out, out, 3);
      if (in != out) conv(official + "nin_shortcut", other + "conv_shortcut", out, in, 1);
      in = out;
    }
    if (c.space_down[level] * c.time_down[level] > 1) {
      conv("encoder.down." + l + ".downsample.conv",
           "encoder.down_blocks." + l + ".downsamplers.0.conv", out, out, 3);
    }
  }
  add_pair(t, "encoder.norm_out", "encoder.norm_out", {in});
  conv("encoder.conv_out", "encoder.conv_out", 2 * c.latent_channels, in, 3);
  conv("quant_conv", "quant_conv", 2 * c.latent_channels, 2 * c.latent_channels, 1);
}

void add_decoder(Tensors& t, const VideoVaeConfig& c) {
  const int64_t dim = c.dim(), ffn = c.ffn();
  add_pair(t, "post_quant_conv", "post_quant_conv",
           {c.latent_channels, c.latent_channels, 1, 1, 1});
  add_pair(t, "decoder.x_embedder", "decoder.proj_in", {dim, c.latent_channels});
  if (c.registers > 0) t.push_back({kRegisters, kRegisters, {1, c.registers, dim}});
  for (int64_t i = 0; i < c.layers; ++i) {
    const std::string block = "decoder.transformer_blocks." + std::to_string(i) + ".";
    const auto vector = [&](const char* name) { t.push_back({block + name, block + name, {dim}}); };
    vector("norm1.weight");
    vector("norm2.weight");
    vector("scale1");
    vector("scale2");
    t.push_back({block + "attn.to_qkv.weight", block + "attn.to_", {3 * dim, dim}, Kind::kQkv});
    t.push_back({block + "attn.to_qkv.bias", block + "attn.to_", {3 * dim}, Kind::kQkv});
    add_pair(t, block + "attn.to_out", block + "attn.to_out.0", {dim, dim});
    t.push_back(
        {block + "ff.w1.weight", block + "ff.net.0.proj.weight", {2 * ffn, dim}, Kind::kGated});
    t.push_back({block + "ff.w1.bias", block + "ff.net.0.proj.bias", {2 * ffn}, Kind::kGated});
    add_pair(t, block + "ff.w2", block + "ff.net.2", {dim, ffn});
  }
  add_pair(t, "decoder.norm_out", "decoder.norm_out", {dim});
  add_pair(t, "decoder.proj_out", "decoder.proj_out", {c.patch_channels(), dim});
}

Tensors model_tensors(const VideoVaeConfig& config, Part part) {
  Tensors t;
  if (part != Part::kDecoder) add_encoder(t, config);
  if (part != Part::kEncoder) add_decoder(t, config);
  return t;
}

bool is_weight(const ModelTensor& t) { return t.shape.size() > 1; }

// The source of q, k or v in a diffusers checkpoint.
std::string diffusers_qkv(const ModelTensor& t, int matrix) {
  return t.diffusers + "qkv"[matrix] + (is_weight(t) ? ".weight" : ".bias");
}

std::vector<Piece> pieces_of(const VideoVaeConfig& c, const ModelTensor& t, NameStyle style) {
  const auto [rows, columns] = weights::as_matrix(t.shape);
  std::vector<Piece> pieces;
  int64_t target = 0;
  const auto take = [&, columns = columns](const std::string& source, int64_t row, int64_t count) {
    pieces.push_back({source, row, count, 0, columns, target});
    target += count;
  };
  const bool diffusers = style == NameStyle::kDiffusers;
  const std::string& source = diffusers ? t.diffusers : t.name;
  switch (t.kind) {
    case Kind::kPlain: take(source, 0, rows); break;
    case Kind::kQkv:
      for (int matrix = 0; matrix < 3; ++matrix) {
        if (diffusers) {
          take(diffusers_qkv(t, matrix), 0, c.dim());
          continue;
        }
        // Official files have q, k and v of head 0, then those of head 1, and so on.
        for (int64_t head = 0; head < c.heads; ++head) {
          take(t.name, (3 * head + matrix) * c.head_dim, c.head_dim);
        }
      }
      break;
    case Kind::kGated:  // [gate; value]; diffusers has [value; gate]
      take(source, diffusers ? c.ffn() : 0, c.ffn());
      take(source, diffusers ? 0 : c.ffn(), c.ffn());
      break;
  }
  return pieces;
}

}  // namespace

std::vector<SourceTensor> checkpoint_tensors(const VideoVaeConfig& config, NameStyle style) {
  std::vector<SourceTensor> sources;
  for (const ModelTensor& t : model_tensors(config, Part::kAll)) {
    if (style == NameStyle::kOfficial) {
      sources.push_back({t.name, t.shape, Dtype::kF32});
    } else if (t.kind == Kind::kQkv) {
      std::vector<int64_t> shape = t.shape;
      shape[0] /= 3;
      for (int matrix = 0; matrix < 3; ++matrix) {
        sources.push_back({diffusers_qkv(t, matrix), shape, Dtype::kF32});
      }
    } else {
      sources.push_back({t.diffusers, t.shape, Dtype::kF32});
    }
  }
  return sources;
}

std::vector<std::string> optional_tensors(const VideoVaeConfig& config, NameStyle style) {
  std::vector<std::string> names;
  if (style == NameStyle::kOfficial) names.push_back(kMaskToken);
  if (config.registers == 0) names.push_back(kRegisters);  // empty
  return names;
}

std::vector<TensorRecipe> model_recipes(const VideoVaeConfig& config, NameStyle style, Part part) {
  std::vector<TensorRecipe> recipes;
  for (const ModelTensor& t : model_tensors(config, part)) {
    recipes.push_back({t.name, t.shape, Dtype::kF32, pieces_of(config, t, style)});
  }
  return recipes;
}

NameStyle name_style_of(const weights::Checkpoint& checkpoint) {
  // One name of each style that every model of it has.
  const bool official = checkpoint.find("decoder.x_embedder.weight") != nullptr;
  const bool diffusers = checkpoint.find("decoder.proj_in.weight") != nullptr;
  if (official != diffusers) return official ? NameStyle::kOfficial : NameStyle::kDiffusers;
  throw Error(ErrorCode::kInvalidArgument,
              checkpoint.path() + ": " +
                  (official ? "has official names and those of diffusers at once"
                            : "is no MiniMax-H3 video VAE: neither decoder.x_embedder.weight "
                              "(official names) nor decoder.proj_in.weight (diffusers) is among "
                              "its " +
                                  std::to_string(checkpoint.tensors().size()) + " tensors"),
              "give the folder video_vae of a release, or vae of a diffusers copy");
}

std::string_view name_style_text(NameStyle style) {
  return style == NameStyle::kOfficial ? "official" : "diffusers";
}

}  // namespace h3::vae_video
