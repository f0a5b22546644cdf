#include "h3/models/vae_audio/names.h"

#include <utility>

#include "h3/common/error.h"
#include "h3/weights/inventory.h"
#include "h3/weights/recipes.h"

namespace h3::vae_audio {
namespace {

using tessera::Dtype;
using weights::SourceTensor;
using weights::TensorRecipe;

constexpr int64_t kFilterTaps = 12;
constexpr const char* kFirstConv = "encoder.block.0";

// Names and shapes in the order of the modules.
class Lister {
 public:
  Lister(const AudioVaeConfig& config, NormStyle style) : c_(config), style_(style) {}

  std::vector<SourceTensor> list() {
    encoder();
    projection();
    for (const char* head : {"mean_proj", "logs_proj"}) {
      plain(std::string(head) + ".weight", {c_.latent_channels, c_.latent_channels, 1});
      plain(std::string(head) + ".bias", {c_.latent_channels});
    }
    plain("dec_in_proj.weight", {c_.latent_dim, c_.latent_channels, 1});
    plain("dec_in_proj.bias", {c_.latent_dim});
    vocoder();
    return std::move(tensors_);
  }

 private:
  void plain(const std::string& name, std::vector<int64_t> shape) {
    tensors_.push_back({name, std::move(shape), Dtype::kF32});
  }

  // A weight-normalised convolution; its norm keeps axis 0.
  void conv(const std::string& name, std::vector<int64_t> shape, int64_t bias) {
    switch (style_) {
      case NormStyle::kPair:
        plain(name + ".weight_g", {shape[0], 1, 1});
        plain(name + ".weight_v", shape);
        break;
      case NormStyle::kParametrized:
        plain(name + ".parametrizations.weight.original0", {shape[0], 1, 1});
        plain(name + ".parametrizations.weight.original1", shape);
        break;
      case NormStyle::kFolded: plain(name + ".weight", shape); break;
    }
    if (bias > 0) plain(name + ".bias", {bias});
  }

  void linear(const std::string& name, int64_t out, int64_t in) {
    plain(name + ".weight", {out, in});
    plain(name + ".bias", {out});
  }

  void norm(const std::string& name, int64_t width) {
    plain(name + ".weight", {width});
    plain(name + ".bias", {width});
  }

  void encoder() {
    int64_t width = c_.encoder_dim;
    conv(kFirstConv, {width, 1, 7}, width);
    size_t index = 1;
    for (const int64_t rate : c_.encoder_rates) {
      const std::string stage = "encoder.block." + std::to_string(index++) + ".block.";
      for (int unit = 0; unit < 3; ++unit) {
        const std::string block = stage + std::to_string(unit) + ".block.";
        plain(block + "0.alpha", {1, width, 1});
        conv(block + "1", {width, width, 7}, width);
        plain(block + "2.alpha", {1, width, 1});
        conv(block + "3", {width, width, 1}, width);
      }
      plain(stage + "3.alpha", {1, width, 1});
      conv(stage + "4", {2 * width, width, 2 * rate}, 2 * width);
      width *= 2;
    }
    plain("encoder.block." + std::to_string(index) + ".alpha", {1, width, 1});
    conv("encoder.block." + std::to_string(index + 1), {c_.latent_dim, width, 3}, c_.latent_dim);
  }

  void projection() {
    const int64_t in = c_.latent_dim, out = c_.latent_channels;
    norm("pre_block.norm1", in);
    plain("pre_block.attn.qkv.weight", {3 * in, in});
    for (const char* bias : {"q_bias", "zero_k_bias", "v_bias"}) {
      plain(std::string("pre_block.attn.") + bias, {in});
    }
    linear("pre_block.attn.proj", out, out);
    linear("pre_block.proj", out, in);
    norm("pre_block.norm3", in);
    norm("pre_block.norm2", out);
    norm("pre_block.mlp.norm", out);
    linear("pre_block.mlp.w0", 2 * out, out);
    linear("pre_block.mlp.w1", 2 * out, out);
    linear("pre_block.mlp.w2", out, 2 * out);
  }

