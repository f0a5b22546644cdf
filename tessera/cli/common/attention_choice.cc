#include "tessera/cli/common/attention_choice.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <new>
#include <vector>

#include "tessera/cli/commands.h"
#include "tessera/cli/common/plan_file.h"

namespace tessera::cli {

void add_choice_options(CLI::App* sub, ChoiceOptions& options, bool with_dense) {
  sub->add_option("--plan", options.plan_path, "Use the plan in this file")->type_name("PLAN");
  if (with_dense) sub->add_flag("--dense", options.dense, "Attend to every key");
  sub->add_option("--kernel", options.kernel,
                  "Run this kernel instead of the chosen one; `tessera doctor` lists them")
      ->type_name("NAME");
  add_device_option(sub, options.device);
  add_routing_options(sub, options.routing);
}

Status check_choice(const ChoiceOptions& options, Device* device, Routing* routing) {
  TESSERA_RETURN_IF_ERROR(resolve_device(options.device, device));
  std::vector<std::string> choices;
  if (!options.plan_path.empty()) choices.push_back("--plan");
  if (options.dense) choices.push_back("--dense");
  if (routing_requested(options.routing)) {
    choices.push_back("routing options (--sparsity and others)");
  }
  if (choices.size() > 1) {
    return invalid_argument(
        fmt::format("{} exclude each other; give one of them", fmt::join(choices, " and ")));
  }
  return check_routing_options(options.routing, routing);
}

Status open_choice(const ChoiceOptions& choice, const InputOptions& options, const Device& device,
                   Input* input, Routing* routing, Plan* plan) {
  TESSERA_RETURN_IF_ERROR(load_input(options, true, input));
  TESSERA_RETURN_IF_ERROR(with_context(input->path, check_device_tensor(device, input->q)));
  if (!choice.plan_path.empty()) return read_plan(choice.plan_path, *input, plan);
  return choice.dense ? Status() : resolve_routing(choice.routing, *input, routing);
}

AttentionParams attention_params(const Input& input, const InputOptions& options, void* out,
                                 float* lse, const Plan* plan) {
  AttentionParams params;
  params.q = input.q;
  params.k = input.k;
  params.v = input.v;
  params.out = contiguous_view<4>(out, input.q.size, input.q.dtype);
  if (lse != nullptr) {
    params.lse =
        contiguous_view<3>(lse, {input.q.size[0], input.q.size[2], input.q.size[1]}, Dtype::kF32);
  }
  params.cu_seqlens = input.documents();
  params.max_seqlen = options.max_seqlen;
  params.softmax_scale = options.softmax_scale;
  if (plan != nullptr && plan->shape.rows() > 0) params.plan = plan->view();
  return params;
}

Status allocate_elements(int64_t count, Dtype dtype, std::unique_ptr<std::byte[]>* out) {
  const size_t bytes = static_cast<size_t>(count) * dtype_bytes(dtype);
  out->reset(new (std::nothrow) std::byte[bytes]);
  if (*out != nullptr) return {};
  return out_of_memory(
      fmt::format("{} bytes for a result cannot be allocated; use a smaller input", bytes));
}

}  // namespace tessera::cli
