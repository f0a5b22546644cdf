// tessera attend: attention output (and log-sum-exp) of a file, dense or over a plan.
#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "tessera/cli/commands.h"
#include "tessera/cli/common/attention_choice.h"
#include "tessera/cli/common/engine.h"
#include "tessera/cli/common/output.h"
#include "tessera/cli/common/plan_summary.h"
#include "tessera/cli/common/progress.h"
#include "tessera/device.h"

namespace tessera::cli {
namespace {

struct Options {
  InputOptions input;
  ChoiceOptions choice;
  std::string output;
  bool lse = false;
};

struct Result {
  std::string mode;  // "dense", "plan" or "routed"
  std::string device;
  std::string kernel;
  RoutingSummary summary;
  double route_s = 0, attend_s = 0;
};

Status print_result(const Options& options, const GlobalOptions& global, const Routing& routing,
                    const Result& result) {
  if (global.json) {
    nlohmann::ordered_json json;
    json["input"] = options.input.path;
    json["output"] = options.output;
    json["mode"] = result.mode;
    json["device"] = result.device;
    json["kernel"] = result.kernel;
    if (result.mode == "routed") json["settings"] = routing_json(routing);
    if (result.mode != "dense") json["plan"] = summary_json(result.summary);
    if (result.mode == "routed") json["route_seconds"] = result.route_s;
    json["attend_seconds"] = result.attend_s;
    return print_json(json);
  }
  std::string text = fmt::format("output     {}\n", options.output);
  text += fmt::format("kernel     {} ({}) on {}\n", result.kernel, result.mode, result.device);
  if (result.mode == "routed") {
    text += fmt::format("kept       {}\n", kept_line(result.summary, routing.config.budget));
  }
  if (result.mode != "dense") {
    text += fmt::format("density    {:.4f} of all block pairs\n", result.summary.stats.density());
    text += fmt::format("documents  {} routed, {} dense\n", result.summary.sparse_documents,
                        result.summary.dense_documents);
  }
  if (result.mode == "routed") text += fmt::format("route      {}\n", time_text(result.route_s));
  text += fmt::format("attend     {}\n", time_text(result.attend_s));
  return print_text(text);
}

Status write_result(const Options& options, const Input& input, const std::byte* out,
                    const std::vector<float>& lse, const Result& result) {
  std::vector<io::SafetensorsItem> items = {{"out", input.q.dtype, input.out_shape(), out}};
  if (options.lse) {
    items.push_back(
        {"lse", Dtype::kF32, {input.q.size[0], input.q.size[2], input.q.size[1]}, lse.data()});
  }
  return write_tensors(
      options.output, items,
      {{"tessera_version", version()}, {"mode", result.mode}, {"kernel", result.kernel}});
}

Status run_attend(const Options& options, const GlobalOptions& global) {
  const ChoiceOptions& choice = options.choice;
  Device device;
  Routing routing;
  TESSERA_RETURN_IF_ERROR(check_choice(choice, &device, &routing));
  Result result;
  result.device = device_name(device);
  result.mode = choice.dense ? "dense" : !choice.plan_path.empty() ? "plan" : "routed";
  if (result.mode == "routed" && !routing_requested(choice.routing)) {
    return invalid_argument(
        "attend needs one of three choices: --plan PLAN (a file of `tessera route`), --sparsity X "
        "or another routing option (routes first), or --dense");
  }
  TESSERA_RETURN_IF_ERROR(check_output_path(options.output, options.input.path));
  if (!choice.plan_path.empty()) {
    TESSERA_RETURN_IF_ERROR(check_output_path(options.output, choice.plan_path));
  }
  Input input;
  Plan plan;
  TESSERA_RETURN_IF_ERROR(open_choice(choice, options.input, device, &input, &routing, &plan));
  TESSERA_RETURN_IF_ERROR(check_finite(input, global.threads));

  std::unique_ptr<std::byte[]> out;
  TESSERA_RETURN_IF_ERROR(allocate_elements(input.q.elements(), input.q.dtype, &out));
  std::vector<float> lse(options.lse ? input.q.elements() / input.q.size[3] : 0);

  Engine engine(device, global);
  TESSERA_RETURN_IF_ERROR(engine.open(input));
  if (result.mode == "routed") {
    ProgressBar bar("route");
    TESSERA_RETURN_IF_ERROR(with_context(
        options.input.path,
        engine.route(routing.params(input, options.input), bar.hook(), &plan, &result.route_s)));
  }
  if (result.mode != "dense") result.summary = summarize_plan(plan, input.layout);
  report_accepted(routing, result.summary);

  const AttentionParams params =
      attention_params(input, options.input, out.get(), options.lse ? lse.data() : nullptr,
                       result.mode == "dense" ? nullptr : &plan);
  result.kernel = engine.explain(params, choice.kernel).kernel;
  ProgressBar bar("attend");
  TESSERA_RETURN_IF_ERROR(with_context(
      options.input.path, engine.attend(params, choice.kernel, bar.hook(), &result.attend_s)));
  bar.finish();
  TESSERA_RETURN_IF_ERROR(write_result(options, input, out.get(), lse, result));
  return print_result(options, global, routing, result);
}

}  // namespace

void add_attend_command(CLI::App& app, GlobalOptions& global) {
  auto options = std::make_shared<Options>();
  CLI::App* sub = add_command(app, global, "attend", "Compute attention, dense or block-sparse",
                              "tessera attend in.safetensors -o out.safetensors --sparsity 0.75",
                              [options, &global] { return run_attend(*options, global); });
  add_input_options(sub, options->input);
  sub->add_option("-o,--output", options->output, "File to write: out (and lse)")
      ->required()
      ->type_name("OUT");
  sub->add_flag("--lse", options->lse, "Also write lse, f32 [B, H, S], natural logarithm");
  add_choice_options(sub, options->choice, true);
}

}  // namespace tessera::cli
