// Dense and block-sparse attention forward, non-causal: out = softmax(q k^T * scale) v.
//
//   tessera::Plan plan;
//   status = tessera::route({.q = q, .k = k}, exec, &plan);
//   status = tessera::attend({.q = q, .k = k, .v = v, .out = out, .plan = plan.view()}, exec);
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tessera/execution.h"
#include "tessera/plan.h"
#include "tessera/status.h"
#include "tessera/tensor_view.h"

namespace tessera {

struct AttentionParams {
  Bshd q;    // [B, Sq, H, D]: bf16, f16 or f32; D 64 or 128; last stride 1, other strides arbitrary
  Bshd k;    // [B, Sk, Hkv, D], dtype of q, own strides; H a multiple of Hkv: head h reads key
             // head h / (H / Hkv)
  Bshd v;    // [B, Sk, Hkv, D], dtype of q, own strides
  Bshd out;  // [B, Sq, H, D], dtype of q; must not overlap an input (rows of one fused buffer may
             // lie side by side)
  TensorView<3> lse;  // optional f32 [B, H, Sq]: natural-log sum of exp(scaled scores); must not
                      // overlap another tensor (not checked)
  std::span<const int32_t>
      cu_seqlens;                // packed documents (then B = 1, Sq = Sk = T); empty: unpacked
  int64_t max_seqlen = 0;        // optional check, see packed_documents
  float softmax_scale = 0;       // 0: 1 / sqrt(D)
  std::optional<PlanView> plan;  // absent: dense. Never inferred from an empty plan.
};

/// Runs. A row whose list is empty and a row outside all documents gives out = 0, lse = -inf. A NaN
/// in q, k or v that a row reads makes that row NaN; what it does not read never matters. Same bits
/// for any thread count and any order of ids. CPU: returns when done.
/// kInvalidArgument: shapes, dtypes, strides, overlap, bounds, plan values (checked before anything
/// is written) or an unknown kernel name. kUnsupported: head width or device. kOutOfMemory.
Status attend(const AttentionParams& params, const Execution& exec);

/// Device scratch that `attend` needs in `exec.workspace`, in bytes (256-byte aligned base); 0 for
/// the CPU, which allocates for itself: per thread under 1 MiB, and at most 48 MiB for fp32 copies
/// of K and V. Same errors as `attend`.
Status attention_workspace(const AttentionParams& params, const Execution& exec, size_t* bytes);

struct Refusal {
  std::string kernel;
  std::string reason;
};

/// What `attend` would do, without running anything.
struct Explanation {
  std::string kernel;             // name of the kernel that would run; empty if none
  Status status;                  // why none would, or ok
  std::vector<Refusal> refusals;  // every kernel that was passed over, with its reason
  bool sparse = false;
  PlanStats plan;  // of the given plan; a dense run keeps every pair
};
Explanation explain(const AttentionParams& params, const Execution& exec);

/// One row of the dispatch table, for `tessera doctor` and the docs.
struct KernelInfo {
  std::string name;
  std::string device;  // "cpu", "cuda 9.0"
  std::string description;
  bool usable = false;  // on this machine
  std::string why_not;  // empty if usable
};
std::vector<KernelInfo> list_kernels();

/// Combines attention over two disjoint key sets: weights exp(lse - logaddexp(lse_a, lse_b)). `out`
/// and `lse` may be the buffers of a or b. Rows with both lse = -inf give 0 and -inf. Host memory
/// only: kUnsupported for a CUDA device, kInvalidArgument for shapes, dtypes and strides.
struct MergeParams {
  Bshd out_a, out_b, out;           // same shape; each bf16, f16 or f32
  TensorView<3> lse_a, lse_b, lse;  // f32 [B, H, S], natural log
};
Status merge_partials(const MergeParams& params, const Execution& exec);

}  // namespace tessera
