#include "tessera/cli/common/cuda_bench.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <optional>

#include "tessera/cli/common/cuda_bench_variant.h"
#include "tessera/cli/common/device_option.h"
#include "tessera/cli/common/output.h"
#include "tessera/cli/common/progress.h"
#include "tessera/device.h"

namespace tessera::cli {

std::string Variant::name() const {
  std::string text =
      fmt::format("{}/S:{}/H:{}/{}", subject, shape.tokens, shape.heads, dtype_name(shape.dtype));
  if (keep > 0) text += fmt::format("/keep:{}", keep);
  if (!routes()) text += fmt::format("/{}", kernel.empty() ? "default" : kernel);
  return text;
}

namespace {

// Ratios between the variants of one shape.
struct Relation {
  std::optional<double> speedup;       // own dense / this, same kernel
  std::optional<double> with_routing;  // own dense / (this + router in a graph)
  std::optional<double> efficiency;    // TFLOP/s of this / of own dense
  std::optional<double> router_share;  // router / sparse_random, dispatch table's kernel
};

Relation relate(const Variant& one, const std::vector<Variant>& all) {
  const auto find = [&](const char* subject, const std::string& kernel,
                        int32_t keep) -> const Variant* {
    for (const Variant& v : all) {
      if (v.subject == subject && v.kernel == kernel && v.keep == keep &&
          v.shape.tokens == one.shape.tokens && v.shape.heads == one.shape.heads &&
          v.shape.dtype == one.shape.dtype) {
        return &v;
      }
    }
    return nullptr;
  };
  Relation r;
  const double own = one.time.median_s;
  if (one.routes()) {
    const Variant* sparse = find("sparse_random", "", one.keep);
    if (sparse != nullptr) r.router_share = own / sparse->time.median_s;
  } else if (one.keep > 0) {
    const Variant* dense = find("dense", one.kernel, 0);
    const Variant* router = find("router_graph", "", one.keep);
    if (dense != nullptr) {
      r.speedup = dense->time.median_s / own;
      r.efficiency = one.tflops() / dense->tflops();
      if (router != nullptr) {
        r.with_routing = dense->time.median_s / (own + router->time.median_s);
      }
    }
  }
  return r;
}

constexpr const char* kNoGemm =
    "percent of an 8192^3 matrix product in the same process: tools/bench_vs_peers.py (this binary "
    "holds no matrix product)";

Status print_variants(const CudaBenchOptions& options, const GlobalOptions& global,
                      const std::vector<Variant>& all) {
  const CudaDeviceInfo device = cuda_devices().at(options.device.index);
  const CudaDriverInfo driver = cuda_driver();
  if (global.json) {
    nlohmann::ordered_json json;
    json["version"] = version();
    json["device"] = device_name(options.device);
    json["device_name"] = device.name;
    json["driver_cuda"] = driver.driver;
    json["warm_ups"] = options.warm_ups;
    json["samples"] = options.samples;
    json["plan_form"] = options.bitmaps ? "bitmap" : "index";
    json["note"] = kNoGemm;
    json["cases"] = nlohmann::ordered_json::array();
    for (const Variant& one : all) {
      const Relation r = relate(one, all);
      nlohmann::ordered_json entry;
      entry["name"] = one.name();
      entry["subject"] = one.subject;
      entry["tokens"] = one.shape.tokens;
      entry["heads"] = one.shape.heads;
      entry["dtype"] = dtype_name(one.shape.dtype);
      if (!one.routes()) entry["kernel"] = one.kernel.empty() ? "default" : one.kernel;
      if (one.keep > 0) entry["keep"] = one.keep;
      entry["density"] = one.density;
      if (one.sharing > 0) entry["sharing_factor_of_3"] = one.sharing;
      entry["median_ms"] = one.time.median_s * 1e3;
      entry["p10_ms"] = one.time.p10_s * 1e3;
      entry["p90_ms"] = one.time.p90_s * 1e3;
      if (!one.routes()) entry["tflops"] = one.tflops();
      if (r.speedup) entry["speedup_over_dense"] = *r.speedup;
      if (r.with_routing) entry["speedup_with_routing"] = *r.with_routing;
      if (r.efficiency) entry["sparse_efficiency"] = *r.efficiency;
      if (r.router_share) entry["share_of_sparse"] = *r.router_share;
      entry[one.routes() ? "other_ids_than_cpu" : "relative_l2_against_cpu"] = one.error;
      if (one.reading.sm_clock_mhz > 0) entry["sm_clock_mhz"] = one.reading.sm_clock_mhz;
      if (one.reading.power_watt > 0) entry["power_watt"] = one.reading.power_watt;
      json["cases"].push_back(entry);
    }
    return print_json(json);
  }
  std::string text = fmt::format(
      "{} ({}), driver for CUDA {}, median of {} after {} warm-ups, interleaved; plans as {}\n",
      device.name, device_name(options.device), driver.driver, options.samples, options.warm_ups,
      options.bitmaps ? "bitmaps" : "index lists");
  text += fmt::format("{:<56} {:>7} {:>6} {:>9} {:>9} {:>9} {:>8} {:>8}  {}\n", "case", "density",
                      "of 3", "ms", "p10", "p90", "TFLOP/s", "error", "against own dense");
  const Variant* last = nullptr;
  for (const Variant& one : all) {
    if (last != nullptr && one.shape.heads != last->shape.heads) text += '\n';
    const Relation r = relate(one, all);
    std::string relation;
    if (r.speedup) relation = fmt::format("{:.2f} x, efficiency {:.2f}", *r.speedup, *r.efficiency);
    if (r.with_routing) relation += fmt::format(" ({:.2f} x with routing)", *r.with_routing);
    if (r.router_share) relation = fmt::format("{:.1f} % of sparse", *r.router_share * 100);
    if (one.subject == "dense" && one.reading.sm_clock_mhz > 0) {
      relation += fmt::format("SM clock {:.0f} MHz, {:.0f} W", one.reading.sm_clock_mhz,
                              one.reading.power_watt);
    }
    text += fmt::format(
        "{:<56} {:>7.4f} {:>6} {:>9.4f} {:>9.4f} {:>9.4f} {:>8} {:>8.1e}  {}\n", one.name(),
        one.density, one.sharing > 0 ? fmt::format("{:.2f}", one.sharing) : "-",
        one.time.median_s * 1e3, one.time.p10_s * 1e3, one.time.p90_s * 1e3,
        one.routes() ? "-" : fmt::format("{:.1f}", one.tflops()), one.error, relation);
    last = &one;
  }
  return print_text(text + kNoGemm + "\n");
}

Status check_types(const CudaBenchOptions& options) {
  for (const BenchShape& shape : options.shapes) {
    if (shape.dtype == Dtype::kF32) {
      return unsupported(
          fmt::format("--dtype f32: accepted on {}: bf16 and f16", device_name(options.device)));
    }
  }
  return {};
}

}  // namespace

Status run_cuda_bench(const CudaBenchOptions& options, const GlobalOptions& global) {
  TESSERA_RETURN_IF_ERROR(check_types(options));
  std::optional<std::regex> filter;
  try {
    filter.emplace(options.filter);
  } catch (const std::regex_error& error) {
    return invalid_argument(
        fmt::format("--filter {}: no regular expression: {}", options.filter, error.what()));
  }
  std::vector<std::vector<Variant>> shapes;
  int64_t total = 0;
  for (const BenchShape& shape : options.shapes) {
    shapes.push_back(cuda_variants(options, shape, *filter));
    total += static_cast<int64_t>(shapes.back().size());
  }
  if (total == 0) {
    return invalid_argument(
        fmt::format("--filter {}: no case matches; names look like dense/S:37760/H:7/bf16/default",
                    options.filter));
  }
  ProgressBar bar("bench");
  std::vector<Variant> all;
  for (size_t i = 0; i < shapes.size(); ++i) {
    if (shapes[i].empty()) continue;
    TESSERA_RETURN_IF_ERROR(measure_variants(options, global, options.shapes[i], &shapes[i]));
    for (Variant& one : shapes[i]) all.push_back(std::move(one));
    bar.update(static_cast<int64_t>(all.size()), total);
  }
  bar.finish();
  return print_variants(options, global, all);
}

}  // namespace tessera::cli
