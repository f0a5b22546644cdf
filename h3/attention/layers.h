// What selection and the schedule know about an attention layer. Descriptors are made from the
// model's configuration, before any weight is read.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "h3/attention/names.h"
#include "tessera/types.h"

namespace h3 {

enum class AttentionRole : uint8_t { kSelf, kCross };

/// Which stack of equal layers a layer belongs to. Only kDenoise layers may be sparse.
enum class LayerStack : uint8_t { kDenoise, kRefiner, kOther };

std::string_view to_text(AttentionRole role);

struct LayerDescriptor {
  std::string component;  // "transformer"
  LayerStack stack = LayerStack::kOther;
  int index = 0;     // position in its stack
  std::string name;  // "blocks.7.attn", unique inside the component
  AttentionRole role = AttentionRole::kSelf;

  int heads = 0, kv_heads = 0, head_dim = 0;
  tessera::Dtype dtype = tessera::Dtype::kBf16;  // of q, k and v as attention sees them
  bool causal = false;

  // Semantic requirements: a backend without them gives wrong results, so no request overrides
  // them.
  bool needs_packed = false;
  bool needs_lse = false;
  bool needs_mask = false;
  // Its sequences mix video with other tokens: sparse attention needs a mask that says which query
  // blocks are video.
  bool needs_query_block_mask = false;
  bool sequence_parallel = false;  // takes part in Ulysses and ring

  std::optional<BackendId> default_backend;
  std::vector<BackendId> supported;  // binds automatic choices; empty: any
  std::optional<BackendId> required;
  std::string required_why;
  std::optional<BackendId> selected;  // explicit argument of the layer's constructor
};

struct ComponentInfo {
  std::string name;
  bool auxiliary = false;  // text encoder, VAE: a global request may fall back here
};

struct ModelLayers {
  std::vector<ComponentInfo> components;
  std::vector<LayerDescriptor> layers;
};

/// Place of a layer inside its component.
struct StackPosition {
  LayerStack stack = LayerStack::kOther;
  int index = 0;
  friend bool operator==(const StackPosition&, const StackPosition&) = default;
};

/// Reads a module name of the transformer: "blocks.7.attn" and "transformer_blocks.7.attn1" are
/// {kDenoise, 7}, "token_refiner.blocks.1.attn" is {kRefiner, 1}. Names of no stack give nothing.
/// The pattern is anchored at the start, so "blocks_extra.3.attn" is none.
std::optional<StackPosition> position_from_name(std::string_view module_name);

/// The name a component inherits overrides from: "transformer_2" from "transformer"; empty if none.
std::string parent_component(std::string_view component);

}  // namespace h3
