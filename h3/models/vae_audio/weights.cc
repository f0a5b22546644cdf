#include "h3/models/vae_audio/weights.h"

#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Generator.h>
#include <ATen/ops/_weight_norm.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <cmath>

#include "h3/common/error.h"
#include "h3/models/vae_audio/names.h"

namespace h3::vae_audio {
namespace {

using Tensors = std::unordered_map<std::string, at::Tensor>;

class Taker {
 public:
  explicit Taker(Tensors& tensors) : tensors_(tensors) {}

  at::Tensor plain(const std::string& name) {
    const auto found = tensors_.find(name);
    if (found == tensors_.end()) {
      throw Error(ErrorCode::kInternal, "tensor " + name + " was not loaded");
    }
    at::Tensor tensor = std::move(found->second);
    tensors_.erase(found);
    return tensor;
  }
  at::Tensor counted(at::Tensor tensor) {
    bytes_ += static_cast<int64_t>(tensor.nbytes());
    return tensor;
  }
  at::Tensor kept(const std::string& name) { return counted(plain(name)); }
  at::Tensor conv_weight(const std::string& name) {
    if (tensors_.contains(name + ".weight")) return kept(name + ".weight");
    const at::Tensor g = plain(name + ".weight_g");
    return counted(folded_weight(g, plain(name + ".weight_v"), name));
  }
  Affine conv(const std::string& name) {
    at::Tensor weight = conv_weight(name);
    return {std::move(weight), kept(name + ".bias")};
  }
  Affine affine(const std::string& name) {
    at::Tensor weight = kept(name + ".weight");
    return {std::move(weight), kept(name + ".bias")};
  }
  ActivationWeights activation(const std::string& name) {
    ActivationWeights w;
    w.alpha = counted(plain(name + ".act.alpha").exp().unsqueeze(1));
    w.inverse_beta = counted((plain(name + ".act.beta").exp() + 1e-9).reciprocal().unsqueeze(1));
    w.up = counted(up_phases(plain(name + ".upsample.filter")));
    w.down = counted(down_phases(plain(name + ".downsample.lowpass.filter")));
    return w;
  }
  int64_t bytes() const { return bytes_; }

