// tessera route: which key blocks each query block keeps, written as a plan file.
#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "tessera/cli/commands.h"
#include "tessera/cli/common/device_option.h"
#include "tessera/cli/common/engine.h"
#include "tessera/cli/common/input.h"
#include "tessera/cli/common/output.h"
#include "tessera/cli/common/plan_file.h"
#include "tessera/cli/common/plan_summary.h"
#include "tessera/cli/common/progress.h"
#include "tessera/cli/common/routing.h"

namespace tessera::cli {
namespace {

struct Options {
  InputOptions input;
  RoutingOptions routing;
  std::string device = "cpu";
  std::string output;
};

Status print_result(const Options& options, const GlobalOptions& global, const Routing& routing,
                    const Plan& plan, const RoutingSummary& summary, const std::string& device,
                    double seconds) {
  if (global.json) {
    nlohmann::ordered_json json;
    json["input"] = options.input.path;
    json["plan"] = options.output;
    json["device"] = device;
    json["settings"] = routing_json(routing);
    json["shape"] = {plan.shape.batch, plan.shape.heads, plan.shape.query_blocks, plan.shape.width};
    json.update(summary_json(summary));
    json["seconds"] = seconds;
    return print_json(json);
  }
  std::string text =
      fmt::format("plan       {}  [B, H, Gq, W] = [{}, {}, {}, {}]\n", options.output,
                  plan.shape.batch, plan.shape.heads, plan.shape.query_blocks, plan.shape.width);
  text += fmt::format("kept       {}\n", kept_line(summary, routing.config.budget));
  text += fmt::format("density    {:.4f} of all block pairs\n", summary.stats.density());
  if (summary.mean_mass >= 0) {
    text += fmt::format("mass       {:.4f} kept on average, as the router estimates it\n",
                        summary.mean_mass);
  }
  text += fmt::format("documents  {} routed, {} dense\n", summary.sparse_documents,
                      summary.dense_documents);
  text += fmt::format("time       {} on {}\n", time_text(seconds), device);
  return print_text(text);
}

Status run_route(const Options& options, const GlobalOptions& global) {
  Device device;
  TESSERA_RETURN_IF_ERROR(resolve_device(options.device, &device));
  Routing routing;
  TESSERA_RETURN_IF_ERROR(check_routing_options(options.routing, &routing));
  TESSERA_RETURN_IF_ERROR(check_output_path(options.output, options.input.path));
  Input input;
  TESSERA_RETURN_IF_ERROR(load_input(options.input, false, &input));
  TESSERA_RETURN_IF_ERROR(with_context(input.path, check_device_tensor(device, input.q)));
  TESSERA_RETURN_IF_ERROR(resolve_routing(options.routing, input, &routing));
  TESSERA_RETURN_IF_ERROR(check_finite(input, global.threads));

  Plan plan;
  ProgressBar bar("route");
  Engine engine(device, global);
  TESSERA_RETURN_IF_ERROR(engine.open(input));
  double seconds = 0;
  TESSERA_RETURN_IF_ERROR(with_context(
      options.input.path,
      engine.route(routing.params(input, options.input), bar.hook(), &plan, &seconds)));
  bar.finish();

  const RoutingSummary summary = summarize_plan(plan, input.layout);
  report_accepted(routing, summary);
  TESSERA_RETURN_IF_ERROR(write_plan(options.output, plan, input, routing_json(routing)));
  return print_result(options, global, routing, plan, summary, device_name(device), seconds);
}

}  // namespace

void add_route_command(CLI::App& app, GlobalOptions& global) {
  auto options = std::make_shared<Options>();
  CLI::App* sub = add_command(app, global, "route", "Choose the key blocks of every query block",
                              "tessera route in.safetensors -o plan.safetensors --sparsity 0.75",
                              [options, &global] { return run_route(*options, global); });
  add_input_options(sub, options->input);
  sub->add_option("-o,--output", options->output, "Plan file to write")
      ->required()
      ->type_name("PLAN");
  add_device_option(sub, options->device);
  add_routing_options(sub, options->routing);
}

}  // namespace tessera::cli
