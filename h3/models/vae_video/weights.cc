#include "h3/models/vae_video/weights.h"

#include <ATen/Context.h>
#include <ATen/core/Generator.h>
#include <ATen/ops/empty.h>

#include <cmath>
#include <functional>

#include "h3/common/error.h"
#include "h3/weights/recipes.h"

namespace h3::vae_video {
namespace {

using Tensors = std::unordered_map<std::string, at::Tensor>;

std::string text_of(const at::Tensor& t) {
  std::string text = std::string(c10::toString(t.scalar_type())) + " [";
  for (const int64_t n : t.sizes()) text += std::to_string(n) + " ";
  return text + "] on " + t.device().str();
}

class Taker {
 public:
  explicit Taker(Tensors& tensors) : tensors_(tensors) {}

  at::Tensor operator()(const std::string& name) {
    const auto found = tensors_.find(name);
    if (found == tensors_.end()) {
      throw Error(ErrorCode::kInternal, "tensor " + name + " was not loaded");
    }
    at::Tensor tensor = std::move(found->second);
    tensors_.erase(found);
    return tensor;
  }
  WeightBias pair(const std::string& name) {
    return {(*this)(name + ".weight"), (*this)(name + ".bias")};
  }

 private:
  Tensors& tensors_;
};

EncoderWeights take_encoder(const VideoVaeConfig& config, Taker& take) {
  EncoderWeights w;
  w.conv_in = take.pair("encoder.conv_in");
  int64_t in = config.widths[0];
  for (size_t l = 0; l < config.widths.size(); ++l) {
    const std::string level_name = "encoder.down." + std::to_string(l);
    LevelWeights level;
    for (int64_t j = 0; j < config.blocks_per_level; ++j) {
      const std::string name = level_name + ".block." + std::to_string(j) + ".";
      ResidualWeights block;
      block.norm1 = take.pair(name + "norm1");
      block.conv1 = take.pair(name + "conv1");
      block.norm2 = take.pair(name + "norm2");
      block.conv2 = take.pair(name + "conv2");
      if (in != config.widths[l]) block.shortcut = take.pair(name + "nin_shortcut");
      in = config.widths[l];
      level.blocks.push_back(std::move(block));
    }
    if (config.space_down[l] * config.time_down[l] > 1) {
      level.downsample = take.pair(level_name + ".downsample.conv");
    }
    w.levels.push_back(std::move(level));
  }
  w.norm_out = take.pair("encoder.norm_out");
  w.conv_out = take.pair("encoder.conv_out");
  w.quant = take.pair("quant_conv");
  return w;
}

DecoderWeights take_decoder(const VideoVaeConfig& config, Taker& take) {
  DecoderWeights w;
  w.post_quant = take.pair("post_quant_conv");
  w.embed = take.pair("decoder.x_embedder");
  if (config.registers > 0) w.registers = take("decoder.register_tokens");
  for (int64_t i = 0; i < config.layers; ++i) {
    const std::string name = "decoder.transformer_blocks." + std::to_string(i) + ".";
    DecoderBlockWeights block;
    block.norm1 = take(name + "norm1.weight");
    block.norm2 = take(name + "norm2.weight");
    block.scale1 = take(name + "scale1");
    block.scale2 = take(name + "scale2");
    block.qkv = take.pair(name + "attn.to_qkv");
    block.out = take.pair(name + "attn.to_out");
    block.w1 = take.pair(name + "ff.w1");
    block.w2 = take.pair(name + "ff.w2");
    w.blocks.push_back(std::move(block));
  }
  w.norm_out = take.pair("decoder.norm_out");
  w.proj_out = take.pair("decoder.proj_out");
  return w;
}

VideoVaeWeights arranged(const VideoVaeConfig& config, Part part, Tensors& tensors) {
  Taker take(tensors);
  VideoVaeWeights w;
  if (part != Part::kDecoder) w.encoder = take_encoder(config, take);
  if (part != Part::kEncoder) w.decoder = take_decoder(config, take);
  if (!tensors.empty()) {
    throw Error(ErrorCode::kInternal, "tensor " + tensors.begin()->first + " is not of the model");
  }
  return w;
}

bool scales(const std::string& name) {  // weight of a norm
  return name.find("norm") != std::string::npos && name.ends_with(".weight");
}

}  // namespace

int64_t VideoVaeWeights::bytes() const {
  int64_t sum = 0;
  const auto add = [&](const at::Tensor& t) {
    if (t.defined()) sum += static_cast<int64_t>(t.nbytes());
  };
  const auto pair = [&](const WeightBias& p) {
    add(p.weight);
    add(p.bias);
  };
  if (encoder) {
    for (const WeightBias* p :
         {&encoder->conv_in, &encoder->norm_out, &encoder->conv_out, &encoder->quant}) {
      pair(*p);
    }
    for (const LevelWeights& level : encoder->levels) {
      pair(level.downsample);
      for (const ResidualWeights& b : level.blocks) {
        for (const WeightBias* p : {&b.norm1, &b.conv1, &b.norm2, &b.conv2, &b.shortcut}) pair(*p);
      }
    }
  }
  if (decoder) {
    for (const WeightBias* p :
         {&decoder->post_quant, &decoder->embed, &decoder->norm_out, &decoder->proj_out}) {
      pair(*p);
    }
    add(decoder->registers);
    for (const DecoderBlockWeights& b : decoder->blocks) {
      for (const at::Tensor* t : {&b.norm1, &b.norm2, &b.scale1, &b.scale2}) add(*t);
      for (const WeightBias* p : {&b.qkv, &b.out, &b.w1, &b.w2}) pair(*p);
    }
  }
  return sum;
}

VideoVaeWeights take_weights(const VideoVaeConfig& config, Part part, Tensors tensors) {
  std::optional<at::Device> device;
  for (const weights::TensorRecipe& recipe : model_recipes(config, NameStyle::kOfficial, part)) {
    const auto found = tensors.find(recipe.name);
    if (found == tensors.end()) continue;  // named by arranged()
    const at::Tensor& t = found->second;
    if (!device) device = t.device();
    if (t.sizes() != at::IntArrayRef(recipe.shape) || t.scalar_type() != at::kFloat ||
        t.device() != *device || !t.is_contiguous()) {
      throw Error(ErrorCode::kInternal, "tensor " + recipe.name + " is " + text_of(t) +
                                            ", which is not what its recipe says");
    }
  }
  return arranged(config, part, tensors);
}

VideoVaeWeights random_weights(const VideoVaeConfig& config, Part part, const at::Device& device,
                               uint64_t seed) {
  Tensors tensors;
  at::Generator generator = at::globalContext().defaultGenerator(device).clone();
  generator.set_current_seed(seed);
  for (const weights::TensorRecipe& recipe : model_recipes(config, NameStyle::kOfficial, part)) {
    at::Tensor t = at::empty(recipe.shape, at::TensorOptions().dtype(at::kFloat).device(device));
    const bool matrix = recipe.shape.size() > 1 && recipe.shape[0] > 1;
    const auto fan_in = static_cast<double>(weights::as_matrix(recipe.shape)[1]);
    if (scales(recipe.name)) {
      t.normal_(1.0, 0.1, generator);
    } else {
      t.normal_(0.0, matrix ? 1 / std::sqrt(fan_in) : 0.1, generator);
    }
    tensors.emplace(recipe.name, std::move(t));
  }
  return arranged(config, part, tensors);
}

int64_t prepare_autocast_weights(DecoderWeights& weights, at::ScalarType dtype) {
  if (dtype != at::kHalf && dtype != at::kBFloat16) {
    throw Error(ErrorCode::kInvalidArgument,
                std::string("MiniMax H3 decoder autocast weights require fp16 or bf16, got ") +
                    c10::toString(dtype),
                "leave the weights f32 where decoding is not autocast");
  }
  int64_t converted = 0;
  for (DecoderBlockWeights& block : weights.blocks) {
    for (WeightBias* linear : {&block.qkv, &block.out, &block.w1, &block.w2}) {
      if (linear->weight.scalar_type() == dtype) continue;
      linear->weight = linear->weight.to(dtype);
      linear->bias = linear->bias.to(dtype);
      ++converted;
    }
  }
  return converted;
}

}  // namespace h3::vae_video
