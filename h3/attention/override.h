// What one request may change about attention: backend, sparsity, schedule, off. Server options are
// the defaults; a field that is absent keeps them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "h3/attention/names.h"
#include "h3/attention/options.h"

namespace h3 {

struct AttentionOverride {
  std::optional<BackendId> backend;   // of the switchable layers of the transformer
  std::optional<double> sparsity;     // [0, 1)
  std::optional<double> target_mass;  // (0, 1], not together with sparsity
  std::optional<int64_t> skip_first_steps, skip_first_layers, min_seq_len;
  bool off = false;  // run sparse layers dense; stands alone

  bool empty() const { return *this == AttentionOverride{}; }
  bool changes_schedule() const {
    return sparsity || target_mass || skip_first_steps || skip_first_layers || min_seq_len;
  }
  friend bool operator==(const AttentionOverride&, const AttentionOverride&) = default;
};

/// Reads the request's JSON: null, or an object with the fields of AttentionOverride (backend by
/// name, aliases included). Strict: unknown fields (with the nearest known one), wrong types,
/// values out of range, fields given twice and contradictions are kInvalidArgument; every fault of
/// the text is named in the one error. `field` begins the message: "attention_backend_override".
AttentionOverride parse_attention_override(std::string_view json, std::string_view field);

/// All faults of the values, joined by "; "; empty if there is none. For overrides built in code.
std::string override_faults(const AttentionOverride& override_);

/// Settings of a layer under the override.
SubBlockSettings with_override(const SubBlockSettings& base, const AttentionOverride& override_);

/// Equal for equal overrides and only then: requests are batched together if it is equal.
std::string batch_signature(const AttentionOverride& override_);

}  // namespace h3
