#include "h3/attention/switch.h"

#include <fmt/format.h>

#include <algorithm>

#include "h3/common/error.h"

namespace h3 {
namespace {

void add_once(std::vector<std::string>* texts, std::string text) {
  if (std::find(texts->begin(), texts->end(), text) == texts->end()) {
    texts->push_back(std::move(text));
  }
}

}  // namespace

AttentionSwitch::AttentionSwitch(const AttentionPlan& plan, std::vector<SwitchableLayer*> layers,
                                 bool graphs)
    : plan_(plan), layers_(std::move(layers)), graphs_(graphs) {
  resolved_.reserve(layers_.size());
  for (const SwitchableLayer* layer : layers_) {
    const LayerDescriptor& d = layer->descriptor();
    const auto found =
        std::find_if(plan_.layers.begin(), plan_.layers.end(), [&](const ResolvedLayer& r) {
          return r.layer.component == d.component && r.layer.name == d.name;
        });
    if (found == plan_.layers.end()) {
      throw Error(ErrorCode::kInternal,
                  fmt::format("layer {} of {} is not in the plan", d.name, d.component));
    }
    resolved_.push_back(&*found);
  }
}

LayerTarget AttentionSwitch::target_for(const ResolvedLayer& resolved,
                                        const AttentionOverride& request,
                                        std::vector<std::string>* faults, ErrorCode* code) const {
  LayerTarget target{resolved.backend, resolved.dense, plan_.choices.subblock, {}, {}};
  const bool fixed = resolved.layer.required.has_value();
  if (request.backend) {
    // As an explicit argument of the layer: never replaced in silence, outranked by `required`.
    LayerDescriptor layer = resolved.layer;
    layer.selected = request.backend;
    AttentionChoices choices = plan_.choices;
    choices.allow_fallback = false;
    try {
      const ResolvedLayer again = resolve_layer(layer, false, choices, plan_.platform);
      target.backend = again.backend;
      target.dense = again.dense;
    } catch (const Error& e) {
      add_once(faults, e.message());
      *code = e.code();
    }
  }
  if (!fixed) target.settings = with_override(plan_.choices.subblock, request);
  if (target.backend == BackendId::kSubBlock) {
    target.gate = layer_gate(resolved.layer, target.settings);
  }
  return target;
}

AttentionSwitch::Prepared AttentionSwitch::prepare(const AttentionOverride& request) {
  Prepared prepared;
  prepared.override_ = request;
  if (request == active_) {
    prepared.targets_ = active_targets_;
    return prepared;
  }

  std::vector<std::string> faults;
  ErrorCode code = ErrorCode::kInvalidArgument;
  if (const std::string text = override_faults(request); !text.empty()) faults.push_back(text);
  if (graphs_) {
    faults.emplace_back("attention is captured in a graph or compiled, which fixes it");
    code = ErrorCode::kUnsupported;
  }
  if (layers_.empty()) {
    faults.emplace_back("the model has no switchable attention layers");
    code = ErrorCode::kUnsupported;
  }
  bool any_sparse = false, any_open = false, all_fixed = true;
  std::vector<LayerTarget> targets;
  targets.reserve(layers_.size());
  for (const ResolvedLayer* resolved : resolved_) {
    targets.push_back(target_for(*resolved, request, &faults, &code));
    const LayerTarget& t = targets.back();
    any_sparse |= t.backend == BackendId::kSubBlock;
    any_open |= t.gate.enabled;
    all_fixed &= resolved->layer.required.has_value();
  }
  if (!layers_.empty() && all_fixed && !request.empty()) {
    faults.emplace_back("every layer's backend is required by the model");
  }
  if (!any_sparse && faults.empty() && request.changes_schedule()) {
    faults.emplace_back("no layer runs subblock_sparse_attn; add backend=subblock_sparse_attn");
  } else if (!any_open && faults.empty() &&
             (request.sparsity.value_or(0) > 0 || request.target_mass)) {
    faults.push_back(fmt::format("no layer would be sparse: skip_first_layers is {}",
                                 targets.front().settings.options.skip_first_layers));
  }
  if (!faults.empty()) {
    throw Error(code, fmt::format("attention override refused: {}", fmt::join(faults, "; ")),
                "the request may leave the override out to run the server's defaults");
  }
  prepared.targets_ = prepared_by_layers(std::move(targets));
  if (!base_targets_) {
    // A result that stands for the defaults may be waiting, and apply can no longer make targets.
    std::vector<LayerTarget> base;
    base.reserve(layers_.size());
    for (const ResolvedLayer* resolved : resolved_) {
      base.push_back(target_for(*resolved, {}, &faults, &code));
    }
    base_targets_ = prepared_by_layers(std::move(base));
  }
  prepared.changes_ = true;
  return prepared;
}

AttentionSwitch::Targets AttentionSwitch::prepared_by_layers(std::vector<LayerTarget> targets) {
  for (size_t i = 0; i < layers_.size(); ++i) layers_[i]->prepare(targets[i]);
  return std::make_shared<const std::vector<LayerTarget>>(std::move(targets));
}

void AttentionSwitch::apply(Prepared&& prepared) noexcept {
  // Compared now, not in prepare: another result may have been applied in between.
  if (prepared.override_ == active_) return;
  active_targets_ = prepared.targets_ ? std::move(prepared.targets_) : base_targets_;
  for (size_t i = 0; i < layers_.size(); ++i) layers_[i]->apply((*active_targets_)[i]);
  active_ = prepared.override_;
}

}  // namespace h3
