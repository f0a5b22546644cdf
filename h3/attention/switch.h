// Switches attention per request, in two phases: prepare may fail and changes nothing, apply cannot
// fail.
//
//   AttentionSwitch attention(plan, layers);
//   attention.apply(attention.prepare(request_override));   // before the request's first step
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "h3/attention/override.h"
#include "h3/attention/schedule.h"
#include "h3/attention/selection.h"
#include "h3/common/error.h"

namespace h3 {

/// What a layer runs.
struct LayerTarget {
  BackendId backend = BackendId::kTorchSdpa;
  BackendId dense = BackendId::kTorchSdpa;  // the dense half of a sparse backend
  SubBlockSettings settings;
  LayerGate gate;               // of a sub-block layer under `settings`
  std::shared_ptr<void> ready;  // what the layer's prepare built: only the layer reads it
};

/// A layer whose implementation can be exchanged between two requests.
class SwitchableLayer {
 public:
  virtual ~SwitchableLayer() = default;
  virtual const LayerDescriptor& descriptor() const = 0;
  /// Builds whatever `target` needs and leaves it in target.ready, so that several prepared targets
  /// can wait side by side. May throw; what runs does not change.
  virtual void prepare(LayerTarget& target) = 0;
  /// Runs `target`, which prepare has seen, from now on. Must not allocate.
  virtual void apply(const LayerTarget& target) noexcept = 0;
};

/// Not thread-safe: one thread switches, while no forward is running. The layers must outlive it.
class AttentionSwitch {
  using Targets = std::shared_ptr<const std::vector<LayerTarget>>;  // one per layer

 public:
  /// What prepare found, to be handed to apply of the same object.
  class Prepared {
   public:
    bool changes_anything() const { return changes_; }

   private:
    friend class AttentionSwitch;
    bool changes_ = false;
    AttentionOverride override_;
    Targets targets_;  // none: the construction defaults, without a switch before
  };

  /// `layers` are the switchable ones of the transformer; `graphs` says that attention is captured
  /// in a graph or compiled, which fixes it. Throws kInternal if a layer is not in the plan.
  AttentionSwitch(const AttentionPlan& plan, std::vector<SwitchableLayer*> layers,
                  bool graphs = false);
  AttentionSwitch(const AttentionSwitch&) = delete;  // resolved_ points into plan_
  AttentionSwitch& operator=(const AttentionSwitch&) = delete;

  /// Checks the override against every layer and prepares them. An empty override stands for the
  /// construction defaults. Equal to the active one: no work. Layers with a required backend keep
  /// it. Throws kInvalidArgument or kUnsupported with all failed conditions joined into one
  /// message, or what a layer's prepare threw; then nothing has changed.
  Prepared prepare(const AttentionOverride& request);

  /// Several prepared results may wait and be applied in any order: each brings its own override
  /// into force, whatever was applied in between.
  void apply(Prepared&& prepared) noexcept;

  /// The override in force; empty: construction defaults.
  const AttentionOverride& active() const { return active_; }

 private:
  LayerTarget target_for(const ResolvedLayer& resolved, const AttentionOverride& request,
                         std::vector<std::string>* faults, ErrorCode* code) const;
  Targets prepared_by_layers(std::vector<LayerTarget> targets);

  AttentionPlan plan_;
  std::vector<SwitchableLayer*> layers_;
  std::vector<const ResolvedLayer*> resolved_;  // of layers_, into plan_
  bool graphs_;
  AttentionOverride active_;
  Targets active_targets_;  // none until the first switch
  Targets base_targets_;    // of the defaults; made together with the first other targets
};

}  // namespace h3
