#include "h3/models/dit/weights.h"

#include <ATen/Context.h>
#include <ATen/core/Generator.h>
#include <ATen/ops/empty.h>

#include <functional>

#include "h3/common/error.h"

namespace h3::dit {
namespace {

using Tensors = std::unordered_map<std::string, at::Tensor>;

at::ScalarType scalar_type(tessera::Dtype dtype) {
  switch (dtype) {
    case tessera::Dtype::kBf16: return at::kBFloat16;
    case tessera::Dtype::kF16: return at::kHalf;
    case tessera::Dtype::kF32: return at::kFloat;
    default: throw Error(ErrorCode::kInternal, "weights are bf16, f16 or f32");
  }
}

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
  LinearWeights linear(const std::string& name) {
    return {(*this)(name + ".weight"), (*this)(name + ".bias")};
  }
  BlockWeights block(const std::string& name, bool adaln) {
    BlockWeights block;
    block.norm1 = (*this)(name + ".norm1.weight");
    block.norm2 = (*this)(name + ".norm2.weight");
    block.attention.qkv = (*this)(name + ".attn.qkv_proj.weight");
    block.attention.q_norm = (*this)(name + ".attn.q_norm.weight");
    block.attention.k_norm = (*this)(name + ".attn.k_norm.weight");
    block.attention.out = (*this)(name + ".attn.out_proj.weight");
    block.fc1 = (*this)(name + ".mlp.fc1.weight");
    block.fc2 = (*this)(name + ".mlp.fc2.weight");
    if (adaln) {
      block.adaln_weight = (*this)(name + ".adaln_proj.linear.weight");
      block.adaln_bias = (*this)(name + ".adaln_proj.linear.bias");
    }
    return block;
  }

 private:
  Tensors& tensors_;
};

DitWeights arranged(const DitConfig& config, Tensors& tensors) {
  Taker take(tensors);
  DitWeights w;
  w.video_in = take.linear("video_patch_proj");
  w.audio_in = take.linear("audio_patch_proj");
  w.text_in = take.linear("condition_proj");
  w.time_in = take.linear("time_embedder.proj_in");
  w.time_out = take.linear("time_embedder.proj_out");
  for (int64_t i = 0; i < config.refiner_layers; ++i) {
    w.refiner.push_back(take.block("token_refiner.blocks." + std::to_string(i), false));
  }
  w.refiner_norm = take("token_refiner.final_norm.weight");
  for (int64_t i = 0; i < config.layers; ++i) {
    w.blocks.push_back(take.block("blocks." + std::to_string(i), true));
  }
  w.final_norm = take("final_layer.norm.weight");
  w.final_adaln = take.linear("final_layer.adaln_proj.linear");
  w.video_out = take.linear("final_layer.video_out");
  w.audio_out = take.linear("final_layer.audio_out");
  if (!tensors.empty()) {
    throw Error(ErrorCode::kInternal, "tensor " + tensors.begin()->first + " is not of the model");
  }
  return w;
}

void for_each(const DitWeights& w, const std::function<void(const at::Tensor&)>& visit) {
  const auto linear = [&](const LinearWeights& l) {
    visit(l.weight);
    visit(l.bias);
  };
  const auto block = [&](const BlockWeights& b) {
    for (const at::Tensor* t :
         {&b.norm1, &b.norm2, &b.attention.qkv, &b.attention.q_norm, &b.attention.k_norm,
          &b.attention.out, &b.fc1, &b.fc2, &b.adaln_weight, &b.adaln_bias}) {
      if (t->defined()) visit(*t);
    }
  };
  for (const LinearWeights* l : {&w.video_in, &w.audio_in, &w.text_in, &w.time_in, &w.time_out,
                                 &w.final_adaln, &w.video_out, &w.audio_out}) {
    linear(*l);
  }
  for (const BlockWeights& b : w.refiner) block(b);
  for (const BlockWeights& b : w.blocks) block(b);
  visit(w.refiner_norm);
  visit(w.final_norm);
}

bool ends_with_norm(const std::string& name) {
  const size_t dot = name.rfind('.');
  const std::string owner = name.substr(0, dot);
  return owner.ends_with("norm") || owner.ends_with("norm1") || owner.ends_with("norm2");
}

}  // namespace

int64_t DitWeights::bytes() const {
  int64_t sum = 0;
  for_each(*this, [&](const at::Tensor& t) { sum += static_cast<int64_t>(t.nbytes()); });
  return sum;
}

DitWeights take_weights(const DitConfig& config, tessera::Dtype compute, const TensorShard& shard,
                        Tensors tensors) {
  std::optional<at::Device> device;
  for (const weights::TensorRecipe& recipe :
       model_recipes(config, NameStyle::kNative, compute, shard)) {
    const auto found = tensors.find(recipe.name);
    if (found == tensors.end()) continue;  // named by arranged()
    const at::Tensor& t = found->second;
    if (!device) device = t.device();
    if (t.sizes() != at::IntArrayRef(recipe.shape) ||
        t.scalar_type() != scalar_type(recipe.dtype) || t.device() != *device ||
        !t.is_contiguous()) {
      throw Error(ErrorCode::kInternal, "tensor " + recipe.name + " is " + text_of(t) +
                                            ", which is not what its recipe says");
    }
  }
  return arranged(config, tensors);
}

DitWeights random_weights(const DitConfig& config, tessera::Dtype compute, const TensorShard& shard,
                          const at::Device& device, uint64_t seed) {
  Tensors tensors;
  at::Generator generator = at::globalContext().defaultGenerator(device).clone();
  generator.set_current_seed(seed);
  for (const weights::TensorRecipe& recipe :
       model_recipes(config, NameStyle::kNative, compute, shard)) {
    at::Tensor t = at::empty(recipe.shape,
                             at::TensorOptions().dtype(scalar_type(recipe.dtype)).device(device));
    const bool vector = recipe.shape.size() == 1;
    if (vector && ends_with_norm(recipe.name)) {
      t.normal_(1.0, 0.1, generator);
    } else {
      t.normal_(0.0, vector ? 0.1 : 0.02, generator);
    }
    tensors.emplace(recipe.name, std::move(t));
  }
  return arranged(config, tensors);
}

}  // namespace h3::dit
