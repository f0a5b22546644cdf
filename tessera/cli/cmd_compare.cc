// tessera compare: dense and block-sparse attention on one input: what is lost, what is gained.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>

#include "tessera/cli/commands.h"
#include "tessera/cli/common/attention_choice.h"
#include "tessera/cli/common/engine.h"
#include "tessera/cli/common/output.h"
#include "tessera/cli/common/plan_summary.h"
#include "tessera/cli/common/progress.h"
#include "tessera/cli/common/timing.h"
#include "tessera/quality.h"

namespace tessera::cli {
namespace {

constexpr int kSharingGroup = 8;

struct Options {
  InputOptions input;
  ChoiceOptions choice;
  int repeat = 3;
};

// Outputs, log-sum-exps and times of the repeated runs.
struct Runs {
  std::unique_ptr<std::byte[]> dense_out, sparse_out;
  std::vector<float> dense_lse, sparse_lse;
  std::vector<double> dense_s, sparse_s, route_s;
};

struct Result {
  std::string device;
  std::string kernel;
  RoutingSummary summary;
  double recall_mean = 0, recall_min = 0, recall_p5 = 0;
  ErrorStats error;
  double dense_s = 0, sparse_s = 0, route_s = 0;  // medians
  double overlap = 0, sharing = 0;