  void activation(const std::string& name, int64_t width) {
    plain(name + ".act.alpha", {width});
    plain(name + ".act.beta", {width});
    plain(name + ".upsample.filter", {1, 1, kFilterTaps});
    plain(name + ".downsample.lowpass.filter", {1, 1, kFilterTaps});
  }

  void vocoder() {
    int64_t width = c_.decoder_dim;
    conv("decoder.conv_pre", {width, c_.latent_dim, 7}, width);
    size_t block = 0;
    for (size_t i = 0; i < c_.decoder_rates.size(); ++i) {
      // Transposed: axis 0 is the input channel.
      conv("decoder.ups." + std::to_string(i) + ".0", {width, width / 2, c_.decoder_kernels[i]},
           width / 2);
      width /= 2;
      for (size_t j = 0; j < c_.resblock_kernels.size(); ++j) {
        const std::string name = "decoder.resblocks." + std::to_string(block++) + ".";
        for (size_t n = 0; n < c_.resblock_dilations[j].size(); ++n) {
          const std::string index = std::to_string(n);
          conv(name + "convs1." + index, {width, width, c_.resblock_kernels[j]}, width);
          conv(name + "convs2." + index, {width, width, c_.resblock_kernels[j]}, width);
          activation(name + "activations." + std::to_string(2 * n), width);
          activation(name + "activations." + std::to_string(2 * n + 1), width);
        }
      }
    }
    activation("decoder.activation_post", width);
    conv("decoder.conv_post", {1, width, 7}, 0);
  }

  const AudioVaeConfig& c_;
  const NormStyle style_;
  std::vector<SourceTensor> tensors_;
};

}  // namespace

std::vector<SourceTensor> checkpoint_tensors(const AudioVaeConfig& config, NormStyle style) {
  return Lister(config, style).list();
}

std::vector<TensorRecipe> model_recipes(const AudioVaeConfig& config, NormStyle style) {
  const auto sources = checkpoint_tensors(config, style);
  const auto targets = checkpoint_tensors(
      config, style == NormStyle::kFolded ? NormStyle::kFolded : NormStyle::kPair);
  std::vector<TensorRecipe> recipes;
  for (size_t i = 0; i < sources.size(); ++i) {  // the same order, whatever the style
    const auto [rows, columns] = weights::as_matrix(sources[i].shape);
    recipes.push_back({targets[i].name,
                       targets[i].shape,
                       Dtype::kF32,
                       {{sources[i].name, 0, rows, 0, columns, 0}}});
  }
  return recipes;
}

NormStyle norm_style_of(const weights::Checkpoint& checkpoint) {
  const std::string first = kFirstConv;
  const bool pair = checkpoint.find(first + ".weight_v") != nullptr;
  const bool parametrized =
      checkpoint.find(first + ".parametrizations.weight.original1") != nullptr;
  const bool folded = checkpoint.find(first + ".weight") != nullptr;
  if (pair + parametrized + folded != 1) {
    throw Error(ErrorCode::kInvalidArgument,
                checkpoint.path() + ": " +
                    (pair + parametrized + folded == 0
                         ? "is no MiniMax-H3 audio VAE: " + first + " has none of weight_v, " +
                               "parametrizations.weight.original1 and weight"
                         : "holds the weight of " + first + " in several forms"),
                "give the folder audio_vae of the model");
  }
  return pair ? NormStyle::kPair : parametrized ? NormStyle::kParametrized : NormStyle::kFolded;
}

std::string_view norm_style_text(NormStyle style) {
  switch (style) {
    case NormStyle::kPair: return "weight_g";
    case NormStyle::kParametrized: return "parametrizations";
    case NormStyle::kFolded: return "folded";
  }
  return "";
}

AudioVaeCheckpoint open_audio_vae(const std::string& folder) {
  AudioVaeCheckpoint model;
  model.config = read_audio_vae_config(folder);
  model.checkpoint = weights::Checkpoint::open(folder);
  model.style = norm_style_of(model.checkpoint);
  weights::require_inventory(model.checkpoint, checkpoint_tensors(model.config, model.style));
  return model;
}

}  // namespace h3::vae_audio
