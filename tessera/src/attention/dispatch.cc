// `attend` and `explain`: check, choose from the kernel table, run.
#include <array>

#include "tessera/attention.h"
#include "tessera/src/attention/problem.h"
#include "tessera/src/common/cat.h"
#include "tessera/src/common/parallel.h"
#ifdef TESSERA_WITH_CUDA
#include "tessera/src/cuda/runtime.h"
#include "tessera/src/sm90/forward.h"
#endif

namespace tessera {

using internal::AttentionProblem;
using internal::KernelEntry;

namespace {

std::string accept_all(const AttentionProblem&) { return {}; }  // check_attention covers the CPU

constexpr std::array kTable = {
#ifdef TESSERA_WITH_CUDA
    KernelEntry{"sm90_union", DeviceKind::kCuda, "cuda 9.0",
                "three query blocks share each K/V tile; balanced order", true,
                sm90::refuse_forward, sm90::run_union},
    KernelEntry{"sm90_union_plain", DeviceKind::kCuda, "cuda 9.0",
                "sm90_union in plain order: a row's bits do not depend on its neighbours", false,
                sm90::refuse_forward, sm90::run_union_plain},
    KernelEntry{"sm90_list", DeviceKind::kCuda, "cuda 9.0",
                "one query block per CTA, its own list; bit-identical to sm90_union_plain", false,
                sm90::refuse_forward, sm90::run_list},
#endif
    KernelEntry{"cpu_highway", DeviceKind::kCpu, "cpu",
                "vector kernel (Highway run-time dispatch), fp32 arithmetic", true, accept_all,
                internal::run_cpu_highway},
    KernelEntry{"cpu_reference", DeviceKind::kCpu, "cpu",
                "scalar oracle, double accumulation; runs only when named", false, accept_all,
                internal::run_cpu_reference},
};

/// Fills everything of `out` but `plan`; returns the chosen entry or nullptr.
const KernelEntry* choose(const AttentionProblem& problem, const Execution& exec,
                          Explanation* out) {
  bool known = exec.kernel.empty();
  std::string names;
  const KernelEntry* chosen = nullptr;
  for (const KernelEntry& entry : internal::kernel_table()) {
    names += (names.empty() ? "" : ", ") + std::string(entry.name);
    const bool named = exec.kernel == entry.name;
    known |= named;
    std::string reason;
    if (chosen != nullptr) {
      reason = internal::cat("not needed: ", chosen->name, " comes first");
    } else if (!exec.kernel.empty() && !named) {
      reason = internal::cat("kernel ", exec.kernel, " was asked for by name");
    } else if (entry.device != exec.device.kind) {
      reason = internal::cat("runs on ", entry.device_text);
    } else if (!entry.automatic && !named) {
      reason = "runs only when asked for by name";
    } else {
      reason = entry.refuse(problem);
    }
    if (reason.empty()) {
      chosen = &entry;
    } else {
      out->refusals.push_back({entry.name, reason});
    }
  }
  if (!known) {
    out->status = invalid_argument(
        internal::cat("there is no kernel named \"", exec.kernel, "\"; known are ", names));
  } else if (chosen == nullptr) {
    std::string why;
    for (const Refusal& r : out->refusals) why += "; " + r.kernel + ": " + r.reason;
    out->status = unsupported("no kernel can run this call" + why);
  } else {
    out->kernel = chosen->name;
  }
  return chosen;
}

PlanStats dense_stats(const AttentionProblem& problem) {
  PlanStats stats;
  for (const Document& d : problem.layout.documents) {
    stats.rows += d.query_blocks;
    stats.total_pairs += int64_t{d.query_blocks} * d.key_blocks;
  }
  stats.rows *= problem.batch * problem.heads;
  stats.total_pairs *= problem.batch * problem.heads;
  stats.dense_rows = stats.rows;
  stats.kept_pairs = stats.total_pairs;
  return stats;
}

}  // namespace

namespace internal {

Status check_device(const Execution& exec) {
  if (exec.threads < 0) {
    return invalid_argument(
        cat("threads is ", exec.threads, "; give 0 for all or a positive number"));
  }
  if (exec.device.kind == DeviceKind::kCpu) return {};
#ifdef TESSERA_WITH_CUDA
  cuda::DeviceFacts facts;
  return cuda::require_sm90(exec.device.index, &facts);
#else
  return refuse_cuda(exec.device);
#endif
}

std::span<const KernelEntry> kernel_table() { return kTable; }

}  // namespace internal

Status attend(const AttentionParams& params, const Execution& exec) {
  return internal::guarded([&]() -> Status {
    TESSERA_RETURN_IF_ERROR(internal::check_device(exec));
    AttentionProblem problem;
    TESSERA_RETURN_IF_ERROR(internal::check_attention(params, exec.device.kind, &problem));
    Explanation choice;
    const KernelEntry* entry = choose(problem, exec, &choice);
    return entry != nullptr ? entry->run(problem, exec) : choice.status;
  });
}

Status attention_workspace(const AttentionParams& params, const Execution& exec, size_t* bytes) {
  *bytes = 0;
  if (exec.device.kind == DeviceKind::kCpu) return {};
  return internal::guarded([&]() -> Status {
    TESSERA_RETURN_IF_ERROR(internal::check_device(exec));
    AttentionProblem problem;
    TESSERA_RETURN_IF_ERROR(internal::check_attention(params, exec.device.kind, &problem));
#ifdef TESSERA_WITH_CUDA
    *bytes = sm90::forward_workspace(problem);
#endif
    return {};
  });
}

Explanation explain(const AttentionParams& params, const Execution& exec) {
  Explanation out;
  out.sparse = params.plan.has_value();
  const Status failed = internal::guarded([&]() -> Status {
    AttentionProblem problem;
    TESSERA_RETURN_IF_ERROR(internal::check_attention(params, exec.device.kind, &problem));
    choose(problem, exec, &out);
    // A plan in device memory cannot be counted without a copy.
    if (!params.plan) {
      out.plan = dense_stats(problem);
    } else if (exec.device.kind == DeviceKind::kCpu) {
      out.plan = plan_stats(*params.plan, problem.layout);
    }
    return internal::check_device(exec);
  });
  if (!failed.ok()) {
    out.status = failed;
    out.kernel.clear();
  }
  return out;
}

std::vector<KernelInfo> list_kernels() {
  std::vector<KernelInfo> list;
  for (const KernelEntry& entry : internal::kernel_table()) {
    Execution exec;
    exec.device.kind = entry.device;
    const Status device = internal::check_device(exec);
    list.push_back(
        {entry.name, entry.device_text, entry.description, device.ok(), device.message()});
  }
  return list;
}

}  // namespace tessera
