#include "h3/attention/options.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <set>

#include "h3/common/error.h"
#include "tessera/io/json_check.h"
#include "tessera/io/mapped_file.h"
#include "tessera/io/text.h"

namespace h3 {
namespace {

using tessera::io::detail::in_quotes;
using tessera::io::detail::trimmed;
using Pairs = std::vector<std::pair<std::string, std::string>>;

constexpr std::string_view kComponentOption = "--component-attention-backends";
constexpr std::string_view kConfigOption = "--attention-backend-config";
constexpr size_t kMaxTextBytes = 1 << 20;

[[noreturn]] void refuse(std::string message, std::string hint = {}) {
  throw Error(ErrorCode::kInvalidArgument, std::move(message), std::move(hint));
}

void throw_if_failed(const tessera::Status& status) {
  if (status.ok()) return;
  throw Error(status.code() == tessera::StatusCode::kUnsupported ? ErrorCode::kUnsupported
                                                                 : ErrorCode::kInvalidArgument,
              status.message());
}

// A flat JSON object whose values are strings; anything else stops the parser with a message.
class StringMapReader : public nlohmann::json_sax<nlohmann::json> {
 public:
  bool null() override { return wrong("null"); }
  bool boolean(bool value) override { return wrong(value ? "true" : "false"); }
  bool number_integer(number_integer_t value) override { return wrong(std::to_string(value)); }
  bool number_unsigned(number_unsigned_t value) override { return wrong(std::to_string(value)); }
  bool number_float(number_float_t, const string_t& raw) override { return wrong(raw); }
  bool binary(binary_t&) override { return wrong("binary data"); }
  bool start_array(size_t) override { return wrong("an array"); }
  bool end_array() override { return true; }
  bool start_object(size_t) override {
    if (open_) return wrong("an object");
    open_ = true;
    return true;
  }
  bool end_object() override { return true; }
  bool key(string_t& value) override {
    key_ = value;
    return true;
  }
  bool string(string_t& value) override {
    if (!open_) return wrong("a string");
    pairs_.emplace_back(key_, value);
    return true;
  }
  bool parse_error(size_t position, const std::string&,
                   const nlohmann::detail::exception& error) override {
    error_ = fmt::format("not JSON at byte {}: {}", position,
                         tessera::io::detail::syntax_error_text(error.what()));
    return false;
  }

  Pairs pairs_;
  std::string error_;

