#include "h3/parallel/plan_admission.h"

#include <cstdio>
#include <map>
#include <set>
#include <string>

#include "h3/attention/registry.h"

namespace h3::parallel {

LayerFacts facts_of(const ResolvedLayer& resolved) {
  const LayerDescriptor& layer = resolved.layer;
  LayerFacts result;
  result.name = layer.component + "." + layer.name;
  result.heads = layer.heads;
  result.kv_heads = layer.kv_heads;
  result.backend = to_text(resolved.backend);
  result.sparse = is_sparse(resolved.backend);
  result.supports_ring = facts(resolved.backend).ring;
  result.skip_sequence_parallel = !layer.sequence_parallel;
  return result;
}

void admit_plan(const AttentionPlan& plan, const Degrees& degrees) {
  for (const ResolvedLayer& layer : plan.layers) admit_layer(degrees, facts_of(layer));
  admit_h3(degrees);
}

void record_plan(const AttentionPlan& plan, ConfigRecord* record) {
  std::map<std::string, std::set<std::string>> backends;
  for (const ResolvedLayer& layer : plan.layers)
    backends[layer.layer.component].insert(std::string(to_text(layer.backend)));
  for (const auto& [component, names] : backends) {
    std::string list;
    for (const std::string& name : names) list += (list.empty() ? "" : ", ") + name;
    record->set("attention.backend." + component, list);
  }
  // Behind the backends in the order of keys, so that a difference which they show is named by
  // them.
  char digest[17];
  std::snprintf(digest, sizeof(digest), "%016llx",
                static_cast<unsigned long long>(plan_digest(plan)));
  record->set("attention.plan_digest", digest);
}

}  // namespace h3::parallel
