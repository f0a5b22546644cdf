// Names of attention backends: which exist, which run here, and how text becomes one of them.
//
//   BackendId id = backend_from_text(" FA3 ");   // kFa
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace h3 {

/// The backends of this engine.
enum class BackendId : uint8_t { kTorchSdpa, kTorchCudnnSdpa, kFa, kSubBlock };

inline constexpr BackendId kAllBackends[] = {BackendId::kFa, BackendId::kSubBlock,
                                             BackendId::kTorchCudnnSdpa, BackendId::kTorchSdpa};

struct BackendName {
  std::string_view name;
  bool sparse = false;
  std::optional<BackendId> id;  // absent: a known name that this engine does not implement
};

struct BackendAlias {
  std::string_view alias;
  std::string_view name;
};

/// Every name of SGLang 0.5.23, so that a command written for it gets a precise answer.
std::span<const BackendName> backend_names();
std::span<const BackendAlias> backend_aliases();

/// "subblock_sparse_attn".
std::string_view to_text(BackendId id);
bool is_sparse(BackendId id);

/// Looks a name up: blanks around are dropped, case does not matter, aliases are followed; the same
/// rule for every option. Throws kInvalidArgument for an unknown name (the message lists all names
/// and the nearest one) and kUnsupported for a known name that is not in this engine. `source`
/// begins the message: "--attention-backend".
BackendId backend_from_text(std::string_view text, std::string_view source);

/// The candidate nearest to `word`, or empty if none is close. For "did you mean".
std::string nearest_name(std::string_view word, const std::vector<std::string>& candidates);

/// Names joined by ", ".
std::string joined(const std::vector<std::string>& names);

/// Lower case (ASCII) without blanks around.
std::string folded(std::string_view text);

}  // namespace h3
