#include "h3/attention/runtime_layer.h"

#include <utility>

#include "h3/attention/dense_impl.h"
#include "h3/attention/registry.h"
#include "h3/attention/sdpa_impl.h"
#include "h3/attention/subblock_impl.h"
#include "h3/common/error.h"

namespace h3 {

std::shared_ptr<AttentionImpl> make_dense_backend(BackendId id, const AttentionOptions& options) {
  switch (id) {
    case BackendId::kFa: return make_dense_impl(options);
    case BackendId::kTorchSdpa: return make_sdpa_impl(options);
    case BackendId::kTorchCudnnSdpa: return make_cudnn_sdpa_impl(options);
    case BackendId::kSubBlock: break;
  }
  throw Error(ErrorCode::kInternal, std::string(to_text(id)) + " is no dense backend");
}

bool RuntimeLayer::Running::serves(const LayerTarget& target) const {
  if (backend != target.backend || dense != target.dense) return false;
  return backend != BackendId::kSubBlock || settings == target.settings;
}

RuntimeLayer::RuntimeLayer(const ResolvedLayer& resolved, const SubBlockSettings& settings,
                           const Platform& platform, float softmax_scale)
    : resolved_(resolved),
      platform_(platform),
      options_{softmax_scale, resolved.layer.causal},
      stats_(std::make_shared<LayerStats>()) {
  LayerTarget target{resolved.backend, resolved.dense, settings, {}, {}};
  if (target.backend == BackendId::kSubBlock) target.gate = layer_gate(resolved.layer, settings);
  default_ = current_ = build(target);
  backend_ = current_->backend;
}

const std::shared_ptr<AttentionImpl>& RuntimeLayer::dense_backend(BackendId id) {
  std::shared_ptr<AttentionImpl>& impl = dense_[static_cast<size_t>(id)];
  if (impl == nullptr) impl = make_dense_backend(id, options_);
  return impl;
}

std::shared_ptr<RuntimeLayer::Running> RuntimeLayer::build(const LayerTarget& target) {
  auto running = std::make_shared<Running>(
      Running{target.backend, target.dense, target.settings, target.gate, nullptr});
  if (target.backend != BackendId::kSubBlock) {
    running->impl = dense_backend(target.backend);
    return running;
  }
  DenseHalf dense{dense_backend(target.dense), nullptr};
  // The dense half was chosen for the layer's dtype; an f32 call needs one that takes f32.
  LayerDescriptor f32 = resolved_.layer;
  f32.dtype = tessera::Dtype::kF32;
  if (resolves_elsewhere(target.dense, f32, platform_)) {
    dense.f32 = dense_backend(BackendId::kTorchSdpa);
  }
  SubBlockOptions options;
  options.attention = options_;
  options.settings = target.settings;
  options.gate = target.gate;
  options.needs_query_block_mask = resolved_.layer.needs_query_block_mask;
  running->impl = make_subblock_impl(options, std::move(dense), stats_);
  return running;
}

at::Tensor RuntimeLayer::forward(const Qkv& qkv, const AttentionContext& context) {
  at::Tensor out = current_->impl->forward(qkv, context);
  if (!counts_itself()) stats_->add_dense(DenseReason::kBackend);
  return out;
}

at::Tensor RuntimeLayer::forward_packed(const Qkv& qkv, const PackedBounds& bounds,
                                        const AttentionContext& context) {
  at::Tensor out = current_->impl->forward_packed(qkv, bounds, context);
  if (!counts_itself()) stats_->add_dense(DenseReason::kBackend);
  return out;
}

AttentionPartial RuntimeLayer::forward_with_lse(const Qkv& qkv) {
  AttentionPartial partial = current_->impl->forward_with_lse(qkv);
  if (!counts_itself()) stats_->add_dense(DenseReason::kBackend);
  return partial;
}

void RuntimeLayer::prepare(LayerTarget& target) {
  for (const std::shared_ptr<Running>& known : {default_, current_}) {
    if (known->serves(target)) {
      target.ready = known;
      return;
    }
  }
  target.ready = build(target);
}

void RuntimeLayer::apply(const LayerTarget& target) noexcept {
  current_ = std::static_pointer_cast<Running>(target.ready);
  backend_ = current_->backend;
}

}  // namespace h3
