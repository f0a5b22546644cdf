#include "h3/attention/selection.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "h3/attention/report.h"
#include "h3/attention/requests.h"
#include "h3/attention/schedule.h"
#include "h3/common/error.h"
#include "h3/common/hash.h"

namespace h3 {
namespace {

struct Choice {
  std::optional<BackendId> backend;
  SelectionStep step = SelectionStep::kPlatformDefault;
  bool is_explicit = false;
};

Choice choose(const LayerDescriptor& layer, const AttentionChoices& c) {
  if (layer.required) return {layer.required, SelectionStep::kLayerRequired, true};
  if (layer.selected) return {layer.selected, SelectionStep::kLayerArgument, true};
  if (c.forced) return {c.forced, SelectionStep::kForced, true};
  if (const RequestedBackend* r = find_role_request(c.components, layer)) {
    return {r->backend, SelectionStep::kRole, true};
  }
  if (const RequestedBackend* r = find_component_request(c.components, layer.component)) {
    return {r->backend, SelectionStep::kComponent, true};
  }
  if (c.global) return {c.global->backend, SelectionStep::kGlobal, c.global->user_given};
  if (layer.default_backend) return {layer.default_backend, SelectionStep::kLayerDefault, false};
  if (layer.supported.size() == 1) {
    return {layer.supported[0], SelectionStep::kOnlySupported, false};
  }
  return {};
}

// Why the choice may be replaced; empty: it may not.
std::string_view fallback_permission(const Choice& choice, const LayerDescriptor& layer,
                                     bool auxiliary, const AttentionChoices& c) {
  if (!choice.is_explicit) return "platform default fallback";
  if (layer.role == AttentionRole::kCross && is_sparse(*choice.backend)) {
    return "dense cross-attention fallback";
  }
  if (choice.step == SelectionStep::kGlobal && (layer.default_backend || auxiliary)) {
    return "global backend fallback";
  }
  if (c.allow_fallback) return "fallback allowed by --allow-fallback";
  return {};
}

// Published commands name fa for text encoder and VAEs; where it has no kernel it means torch_sdpa.
bool may_mean_sdpa(const Choice& choice, bool auxiliary) {
  const bool asked = choice.step == SelectionStep::kForced || choice.step == SelectionStep::kRole ||
                     choice.step == SelectionStep::kComponent;
  return auxiliary && asked && choice.backend == BackendId::kFa;
}

std::vector<BackendId> candidates_for(const Choice& choice, bool may_fall_back,
                                      const LayerDescriptor& layer, const Platform& platform) {
  std::vector<BackendId> list;
  const auto add = [&](BackendId id) {
    if (std::find(list.begin(), list.end(), id) == list.end()) list.push_back(id);
  };
  if (choice.backend) add(*choice.backend);
  if (!may_fall_back) return list;
  if (layer.default_backend) add(*layer.default_backend);
  add(platform_default(platform));
  std::vector<BackendId> rest = layer.supported;
  std::sort(rest.begin(), rest.end(),
            [](BackendId a, BackendId b) { return to_text(a) < to_text(b); });
  for (const BackendId id : rest) add(id);
  return list;
}

bool in_supported_set(BackendId id, const LayerDescriptor& layer) {
  if (layer.supported.empty()) return true;
  // The same kernels behind another name.
  if (id == BackendId::kTorchCudnnSdpa) id = BackendId::kTorchSdpa;
  return std::find(layer.supported.begin(), layer.supported.end(), id) != layer.supported.end();
}

std::string supported_text(const LayerDescriptor& layer) {
  std::vector<std::string> names;
  for (const BackendId id : layer.supported) names.emplace_back(to_text(id));
  return joined(names);
}

std::string place(const LayerDescriptor& layer) {
  return fmt::format("layer {} ({}-attention) of component {}", layer.name, to_text(layer.role),
                     layer.component);
}

// A missing requirement is the better answer: no other device would help.
std::vector<std::string> texts_of(std::vector<BackendRefusal> refusals) {
  std::stable_sort(
      refusals.begin(), refusals.end(),
      [](const BackendRefusal& a, const BackendRefusal& b) { return a.kind < b.kind; });
  std::vector<std::string> texts;
  for (BackendRefusal& r : refusals) texts.push_back(std::move(r.text));
  return texts;
}

ErrorCode code_of(RefusalKind kind) {
  const bool mendable = kind == RefusalKind::kRequirement || kind == RefusalKind::kScope;
  return mendable ? ErrorCode::kInvalidArgument : ErrorCode::kUnsupported;
}

[[noreturn]] void fail(const LayerDescriptor& layer, const Choice& choice, bool may_fall_back,
                       const std::vector<BackendRefusal>& refusals) {
  const RefusalKind worst =
      std::min_element(refusals.begin(), refusals.end(), [](const auto& a, const auto& b) {
        return a.kind < b.kind;
      })->kind;
  std::string asked = "no backend was asked for";
  if (choice.backend) {
    asked = fmt::format("{} asks for {}", to_text(choice.step), to_text(*choice.backend));
  }
  throw Error(
      code_of(worst),
      fmt::format("{}: {}, but {}", place(layer), asked, fmt::join(texts_of(refusals), "; ")),
      may_fall_back ? "" : "ask for another backend, or pass --allow-fallback");
}

class LayerSearch {
 public:
  LayerSearch(const LayerDescriptor& layer, const Platform& platform, bool ring)
      : layer_(layer), platform_(platform), ring_(ring) {}

