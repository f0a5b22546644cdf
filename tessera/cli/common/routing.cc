#include "tessera/cli/common/routing.h"

#include <fmt/format.h>

#include <limits>
#include <nlohmann/json.hpp>

#include "tessera/cli/commands.h"
#include "tessera/cli/common/list_parse.h"
#include "tessera/io/backend_options.h"

namespace tessera::cli {

namespace {

constexpr int64_t kPackedMinSeqLen = 4096;
constexpr const char* kBackendFlag = "--attention-backend-config";

bool given(const RoutingOptions& options, const char* flag) { return options.sub->count(flag) > 0; }

Status check_cells(const char* flag, int cells) {
  if (cells == 1 || cells == 2 || cells == 4 || cells == 8) return {};
  return invalid_argument(fmt::format("{} {}: accepted: 1, 2, 4 or 8", flag, cells));
}

Status check_budget(const RoutingOptions& options) {
  const Budget& budget = options.config.budget;
  if (!(budget.sparsity >= 0 && budget.sparsity < 1)) {
    return invalid_argument(fmt::format(
        "--sparsity {}: accepted: [0, 1), the share of key blocks to drop", budget.sparsity));
  }
  if (!(budget.mass > 0 && budget.mass <= 1)) {
    return invalid_argument(
        fmt::format("--mass {}: accepted: (0, 1], the share of softmax mass to keep", budget.mass));
  }
  if (given(options, "--keep") && budget.keep < 1) {
    return invalid_argument(
        fmt::format("--keep {}: accepted: 1 or more key blocks per query block", budget.keep));
  }
  if (budget.min_keep < 1) {
    return invalid_argument(fmt::format("--min-keep {}: accepted: 1 or more", budget.min_keep));
  }
  if (budget.max_keep < 0 || (budget.max_keep > 0 && budget.max_keep < budget.min_keep)) {
    return invalid_argument(
        fmt::format("--max-keep {}: accepted: 0 (no cap), or at least --min-keep "
                    "({})",
                    budget.max_keep, budget.min_keep));
  }
  if (budget.granularity < 1) {
    return invalid_argument(
        fmt::format("--granularity {}: accepted: 1 or more", budget.granularity));
  }
  return {};
}

// Flags that only mean something with one kind of budget.
Status check_companions(const RoutingOptions& options) {
  for (const char* flag : {"--min-keep", "--max-keep"}) {
    if (given(options, flag) && !given(options, "--mass")) {
      return invalid_argument(fmt::format("{} goes with --mass; add --mass P or drop it", flag));
    }
  }
  for (const char* flag : {"--granularity", "--exact-rounding"}) {
    for (const char* other : {"--keep", "--mass"}) {
      if (given(options, flag) && given(options, other)) {
        return invalid_argument(fmt::format(
            "{} rounds the budget of --sparsity and means nothing with {}; drop one", flag, other));
      }
    }
  }
  return {};
}

Status apply_backend_config(const RoutingOptions& options, Routing* out) {
  for (const char* flag :
       {"--sparsity", "--keep", "--mass", "--min-keep", "--max-keep", "--granularity",
        "--exact-rounding", "--n-q", "--n-k", "--min-seq-len"}) {
    if (given(options, flag)) {
      return invalid_argument(
          fmt::format("{} and {} set the same thing; give one of them", kBackendFlag, flag));
    }
  }
  io::BackendOptions backend;
  TESSERA_RETURN_IF_ERROR(
      with_context(kBackendFlag, io::parse_backend_options(options.backend_config, &backend)));
  out->config = io::router_config(backend);
  out->config.weight_partial_cells = options.config.weight_partial_cells;
  // Sparsity 0 switches the published backend off: then no document is long enough to be routed.
  out->min_seq_len =
      backend.sparsity > 0 ? backend.min_seq_len : std::numeric_limits<int64_t>::max();
  out->accepted = io::describe(backend);
  return {};
}

}  // namespace

void add_routing_options(CLI::App* sub, RoutingOptions& options) {
  options.sub = sub;
  Budget& budget = options.config.budget;
  const std::string group = "Routing";
  auto add = [&](const char* flag, auto& target, const char* help, const char* type) {
    return sub->add_option(flag, target, help)->group(group)->type_name(type);
  };
  // Text that is no number; ranges are checked in check_routing_options.
  const auto add_number = [&]<class T>(const char* flag, T& target, const char* accepted,
                                       const char* help, const char* type = "N") {
    return add(flag, target, help, type)->check(accepts_number<T>(accepted));
  };
  CLI::Option* sparsity =
      add_number("--sparsity", budget.sparsity, "a share in [0, 1)",
                 "Share of key blocks to drop at most, [0, 1); the default budget is 0.75", "X");
  CLI::Option* keep = add_number("--keep", budget.keep, "a whole number of key blocks, 1 or more",
                                 "Key blocks to keep per query block");
  CLI::Option* mass =
      add_number("--mass", budget.mass, "a share in (0, 1]",
                 "Keep the fewest blocks whose estimated softmax mass reaches this, (0, 1]", "P");
  sparsity->excludes(keep)->excludes(mass);
  keep->excludes(mass);
  add_number("--min-keep", budget.min_keep, "a whole number, 1 or more",
             "With --mass: floor per query block (1)");
  add_number("--max-keep", budget.max_keep, "a whole number, 0 (no cap) or more",
             "With --mass: cap per query block; 0 = none");
  add_number("--granularity", budget.granularity, "a whole number, 1 or more",
             "With --sparsity: round the kept count up to a multiple of this (8)");
  sub->add_flag("--exact-rounding", budget.exact_rounding,
                "With --sparsity: forgive the last bit, so that (1 - 0.7) * 80 is 24")
      ->group(group);
  add_number("--n-q", options.config.n_q, "1, 2, 4 or 8",
             "Query cells per block: 1, 2, 4 or 8 (4)");
  add_number("--n-k", options.config.n_k, "1, 2, 4 or 8", "Key cells per block: 1, 2, 4 or 8 (4)");
  sub->add_flag("--weight-partial-cells", options.config.weight_partial_cells,
                "Weight a partial cell by its share of real tokens")
      ->group(group);
  add("--min-seq-len", options.min_seq_len,
      "Documents with fewer keys run dense; default: 0 for [B, S, H, D] input, 4096 for packed "
      "input (as the published backend)",
      "N")
      ->check(accepts_number<int64_t>("a whole number of keys, 0 or more",
                                      [](int64_t n) { return n >= 0; }));
  add("--protect-blocks", options.protect_blocks,
      "Key blocks every routed row keeps, inside its budget: 0,3,5-9", "LIST");
  add("--dense-query-blocks", options.dense_query_blocks,
      "Query blocks that attend to everything: 0,3,5-9", "LIST");
  add(kBackendFlag, options.backend_config,
      "Options of the published backend: JSON, @file, a path, or key=value,...", "TEXT");
}

bool routing_requested(const RoutingOptions& options) {
  for (const char* flag :
       {"--sparsity", "--keep", "--mass", "--min-keep", "--max-keep", "--granularity",
        "--exact-rounding", "--n-q", "--n-k", "--weight-partial-cells", "--min-seq-len",
        "--protect-blocks", "--dense-query-blocks", kBackendFlag}) {
    if (given(options, flag)) return true;
  }
  return false;
}

Status check_routing_options(const RoutingOptions& options, Routing* out) {
  out->config = options.config;
  if (given(options, kBackendFlag)) {
    TESSERA_RETURN_IF_ERROR(apply_backend_config(options, out));
  } else {
    out->config.budget.kind = given(options, "--mass")   ? BudgetKind::kMass
                              : given(options, "--keep") ? BudgetKind::kKeep
                                                         : BudgetKind::kSparsity;
    TESSERA_RETURN_IF_ERROR(check_budget(options));
    TESSERA_RETURN_IF_ERROR(check_companions(options));
    TESSERA_RETURN_IF_ERROR(check_cells("--n-q", options.config.n_q));
    TESSERA_RETURN_IF_ERROR(check_cells("--n-k", options.config.n_k));
  }
  return parse_block_list("--protect-blocks", options.protect_blocks, &out->protected_blocks);
}

Status resolve_routing(const RoutingOptions& options, const Input& input, Routing* routing) {
  if (!given(options, kBackendFlag)) {
    routing->min_seq_len = given(options, "--min-seq-len") ? options.min_seq_len
                           : input.packed                  ? kPackedMinSeqLen
                                                           : 0;
  }
  std::vector<int32_t> dense;
  TESSERA_RETURN_IF_ERROR(
      parse_block_list("--dense-query-blocks", options.dense_query_blocks, &dense));
  if (dense.empty()) return {};
  if (dense.back() >= input.layout.query_blocks) {
    return invalid_argument(fmt::format(
        "--dense-query-blocks names block {}, but {} has {} query blocks; accepted: 0 "
        "to {}",
        dense.back(), input.path, input.layout.query_blocks, input.layout.query_blocks - 1));
  }
  routing->dense_query_blocks.assign(input.layout.query_blocks, 0);
  for (int32_t block : dense) routing->dense_query_blocks[block] = 1;
  return {};
}

RouteParams Routing::params(const Input& input, const InputOptions& options) const {
  RouteParams params;
  params.q = input.q;
  params.k = input.k;
  params.cu_seqlens = input.documents();
  params.max_seqlen = options.max_seqlen;
  params.softmax_scale = options.softmax_scale;
  params.config = config;
  params.min_seq_len = min_seq_len;
  params.protected_blocks = protected_blocks;
  params.dense_query_blocks = dense_query_blocks;
  return params;
}

nlohmann::ordered_json routing_json(const Routing& routing) {
  const Budget& budget = routing.config.budget;
  nlohmann::ordered_json json;
  switch (budget.kind) {
    case BudgetKind::kSparsity:
      json["budget"] = "sparsity";
      json["sparsity"] = budget.sparsity;
      json["granularity"] = budget.granularity;
      json["exact_rounding"] = budget.exact_rounding;
      break;
    case BudgetKind::kKeep:
      json["budget"] = "keep";
      json["keep"] = budget.keep;
      break;
    case BudgetKind::kMass:
      json["budget"] = "mass";
      json["mass"] = budget.mass;
      json["min_keep"] = budget.min_keep;
      json["max_keep"] = budget.max_keep;
      break;
  }
  json["n_q"] = routing.config.n_q;
  json["n_k"] = routing.config.n_k;
  json["weight_partial_cells"] = routing.config.weight_partial_cells;
  json["min_seq_len"] = routing.min_seq_len;
  if (!routing.protected_blocks.empty()) json["protect_blocks"] = routing.protected_blocks;
  return json;
}

}  // namespace tessera::cli
