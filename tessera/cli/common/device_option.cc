#include "tessera/cli/common/device_option.h"

#include <fmt/format.h>

#include <regex>

#include "tessera/device.h"

namespace tessera::cli {

namespace {

constexpr const char* kAcceptedCuda = "CUDA devices of compute capability 9.0 (H100, H200)";

Status check_cuda_device(const std::string& text, int index) {
  if (!built_with_cuda()) {
    return unsupported(
        fmt::format("--device {}: this build has no CUDA kernels; accepted: cpu; a build with "
                    "-DTESSERA_CUDA=ON accepts {}",
                    text, kAcceptedCuda));
  }
  const std::vector<CudaDeviceInfo> devices = cuda_devices();
  if (devices.empty()) {
    return unsupported(fmt::format("--device {}: {}; accepted: {}, cpu", text,
                                   cuda_driver().why_not, kAcceptedCuda));
  }
  if (index >= static_cast<int>(devices.size())) {
    std::string present;
    for (const CudaDeviceInfo& device : devices) {
      present += fmt::format("{}cuda:{} ({}, capability {}.{})", present.empty() ? "" : ", ",
                             device.index, device.name, device.major, device.minor);
    }
    return unsupported(
        fmt::format("--device {}: there is no such device; this machine has {}", text, present));
  }
  if (!devices[index].usable) {
    return unsupported(fmt::format("--device {}: {}", text, devices[index].why_not));
  }
  return {};
}

}  // namespace

void add_device_option(CLI::App* sub, std::string& text) {
  sub->add_option("--device", text, "Where to run: cpu, cuda or cuda:N; see `tessera doctor`")
      ->capture_default_str()
      ->type_name("DEVICE");
}

Status resolve_device(const std::string& text, Device* out) {
  *out = {};
  if (text == "cpu") return {};
  static const std::regex pattern("cuda(:([0-9]{1,3}))?");
  std::smatch match;
  if (!std::regex_match(text, match, pattern)) {
    return invalid_argument(
        fmt::format("--device {}: accepted: cpu, cuda, cuda:N with the number of a device", text));
  }
  out->kind = DeviceKind::kCuda;
  out->index = match[2].matched ? std::stoi(match[2]) : 0;
  return check_cuda_device(text, out->index);
}

Status check_device_tensor(const Device& device, const Bshd& q) {
  if (device.kind == DeviceKind::kCpu) return {};
  if (q.dtype == Dtype::kF32) {
    return unsupported(
        fmt::format("tensor q is f32; accepted on {}: bf16 and f16; convert q, k and v, or use "
                    "--device cpu",
                    device_name(device)));
  }
  if (q.size[3] != 128) {
    return unsupported(
        fmt::format("tensor q has head width {}; accepted on {}: 128; pad the heads with zeros "
                    "(and give --softmax-scale), or use --device cpu",
                    q.size[3], device_name(device)));
  }
  return {};
}

std::string device_name(const Device& device) {
  return device.kind == DeviceKind::kCpu ? "cpu" : fmt::format("cuda:{}", device.index);
}

}  // namespace tessera::cli