 private:
  Tensors& tensors_;
  int64_t bytes_ = 0;
};

EncoderWeights take_encoder(const AudioVaeConfig& config, Taker& take) {
  EncoderWeights w;
  w.first = take.conv("encoder.block.0");
  size_t index = 1;
  for (size_t stage = 0; stage < config.encoder_rates.size(); ++stage) {
    const std::string name = "encoder.block." + std::to_string(index++) + ".block.";
    EncoderStageWeights s;
    for (size_t unit = 0; unit < s.units.size(); ++unit) {
      const std::string block = name + std::to_string(unit) + ".block.";
      s.units[unit].alpha1 = take.kept(block + "0.alpha");
      s.units[unit].conv1 = take.conv(block + "1");
      s.units[unit].alpha2 = take.kept(block + "2.alpha");
      s.units[unit].conv2 = take.conv(block + "3");
    }
    s.alpha = take.kept(name + "3.alpha");
    s.down = take.conv(name + "4");
    w.stages.push_back(std::move(s));
  }
  w.alpha = take.kept("encoder.block." + std::to_string(index) + ".alpha");
  w.last = take.conv("encoder.block." + std::to_string(index + 1));
  return w;
}

ProjectionWeights take_projection(Taker& take) {
  ProjectionWeights w;
  w.norm1 = take.affine("pre_block.norm1");
  w.norm2 = take.affine("pre_block.norm2");
  w.norm3 = take.affine("pre_block.norm3");
  w.attention.qkv = take.kept("pre_block.attn.qkv.weight");
  const at::Tensor q = take.plain("pre_block.attn.q_bias"),
                   k = take.plain("pre_block.attn.zero_k_bias"),
                   v = take.plain("pre_block.attn.v_bias");
  w.attention.qkv_bias = take.counted(at::cat({q, k, v}));
  w.attention.proj = take.affine("pre_block.attn.proj");
  w.proj = take.affine("pre_block.proj");
  w.mlp_norm = take.affine("pre_block.mlp.norm");
  w.w0 = take.affine("pre_block.mlp.w0");
  w.w1 = take.affine("pre_block.mlp.w1");
  w.w2 = take.affine("pre_block.mlp.w2");
  return w;
}

VocoderWeights take_vocoder(const AudioVaeConfig& config, Taker& take) {
  VocoderWeights w;
  w.pre = take.conv("decoder.conv_pre");
  size_t index = 0;
  for (size_t i = 0; i < config.decoder_rates.size(); ++i) {
    w.ups.push_back(take.conv("decoder.ups." + std::to_string(i) + ".0"));
    for (const auto& dilations : config.resblock_dilations) {
      const std::string name = "decoder.resblocks." + std::to_string(index++) + ".";
      ResblockWeights block;
      for (size_t n = 0; n < dilations.size(); ++n) {
        block.convs1.push_back(take.conv(name + "convs1." + std::to_string(n)));
        block.convs2.push_back(take.conv(name + "convs2." + std::to_string(n)));
        for (const size_t a : {2 * n, 2 * n + 1}) {
          block.activations.push_back(take.activation(name + "activations." + std::to_string(a)));
        }
      }
      w.resblocks.push_back(std::move(block));
    }
  }
  w.last_activation = take.activation("decoder.activation_post");
  w.post = take.conv_weight("decoder.conv_post");
  return w;
}

}  // namespace

at::Tensor folded_weight(const at::Tensor& g, const at::Tensor& v, const std::string& name) {
  at::Tensor weight = at::_weight_norm(v, g, 0);
  if (!weight.isfinite().all().item<bool>()) {
    throw Error(ErrorCode::kInvalidArgument,
                "the weight-normalised tensor " + name +
                    " has a row of zeros or a value that is not finite in weight_v or weight_g",
                "the checkpoint is damaged; fetch it again");
  }
  return weight;
}

// Sample 2i of the doubled signal is 2 sum_r f[2r + 1] x[i + 2 - r], sample 2i + 1 is
// 2 sum_r f[2r] x[i + 3 - r], r = 0..5; written over x[i - 3 .. i + 3].
at::Tensor up_phases(const at::Tensor& filter) {
  const at::Tensor f = filter.flatten();
  at::Tensor phases = at::zeros({2, 1, 7}, filter.options());
  for (int64_t t = 0; t < 6; ++t) {
    phases[0][0][t].copy_(f[11 - 2 * t]);
    phases[1][0][t + 1].copy_(f[10 - 2 * t]);
  }
  return phases.mul_(2);  // exact
}

// Sample i is sum_k f[k] u[2i + k - 5]: even samples of u take the odd taps.
at::Tensor down_phases(const at::Tensor& filter) {
  const at::Tensor f = filter.flatten();
  at::Tensor phases = at::zeros({1, 2, 7}, filter.options());
  for (int64_t t = 0; t < 6; ++t) {
    phases[0][0][t + 1].copy_(f[2 * t + 1]);
    phases[0][1][t].copy_(f[2 * t]);
  }
  return phases;
}

AudioVaeWeights take_weights(const AudioVaeConfig& config, Tensors tensors) {
  const bool folded = tensors.contains("encoder.block.0.weight");
  for (const auto& recipe : model_recipes(config, folded ? NormStyle::kFolded : NormStyle::kPair)) {
    const auto found = tensors.find(recipe.name);
    if (found == tensors.end()) continue;  // named below
    const at::Tensor& t = found->second;
    if (t.sizes() != at::IntArrayRef(recipe.shape) || t.scalar_type() != at::kFloat) {
      throw Error(ErrorCode::kInternal,
                  "tensor " + recipe.name + " is not of the shape and type of its recipe");
    }
  }
  Taker take(tensors);
  AudioVaeWeights w;
  w.encoder = take_encoder(config, take);
  w.projection = take_projection(take);
  w.mean = take.affine("mean_proj");
  w.logs = take.affine("logs_proj");
  w.decoder_in = take.affine("dec_in_proj");
  w.vocoder = take_vocoder(config, take);
  w.bytes = take.bytes();
  if (!tensors.empty()) {
    throw Error(ErrorCode::kInternal, "tensor " + tensors.begin()->first + " is not of the model");
  }
  return w;
}

AudioVaeWeights random_weights(const AudioVaeConfig& config, const c10::Device& device,
                               uint64_t seed) {
  at::Generator generator = at::globalContext().defaultGenerator(device).clone();
  generator.set_current_seed(seed);
  Tensors tensors;
  for (const auto& recipe : model_recipes(config, NormStyle::kFolded)) {
    at::Tensor t = at::empty(recipe.shape, at::TensorOptions().dtype(at::kFloat).device(device));
    const std::string& name = recipe.name;
    if (name.ends_with("zero_k_bias")) {
      t.zero_();
    } else if (name.ends_with("filter")) {
      t.fill_(1.0 / static_cast<double>(t.numel()));
    } else if (name.ends_with(".alpha") && recipe.shape.size() == 3) {
      t.uniform_(0.5, 1.5, generator);  // linear scale
    } else if (name.ends_with(".alpha") || name.ends_with(".beta") || name.ends_with("bias")) {
      t.normal_(0, 0.1, generator);
    } else if (recipe.shape.size() == 1) {
      t.normal_(1, 0.1, generator);
    } else {
      // Half of what would keep the variance: residual branches add up.
      const double fan_in = static_cast<double>(t.numel() / t.size(0));
      t.normal_(0, 0.5 / std::sqrt(fan_in), generator);
    }
    tensors.emplace(name, std::move(t));
  }
  return take_weights(config, std::move(tensors));
}

}  // namespace h3::vae_audio
