// One attention layer of a resolved plan: owns the implementations it may run and its counters, and
// can be switched between two requests.
#pragma once

#include <array>
#include <atomic>
#include <memory>

#include "h3/attention/impl.h"
#include "h3/attention/layer_stats.h"
#include "h3/attention/selection.h"
#include "h3/attention/switch.h"

namespace h3 {

/// The implementation of a dense backend. Throws h3::Error: kInternal for subblock_sparse_attn,
/// kUnsupported for a causal layer on a backend without causal kernels.
std::shared_ptr<AttentionImpl> make_dense_backend(BackendId id, const AttentionOptions& options);

/// Calls go to whatever runs now; calls of a dense backend are counted as DenseReason::kBackend.
/// Forwards may run in several threads, but none while the layer is switched.
class RuntimeLayer final : public AttentionImpl, public SwitchableLayer {
 public:
  /// Runs what `resolved` says under the plan's sub-block settings. Throws as make_dense_backend.
  RuntimeLayer(const ResolvedLayer& resolved, const SubBlockSettings& settings,
               const Platform& platform, float softmax_scale = 0);

  at::Tensor forward(const Qkv& qkv, const AttentionContext& context) override;
  at::Tensor forward_packed(const Qkv& qkv, const PackedBounds& bounds,
                            const AttentionContext& context) override;
  AttentionPartial forward_with_lse(const Qkv& qkv) override;

  const LayerDescriptor& descriptor() const override { return resolved_.layer; }
  void prepare(LayerTarget& target) override;
  void apply(const LayerTarget& target) noexcept override;

  const ResolvedLayer& resolved() const { return resolved_; }
  /// Any thread, at any time.
  BackendId backend() const { return backend_.load(std::memory_order_relaxed); }
  /// Whether some call may be sparse now: the backend is sparse and its layer gate open.
  bool may_be_sparse() const { return current_->gate.enabled; }
  LayerStats& stats() { return *stats_; }

 private:
  struct Running {
    BackendId backend, dense;
    SubBlockSettings settings;
    LayerGate gate;
    std::shared_ptr<AttentionImpl> impl;

    bool serves(const LayerTarget& target) const;
  };

  std::shared_ptr<Running> build(const LayerTarget& target);
  const std::shared_ptr<AttentionImpl>& dense_backend(BackendId id);
  bool counts_itself() const { return current_->backend == BackendId::kSubBlock; }

  const ResolvedLayer resolved_;
  const Platform platform_;
  const AttentionOptions options_;
  const std::shared_ptr<LayerStats> stats_;
  std::array<std::shared_ptr<AttentionImpl>, std::size(kAllBackends)> dense_;  // by id, as needed
  std::shared_ptr<Running> default_, current_;
  std::atomic<BackendId> backend_;  // current_->backend, for readers of the counters
};

}  // namespace h3
