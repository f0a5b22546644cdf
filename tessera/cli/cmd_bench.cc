// tessera bench: dense, block-sparse and router times on synthetic tensors.
#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <regex>

#include "tessera/cli/commands.h"
#include "tessera/cli/common/bench_case.h"
#include "tessera/cli/common/cuda_bench.h"
#include "tessera/cli/common/device_option.h"
#include "tessera/cli/common/output.h"
#include "tessera/cli/common/progress.h"
#include "tessera/device.h"

namespace tessera::cli {
namespace {

constexpr uint64_t kSeed = 20261130;
constexpr const char* kSubjects[] = {"dense", "sparse_random", "sparse_shared", "router"};

struct Options {
  std::string filter;
  std::string device = "cpu";
  std::vector<std::string> kernels;
  std::vector<std::string> shapes;     // empty: the defaults of the device
  std::vector<std::string> dtypes;     // empty: the defaults of the device
  std::vector<double> densities;       // empty: the default of the device
  std::string lists = "index";         // CUDA
  std::optional<int> repeat, warm_up;  // warm_up: CUDA

  // Of the CPU.
  double density() const { return densities.empty() ? 0.25 : densities.front(); }
  int repeats() const { return repeat.value_or(5); }
};

struct Case {
  std::string subject;
  std::string name;
  BenchShape shape;
  Timing time;
  double flops = 0;  // on listed blocks; 0 for the router
  double density = 1;
  double sharing = 0;                  // sharing factor of the lists
  std::optional<double> speedup;       // dense / this, where both ran
  std::optional<double> with_routing;  // dense / (this + router)
  std::optional<double> router_share;  // router / sparse_random
};

Status parse_shape(const std::string& text, BenchShape* out) {
  static const std::regex pattern("([0-9]{1,7}),([0-9]{1,4})");
  std::smatch match;
  if (std::regex_match(text, match, pattern)) {
    out->tokens = std::stoll(match[1]);
    out->heads = std::stoll(match[2]);
    if (out->tokens > 0 && out->heads > 0) return {};
  }
  return invalid_argument(
      fmt::format("--shape {}: accepted: TOKENS,HEADS, both at least 1, for example 4096,4", text));
}

// Every shape with every element type.
Status parse_shapes(const Options& options, const std::vector<std::string>& default_shapes,
                    const std::vector<std::string>& default_dtypes, std::vector<BenchShape>* out) {
  for (const std::string& text : options.shapes.empty() ? default_shapes : options.shapes) {
    BenchShape shape;
    TESSERA_RETURN_IF_ERROR(parse_shape(text, &shape));
    for (const std::string& dtype : options.dtypes.empty() ? default_dtypes : options.dtypes) {
      shape.dtype = dtype == "f32" ? Dtype::kF32 : dtype == "f16" ? Dtype::kF16 : Dtype::kBf16;
      out->push_back(shape);
    }
  }
  return {};
}

Status plan_cases(const Options& options, std::vector<Case>* out) {
  std::optional<std::regex> filter;
  try {
    filter.emplace(options.filter);
  } catch (const std::regex_error& error) {
    return invalid_argument(
        fmt::format("--filter {}: no regular expression: {}", options.filter, error.what()));
  }
  std::vector<BenchShape> shapes;
  TESSERA_RETURN_IF_ERROR(parse_shapes(options, {"4096,4", "8192,4"}, {"f32", "bf16"}, &shapes));
  for (const BenchShape& shape : shapes) {
    for (const char* subject : kSubjects) {
      Case one;
      one.subject = subject;
      one.shape = shape;
      one.name = fmt::format("{}/S:{}/H:{}/D:128/{}", subject, shape.tokens, shape.heads,
                             dtype_name(shape.dtype));
      if (std::regex_search(one.name, *filter)) out->push_back(one);
    }
  }
  if (out->empty()) {
    return invalid_argument(
        fmt::format("--filter {}: no case matches; names look like dense/S:4096/H:4/D:128/f32",
                    options.filter));
  }
  return {};
}

Status run_case(const Options& options, const Execution& exec, const BenchTensors& tensors,
                Case* one) {
  AttentionParams params = tensors.attention();
  const BlockLayout layout = single_document(one->shape.tokens, one->shape.tokens);
  if (one->subject == "router") {
    RouteParams request;
    request.q = params.q;
    request.k = params.k;
    request.config.budget.sparsity = 1 - options.density();
    request.config.budget.granularity = 1;  // the same density as the lists it is compared with
    request.config.budget.exact_rounding = true;
    Plan plan;
    Execution router_exec = exec;
    router_exec.kernel.clear();
    TESSERA_RETURN_IF_ERROR(measure(
        options.repeats(), [&] { return route(request, router_exec, &plan); }, &one->time));
    one->density = plan_stats(plan.view(), layout).density();
    return {};
  }
  Plan plan;
  if (one->subject != "dense") {
    const int32_t keep = blocks_for_sparsity(1 - options.density(), layout.max_key_blocks, 1, true);
    TESSERA_RETURN_IF_ERROR(one->subject == "sparse_shared"
                                ? shared_plan(layout, 1, one->shape.heads, keep, kSeed, &plan)
                                : random_plan(layout, 1, one->shape.heads, keep, kSeed, &plan));
    params.plan = plan.view();
    one->density = plan_stats(plan.view(), layout).density();
    one->sharing = sharing_factor(plan.view(), layout, 8);
  }
  one->flops = attention_flops(params.plan ? &plan : nullptr, one->shape);
  return measure(
      options.repeats(), [&] { return attend(params, exec); }, &one->time);
}

// Ratios between the cases of one shape and dtype.
void relate(std::vector<Case>* cases) {
  auto find = [&](const Case& like, const char* subject) -> const Case* {
    for (const Case& other : *cases) {
      if (other.subject == subject && other.shape.tokens == like.shape.tokens &&
          other.shape.heads == like.shape.heads && other.shape.dtype == like.shape.dtype) {
        return &other;
      }
    }
    return nullptr;
  };
  for (Case& one : *cases) {
    const Case* dense = find(one, "dense");
    const Case* router = find(one, "router");
    const Case* sparse = find(one, "sparse_random");
    if (one.subject == "router") {
      if (sparse != nullptr) one.router_share = one.time.median_s / sparse->time.median_s;
    } else if (one.subject != "dense" && dense != nullptr) {
      one.speedup = dense->time.median_s / one.time.median_s;
      if (router != nullptr) {
        one.with_routing = dense->time.median_s / (one.time.median_s + router->time.median_s);
      }
    }
  }
}

Status print_result(const Options& options, const GlobalOptions& global,
                    const std::vector<Case>& cases) {
  const CpuInfo cpu = cpu_info();
  const int threads = global.threads > 0 ? global.threads : cpu.hardware_threads;
  if (global.json) {
    nlohmann::ordered_json json;
    json["version"] = version();
    json["cpu"] = cpu.model;
    json["vector_target"] = cpu.vector_target;
    json["threads"] = threads;
    json["repeat"] = options.repeats();
    json["cases"] = nlohmann::ordered_json::array();
    for (const Case& one : cases) {
      nlohmann::ordered_json entry;
      entry["name"] = one.name;
      entry["subject"] = one.subject;
      entry["tokens"] = one.shape.tokens;
      entry["heads"] = one.shape.heads;
      entry["dtype"] = dtype_name(one.shape.dtype);
      entry["density"] = one.density;
      if (one.sharing > 0) entry["sharing_factor"] = one.sharing;
      entry["median_ms"] = one.time.median_s * 1e3;
      entry["p10_ms"] = one.time.p10_s * 1e3;
      entry["p90_ms"] = one.time.p90_s * 1e3;
      if (one.flops > 0) entry["gflops"] = one.flops / one.time.median_s * 1e-9;
      if (one.speedup) entry["speedup_over_dense"] = *one.speedup;
      if (one.with_routing) entry["speedup_with_routing"] = *one.with_routing;
      if (one.router_share) entry["share_of_sparse"] = *one.router_share;
      json["cases"].push_back(entry);
    }
    return print_json(json);
  }
  std::string text = fmt::format("{}, {}, {} threads, median of {}\n",
                                 cpu.model.empty() ? "unknown CPU" : cpu.model, cpu.vector_target,
                                 threads, options.repeats());
  text += fmt::format("{:<38} {:>8} {:>10} {:>10} {:>10} {:>9}  {}\n", "case", "density",
                      "median ms", "p10", "p90", "GFLOP/s", "against own dense");
  for (const Case& one : cases) {
    std::string relation;
    if (one.speedup) relation = fmt::format("{:.2f} x", *one.speedup);
    if (one.with_routing) relation += fmt::format(" ({:.2f} x with routing)", *one.with_routing);
    if (one.router_share) relation = fmt::format("{:.1f} % of sparse", *one.router_share * 100);
    text += fmt::format(
        "{:<38} {:>8.3f} {:>10.2f} {:>10.2f} {:>10.2f} {:>9}  {}\n", one.name, one.density,
        one.time.median_s * 1e3, one.time.p10_s * 1e3, one.time.p90_s * 1e3,
        one.flops > 0 ? fmt::format("{:.1f}", one.flops / one.time.median_s * 1e-9) : "-",
        relation);
  }
  return print_text(text);
}

#ifdef TESSERA_WITH_CUDA
// The CUDA benchmark has a protocol of its own; only the options are shared.
Status run_on_cuda(const Options& options, const GlobalOptions& global, const Device& device) {
  CudaBenchOptions bench;
  bench.device = device;
  bench.filter = options.filter;
  bench.densities = options.densities;
  bench.bitmaps = options.lists == "bitmap";
  bench.kernels = {""};
  bench.kernels.insert(bench.kernels.end(), options.kernels.begin(), options.kernels.end());
  if (options.repeat) bench.samples = *options.repeat;
  if (options.warm_up) bench.warm_ups = *options.warm_up;
  TESSERA_RETURN_IF_ERROR(
      parse_shapes(options, {"37760,7", "96000,7", "37760,56"}, {"bf16"}, &bench.shapes));
  return run_cuda_bench(bench, global);
}
#endif

Status check_cpu_options(const Options& options) {
  for (const auto& [flag, given] : {std::pair{"--density", options.densities.size()},
                                    std::pair{"--kernel", options.kernels.size()}}) {
    if (given > 1) {
      return invalid_argument(
          fmt::format("{} was given {} times; accepted on the CPU: once", flag, given));
    }
  }
  for (const auto& [flag, given] : {std::pair{"--warm-up", options.warm_up.has_value()},
                                    std::pair{"--lists bitmap", options.lists != "index"}}) {
    if (given) {
      return invalid_argument(
          fmt::format("{} goes with --device cuda; drop it or add the device", flag));
    }
  }
  return {};
}

Status run_bench(const Options& options, const GlobalOptions& global) {
  Device device;
  TESSERA_RETURN_IF_ERROR(resolve_device(options.device, &device));
  for (double density : options.densities) {
    if (!(density > 0 && density <= 1)) {
      return invalid_argument(fmt::format("--density {}: accepted: (0, 1]", density));
    }
  }
#ifdef TESSERA_WITH_CUDA
  if (device.kind == DeviceKind::kCuda) return run_on_cuda(options, global, device);
#endif
  TESSERA_RETURN_IF_ERROR(check_cpu_options(options));
  std::vector<Case> cases;
  TESSERA_RETURN_IF_ERROR(plan_cases(options, &cases));
  Execution exec = make_execution(global);
  if (!options.kernels.empty()) exec.kernel = options.kernels.front();
  ProgressBar bar("bench");
  std::unique_ptr<BenchTensors> tensors;
  const Case* made_for = nullptr;
  for (size_t i = 0; i < cases.size(); ++i) {
    Case& one = cases[i];
    if (made_for == nullptr || made_for->shape.tokens != one.shape.tokens ||
        made_for->shape.heads != one.shape.heads || made_for->shape.dtype != one.shape.dtype) {
      tensors = std::make_unique<BenchTensors>(one.shape);
      made_for = &one;
    }
    TESSERA_RETURN_IF_ERROR(with_context(one.name, run_case(options, exec, *tensors, &one)));
    bar.update(static_cast<int64_t>(i + 1), static_cast<int64_t>(cases.size()));
  }
  bar.finish();
  relate(&cases);
  return print_result(options, global, cases);
}

}  // namespace

void add_bench_command(CLI::App& app, GlobalOptions& global) {
  auto options = std::make_shared<Options>();
  CLI::App* sub = add_command(app, global, "bench", "Measure the kernels on synthetic tensors",
                              "tessera bench --filter 'S:4096.*f32' --json",
                              [options, &global] { return run_bench(*options, global); });
  sub->add_option("--filter", options->filter, "Run only cases whose name matches this")
      ->type_name("REGEX");
  add_device_option(sub, options->device);
  sub->add_option("--shape", options->shapes,
                  "TOKENS,HEADS; may be repeated (CPU: 4096,4 and 8192,4; CUDA: 37760,7, 96000,7 "
                  "and 37760,56)")
      ->type_name("S,H");
  sub->add_option("--dtype", options->dtypes,
                  "f32, bf16 or f16; may be repeated (CPU: f32 and bf16; CUDA: bf16)")
      ->check(CLI::IsMember({"f32", "bf16", "f16"}))
      ->type_name("TYPE");
  sub->add_option("--density", options->densities,
                  "Share of key blocks in sparse lists; on CUDA may be repeated (CPU: 0.25; CUDA: "
                  "what --sparsity 0.75 keeps)")
      ->check(accepts_number<double>("a share in (0, 1]"))
      ->type_name("X");
  sub->add_option("--lists", options->lists, "CUDA: form of the plans, index or bitmap")
      ->capture_default_str()
      ->check(CLI::IsMember({"index", "bitmap"}))
      ->type_name("FORM");
  sub->add_option("--repeat", options->repeat, "Timed runs of each case (CPU: 5; CUDA: 30)")
      ->check(CLI::Range(1, 1000))
      ->type_name("N");
  sub->add_option("--warm-up", options->warm_up, "CUDA: runs before the timed ones (10)")
      ->check(CLI::Range(1, 1000))
      ->type_name("N");
  sub->add_option("--kernel", options->kernels,
                  "CPU: run this attention kernel; CUDA: also measure it, may be repeated")
      ->type_name("NAME");
}

}  // namespace tessera::cli