  /// The backend that serves as `candidate`, or nothing; refusals are collected.
  std::optional<BackendId> attempt(BackendId candidate, bool set_binds,
                                   bool may_resolve_elsewhere) {
    BackendId target = candidate;
    std::vector<BackendRefusal> found;
    if (const auto why = resolves_elsewhere(candidate, layer_, platform_)) {
      found.push_back({RefusalKind::kPlatform, fmt::format("{} {}; it resolves to torch_sdpa here",
                                                           to_text(candidate), *why)});
      if (!may_resolve_elsewhere) {
        // What the candidate itself lacks matters more than where it would resolve to.
        for (BackendRefusal& r : admit(candidate, layer_, platform_, ring_)) found.push_back(r);
        return refuse(candidate, std::move(found));
      }
      passed_over_.push_back({candidate, {found.front().text}});
      found.clear();
      target = BackendId::kTorchSdpa;
    }
    if (set_binds && !in_supported_set(target, layer_)) {
      found.push_back(
          {RefusalKind::kScope, fmt::format("{} is not in the layer's supported set ({})",
                                            to_text(target), supported_text(layer_))});
    }
    for (BackendRefusal& r : admit(target, layer_, platform_, ring_)) {
      if (r.kind == RefusalKind::kBuild) {
        throw Error(ErrorCode::kUnsupported, fmt::format("{}: {}", place(layer_), r.text));
      }
      found.push_back(std::move(r));
    }
    if (!found.empty()) return refuse(target, std::move(found));
    return target;
  }

  std::vector<PassedOver> passed_over_;
  std::vector<BackendRefusal> refusals_;

 private:
  std::optional<BackendId> refuse(BackendId id, std::vector<BackendRefusal> found) {
    passed_over_.push_back({id, texts_of(found)});
    refusals_.insert(refusals_.end(), found.begin(), found.end());
    return {};
  }

  const LayerDescriptor& layer_;
  const Platform& platform_;
  const bool ring_;
};

// The dense half of a sparse layer: fa where its kernel runs, by the layer's real dtype.
BackendId dense_partner(const LayerDescriptor& layer, const Platform& platform) {
  return resolves_elsewhere(BackendId::kFa, layer, platform) ? BackendId::kTorchSdpa
                                                             : BackendId::kFa;
}

}  // namespace

std::string_view to_text(SelectionStep step) {
  switch (step) {
    case SelectionStep::kLayerRequired: return "required by the model";
    case SelectionStep::kLayerArgument: return "argument of the layer";
    case SelectionStep::kForced: return "forced for the process";
    case SelectionStep::kRole: return "component role option";
    case SelectionStep::kComponent: return "component option";
    case SelectionStep::kGlobal: return "--attention-backend";
    case SelectionStep::kLayerDefault: return "layer default";
    case SelectionStep::kOnlySupported: return "only backend of the layer";
    case SelectionStep::kPlatformDefault: return "platform default";
  }
  return "?";
}

ResolvedLayer resolve_layer(const LayerDescriptor& layer, bool auxiliary,
                            const AttentionChoices& choices, const Platform& platform) {
  const Choice choice = choose(layer, choices);
  const std::string_view permission = fallback_permission(choice, layer, auxiliary, choices);
  const bool may_fall_back = !permission.empty();
  // A global request reaches components its user did not think of: there the set binds it too.
  const bool wide = choice.step == SelectionStep::kGlobal && auxiliary;
  LayerSearch search(layer, platform, choices.ring_degree > 1);
  ResolvedLayer out;
  out.layer = layer;
  out.step = choice.step;
  out.requested = choice.backend;
  out.explicit_request = choice.is_explicit;
  const bool means_sdpa = may_mean_sdpa(choice, auxiliary);
  std::optional<BackendId> found;
  for (const BackendId candidate : candidates_for(choice, may_fall_back, layer, platform)) {
    const bool asked_for = choice.is_explicit && candidate == choice.backend;
    found = search.attempt(candidate, !asked_for || wide,
                           !asked_for || choices.allow_fallback || means_sdpa);
    if (found) break;
  }
  if (!found) fail(layer, choice, may_fall_back, search.refusals_);
  out.backend = *found;
  out.passed_over = std::move(search.passed_over_);
  if (!out.passed_over.empty()) {
    out.fallback_reason = means_sdpa ? kAuxiliaryKernelFallback : permission;
  }
  out.dense = is_sparse(out.backend) ? dense_partner(layer, platform) : out.backend;
  if (out.backend == BackendId::kSubBlock) {
    const LayerGate gate = layer_gate(layer, choices.subblock);
    if (!gate.enabled) out.gate = gate.why;
  }
  return out;
}

AttentionPlan resolve_attention(const ModelLayers& model, const AttentionChoices& choices,
                                const Platform& platform) {
  check_known_components(choices.components, model);
  AttentionPlan plan{platform, choices, {}};
  std::set<std::string> auxiliary;
  for (const ComponentInfo& c : model.components) {
    if (c.auxiliary) auxiliary.insert(c.name);
  }
  plan.layers.reserve(model.layers.size());
  for (const LayerDescriptor& layer : model.layers) {
    plan.layers.push_back(
        resolve_layer(layer, auxiliary.contains(layer.component), choices, platform));
  }
  check_requests_used(plan, model);
  return plan;
}

uint64_t plan_digest(const AttentionPlan& plan) {
  return fnv1a(plan_json(plan));  // the JSON form names everything that ranks have to agree on
}

}  // namespace h3
