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

// What a request of the user is checked with: its text, its rule, its layers.
struct Claim {
  std::string name;  // "video_vae", "video_vae.self"
  const RequestedBackend& request;
  SelectionStep step;     // that applies it
  std::string no_layers;  // what the component lacks if no layer is addressed
};

// A recorded reason that the user allowed, or that belongs to the meaning of what he asked for.
bool replaced_by_rule(const AttentionPlan& plan, const Claim& claim, const ResolvedLayer& r) {
  if (r.step != claim.step || r.fallback_reason.empty()) return false;
  return plan.choices.allow_fallback || r.fallback_reason == kAuxiliaryKernelFallback ||
         claim.step == SelectionStep::kRole;
}

template <class Addressed>
void check_claim(const AttentionPlan& plan, const Claim& claim, const Addressed& addressed) {
  // What the server chose by itself may find no layer; a user's word may not be lost.
  if (!claim.request.user_given) return;
  bool any = false, matched = false, explained_away = false;
  std::set<std::string> others;
  std::string first_other, why_other;
  for (const ResolvedLayer& r : plan.layers) {
    if (!addressed(r.layer)) continue;
    any = true;
    const bool stronger_request =
        r.step == SelectionStep::kForced ||
        (r.step == SelectionStep::kRole && claim.step == SelectionStep::kComponent);
    if (stronger_request || replaced_by_rule(plan, claim, r)) {
      explained_away = true;
      continue;
    }
    if (r.backend == claim.request.backend) {
      matched = true;
      continue;
    }
    if (first_other.empty()) {
      first_other = to_text(r.backend);
      why_other = r.layer.required ? r.layer.required_why : r.fallback_reason;
    }
    if (r.fallback_reason.empty()) others.insert(std::string(to_text(r.backend)));
  }
  const std::string asked =
      fmt::format("{}={} was not applied: ", claim.name, to_text(claim.request.backend));
  if (!any) refuse(asked + claim.no_layers, "leave the entry out");
  if (!matched && !explained_away) {
    refuse(fmt::format("{}its layers run {} instead{}", asked, first_other,
                       why_other.empty() ? "" : " (" + why_other + ")"),
           "leave the entry out, or ask for " + first_other);
  }
  if (!others.empty()) {
    refuse(fmt::format("{}some of its layers run {} without an allowed fallback", asked,
                       joined({others.begin(), others.end()})),
           "those layers fix their backend; leave the entry out");
  }
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
  for (const auto& entry : requests.components) {
    const std::string& component = entry.first;
    check_claim(
        plan,
        {component, entry.second, SelectionStep::kComponent,
         "the component has no selectable attention layers"},
        [&](const LayerDescriptor& layer) { return addressed_by(requests, layer, component); });
  }
  for (const auto& entry : requests.roles) {
    const auto& [component, role] = entry.first;
    check_claim(plan,
                {fmt::format("{}.{}", component, to_text(role)), entry.second, SelectionStep::kRole,
                 fmt::format("the component has no {}-attention layers", to_text(role))},
                [&, role = role](const LayerDescriptor& layer) {
                  return layer.role == role && find_role_request(requests, layer) == &entry.second;
                });
  }
  if (!plan.choices.subblock_given) return;
  // Options of a request that --allow-fallback replaced are part of that request.
  const bool used = std::any_of(plan.layers.begin(), plan.layers.end(), [&](const auto& r) {
    return r.backend == BackendId::kSubBlock ||
           (plan.choices.allow_fallback && r.requested == BackendId::kSubBlock);
  });
  if (!used) {
    refuse("--attention-backend-config was given, but no layer runs subblock_sparse_attn",
           "add --attention-backend subblock_sparse_attn, or leave the options out");
  }
}

}  // namespace h3
