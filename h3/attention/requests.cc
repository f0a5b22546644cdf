#include "h3/attention/requests.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "h3/common/error.h"

namespace h3 {
namespace {

[[noreturn]] void refuse(std::string message, std::string hint) {
  throw Error(ErrorCode::kInvalidArgument, std::move(message), std::move(hint));
}

// The request that names `component` is the one that `layer` looks up.
bool addressed_by(const ComponentRequests& requests, const LayerDescriptor& layer,
                  const std::string& component) {
  if (layer.component == component) return true;
  return parent_component(layer.component) == component &&
         !requests.components.contains(layer.component);
}

bool exists(const ModelLayers& model, const std::string& component) {
  return std::any_of(model.components.begin(), model.components.end(), [&](const ComponentInfo& c) {
    return c.name == component || parent_component(c.name) == component;
  });
}

void check_component(const AttentionPlan& plan, const std::string& component,
                     const RequestedBackend& request) {
  bool any = false, matched = false, explained_away = false;
  std::set<std::string> others;
  std::string first_other, why_other;
  for (const ResolvedLayer& r : plan.layers) {
    if (!addressed_by(plan.choices.components, r.layer, component)) continue;
    any = true;
    if (r.step == SelectionStep::kRole || r.step == SelectionStep::kForced) {
      explained_away = true;  // a stronger request that the user made
      continue;
    }
    if (r.backend == request.backend) {
      matched = true;
      continue;
    }
    if (r.step == SelectionStep::kComponent && plan.choices.allow_fallback) {
      explained_away = true;
      continue;
    }
    if (first_other.empty()) {
      first_other = to_text(r.backend);
      why_other = r.layer.required ? r.layer.required_why : r.fallback_reason;
    }
    if (r.fallback_reason.empty()) others.insert(std::string(to_text(r.backend)));
  }
  // What the server chose by itself may find no layer; a user's word may not be lost.
  if (!request.user_given) return;
  const std::string asked =
      fmt::format("{}={} was not applied: ", component, to_text(request.backend));
  if (!any) {
    refuse(asked + "the component has no selectable attention layers", "leave the entry out");
  }
  if (!matched && !explained_away) {
    refuse(fmt::format("{}its layers run {} instead{}", asked, first_other,
                       why_other.empty() ? "" : " (" + why_other + ")"),
           "leave the entry out, or ask for " + first_other);
  }
  if (!others.empty()) {
    refuse(fmt::format("{}the component also selected {} without an allowed fallback", asked,
                       joined({others.begin(), others.end()})),
           "those layers fix their backend; leave the entry out");
  }
}

void check_role(const AttentionPlan& plan, const std::string& component, AttentionRole role) {
  const bool any = std::any_of(plan.layers.begin(), plan.layers.end(), [&](const ResolvedLayer& r) {
    return r.layer.role == role &&
           (r.layer.component == component || parent_component(r.layer.component) == component);
  });
  if (any) return;
  refuse(fmt::format("{}.{} was not applied: the component has no {}-attention layers", component,
                     to_text(role), to_text(role)),
         "leave the entry out");
}

}  // namespace

const RequestedBackend* find_component_request(const ComponentRequests& requests,
                                               const std::string& component) {
  for (const std::string& name : {component, parent_component(component)}) {
    const auto found = requests.components.find(name);
    if (found != requests.components.end()) return &found->second;
  }
  return nullptr;
}

const RequestedBackend* find_role_request(const ComponentRequests& requests,
                                          const LayerDescriptor& layer) {
  for (const std::string& name : {layer.component, parent_component(layer.component)}) {
    const auto found = requests.roles.find({name, layer.role});
    if (found != requests.roles.end()) return &found->second;
  }
  return nullptr;
}

void check_known_components(const ComponentRequests& requests, const ModelLayers& model) {
  std::vector<std::string> names, known;
  for (const auto& [name, request] : requests.components) names.push_back(name);
  for (const auto& [key, request] : requests.roles) names.push_back(key.first);
  for (const ComponentInfo& c : model.components) known.push_back(c.name);
  for (const std::string& name : names) {
    if (exists(model, name)) continue;
    const std::string near = nearest_name(name, known);
    refuse(fmt::format("--component-attention-backends: component '{}' does not exist; components: "
                       "{}",
                       name, joined(known)),
           near.empty() ? "leave the entry out" : "nearest is " + near);
  }
}

void check_requests_used(const AttentionPlan& plan, const ModelLayers& model) {
  const ComponentRequests& requests = plan.choices.components;
  for (const auto& [component, request] : requests.components) {
    check_component(plan, component, request);
  }
  for (const auto& [key, request] : requests.roles) {
    if (request.user_given) check_role(plan, key.first, key.second);
  }
  if (!plan.choices.subblock_given) return;
  const bool used = std::any_of(plan.layers.begin(), plan.layers.end(), [](const ResolvedLayer& r) {
    return r.backend == BackendId::kSubBlock;
  });
  if (!used) {
    refuse("--attention-backend-config was given, but no layer runs subblock_sparse_attn",
           "add --attention-backend subblock_sparse_attn, or leave the options out");
  }
}

}  // namespace h3
