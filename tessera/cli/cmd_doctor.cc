// tessera doctor: what this machine and this build can run.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "tessera/attention.h"
#include "tessera/cli/commands.h"
#include "tessera/cli/common/output.h"
#include "tessera/device.h"

namespace tessera::cli {
namespace {

constexpr double kGib = 1024.0 * 1024.0 * 1024.0;
constexpr const char* kNoCuda = "not in this build (configure with -DTESSERA_CUDA=ON)";

double memory_gib(int name) {
  const long pages = sysconf(name);
  const long page = sysconf(_SC_PAGESIZE);
  return pages > 0 && page > 0 ? double(pages) * double(page) / kGib : 0;
}

Status run_doctor(const GlobalOptions& global) {
  const CpuInfo cpu = cpu_info();
  const std::vector<KernelInfo> kernels = list_kernels();
  const double total = memory_gib(_SC_PHYS_PAGES), available = memory_gib(_SC_AVPHYS_PAGES);
  if (global.json) {
    nlohmann::ordered_json json;
    json["version"] = version();
    json["cpu"] = {{"model", cpu.model},
                   {"hardware_threads", cpu.hardware_threads},
                   {"vector_target", cpu.vector_target},
                   {"compiled_targets", cpu.compiled_targets}};
    json["threads"] = global.threads > 0 ? global.threads : cpu.hardware_threads;
    json["memory_gib"] = {{"total", total}, {"available", available}};
    json["cuda"] = {{"usable", false}, {"why_not", kNoCuda}};
    json["kernels"] = nlohmann::ordered_json::array();
    for (const KernelInfo& kernel : kernels) {
      nlohmann::ordered_json entry = {{"name", kernel.name},
                                      {"device", kernel.device},
                                      {"description", kernel.description},
                                      {"usable", kernel.usable}};
      if (!kernel.usable) entry["why_not"] = kernel.why_not;
      json["kernels"].push_back(entry);
    }
    return print_json(json);
  }
  std::string text = fmt::format("tessera    {}\n", version());
  text += fmt::format("cpu        {}\n", cpu.model.empty() ? "unknown model" : cpu.model);
  text += fmt::format("threads    {} hardware, {} used by default here\n", cpu.hardware_threads,
                      global.threads > 0 ? global.threads : cpu.hardware_threads);
  text += fmt::format("vectors    {} runs; compiled: {}\n", cpu.vector_target,
                      fmt::join(cpu.compiled_targets, ", "));
  text += fmt::format("memory     {:.1f} GiB, {:.1f} GiB available\n", total, available);
  text += fmt::format("cuda       {}\n", kNoCuda);
  text += "kernels\n";
  for (const KernelInfo& kernel : kernels) {
    text += fmt::format("  {:<16} {:<9} {:<11} {}\n", kernel.name, kernel.device,
                        kernel.usable ? "usable" : "not usable",
                        kernel.usable ? kernel.description : kernel.why_not);
  }
  return print_text(text);
}

}  // namespace

void add_doctor_command(CLI::App& app, GlobalOptions& global) {
  add_command(app, global, "doctor", "Show processor, memory and which kernels are usable",
              "tessera doctor --json", [&global] { return run_doctor(global); });
}

}  // namespace tessera::cli
