#include "h3/attention/report.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

namespace h3 {
namespace {

using Json = nlohmann::ordered_json;

struct Group {
  const ResolvedLayer* first = nullptr;
  int count = 1;
  std::string layers;  // "blocks.0-49.attn"
};

bool equal_passed_over(const ResolvedLayer& a, const ResolvedLayer& b) {
  if (a.passed_over.size() != b.passed_over.size()) return false;
  for (size_t i = 0; i < a.passed_over.size(); ++i) {
    if (a.passed_over[i].backend != b.passed_over[i].backend) return false;
  }
  return true;
}

// What a backend must be able to do for the layer.
std::vector<std::string> requirements(const LayerDescriptor& layer) {
  std::vector<std::string> names;
  if (layer.needs_packed) names.emplace_back("packed");
  if (layer.needs_lse) names.emplace_back("lse");
  if (layer.needs_mask) names.emplace_back("mask");
  if (layer.needs_query_block_mask) names.emplace_back("query_block_mask");
  return names;
}

bool same_group(const ResolvedLayer& a, const ResolvedLayer& b) {
  const LayerDescriptor &x = a.layer, &y = b.layer;
  return x.component == y.component && x.stack == y.stack && x.role == y.role &&
         x.heads == y.heads && x.kv_heads == y.kv_heads && x.head_dim == y.head_dim &&
         x.dtype == y.dtype && x.causal == y.causal && y.index == x.index + 1 &&
         x.sequence_parallel == y.sequence_parallel && requirements(x) == requirements(y) &&
         a.backend == b.backend && a.dense == b.dense && a.step == b.step &&
         a.fallback_reason == b.fallback_reason && a.gate == b.gate && equal_passed_over(a, b);
}

// "blocks.0.attn" and "blocks.49.attn" -> "blocks.0-49.attn".
std::string range_name(const std::string& first, int from, int to) {
  const std::string number = std::to_string(from);
  if (from == to) return first;
  const size_t at = first.find("." + number);
  const std::string range = fmt::format("{}-{}", from, to);
  if (at == std::string::npos) return fmt::format("{} [{}]", first, range);
  return std::string(first).replace(at + 1, number.size(), range);
}

std::vector<Group> grouped(const AttentionPlan& plan) {
  std::vector<Group> groups;
  const ResolvedLayer* last = nullptr;
  for (const ResolvedLayer& r : plan.layers) {
    if (last != nullptr && same_group(*last, r)) {
      ++groups.back().count;
    } else {
      groups.push_back({&r, 1, {}});
    }
    last = &r;
  }
  for (Group& g : groups) {
    const int from = g.first->layer.index;
    g.layers = range_name(g.first->layer.name, from, from + g.count - 1);
  }
  return groups;
}

std::string shape_text(const LayerDescriptor& layer) {
  std::string heads = std::to_string(layer.heads);
  if (layer.kv_heads != layer.heads) heads += fmt::format("/{}", layer.kv_heads);
  return fmt::format("{} x {} {}{}", heads, layer.head_dim, tessera::dtype_name(layer.dtype),
                     layer.causal ? " causal" : "");
}

std::string chosen_text(const ResolvedLayer& r) {
  std::string text(to_text(r.step));
  if (r.requested && *r.requested != r.backend) {
    text += fmt::format(" {}", to_text(*r.requested));
  }
  // "platform default (platform default fallback)" would say it twice.
  if (!r.fallback_reason.empty() && r.requested) text += fmt::format(" ({})", r.fallback_reason);
  if (!r.layer.required_why.empty()) text += fmt::format(" ({})", r.layer.required_why);
  return text;
}

std::string schedule_text(const ResolvedLayer& r, const SubBlockSettings& settings) {
  if (!r.gate.empty()) return fmt::format("always {}: {}", to_text(r.dense), r.gate);
  return fmt::format("sparse from step {} for documents of {} tokens and more, else {}",
                     settings.options.skip_first_steps, settings.options.min_seq_len,
                     to_text(r.dense));
}

// The first reason; --json has them all.
std::string passed_over_text(const PassedOver& p) {
  const size_t more = p.why.size() - 1;
  return fmt::format("    passed over: {}{}\n", p.why.front(),
                     more == 0 ? "" : fmt::format(" (and {} more)", more));
}

bool any_subblock(const AttentionPlan& plan, bool enabled_only) {
  for (const ResolvedLayer& r : plan.layers) {
    if (r.backend == BackendId::kSubBlock && (!enabled_only || r.gate.empty())) return true;
  }
  return false;
}

const char* yes_no(bool value) { return value ? "yes" : "no"; }

Json request_json(const AttentionChoices& choices) {
  Json json = Json::object();
  if (choices.forced) json["forced"] = to_text(*choices.forced);
  if (choices.global) {
    json["attention_backend"] = to_text(choices.global->backend);
    json["attention_backend_set_by_user"] = choices.global->user_given;
  }
  Json& components = json["component_attention_backends"] = Json::object();
  for (const auto& [name, r] : choices.components.components) components[name] = to_text(r.backend);
  for (const auto& [key, r] : choices.components.roles) {
    components[fmt::format("{}.{}", key.first, to_text(key.second))] = to_text(r.backend);
  }
  json["ulysses_degree"] = choices.ulysses_degree;
  json["ring_degree"] = choices.ring_degree;
  json["allow_fallback"] = choices.allow_fallback;
  return json;
}

Json settings_json(const SubBlockSettings& s) {
  Json json;
  json["off"] = s.off;
  json["target_mass"] = s.target_mass ? Json(*s.target_mass) : Json();
  json["sparsity"] = s.options.sparsity;
  json["n_k"] = s.options.n_k;
  json["n_q"] = s.options.n_q;
  json["skip_first_steps"] = s.options.skip_first_steps;
  json["skip_first_layers"] = s.options.skip_first_layers;
  json["min_seq_len"] = s.options.min_seq_len;
  json["compute_mode"] = s.options.compute_mode;
  return json;
}

Json group_json(const Group& g) {
  const ResolvedLayer& r = *g.first;
  Json json;
  json["component"] = r.layer.component;
  json["layers"] = g.layers;
  json["count"] = g.count;
  json["role"] = to_text(r.layer.role);
  json["heads"] = r.layer.heads;
  json["kv_heads"] = r.layer.kv_heads;
  json["head_dim"] = r.layer.head_dim;
  json["dtype"] = tessera::dtype_name(r.layer.dtype);
  json["causal"] = r.layer.causal;
  json["sequence_parallel"] = r.layer.sequence_parallel;
  json["needs"] = requirements(r.layer);
  json["backend"] = to_text(r.backend);
  json["dense"] = to_text(r.dense);
  json["chosen_by"] = to_text(r.step);
  json["requested"] = r.requested ? Json(to_text(*r.requested)) : Json();
  json["fallback_reason"] = r.fallback_reason;
  json["required_why"] = r.layer.required_why;
  json["passed_over"] = Json::array();
  for (const PassedOver& p : r.passed_over) {
    json["passed_over"].push_back({{"backend", to_text(p.backend)}, {"why", p.why}});
  }
  if (r.backend == BackendId::kSubBlock) {
    json["sparse"] = r.gate.empty();
    json["gate"] = r.gate;
  }
  return json;
}

}  // namespace

std::string plan_text(const AttentionPlan& plan) {
  const std::vector<Group> groups = grouped(plan);
  size_t wide_name = 5, wide_shape = 5, wide_backend = 7;
  for (const Group& g : groups) {
    const LayerDescriptor& layer = g.first->layer;
    wide_name = std::max(wide_name, layer.component.size() + 1 + g.layers.size());
    wide_shape = std::max(wide_shape, shape_text(layer).size());
    wide_backend = std::max(wide_backend, to_text(g.first->backend).size());
  }
  std::string text = fmt::format("device   {}\n", to_text(plan.platform));
  if (plan.choices.ulysses_degree > 1 || plan.choices.ring_degree > 1) {
    text += fmt::format("parallel ulysses {}, ring {}\n", plan.choices.ulysses_degree,
                        plan.choices.ring_degree);
  }
  if (any_subblock(plan, false)) {
    text += fmt::format("options  {}\n", describe(plan.choices.subblock));
  }
  text += fmt::format("\n{:<{}}  {:<5}  {:<{}}  {:<{}}  {}\n", "layer", wide_name, "role", "shape",
                      wide_shape, "backend", wide_backend, "chosen by");
  for (const Group& g : groups) {
    const ResolvedLayer& r = *g.first;
    text += fmt::format("{:<{}}  {:<5}  {:<{}}  {:<{}}  {}\n", r.layer.component + "." + g.layers,
                        wide_name, to_text(r.layer.role), shape_text(r.layer), wide_shape,
                        to_text(r.backend), wide_backend, chosen_text(r));
    if (r.backend == BackendId::kSubBlock) {
      text += fmt::format("    {}\n", schedule_text(r, plan.choices.subblock));
    }
    for (const PassedOver& p : r.passed_over) text += passed_over_text(p);
  }
  return text;
}

std::string plan_json(const AttentionPlan& plan) {
  Json json;
  json["device"] = to_text(plan.platform);
  json["request"] = request_json(plan.choices);
  json["subblock_options"] = settings_json(plan.choices.subblock);
  json["groups"] = Json::array();
  for (const Group& g : grouped(plan)) json["groups"].push_back(group_json(g));
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::string kept_text(const AttentionPlan& plan, int64_t tokens) {
  const SubBlockSettings& s = plan.choices.subblock;
  if (!any_subblock(plan, true) || tokens < s.options.min_seq_len) return {};
  const int64_t blocks = (tokens + tessera::kBlockTokens - 1) / tessera::kBlockTokens;
  if (s.target_mass) {
    return fmt::format("fewest of {} key blocks that reach mass {}", blocks, *s.target_mass);
  }
  const tessera::Budget budget = router_config(s).budget;
  const int32_t kept = tessera::blocks_for_sparsity(budget.sparsity, static_cast<int32_t>(blocks),
                                                    budget.granularity, budget.exact_rounding);
  return fmt::format("{} of {} key blocks, sparsity {:.4f} delivered for {} asked", kept, blocks,
                     1.0 - static_cast<double>(kept) / static_cast<double>(blocks),
                     s.options.sparsity);
}

std::string backends_text() {
  std::string text;
  for (const BackendId id : kAllBackends) {
    const BackendFacts& f = facts(id);
    text += fmt::format("{}{}\n", to_text(id), is_sparse(id) ? " (sparse)" : "");
    text += fmt::format("    devices {}; dtypes {}; head widths {}\n", f.devices, f.dtypes,
                        f.head_dims);
    text += fmt::format(
        "    packed documents {}{}, log-sum-exp {}, ring {}, mask {}, causal {}, grouped heads "
        "{}\n",
        yes_no(f.packed), f.packed_emulated ? " (one call each)" : "", yes_no(f.lse),
        yes_no(f.ring), yes_no(f.mask), yes_no(f.causal), yes_no(f.kv_groups));
  }
  std::vector<std::string> names, aliases;
  for (const BackendName& n : backend_names()) {
    if (!n.id) names.emplace_back(n.name);
  }
  for (const BackendAlias& a : backend_aliases()) {
    aliases.push_back(fmt::format("{} = {}", a.alias, a.name));
  }
  return text + fmt::format("aliases: {}\nknown names that are not in this engine: {}\n",
                            joined(aliases), joined(names));
}

std::string backends_json() {
  Json json;
  json["backends"] = Json::array();
  for (const BackendId id : kAllBackends) {
    const BackendFacts& f = facts(id);
    json["backends"].push_back({{"name", to_text(id)},
                                {"sparse", is_sparse(id)},
                                {"devices", f.devices},
                                {"dtypes", f.dtypes},
                                {"head_dims", f.head_dims},
                                {"packed", f.packed},
                                {"packed_emulated", f.packed_emulated},
                                {"lse", f.lse},
                                {"ring", f.ring},
                                {"mask", f.mask},
                                {"causal", f.causal},
                                {"kv_groups", f.kv_groups}});
  }
  json["aliases"] = Json::object();
  for (const BackendAlias& a : backend_aliases()) json["aliases"][std::string(a.alias)] = a.name;
  json["not_in_this_engine"] = Json::array();
  for (const BackendName& n : backend_names()) {
    if (!n.id) json["not_in_this_engine"].push_back(n.name);
  }
  return json.dump(2) + "\n";
}

}  // namespace h3
