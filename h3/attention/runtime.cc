#include "h3/attention/runtime.h"

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <utility>

#include "h3/attention/report.h"
#include "h3/common/error.h"

namespace h3 {
namespace {

void log_to_stderr(std::string_view text) { std::fwrite(text.data(), 1, text.size(), stderr); }

std::string full_name(const LayerDescriptor& d) { return d.component + "." + d.name; }

}  // namespace

AttentionRuntime::AttentionRuntime(const AttentionPlan& plan, const RuntimeOptions& options)
    : plan_(plan) {
  std::vector<SwitchableLayer*> switchable;
  layers_.reserve(plan_.layers.size());
  for (const ResolvedLayer& resolved : plan_.layers) {
    layers_.push_back(
        std::make_shared<RuntimeLayer>(resolved, plan_.choices.subblock, plan_.platform));
    if (resolved.layer.stack != LayerStack::kOther) switchable.push_back(layers_.back().get());
  }
  switch_ = std::make_unique<AttentionSwitch>(plan_, std::move(switchable), options.graphs);
  const std::string table = plan_text(plan_);
  options.log ? options.log(table) : log_to_stderr(table);
}

std::shared_ptr<RuntimeLayer> AttentionRuntime::layer(std::string_view component,
                                                      std::string_view name) const {
  std::vector<std::string> names;
  for (const std::shared_ptr<RuntimeLayer>& layer : layers_) {
    const LayerDescriptor& d = layer->descriptor();
    if (d.component == component && d.name == name) return layer;
    names.push_back(full_name(d));
  }
  const std::string wanted = std::string(component) + "." + std::string(name);
  const std::string nearest = nearest_name(wanted, names);
  throw Error(
      ErrorCode::kInvalidArgument,
      "layer " + wanted + " is not among the " + std::to_string(names.size()) + " of the plan",
      nearest.empty() ? "resolve the plan for the model that runs" : "nearest: " + nearest);
}

AttentionSwitch::Prepared AttentionRuntime::prepare(const AttentionOverride& request) {
  return switch_->prepare(request);
}

void AttentionRuntime::apply(AttentionSwitch::Prepared&& prepared) noexcept {
  switch_->apply(std::move(prepared));
}

bool AttentionRuntime::wants_query_block_mask() const {
  return std::any_of(layers_.begin(), layers_.end(), [](const auto& layer) {
    return layer->may_be_sparse() && layer->descriptor().needs_query_block_mask;
  });
}

AttentionContext AttentionRuntime::context(StepIndex step, std::span<const int64_t> video_rows,
                                           int64_t used) const {
  AttentionContext context{step, false, {}};
  if (!wants_query_block_mask()) return context;
  context.query_block_mask = query_block_mask(video_rows, used);
  context.has_query_block_mask = true;
  return context;
}

std::vector<LayerReport> AttentionRuntime::stats() const {
  std::vector<LayerReport> reports;
  reports.reserve(layers_.size());
  for (const std::shared_ptr<RuntimeLayer>& layer : layers_) {
    reports.push_back({full_name(layer->descriptor()), layer->backend(), layer->stats().values()});
  }
  return reports;
}

std::string AttentionRuntime::stats_text() const {
  std::string text;
  CounterValues total;
  size_t ran = 0;
  for (const LayerReport& r : stats()) {
    if (r.counters.sparse_calls + r.counters.all_dense_calls() == 0) continue;
    ++ran;
    total += r.counters;
    text += r.layer + " " + std::string(to_text(r.backend)) + ": " + describe(r.counters) + "\n";
  }
  return text + std::to_string(ran) + " of " + std::to_string(layers_.size()) +
         " layers ran: " + describe(total) + "\n";
}

std::string AttentionRuntime::stats_json() const {
  using Json = nlohmann::ordered_json;
  Json json;
  json["layers"] = Json::array();
  CounterValues total;
  for (const LayerReport& r : stats()) {
    total += r.counters;
    json["layers"].push_back({{"layer", r.layer},
                              {"backend", to_text(r.backend)},
                              {"counters", Json::parse(counters_json(r.counters))}});
  }
  json["total"] = Json::parse(counters_json(total));
  return json.dump();
}

void AttentionRuntime::reset_stats() {
  for (const std::shared_ptr<RuntimeLayer>& layer : layers_) layer->stats().reset();
}

}  // namespace h3
