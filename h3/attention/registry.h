// Static facts about the backends: what each can do, where it runs, and why it refuses a layer.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "h3/attention/devices.h"
#include "h3/attention/layers.h"
#include "h3/attention/names.h"

namespace h3 {

struct BackendFacts {
  BackendId id = BackendId::kTorchSdpa;
  bool packed = false;           // packed documents
  bool packed_emulated = false;  // ... by one call per document
  bool lse = false;              // gives the log-sum-exp
  bool ring = false;             // ring rotation: needs lse
  bool mask = false;             // a caller's attention mask (AttentionImpl has none so far)
  bool causal = false;
  bool kv_groups = false;  // fewer key heads than query heads
  std::string_view devices;
  std::string_view dtypes;
  std::string_view head_dims;
};

const BackendFacts& facts(BackendId id);

enum class RefusalKind : uint8_t {
  kRequirement,  // a semantic requirement of the layer is missing
  kScope,        // not for this kind of layer
  kPlatform,     // device, dtype, head width
  kBuild,        // the kernel is missing in this build: never absorbed by a fallback
};

struct BackendRefusal {
  RefusalKind kind = RefusalKind::kPlatform;
  std::string text;
};

/// Everything that keeps `id` from serving the layer, requirements first; empty: admitted.
/// `ring` says that the layer runs under ring attention. What resolves_elsewhere covers is no
/// refusal here.
std::vector<BackendRefusal> admit(BackendId id, const LayerDescriptor& layer,
                                  const Platform& platform, bool ring);

/// `fa` has kernels on the CPU and on 9.0 and none for causal attention, other head widths or
/// dtypes; there it means torch_sdpa. Returns why, or nothing where the backend itself runs.
std::optional<std::string> resolves_elsewhere(BackendId id, const LayerDescriptor& layer,
                                              const Platform& platform);

/// The preference where nobody asked for anything. SM12x: torch_sdpa, else fa.
BackendId platform_default(const Platform& platform);

}  // namespace h3
