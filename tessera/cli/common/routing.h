// Routing settings of the command line: flags, or the published backend's options, never both.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "tessera/cli/common/input.h"
#include "tessera/router.h"
#include "tessera/status.h"

namespace tessera::cli {

struct RoutingOptions {
  RouterConfig config;
  int64_t min_seq_len = 0;
  std::string protect_blocks;
  std::string dense_query_blocks;
  std::string backend_config;
  CLI::App* sub = nullptr;  // which options were given
};

/// --sparsity, --keep, --mass, --n-q, ... and --attention-backend-config.
void add_routing_options(CLI::App* sub, RoutingOptions& options);

/// The settings after all rules were applied; `params()` borrows from it and from the input.
struct Routing {
  RouterConfig config;
  int64_t min_seq_len = 0;
  std::vector<int32_t> protected_blocks;
  std::vector<uint8_t> dense_query_blocks;
  std::string accepted;  // the accepted backend options, empty if none were given

  RouteParams params(const Input& input, const InputOptions& options) const;
};

/// Everything that needs no input file: backend options, conflicts, ranges, lists. Run it first,
/// so that damaged options are reported before anything is read.
Status check_routing_options(const RoutingOptions& options, Routing* out);

/// Completes `routing` for an input: the default of --min-seq-len (0 for [B, S, H, D], 4096 for
/// packed documents, as the published backend) and the dense query blocks.
Status resolve_routing(const RoutingOptions& options, const Input& input, Routing* routing);

/// Whether any option says that the command should route.
bool routing_requested(const RoutingOptions& options);

/// The settings as JSON, for plan files and --json.
nlohmann::ordered_json routing_json(const Routing& routing);

}  // namespace tessera::cli
