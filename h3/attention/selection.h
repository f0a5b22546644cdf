// The plan phase: decides for every attention layer which backend runs, before weights are read.
//
//   AttentionPlan plan = resolve_attention(layers, choices, platform);
//   log(plan_text(plan));
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "h3/attention/devices.h"
#include "h3/attention/layers.h"
#include "h3/attention/options.h"
#include "h3/attention/registry.h"

namespace h3 {

/// Where a layer's backend came from; the order is the precedence, highest first.
enum class SelectionStep : uint8_t {
  kLayerRequired,    // the model fixes it
  kLayerArgument,    // explicit argument of the layer
  kForced,           // process-wide, set by a program
  kRole,             // transformer.cross=...
  kComponent,        // transformer=...
  kGlobal,           // --attention-backend
  kLayerDefault,     // the layer's own default
  kOnlySupported,    // the layer supports exactly one
  kPlatformDefault,  // nothing was said
};

/// "--attention-backend", "layer default": for tables and messages.
std::string_view to_text(SelectionStep step);

/// Everything that was asked for.
struct AttentionChoices {
  std::optional<RequestedBackend> global;  // user_given is false for a preference of the server
  ComponentRequests components;
  std::optional<BackendId> forced;
  SubBlockSettings subblock;
  bool subblock_given = false;  // some key of --attention-backend-config was set
  bool allow_fallback =
      false;  // --allow-fallback: explicit requests may be replaced, with a reason
  int ulysses_degree = 1;
  int ring_degree = 1;
};

/// A candidate that was passed over.
struct PassedOver {
  BackendId backend = BackendId::kFa;
  std::vector<std::string> why;  // the most telling reason first
};

struct ResolvedLayer {
  LayerDescriptor layer;
  BackendId backend = BackendId::kTorchSdpa;
  BackendId dense = BackendId::kTorchSdpa;  // what runs when a sparse backend does not
  SelectionStep step = SelectionStep::kPlatformDefault;
  std::optional<BackendId> requested;  // what the step named, if anything
  bool explicit_request = false;
  std::string fallback_reason;  // why `backend` is not `requested`; empty if it is
  std::vector<PassedOver> passed_over;
  std::string gate;  // sparse backends: why this layer is never sparse; empty: it may be
};

/// Why an explicit `fa` became torch_sdpa in a text encoder or VAE: published commands ask for it
/// there, and other engines serve it with kernels that are not in this one.
inline constexpr std::string_view kAuxiliaryKernelFallback = "fa has no kernel for this layer";

struct AttentionPlan {
  Platform platform;
  AttentionChoices choices;
  std::vector<ResolvedLayer> layers;
};

/// Resolves every layer, then checks that every component and role request was used. Nine steps of
/// precedence (SelectionStep). A request is explicit if it came from steps 1 to 5, or from the
/// global flag set by the user. Explicit requests are never replaced in silence; a fallback needs
/// one of these reasons, which is recorded:
///   - nothing, or only a preference, was given: "platform default fallback"
///   - a sparse backend meets cross-attention: "dense cross-attention fallback"
///   - an explicit global flag meets a layer with a default or an auxiliary component:
///     "global backend fallback"
///   - `allow_fallback`: "fallback allowed by --allow-fallback"
///   - an explicit `fa` (component, role or forced) meets a layer of an auxiliary component that fa
///     has no kernel for: torch_sdpa, kAuxiliaryKernelFallback
/// A kernel missing in the build ends the search at once. Throws kInvalidArgument (missing
/// requirement, wrong scope, unused request, unknown component, ring with a backend that cannot)
/// or kUnsupported (device, dtype, head width).
AttentionPlan resolve_attention(const ModelLayers& model, const AttentionChoices& choices,
                                const Platform& platform);

/// One layer alone, without the checks over all layers.
ResolvedLayer resolve_layer(const LayerDescriptor& layer, bool auxiliary,
                            const AttentionChoices& choices, const Platform& platform);

/// 64-bit digest of everything in the plan, equal on ranks with equal configuration.
uint64_t plan_digest(const AttentionPlan& plan);

}  // namespace h3
