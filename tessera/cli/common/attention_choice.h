// The choice attend, compare and explain share: a plan file, a routed plan, or dense.
#pragma once

#include <CLI/CLI.hpp>
#include <cstddef>
#include <memory>
#include <string>

#include "tessera/attention.h"
#include "tessera/cli/common/device_option.h"
#include "tessera/cli/common/input.h"
#include "tessera/cli/common/routing.h"
#include "tessera/plan.h"
#include "tessera/status.h"

namespace tessera::cli {

struct ChoiceOptions {
  std::string plan_path;
  bool dense = false;
  std::string device = "cpu";
  std::string kernel;
  RoutingOptions routing;
};

/// --plan, --kernel, --device, the routing options, and --dense if `with_dense`.
void add_choice_options(CLI::App* sub, ChoiceOptions& options, bool with_dense);

/// The device (kUnsupported where it cannot run here), conflicts between the choices, and the
/// routing options.
Status check_choice(const ChoiceOptions& options, Device* device, Routing* routing);

/// Opens the input, checks that `device` can hold it, and then reads the plan file or, unless the
/// choice is dense, completes `routing` for the input. Call check_choice first.
Status open_choice(const ChoiceOptions& choice, const InputOptions& options, const Device& device,
                   Input* input, Routing* routing, Plan* plan);

/// Attention over `input` into caller memory. An absent `plan`, and a plan without rows (no
/// document), is dense.
AttentionParams attention_params(const Input& input, const InputOptions& options, void* out,
                                 float* lse, const Plan* plan);

/// Memory for `count` elements of `dtype`, not initialised. kOutOfMemory if there is none.
Status allocate_elements(int64_t count, Dtype dtype, std::unique_ptr<std::byte[]>* out);

}  // namespace tessera::cli
