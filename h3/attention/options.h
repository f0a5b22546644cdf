// The three attention options of the command line, parsed strictly:
//   --attention-backend NAME
//   --component-attention-backends JSON | @FILE | a=b,c=d   (and --component-attention-backends.a
//   b)
//   --attention-backend-config     JSON | @FILE | PATH | k=v,k=v (and --attention-backend-config.k
//   v)
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "h3/attention/layers.h"
#include "h3/attention/names.h"
#include "tessera/io/backend_options.h"

namespace h3 {

/// Documents shorter than this are never worth a route: 8 blocks of 64 tokens.
inline constexpr int64_t kMinSparseTokens = 8 * tessera::kBlockTokens;

/// How a subblock_sparse_attn layer runs.
struct SubBlockSettings {
  tessera::io::BackendOptions options;  // published keys and defaults
  std::optional<double> target_mass;    // (0, 1]: keep the fewest blocks that reach it, instead of
                                        // `options.sparsity`
  bool off = false;                     // always dense

  /// Sparsity 0 without a mass target keeps every block: the layer is dense.
  bool can_be_sparse() const { return !off && (target_mass || options.sparsity > 0); }
  friend bool operator==(const SubBlockSettings& a, const SubBlockSettings& b);
};

/// "sparsity=0.75 n_k=4 ...", with the mass target or "off" in front where set.
std::string describe(const SubBlockSettings& settings);

/// What the router is asked for.
tessera::RouterConfig router_config(const SubBlockSettings& settings);

/// Parses --attention-backend-config. The rules and messages are those of
/// tessera::io::parse_backend_options; in addition min_seq_len must be at least kMinSparseTokens.
/// `dotted` holds key-value pairs of the dotted form, which win over `text`; a key given twice in
/// dotted form is refused. Throws kInvalidArgument, or kUnsupported for compute_mode sage_fp8.
SubBlockSettings parse_subblock_settings(
    std::string_view text, const std::vector<std::pair<std::string, std::string>>& dotted = {});

/// Throws kInvalidArgument unless value >= kMinSparseTokens.
void check_min_seq_len(int64_t value, std::string_view source);

struct RequestedBackend {
  BackendId backend = BackendId::kFa;
  bool user_given = true;  // false: chosen by the server itself
};

/// Requests per component and per role of a component.
struct ComponentRequests {
  std::map<std::string, RequestedBackend> components;                       // "transformer"
  std::map<std::pair<std::string, AttentionRole>, RequestedBackend> roles;  // "transformer.cross"

  bool empty() const { return components.empty() && roles.empty(); }
};

/// Parses --component-attention-backends: JSON object of strings, @FILE, or a=b,c=d; empty text
/// gives nothing. In component names '-' is '_', case and blanks around do not matter; a suffix
/// .self or .cross addresses a role. Entries of `dotted` (the repeated dotted form) are merged over
/// the text. Throws kInvalidArgument: not JSON (with byte position, the text received and a hint),
/// a value that is no string, an empty name, a missing '=', an unknown suffix, an entry given
/// twice; for backend names see backend_from_text.
ComponentRequests parse_component_requests(
    std::string_view text, const std::vector<std::pair<std::string, std::string>>& dotted = {});

}  // namespace h3