 private:
  bool wrong(const std::string& got) {
    error_ =
        open_ ? fmt::format("the backend of {} must be a string, got {}", in_quotes(key_, 60), got)
              : fmt::format("a JSON object {{...}} is needed, got {}", got);
    return false;
  }
  bool open_ = false;
  std::string key_;
};

constexpr std::string_view kComponentHint =
    "if a shell changed the quotes, put the JSON into a file and pass @FILE, or write "
    "--component-attention-backends.transformer subblock_sparse_attn";

Pairs read_json(std::string_view text, std::string_view source) {
  StringMapReader reader;
  const size_t nul = tessera::io::detail::nul_position(text);
  if (nul != 0) {
    reader.error_ = fmt::format("not JSON at byte {}: a NUL byte", nul);
  } else if (nlohmann::json::sax_parse(text.begin(), text.end(), &reader)) {
    return std::move(reader.pairs_);
  }
  refuse(fmt::format("{}: {}; received: {}", source, reader.error_, in_quotes(text, 200)),
         std::string(kComponentHint));
}

Pairs read_pairs(std::string_view text, std::string_view source) {
  Pairs pairs;
  size_t at = 0;
  while (at <= text.size()) {
    const size_t comma = std::min(text.find(',', at), text.size());
    const std::string_view pair = text.substr(at, comma - at);
    const size_t equals = pair.find('=');
    if (equals == std::string_view::npos || trimmed(pair.substr(equals + 1)).empty()) {
      refuse(fmt::format("{}: name=backend is needed at byte {}, got {}; received: {}", source,
                         at + 1, in_quotes(pair, 60), in_quotes(text, 200)),
             "write name=backend,name=backend or a JSON object");
    }
    pairs.emplace_back(pair.substr(0, equals), pair.substr(equals + 1));
    at = comma + 1;
  }
  return pairs;
}

Pairs read_component_text(std::string_view text) {
  std::string source(kComponentOption), content;
  text = trimmed(text);
  if (text.starts_with('@')) {
    const std::string path(trimmed(text.substr(1)));
    source += " in file " + in_quotes(path, 1024);
    const tessera::Status s = tessera::io::detail::read_text_file(path, kMaxTextBytes, &content);
    if (!s.ok()) refuse(fmt::format("{}: {}", kComponentOption, s.message()));
    text = trimmed(content);
  }
  if (text.empty()) return {};
  constexpr std::string_view kJsonStarts = "{[\"\\";
  const bool json = kJsonStarts.find(text[0]) != std::string_view::npos ||
                    text.find('=') == std::string_view::npos;
  return json ? read_json(text, source) : read_pairs(text, source);
}

// "text-encoder" and " Text_Encoder " are text_encoder.
std::string component_key(std::string_view name) {
  std::string key = folded(name);
  for (char& c : key) {
    if (c == '-') c = '_';
  }
  return key;
}

ComponentRequests collect(const Pairs& pairs, std::string_view form) {
  ComponentRequests out;
  for (const auto& [name, backend] : pairs) {
    const std::string key = component_key(name);
    const std::string source = fmt::format("{} entry {}", form, in_quotes(name, 60));
    const size_t dot = key.find('.');
    const std::string component = key.substr(0, dot);
    if (component.empty()) {
      refuse(source + ": the component has no name", "write transformer=fa");
    }
    bool fresh = false;
    const RequestedBackend request{backend_from_text(backend, source)};
    if (dot == std::string::npos) {
      fresh = out.components.emplace(component, request).second;
    } else {
      const std::string suffix = key.substr(dot + 1);
      if (suffix != "self" && suffix != "cross") {
        refuse(fmt::format("{}: role {} is not known; accepted: .self, .cross", source,
                           in_quotes(suffix, 40)));
      }
      const AttentionRole role = suffix == "self" ? AttentionRole::kSelf : AttentionRole::kCross;
      fresh = out.roles.emplace(std::pair(component, role), request).second;
    }
    if (!fresh) refuse(source + " is given twice; give it once");
  }
  return out;
}

void take_key(std::string_view key, const tessera::io::BackendOptions& from,
              tessera::io::BackendOptions* to) {
  if (key == "sparsity") to->sparsity = from.sparsity;
  if (key == "n_k") to->n_k = from.n_k;
  if (key == "n_q") to->n_q = from.n_q;
  if (key == "skip_first_steps") to->skip_first_steps = from.skip_first_steps;
  if (key == "skip_first_layers") to->skip_first_layers = from.skip_first_layers;
  if (key == "min_seq_len") to->min_seq_len = from.min_seq_len;
  if (key == "compute_mode") to->compute_mode = from.compute_mode;
}

// One dotted key as JSON-free text; ',' or '=' in a value would otherwise start another pair.
tessera::io::BackendOptions parse_dotted(const std::string& key, const std::string& value) {
  const std::string source = fmt::format("{}.{}", kConfigOption, key);
  if (value.find_first_of(",=") != std::string::npos ||
      key.find_first_of(",=") != std::string::npos) {
    refuse(fmt::format("{}: one value is needed, got {}", source, in_quotes(value, 60)));
  }
  tessera::io::BackendOptions options;
  throw_if_failed(tessera::io::parse_backend_options(key + "=" + value, &options));
  return options;
}

}  // namespace

bool operator==(const SubBlockSettings& a, const SubBlockSettings& b) {
  const tessera::io::BackendOptions &x = a.options, &y = b.options;
  return a.target_mass == b.target_mass && a.off == b.off && x.sparsity == y.sparsity &&
         x.n_k == y.n_k && x.n_q == y.n_q && x.skip_first_steps == y.skip_first_steps &&
         x.skip_first_layers == y.skip_first_layers && x.min_seq_len == y.min_seq_len &&
         x.compute_mode == y.compute_mode;
}

std::string describe(const SubBlockSettings& settings) {
  std::string text;
  if (settings.off) text += "off ";
  if (settings.target_mass) text += fmt::format("target_mass={} ", *settings.target_mass);
  return text + tessera::io::describe(settings.options);
}

tessera::RouterConfig router_config(const SubBlockSettings& settings) {
  tessera::RouterConfig config = tessera::io::router_config(settings.options);
  if (settings.target_mass) {
    config.budget.kind = tessera::BudgetKind::kMass;
    config.budget.mass = *settings.target_mass;
  }
  return config;
}

void check_min_seq_len(int64_t value, std::string_view source) {
  if (value >= kMinSparseTokens) return;
  refuse(fmt::format("{}: min_seq_len must be at least {} tokens (8 blocks of {}), got {}", source,
                     kMinSparseTokens, tessera::kBlockTokens, value),
         "the default is 4096");
}

SubBlockSettings parse_subblock_settings(std::string_view text, const Pairs& dotted) {
  SubBlockSettings settings;
  throw_if_failed(tessera::io::parse_backend_options(text, &settings.options));
  std::set<std::string> seen;
  for (const auto& [raw_key, value] : dotted) {
    std::string key = raw_key;
    for (char& c : key) {
      if (c == '-') c = '_';
    }
    if (!seen.insert(key).second) {
      refuse(fmt::format("{}.{} is given twice; give it once", kConfigOption, key));
    }
    take_key(key, parse_dotted(key, value), &settings.options);
  }
  check_min_seq_len(settings.options.min_seq_len, kConfigOption);
  return settings;
}

ComponentRequests parse_component_requests(std::string_view text, const Pairs& dotted) {
  ComponentRequests out = collect(read_component_text(text), kComponentOption);
  ComponentRequests over = collect(dotted, kComponentOption);
  over.components.merge(out.components);
  over.roles.merge(out.roles);
  return over;
}

}  // namespace h3