  double route_share() const { return sparse_s > 0 ? route_s / sparse_s : 0; }
  double speedup() const { return dense_s / (sparse_s + route_s); }
};

Status run_all(const Options& options, Engine& engine, const Input& input, const Routing& routing,
               Plan* plan, Runs* runs, std::string* kernel) {
  const bool routes = options.choice.plan_path.empty();
  // The first launch of each kernel on a CUDA device pays for loading it.
  const int warm_ups = engine.on_cuda() ? 1 : 0;
  ProgressBar bar("compare");
  const int parts = (warm_ups + options.repeat) * (routes ? 3 : 2);
  int part = 0;
  // Each call reports its own share of the whole comparison.
  const Progress progress = [&](int64_t done, int64_t total) {
    if (total > 0) bar.update(part * total + done, parts * total);
  };
  auto timed = [&](std::vector<double>* seconds, const auto& work) -> Status {
    double taken = 0;
    const Status status = work(&taken);
    seconds->push_back(taken);
    ++part;
    return with_context(options.input.path, status);
  };
  const AttentionParams dense = attention_params(input, options.input, runs->dense_out.get(),
                                                 runs->dense_lse.data(), nullptr);
  AttentionParams sparse;
  // Interleaved, so that a slow phase of the machine hits all of them.
  for (int i = 0; i < warm_ups + options.repeat; ++i) {
    if (i == warm_ups) runs->dense_s = runs->route_s = runs->sparse_s = {};
    TESSERA_RETURN_IF_ERROR(timed(&runs->dense_s, [&](double* seconds) {
      return engine.attend(dense, options.choice.kernel, progress, seconds);
    }));
    if (routes) {
      TESSERA_RETURN_IF_ERROR(timed(&runs->route_s, [&](double* seconds) {
        return engine.route(routing.params(input, options.input), progress, plan, seconds);
      }));
    }
    sparse = attention_params(input, options.input, runs->sparse_out.get(), runs->sparse_lse.data(),
                              plan);
    TESSERA_RETURN_IF_ERROR(timed(&runs->sparse_s, [&](double* seconds) {
      return engine.attend(sparse, options.choice.kernel, progress, seconds);
    }));
  }
  *kernel = engine.explain(sparse, options.choice.kernel).kernel;
  return {};
}

Status measure(const Input& input, const InputOptions& options, const Plan& plan, Runs* runs,
               Result* result) {
  result->summary = summarize_plan(plan, input.layout);
  result->overlap = neighbour_overlap(plan.view(), input.layout);
  result->sharing = sharing_factor(plan.view(), input.layout, kSharingGroup);
  result->dense_s = median(runs->dense_s);
  result->sparse_s = median(runs->sparse_s);
  result->route_s = runs->route_s.empty() ? 0 : median(runs->route_s);
  const AttentionParams dense =
      attention_params(input, options, runs->dense_out.get(), runs->dense_lse.data(), nullptr);
  const AttentionParams sparse =
      attention_params(input, options, runs->sparse_out.get(), runs->sparse_lse.data(), nullptr);
  TESSERA_RETURN_IF_ERROR(compare_outputs(sparse.out, dense.out, &result->error));
  TESSERA_RETURN_IF_ERROR(kept_mass(sparse.lse, dense.lse, sparse.lse));
  std::vector<double> recall;  // rows outside all documents are NaN and do not count
  for (float mass : runs->sparse_lse) {
    if (!std::isnan(mass)) recall.push_back(mass);
  }
  if (recall.empty()) return {};
  double sum = 0;
  for (double mass : recall) sum += mass;
  result->recall_mean = sum / double(recall.size());
  result->recall_p5 = quantile(recall, 0.05);
  result->recall_min = *std::min_element(recall.begin(), recall.end());
  return {};
}

Status print_result(const Options& options, const GlobalOptions& global, const Routing& routing,
                    const Result& r) {
  const bool routes = options.choice.plan_path.empty();
  if (global.json) {
    nlohmann::ordered_json json;
    json["input"] = options.input.path;
    json["device"] = r.device;
    json["kernel"] = r.kernel;
    if (routes) json["settings"] = routing_json(routing);
    json["plan"] = summary_json(r.summary);
    json["recall"] = {{"mean", r.recall_mean}, {"p5", r.recall_p5}, {"min", r.recall_min}};
    json["cosine"] = r.error.cosine;
    json["relative_l2"] = r.error.relative_l2;
    json["max_abs"] = r.error.max_abs;
    json["max_abs_at"] = r.error.max_at;
    json["neighbour_overlap"] = r.overlap;
    json["sharing_factor"] = r.sharing;
    json["sharing_group"] = kSharingGroup;
    json["repeat"] = options.repeat;
    json["dense_seconds"] = r.dense_s;
    json["sparse_seconds"] = r.sparse_s;
    json["route_seconds"] = r.route_s;
    json["route_share_of_sparse"] = r.route_share();
    json["speedup"] = r.speedup();
    return print_json(json);
  }
  std::string text = fmt::format("kernel       {} on {}\n", r.kernel, r.device);
  if (routes) {
    text += fmt::format("kept         {}\n", kept_line(r.summary, routing.config.budget));
  }
  text +=
      fmt::format("density      {:.4f} of all block pairs; {} documents routed, {} dense\n",
                  r.summary.stats.density(), r.summary.sparse_documents, r.summary.dense_documents);
  text += fmt::format("recall       mean {:.4f}  p5 {:.4f}  min {:.4f}  (softmax mass kept)\n",
                      r.recall_mean, r.recall_p5, r.recall_min);
  const auto& at = r.error.max_at;
  text += fmt::format(
      "error        cosine {:.6f}  relative L2 {:.3e}  max {:.3e} at [{}, {}, {}, {}]\n",
      r.error.cosine, r.error.relative_l2, r.error.max_abs, at[0], at[1], at[2], at[3]);
  text += fmt::format("lists        neighbour overlap {:.3f}, sharing factor {:.2f} of {}\n",
                      r.overlap, r.sharing, kSharingGroup);
  text += fmt::format("dense        {}  (median of {})\n", time_text(r.dense_s), options.repeat);
  text += fmt::format("sparse       {}\n", time_text(r.sparse_s));
  if (routes) {
    text += fmt::format("route        {}  ({:.1f} % of sparse)\n", time_text(r.route_s),
                        r.route_share() * 100);
  }
  text += fmt::format("speed-up     {:.2f} x{}\n", r.speedup(), routes ? ", routing included" : "");
  return print_text(text);
}

Status run_compare(const Options& options, const GlobalOptions& global) {
  Device device;
  Routing routing;
  TESSERA_RETURN_IF_ERROR(check_choice(options.choice, &device, &routing));
  Input input;
  Plan plan;
  TESSERA_RETURN_IF_ERROR(
      open_choice(options.choice, options.input, device, &input, &routing, &plan));
  TESSERA_RETURN_IF_ERROR(check_finite(input, global.threads));

  Runs runs;
  TESSERA_RETURN_IF_ERROR(allocate_elements(input.q.elements(), input.q.dtype, &runs.dense_out));
  TESSERA_RETURN_IF_ERROR(allocate_elements(input.q.elements(), input.q.dtype, &runs.sparse_out));
  runs.dense_lse.resize(input.q.elements() / input.q.size[3]);
  runs.sparse_lse.resize(runs.dense_lse.size());
  Result result;
  result.device = device_name(device);
  Engine engine(device, global);
  TESSERA_RETURN_IF_ERROR(engine.open(input));
  TESSERA_RETURN_IF_ERROR(run_all(options, engine, input, routing, &plan, &runs, &result.kernel));
  TESSERA_RETURN_IF_ERROR(measure(input, options.input, plan, &runs, &result));
  report_accepted(routing, result.summary);
  return print_result(options, global, routing, result);
}

}  // namespace

void add_compare_command(CLI::App& app, GlobalOptions& global) {
  auto options = std::make_shared<Options>();
  CLI::App* sub = add_command(app, global, "compare", "Run dense and sparse and compare both",
                              "tessera compare in.safetensors --sparsity 0.75 --json",
                              [options, &global] { return run_compare(*options, global); });
  add_input_options(sub, options->input);
  add_choice_options(sub, options->choice, false);
  sub->add_option("--repeat", options->repeat, "Runs of each; times are medians")
      ->capture_default_str()
      ->check(CLI::Range(1, 1000))
      ->type_name("N");
}

}  // namespace tessera::cli
