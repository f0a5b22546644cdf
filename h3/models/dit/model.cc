#include "h3/models/dit/model.h"

#include <ATen/Functions.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <cmath>

#include "h3/common/error.h"
#include "h3/layers/fused.h"
#include "h3/models/dit/call.h"
#include "h3/models/dit/memory.h"
#include "h3/parallel/plan_admission.h"

namespace h3::dit {
at::Tensor project(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  if (x.is_cpu() && x.scalar_type() != at::kFloat) {
    // The CPU has no fast bf16 matrix product; sums are f32 either way.
    const at::Tensor wide = at::linear(x.to(at::kFloat), weight.to(at::kFloat),
                                       bias.defined() ? bias.to(at::kFloat) : bias);
    return wide.to(x.scalar_type());
  }
  return bias.defined() ? at::linear(x, weight, bias) : at::linear(x, weight);
}

DitModel::DitModel(const DitConfig& config, DitWeights weights, AttentionRuntime& attention,
                   const DitParallel& parallel)
    : config_(config),
      weights_(std::move(weights)),
      attention_(attention),
      parallel_(parallel),
      timer_(device()) {
  const auto staging = std::make_shared<parallel::StagingBuffers>();
  const auto add = [&](const std::string& name, bool local, auto* layers) {
    const std::shared_ptr<RuntimeLayer> layer = attention.layer("transformer", name);
    parallel::UspOptions options;
    options.layer = parallel::facts_of(layer->resolved());
    options.layer.skip_sequence_parallel = local;
    layers->push_back(std::make_unique<parallel::UspAttention>(
        layer, local ? nullptr : parallel.sequence, staging, options));
  };
  for (int64_t i = 0; i < config.layers; ++i) {
    add("blocks." + std::to_string(i) + ".attn", false, &layers_);
  }
  // Text rows are few: every rank refines all of them.
  for (int64_t j = 0; j < config.refiner_layers; ++j) {
    add("token_refiner.blocks." + std::to_string(j) + ".attn", true, &refiner_layers_);
  }
}

int64_t DitModel::local_heads() const { return config_.heads / parallel_.shard().size; }

at::Tensor DitModel::row_parallel(const at::Tensor& x, const at::Tensor& weight) {
  at::Tensor out = project(x, weight);
  if (parallel_.tensor) parallel_.tensor->all_reduce_sum(out);
  return out;
}

at::Tensor DitModel::column_parallel(const at::Tensor& x, const LinearWeights& part) {
  const at::Tensor mine = project(x, part.weight, part.bias);
  if (!parallel_.tensor || parallel_.tensor->size() == 1) return mine;
  const int64_t ranks = parallel_.tensor->size(), rows = mine.size(0), width = mine.size(1);
  at::Tensor all = at::empty({ranks, rows, width}, mine.options());
  parallel_.tensor->all_gather(all.view({-1}), mine.contiguous().view({-1}));
  return all.permute({1, 0, 2}).reshape({rows, ranks * width});
}

at::Tensor DitModel::attend(const AttentionWeights& weights, parallel::UspAttention& layer,
                            at::Tensor y, const Call& call) {
  const int64_t heads = local_heads(), inner = heads * config_.head_dim;
  at::Tensor qkv;
  {
    const auto span = timer_.measure(Phase::kLinear);
    qkv = project(y, weights.qkv);
    y.reset();  // its memory is free for the attention
  }
  {
    const auto span = timer_.measure(Phase::kPointwise);
    layers::qk_norm_rope_(qkv, heads, weights.q_norm, weights.k_norm, config_.qk_norm_eps,
                          call.rope);
  }
  const auto part = [&](int64_t i) {
    return qkv.narrow(1, i * inner, inner).view({qkv.size(0), heads, config_.head_dim});
  };
  at::Tensor out;
  {
    const auto span = timer_.measure(Phase::kAttention);
    out = layer.forward_packed({part(0), part(1), part(2)}, call.bounds, call.attention);
  }
  qkv.reset();
  const auto span = timer_.measure(Phase::kLinear);
  return row_parallel(out.view({out.size(0), inner}), weights.out);
}

// In place: a row of the result depends on that row of `y` alone.
void DitModel::feed_forward(const BlockWeights& weights, at::Tensor& y) {
  const int64_t rows = y.size(0), passes = (rows + kMlpRows - 1) / kMlpRows;
  const int64_t step = std::max<int64_t>(1, (rows + passes - 1) / std::max<int64_t>(1, passes));
  for (int64_t first = 0; first < rows; first += step) {
    at::Tensor part = y.narrow(0, first, std::min(step, rows - first));
    at::Tensor wide;
    {
      const auto span = timer_.measure(Phase::kLinear);
      wide = project(part, weights.fc1);
    }
    {
      const auto span = timer_.measure(Phase::kPointwise);
      wide = layers::swiglu(wide);
    }
    const auto span = timer_.measure(Phase::kLinear);
    if (y.is_cuda()) {
      at::mm_out(part, wide, weights.fc2.t());
    } else {
      part.copy_(project(wide, weights.fc2));
    }
  }
  if (parallel_.tensor) {
    const auto span = timer_.measure(Phase::kLinear);
    parallel_.tensor->all_reduce_sum(y);
  }
}

at::Tensor DitModel::refine_text(const at::Tensor& features) {
  const c10::InferenceMode inference;
  if (features.dim() != 2 || features.size(0) < 1 || features.size(1) != config_.text_dim) {
    std::string sizes;
    for (const int64_t n : features.sizes())
      sizes += (sizes.empty() ? "" : ", ") + std::to_string(n);
    throw Error(ErrorCode::kInvalidArgument,
                "text features are [" + sizes + "]; accepted: [L, " +
                    std::to_string(config_.text_dim) + "] with L >= 1",
                "give the hidden states of one prompt, without a batch axis");
  }
  if (parallel_.tensor) {
    parallel_.tensor->require_agreement(
        parallel::Signature("text features").add("rows", features.size(0)));
  }
  Call call;
  const auto rows = static_cast<int32_t>(features.size(0));
  call.bounds = {{0, rows}, rows};
  at::Tensor h =
      column_parallel(features.to(device(), compute_type()), weights_.text_in).contiguous();
  for (size_t j = 0; j < weights_.refiner.size(); ++j) {
    const BlockWeights& block = weights_.refiner[j];
    at::Tensor y = layers::rms_norm(h, block.norm1, config_.norm_eps);
    h = h.add(attend(block.attention, *refiner_layers_[j], std::move(y), call));
    y = layers::rms_norm(h, block.norm2, config_.norm_eps);
    feed_forward(block, y);
    h = h.add(y);
  }
  return layers::rms_norm(h, weights_.refiner_norm, config_.norm_eps);
}

at::Tensor DitModel::time_embedding(std::span<const float> timesteps) {
  const int64_t half = config_.timestep_input / 2;
  const at::Tensor t =
      at::tensor(at::ArrayRef<float>(timesteps.data(), timesteps.size()), at::kFloat).to(device());
  const at::Tensor frequencies =
      at::arange(half, at::TensorOptions().dtype(at::kFloat).device(device()))
          .mul(-std::log(10000.0) / static_cast<double>(half))
          .exp();
  const at::Tensor angles = t.unsqueeze(1).mul(frequencies.unsqueeze(0));
  at::Tensor e = at::cat({angles.cos(), angles.sin()}, 1);
  e = at::silu(project(e, weights_.time_in.weight, weights_.time_in.bias));
  e = project(e, weights_.time_out.weight, weights_.time_out.bias);
  // The second SiLU in f32, before the cast: casting first biases every block alike.
  return at::silu(e).to(compute_type());
}

}  // namespace h3::dit
