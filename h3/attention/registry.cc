#include "h3/attention/registry.h"

#include <fmt/format.h>

#include "h3/common/error.h"

namespace h3 {
namespace {

using tessera::Dtype;

constexpr BackendFacts kFacts[] = {
    {.id = BackendId::kTorchSdpa,
     .packed = true,
     .packed_emulated = true,
     .causal = true,
     .kv_groups = true,
     .devices = "cpu, every CUDA device",
     .dtypes = "bf16, f16, f32",
     .head_dims = "any"},
    {.id = BackendId::kTorchCudnnSdpa,
     .packed = true,
     .packed_emulated = true,
     .kv_groups = true,
     .devices = "CUDA from 8.0",
     .dtypes = "bf16, f16",
     .head_dims = "multiples of 8 up to 128"},
    {.id = BackendId::kFa,
     .packed = true,
     .lse = true,
     .ring = true,
     .kv_groups = true,
     .devices = "cpu, CUDA 9.0",
     .dtypes = "bf16, f16; f32 on the cpu",
     .head_dims = "128; 64 on the cpu"},
    {.id = BackendId::kSubBlock,
     .packed = true,
     .kv_groups = true,
     .devices = "cpu, CUDA 9.0 (10.0 and 12.0 later)",
     .dtypes = "bf16",
     .head_dims = "128"},
};

std::string dtype_text(const LayerDescriptor& layer) {
  return std::string(tessera::dtype_name(layer.dtype));
}

bool half(Dtype d) { return d == Dtype::kBf16 || d == Dtype::kF16; }

class Refusals {
 public:
  explicit Refusals(BackendId id) : name_(to_text(id)) {}
  void add(RefusalKind kind, const std::string& text) {
    list_.push_back({kind, fmt::format("{} {}", name_, text)});
  }
  std::vector<BackendRefusal> take() { return std::move(list_); }

 private:
  std::string_view name_;
  std::vector<BackendRefusal> list_;
};

void check_requirements(const BackendFacts& f, const LayerDescriptor& layer, bool ring,
                        Refusals* out) {
  constexpr RefusalKind kKind = RefusalKind::kRequirement;
  if (layer.needs_packed && !f.packed) {
    out->add(kKind, "does not implement packed varlen attention");
  }
  if (ring && layer.sequence_parallel && !f.ring) {
    out->add(kKind,
             "cannot run under ring attention (ring backends: fa); use --ring-degree 1 with "
             "Ulysses, or fa");
  }
  if (layer.needs_lse && !f.lse) out->add(kKind, "gives no log-sum-exp, which the layer needs");
  if (layer.needs_mask && !f.mask)
    out->add(kKind, "takes no attention mask, which the layer needs");
  // fa on a causal layer means torch_sdpa, see resolves_elsewhere.
  if (layer.causal && !f.causal && f.id != BackendId::kFa) {
    out->add(kKind, "is not causal, and the layer is");
  }
  if (layer.kv_heads != layer.heads && !f.kv_groups) {
    out->add(kKind, fmt::format("needs equal head counts; the layer has {} query and {} key heads",
                                layer.heads, layer.kv_heads));
  }
}

void check_subblock(const LayerDescriptor& layer, const Platform& platform, Refusals* out) {
  if (layer.stack == LayerStack::kOther && layer.role == AttentionRole::kSelf) {
    out->add(RefusalKind::kScope, "serves self-attention of the denoising transformer only");
  }
  if (layer.role == AttentionRole::kCross) {
    out->add(RefusalKind::kScope, "never serves cross-attention");
  }
  constexpr RefusalKind kKind = RefusalKind::kPlatform;
  if (platform.is(10, 0) || platform.is(12, 0)) {
    out->add(
        kKind,
        fmt::format(
            "accepts {} as a name, but its kernels for it come in a later version; today it runs "
            "on the cpu and on capability 9.0, so use fa or torch_sdpa here",
            to_text(platform)));
  } else if (platform.cuda && !platform.is(9, 0)) {
    out->add(
        kKind,
        fmt::format(
            "does not run on {}; it runs on the cpu and on capability 9.0 (10.0 and 12.0 later), "
            "so use fa or torch_sdpa here",
            to_text(platform)));
  } else if (platform.cuda && !platform.cuda_kernels) {
    out->add(RefusalKind::kBuild,
             "has no CUDA kernels in this build; configure with -DTESSERA_CUDA=ON, or use "
             "torch_sdpa");
  }
  if (layer.dtype != Dtype::kBf16) {
    out->add(kKind, fmt::format("runs bf16; the layer is {}", dtype_text(layer)));
  }
  if (layer.head_dim != 128) {
    out->add(kKind, fmt::format("runs head width 128; the layer has {}", layer.head_dim));
  }
}

void check_cudnn(const LayerDescriptor& layer, const Platform& platform, Refusals* out) {
  constexpr RefusalKind kKind = RefusalKind::kPlatform;
  if (!platform.cuda || platform.capability.major < 8) {
    out->add(kKind, fmt::format("needs a CUDA device of capability 8.0 or newer; this is {}",
                                to_text(platform)));
  }
  if (!half(layer.dtype)) {
    out->add(kKind, fmt::format("runs bf16 and f16; the layer is {}", dtype_text(layer)));
  }
  if (layer.head_dim % 8 != 0 || layer.head_dim > 128) {
    out->add(kKind,
             fmt::format("runs head widths that are multiples of 8 up to 128; the layer has {}",
                         layer.head_dim));
  }
}

}  // namespace

const BackendFacts& facts(BackendId id) {
  for (const BackendFacts& f : kFacts) {
    if (f.id == id) return f;
  }
  throw Error(ErrorCode::kInternal, "a backend without facts");
}

std::vector<BackendRefusal> admit(BackendId id, const LayerDescriptor& layer,
                                  const Platform& platform, bool ring) {
  Refusals out(id);
  check_requirements(facts(id), layer, ring, &out);
  if (id == BackendId::kSubBlock) check_subblock(layer, platform, &out);
  if (id == BackendId::kTorchCudnnSdpa) check_cudnn(layer, platform, &out);
  return out.take();
}

std::optional<std::string> resolves_elsewhere(BackendId id, const LayerDescriptor& layer,
                                              const Platform& platform) {
  if (id != BackendId::kFa) return {};
  if (platform.cuda && !platform.is(9, 0)) {
    return fmt::format("has no kernel for {} (it has for the cpu and 9.0)", to_text(platform));
  }
  if (platform.cuda && !platform.cuda_kernels) return "has no CUDA kernels in this build";
  if (layer.causal) return "has no causal kernel";
  if (layer.head_dim != 128 && (platform.cuda || layer.head_dim != 64)) {
    return fmt::format("does not run head width {} on {}", layer.head_dim, to_text(platform));
  }
  if (!half(layer.dtype) && (platform.cuda || layer.dtype != Dtype::kF32)) {
    return fmt::format("does not run {} on {}", dtype_text(layer), to_text(platform));
  }
  return {};
}

BackendId platform_default(const Platform& platform) {
  return platform.cuda && platform.capability.major == 12 ? BackendId::kTorchSdpa : BackendId::kFa;
}

}  // namespace h3
