// --device: where a command runs, refused at start-up when this build or machine cannot.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "tessera/execution.h"
#include "tessera/status.h"
#include "tessera/tensor_view.h"

namespace tessera::cli {

void add_device_option(CLI::App* sub, std::string& text);

/// "cpu", "cuda" (the first device) or "cuda:N". kInvalidArgument for another word; kUnsupported,
/// naming the capability got and those accepted, for a device that cannot run the kernels.
Status resolve_device(const std::string& text, Device* out);

/// What the CUDA kernels do not take at all (f32, other head widths): kUnsupported. Looks at the
/// shape and the type only, so that it can run before the values are read.
Status check_device_tensor(const Device& device, const Bshd& q);

/// "cpu" or "cuda:N".
std::string device_name(const Device& device);

}  // namespace tessera::cli
