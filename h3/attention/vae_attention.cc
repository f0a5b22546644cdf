#include "h3/attention/vae_attention.h"

#include <string>
#include <utility>

#include "h3/attention/checks.h"
#include "h3/attention/sdpa_impl.h"
#include "h3/common/error.h"

namespace h3 {
namespace {

std::string place(const VaeLayer& layer) {
  return layer.resolved.layer.component + "." + layer.resolved.layer.name;
}

}  // namespace

VaeContext::Scope::Scope(VaeContext& owner, AttentionContext context)
    : owner_(owner), previous_(std::move(context)) {
  owner_.current_.swap(previous_);
}

const AttentionContext& VaeContext::current(std::string_view reader) const {
  if (current_) return *current_;
  throw Error(ErrorCode::kInternal,
              "attention layer " + std::string(reader) + " ran without a forward context",
              "the stage that runs the VAE must hold a VaeContext::Scope around it");
}

VaeLayer vae_layer(const std::shared_ptr<RuntimeLayer>& layer) {
  return {layer, layer->resolved()};
}

VideoVaeAttention::VideoVaeAttention(VaeLayer layer, const VaeContext& context, bool t_causal)
    : layer_(std::move(layer)), name_(place(layer_)), context_(context), sdpa_(make_sdpa_impl({})) {
  if (t_causal || layer_.resolved.layer.causal) {
    throw Error(ErrorCode::kUnsupported,
                "video VAE layer " + place(layer_) +
                    " is t_causal; only non-causal attention is implemented",
                "use a checkpoint whose configuration has t_causal false");
  }
}

at::Tensor VideoVaeAttention::forward(const Qkv& qkv) {
  const AttentionContext& context = context_.current(name_);
  check_qkv(qkv, 4);
  const at::ScalarType dtype = qkv.q.scalar_type();
  const bool half = dtype == at::kHalf || dtype == at::kBFloat16;
  const bool sdpa_already = layer_.resolved.backend == BackendId::kTorchSdpa;
  if (sdpa_already || (half && qkv.q.is_cuda())) return layer_.impl->forward(qkv, context);
  return sdpa_->forward(qkv, context);
}

AudioVaeAttention::AudioVaeAttention(VaeLayer layer, const VaeContext& context,
                                     at::ScalarType compute_dtype)
    : layer_(std::move(layer)),
      name_(place(layer_)),
      context_(context),
      compute_dtype_(compute_dtype),
      fused_(layer_.resolved.backend != BackendId::kTorchSdpa) {
  if (!layer_.resolved.layer.causal) {
    throw Error(ErrorCode::kInternal, "audio VAE layer " + name_ + " is not causal");
  }
  if (fused_ && !layer_.resolved.explicit_request) {
    throw Error(ErrorCode::kInternal,
                "audio VAE layer " + name_ + " was given " +
                    std::string(to_text(layer_.resolved.backend)) +
                    " although nobody asked for it; f32 torch_sdpa is its default");
  }
}

at::Tensor AudioVaeAttention::forward(const Qkv& qkv) {
  const AttentionContext& context = context_.current(name_);
  if (!fused_) return layer_.impl->forward(qkv, context);
  check_qkv(qkv, 4);
  const Qkv cast{qkv.q.to(compute_dtype_), qkv.k.to(compute_dtype_), qkv.v.to(compute_dtype_)};
  return layer_.impl->forward(cast, context).to(qkv.q.scalar_type());
}

}  // namespace h3
