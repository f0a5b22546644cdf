// tessera doctor: what this machine and this build can run.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "tessera/attention.h"
#include "tessera/cli/commands.h"
#include "tessera/cli/common/output.h"
#include "tessera/device.h"

namespace tessera::cli {
namespace {

constexpr double kGib = 1024.0 * 1024.0 * 1024.0;
constexpr const char* kNoCuda = "not in this build (configure with -DTESSERA_CUDA=ON)";

// Driver and devices as this process sees them; asked once.
struct Cuda {
  CudaDriverInfo driver = cuda_driver();
  std::vector<CudaDeviceInfo> devices = cuda_devices();

  bool usable() const {
    return std::any_of(devices.begin(), devices.end(),
                       [](const CudaDeviceInfo& device) { return device.usable; });
  }
  std::string why_not() const {
    if (!built_with_cuda()) return kNoCuda;
    if (devices.empty()) return driver.why_not;
    return usable() ? "" : devices.front().why_not;
  }
};

nlohmann::ordered_json cuda_json(const Cuda& cuda) {
  nlohmann::ordered_json json = {{"built", built_with_cuda()}, {"usable", cuda.usable()}};
  if (!cuda.usable()) json["why_not"] = cuda.why_not();
  if (!cuda.driver.runtime.empty()) json["runtime"] = cuda.driver.runtime;
  if (!cuda.driver.driver.empty()) json["driver"] = cuda.driver.driver;
  json["devices"] = nlohmann::ordered_json::array();
  for (const CudaDeviceInfo& device : cuda.devices) {
    nlohmann::ordered_json entry = {
        {"device", fmt::format("cuda:{}", device.index)},
        {"name", device.name},
        {"capability", fmt::format("{}.{}", device.major, device.minor)},
        {"multiprocessors", device.multiprocessors},
        {"memory_gib", double(device.memory_bytes) / kGib},
        {"usable", device.usable}};
    if (!device.usable) entry["why_not"] = device.why_not;
    json["devices"].push_back(entry);
  }
  return json;
}

std::string cuda_text(const Cuda& cuda) {
  if (cuda.devices.empty()) return fmt::format("cuda       {}\n", cuda.why_not());
  std::string text = fmt::format("cuda       runtime {}, driver for CUDA {}\n", cuda.driver.runtime,
                                 cuda.driver.driver);
  for (const CudaDeviceInfo& device : cuda.devices) {
    text += fmt::format("  cuda:{:<3} {}, capability {}.{}, {} multiprocessors, {:.1f} GiB, {}\n",
                        device.index, device.name, device.major, device.minor,
                        device.multiprocessors, double(device.memory_bytes) / kGib,
                        device.usable ? "usable" : "not usable: " + device.why_not);
  }
  return text;
}

double memory_gib(int name) {
  const long pages = sysconf(name);
  const long page = sysconf(_SC_PAGESIZE);
  return pages > 0 && page > 0 ? double(pages) * double(page) / kGib : 0;
}

Status run_doctor(const GlobalOptions& global) {
  const CpuInfo cpu = cpu_info();
  const std::vector<KernelInfo> kernels = list_kernels();
  const Cuda cuda;
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
    json["cuda"] = cuda_json(cuda);
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
  text += cuda_text(cuda);
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
