// A validated attention call, and the one table of kernels that can run it.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "tessera/attention.h"
#include "tessera/layout.h"
#include "tessera/src/cpu/fast_kernels.h"

namespace tessera::internal {

struct AttentionProblem {
  const AttentionParams* params = nullptr;
  BlockLayout layout;
  float scale = 0;
  int64_t batch = 0, heads = 0, kv_heads = 0;
  int head_dim = 0;
};

/// Everything that does not need tensor values. The plan's values are checked too when they are in
/// host memory; for a CUDA device the kernels check them.
Status check_attention(const AttentionParams& params, DeviceKind device, AttentionProblem* out);

/// One input tensor on its own: a float dtype, sizes >= 1, unit last stride.
Status check_input(const Bshd& tensor, std::string_view name);

/// q against k: batch, grouped heads, head_dim 64 or 128 (else kUnsupported), equal dtypes; and the
/// layout of an unpacked or packed call.
Status check_query_key(const Bshd& q, const Bshd& k, std::span<const int32_t> cu_seqlens,
                       int64_t max_seqlen, BlockLayout* layout);

/// 0 becomes 1 / sqrt(head_dim); anything not positive and finite is refused.
Status resolve_scale(float given, int64_t head_dim, float* out);

/// Token rows of (batch, head) starting at `first_row`.
cpu::Rows head_rows(const Bshd& tensor, int64_t batch, int64_t head, int64_t first_row);

struct KernelEntry {
  const char* name;
  DeviceKind device;
  const char* device_text;
  const char* description;
  bool automatic;  // false: runs only when asked for by name
  /// Empty when the kernel can run the problem, else the reason it cannot.
  std::string (*refuse)(const AttentionProblem&);
  Status (*run)(const AttentionProblem&, const Execution&);
};

/// In order of preference.
std::span<const KernelEntry> kernel_table();

Status run_cpu_highway(const AttentionProblem& problem, const Execution& exec);
Status run_cpu_reference(const AttentionProblem& problem, const Execution& exec);

/// The message for a CUDA request where nothing for CUDA exists.
Status refuse_cuda(const Device& device);

/// kUnsupported for a device that this build or machine cannot use.
Status check_device(const Execution& exec);

}  // namespace tessera::internal
