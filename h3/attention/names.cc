#include "h3/attention/names.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "h3/common/error.h"
#include "tessera/io/text.h"

namespace h3 {
namespace {

using tessera::io::detail::in_quotes;

constexpr bool kSparse = true;

constexpr std::array kNames = {
    BackendName{"fa2"},
    BackendName{"fa", false, BackendId::kFa},
    BackendName{"sliding_tile_attn", kSparse},
    BackendName{"torch_sdpa", false, BackendId::kTorchSdpa},
    BackendName{"torch_cudnn_sdpa", false, BackendId::kTorchCudnnSdpa},
    BackendName{"dynamic_cudnn_sdpa"},
    BackendName{"sage_attn"},
    BackendName{"sage_attn_3"},
    BackendName{"sparge_attn", kSparse},
    BackendName{"video_sparse_attn", kSparse},
    BackendName{"video_sparse_attn_h3", kSparse},
    BackendName{"hybrid_window_attn_h3", kSparse},
    BackendName{"sparse_video_gen_2_attn", kSparse},
    BackendName{"vmoba_attn", kSparse},
    BackendName{"aiter"},
    BackendName{"aiter_sage"},
    BackendName{"sla_attn", kSparse},
    BackendName{"sage_sla_attn", kSparse},
    BackendName{"laser_attn", kSparse},
    BackendName{"block_sparse_attn", kSparse},
    BackendName{"rain_fusion_attn", kSparse},
    BackendName{"sol_attn", kSparse},
    BackendName{"subblock_sparse_attn", kSparse, BackendId::kSubBlock},
    BackendName{"cube_sparse_attn", kSparse},
    BackendName{"fp8_fa_sm120"},
    BackendName{"no_attention"},
};

constexpr std::array kAliases = {
    BackendAlias{"fa3", "fa"},
    BackendAlias{"fa4", "fa"},
    BackendAlias{"cudnn_sdpa", "torch_cudnn_sdpa"},
};

std::vector<std::string> all_names() {
  std::vector<std::string> names;
  for (const BackendName& n : kNames) names.emplace_back(n.name);
  return names;
}

std::string names_here() {
  std::vector<std::string> names;
  for (const BackendId id : kAllBackends) names.emplace_back(to_text(id));
  return joined(names);
}

std::string alias_list() {
  std::vector<std::string> texts;
  for (const BackendAlias& a : kAliases) texts.push_back(fmt::format("{} = {}", a.alias, a.name));
  return joined(texts);
}

}  // namespace

std::span<const BackendName> backend_names() { return kNames; }
std::span<const BackendAlias> backend_aliases() { return kAliases; }

std::string_view to_text(BackendId id) {
  for (const BackendName& n : kNames) {
    if (n.id == id) return n.name;
  }
  return "?";
}

bool is_sparse(BackendId id) {
  return std::any_of(kNames.begin(), kNames.end(),
                     [&](const BackendName& n) { return n.id == id && n.sparse; });
}

BackendId backend_from_text(std::string_view text, std::string_view source) {
  std::string word = folded(text);
  for (const BackendAlias& a : kAliases) {
    if (word == a.alias) word = a.name;
  }
  for (const BackendName& n : kNames) {
    if (word != n.name) continue;
    if (n.id) return *n.id;
    throw Error(
        ErrorCode::kUnsupported,
        fmt::format("{}: {} is a known attention backend, but not in this engine", source, n.name),
        "use one of " + names_here());
  }
  std::vector<std::string> candidates = all_names();
  for (const BackendAlias& a : kAliases) candidates.emplace_back(a.alias);
  const std::string near = nearest_name(word, candidates);
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("{}: unknown attention backend {}; known names: {}; aliases: {}", source,
                          in_quotes(text, 60), joined(all_names()), alias_list()),
              fmt::format("{}in this engine: {}", near.empty() ? "" : "nearest is " + near + "; ",
                          names_here()));
}

std::string nearest_name(std::string_view word, const std::vector<std::string>& candidates) {
  word = word.substr(0, 64);
  std::string best;
  size_t best_distance = std::max<size_t>(2, word.size() / 3) + 1;
  for (const std::string& candidate : candidates) {
    const size_t distance = tessera::io::detail::edit_distance(word, candidate);
    if (distance < best_distance) {
      best = candidate;
      best_distance = distance;
    }
  }
  return best;
}

std::string joined(const std::vector<std::string>& names) {
  return fmt::format("{}", fmt::join(names, ", "));
}

std::string folded(std::string_view text) {
  std::string word(tessera::io::detail::trimmed(text));
  for (char& c : word) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return word;
}

}  // namespace h3
