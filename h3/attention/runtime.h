// Runs a resolved plan: all its layers with their counters, the switch per request, and what they
// report.
//
//   AttentionRuntime attention(plan);                       // logs the table once
//   auto layer = attention.layer("transformer", "blocks.7.attn");
//   attention.apply(attention.prepare(request_override));   // between two requests
//   AttentionContext context = attention.context({step}, video_rows, used);
//   at::Tensor out = layer->forward_packed({q, k, v}, bounds, context);
//   puts(attention.stats_text().c_str());
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "h3/attention/runtime_layer.h"
#include "h3/attention/selection.h"
#include "h3/attention/switch.h"

namespace h3 {

struct RuntimeOptions {
  /// Takes the resolved table, once, at construction. Empty: standard error.
  std::function<void(std::string_view)> log;
  bool graphs = false;  // attention is captured in a graph or compiled: no per-request switching
};

struct LayerReport {
  std::string layer;  // "transformer.blocks.7.attn"
  BackendId backend;  // runs now
  CounterValues counters;
};

class AttentionRuntime {
 public:
  /// Throws h3::Error: see RuntimeLayer.
  explicit AttentionRuntime(const AttentionPlan& plan, const RuntimeOptions& options = {});
  AttentionRuntime(const AttentionRuntime&) = delete;
  AttentionRuntime& operator=(const AttentionRuntime&) = delete;

  const AttentionPlan& plan() const { return plan_; }

  /// Throws kInvalidArgument for a layer that is not in the plan, naming the nearest one.
  std::shared_ptr<RuntimeLayer> layer(std::string_view component, std::string_view name) const;
  const std::vector<std::shared_ptr<RuntimeLayer>>& layers() const { return layers_; }

  /// The two phases of a switch, over the denoise and refiner layers; see AttentionSwitch.
  AttentionSwitch::Prepared prepare(const AttentionOverride& request);
  void apply(AttentionSwitch::Prepared&& prepared) noexcept;
  const AttentionOverride& active_override() const { return switch_->active(); }

  /// Whether a layer may be sparse now and needs to know which query blocks are video.
  bool wants_query_block_mask() const;
  /// Context of the forwards of a step, with the mask of `video_rows` among `used` rows if
  /// wants_query_block_mask(), else without. The mask is the same in all steps of a request: make
  /// the context once, after apply, and set `step`. Throws as query_block_mask.
  AttentionContext context(StepIndex step, std::span<const int64_t> video_rows, int64_t used) const;

  /// What the layers did since construction or the last reset. These, and nothing else here, wait
  /// for the device. Any thread, also while forwards run.
  std::vector<LayerReport> stats() const;
  std::string stats_text() const;  // a line per layer that ran, and their sum
  std::string stats_json() const;  // {"layers":[{"layer","backend","counters"}],"total":{}}
  void reset_stats();

 private:
  const AttentionPlan plan_;
  std::vector<std::shared_ptr<RuntimeLayer>> layers_;  // as in plan_.layers
  std::unique_ptr<AttentionSwitch> switch_;
};

}  // namespace h3
