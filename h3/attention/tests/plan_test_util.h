// Shared by the tests of the plan library: a small model and the text of what was thrown.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "h3/attention/override.h"
#include "h3/attention/selection.h"
#include "h3/common/error.h"

namespace h3 {

inline void PrintTo(BackendId id, std::ostream* out) { *out << to_text(id); }
inline void PrintTo(SelectionStep step, std::ostream* out) { *out << to_text(step); }

namespace testing {

/// The Error that `f` throws; fails the test if there is none.
inline Error thrown_by(const std::function<void()>& f) {
  try {
    f();
  } catch (const Error& e) {
    return e;
  }
  ADD_FAILURE() << "nothing was thrown";
  return Error(ErrorCode::kInternal, "nothing was thrown");
}

inline void expect_parts(const std::string& text, const std::vector<std::string>& parts) {
  for (const std::string& part : parts) {
    EXPECT_NE(text.find(part), std::string::npos) << "missing: " << part << "\nin: " << text;
  }
}

inline LayerDescriptor denoise_layer(int index, const std::string& component = "transformer") {
  LayerDescriptor layer;
  layer.component = component;
  layer.stack = LayerStack::kDenoise;
  layer.index = index;
  layer.name = "blocks." + std::to_string(index) + ".attn";
  layer.heads = layer.kv_heads = 8;
  layer.head_dim = 128;
  layer.needs_packed = true;
  layer.sequence_parallel = true;
  return layer;
}

inline LayerDescriptor cross_layer(int index, const std::string& component = "transformer") {
  LayerDescriptor layer = denoise_layer(index, component);
  layer.name = "blocks." + std::to_string(index) + ".cross_attn";
  layer.role = AttentionRole::kCross;
  return layer;
}

inline LayerDescriptor dense_layer(const std::string& component) {
  LayerDescriptor layer;
  layer.component = component;
  layer.name = "layers.0.attn";
  layer.heads = layer.kv_heads = 8;
  layer.head_dim = 128;
  layer.supported = {BackendId::kTorchSdpa, BackendId::kFa};
  return layer;
}

inline AttentionChoices global(BackendId id, bool user_given = true) {
  AttentionChoices c;
  c.global = RequestedBackend{id, user_given};
  return c;
}

inline AttentionChoices requests(const std::string& text) {
  AttentionChoices c;
  c.components = parse_component_requests(text);
  return c;
}

/// The text of the error that stops the plan.
inline std::string refusal(const ModelLayers& model, const AttentionChoices& choices,
                           const Platform& platform = cuda_platform(9, 0)) {
  return thrown_by([&] { resolve_attention(model, choices, platform); }).what();
}

/// The names of the backends that run in a component, one after the other.
inline std::string component_backends(const AttentionPlan& plan, const std::string& component) {
  std::string text;
  for (const ResolvedLayer& r : plan.layers) {
    const std::string name(to_text(r.backend));
    if (r.layer.component == component && text.find(name) == std::string::npos) text += name;
  }
  return text;
}

/// Overrides with one field set.
inline AttentionOverride with_backend(BackendId id) {
  AttentionOverride o;
  o.backend = id;
  return o;
}

inline AttentionOverride with_sparsity(double s) {
  AttentionOverride o;
  o.sparsity = s;
  return o;
}

}  // namespace testing
}  // namespace h3
