// tessera explain: what attend would do with an input, without running anything.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "tessera/cli/commands.h"
#include "tessera/cli/common/attention_choice.h"
#include "tessera/cli/common/engine.h"
#include "tessera/cli/common/output.h"
#include "tessera/cli/common/plan_summary.h"

namespace tessera::cli {
namespace {

struct Options {
  InputOptions input;
  ChoiceOptions choice;
};

// A plan with the counts that routing would give. The budget decides them, except for --mass, where
// they depend on the values and the cap stands in.
Status budget_plan(const Input& input, const InputOptions& options, const Routing& routing,
                   Plan* plan) {
  PlanShape shape;
  TESSERA_RETURN_IF_ERROR(route_shape(routing.params(input, options), &shape));
  TESSERA_RETURN_IF_ERROR(allocate_plan(shape, plan));
  plan->dense_rows.assign(size_t(shape.batch) * shape.query_blocks, 0);
  const Budget& budget = routing.config.budget;
  for (const Document& document : input.layout.documents) {
    int32_t kept = document.key_blocks;
    if (budget.kind == BudgetKind::kSparsity) {
      kept = blocks_for_sparsity(budget.sparsity, document.key_blocks, budget.granularity,
                                 budget.exact_rounding);
    } else if (budget.kind == BudgetKind::kKeep) {
      kept = std::min(budget.keep, document.key_blocks);
    } else if (budget.max_keep > 0) {
      kept = std::min(budget.max_keep, document.key_blocks);
    }
    for (int32_t i = 0; i < document.query_blocks; ++i) {
      const int32_t row = document.first_query_block + i;
      const bool dense =
          document.key_length < routing.min_seq_len ||
          (!routing.dense_query_blocks.empty() && routing.dense_query_blocks[row] != 0);
      for (int64_t b = 0; b < shape.batch; ++b) {
        if (dense) {
          plan->dense_rows[b * shape.query_blocks + row] = 1;
          continue;
        }
        for (int64_t h = 0; h < shape.heads; ++h) {
          const int64_t at = (b * shape.heads + h) * shape.query_blocks + row;
          plan->count[at] = kept;
          for (int32_t j = 0; j < kept; ++j) plan->index[at * shape.width + j] = j;
        }
      }
    }
  }
  return {};
}

Status print_result(const Options& options, const GlobalOptions& global, const Routing& routing,
                    const Explanation& told, const RoutingSummary& summary) {
  const bool routed = told.sparse && options.choice.plan_path.empty();
  const bool upper_bound = routed && routing.config.budget.kind == BudgetKind::kMass;
  const std::string mode = !told.sparse ? "dense" : routed ? "routed" : "plan";
  // A plan on a CUDA device is not counted by `explain`; the summary counts the host's.
  const double density = told.sparse ? summary.stats.density() : told.plan.density();
  if (global.json) {
    nlohmann::ordered_json json;
    json["input"] = options.input.path;
    json["mode"] = mode;
    json["kernel"] = told.kernel;
    json["ok"] = told.status.ok();
    if (!told.status.ok()) json["reason"] = told.status.message();
    if (routed) json["settings"] = routing_json(routing);
    if (told.sparse) json["plan"] = summary_json(summary);
    json["density"] = density;
    json["counts_are_upper_bounds"] = upper_bound;
    json["refusals"] = nlohmann::ordered_json::array();
    for (const Refusal& refusal : told.refusals) {
      json["refusals"].push_back({{"kernel", refusal.kernel}, {"reason", refusal.reason}});
    }
    return print_json(json);
  }
  std::string text =
      fmt::format("kernel     {} ({})\n", told.kernel.empty() ? "none" : told.kernel, mode);
  if (routed) {
    text += fmt::format("kept       {}{}\n", upper_bound ? "at most " : "",
                        kept_line(summary, routing.config.budget));
  }
  if (told.sparse) {
    text += fmt::format("documents  {} routed, {} dense\n", summary.sparse_documents,
                        summary.dense_documents);
  }
  text += fmt::format("density    {:.4f} of all block pairs{}\n", density,
                      upper_bound ? " at most (--mass decides by the values)" : "");
  for (const Refusal& refusal : told.refusals) {
    text += fmt::format("passed by  {}: {}\n", refusal.kernel, refusal.reason);
  }
  return print_text(text);
}

Status run_explain(const Options& options, const GlobalOptions& global) {
  Device device;
  Routing routing;
  TESSERA_RETURN_IF_ERROR(check_choice(options.choice, &device, &routing));
  Input input;
  Plan plan;
  TESSERA_RETURN_IF_ERROR(
      open_choice(options.choice, options.input, device, &input, &routing, &plan));
  if (options.choice.plan_path.empty() && !options.choice.dense) {
    TESSERA_RETURN_IF_ERROR(
        with_context(options.input.path, budget_plan(input, options.input, routing, &plan)));
  }
  // Never written: the pages of an untouched allocation take no memory.
  std::unique_ptr<std::byte[]> out;
  TESSERA_RETURN_IF_ERROR(allocate_elements(input.q.elements(), input.q.dtype, &out));
  Engine engine(device, global);
  TESSERA_RETURN_IF_ERROR(engine.open(input));
  const Explanation told = engine.explain(attention_params(input, options.input, out.get(), nullptr,
                                                           options.choice.dense ? nullptr : &plan),
                                          options.choice.kernel);
  RoutingSummary summary;
  if (!options.choice.dense) summary = summarize_plan(plan, input.layout);
  report_accepted(routing, summary);
  TESSERA_RETURN_IF_ERROR(print_result(options, global, routing, told, summary));
  return with_context(options.input.path, told.status);
}

}  // namespace

void add_explain_command(CLI::App& app, GlobalOptions& global) {
  auto options = std::make_shared<Options>();
  CLI::App* sub =
      add_command(app, global, "explain", "Say which kernel would run and what it would keep",
                  "tessera explain in.safetensors --sparsity 0.75",
                  [options, &global] { return run_explain(*options, global); });
  add_input_options(sub, options->input);
  add_choice_options(sub, options->choice, true);
}

}  // namespace tessera::cli
