// Keys, ranges and defaults of the published backend's options; the texts come from option_text.
#include "tessera/io/backend_options.h"

#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <exception>
#include <limits>
#include <new>
#include <string>
#include <vector>

#include "tessera/io/backend_options_text.h"
#include "tessera/io/mapped_file.h"
#include "tessera/io/option_text.h"
#include "tessera/io/text.h"

namespace tessera::io {
namespace detail {
namespace {

constexpr size_t kMaxOptionBytes = 1 << 20;
constexpr std::string_view kSource = "attention backend options";
constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";

constexpr std::string_view kNumberRule = "a number in [0, 1)";
constexpr std::string_view kCellRule = "the integer 1, 2, 4 or 8";
constexpr std::string_view kCountRule = "an integer from 0 to 9223372036854775807";
constexpr std::string_view kModeRule = "the string 'bf16'";

struct OptionRule {
  std::string_view key;
  std::string_view rule;
};

// In the order in which the published backend checks them.
constexpr std::array kRules = {OptionRule{"sparsity", kNumberRule},
                               OptionRule{"n_k", kCellRule},
                               OptionRule{"n_q", kCellRule},
                               OptionRule{"skip_first_steps", kCountRule},
                               OptionRule{"skip_first_layers", kCountRule},
                               OptionRule{"min_seq_len", kCountRule},
                               OptionRule{"compute_mode", kModeRule}};

std::string expectation(std::string_view key) {
  for (const OptionRule& r : kRules) {
    if (r.key == key) return std::string(r.rule);
  }
  return {};
}

std::string unknown_key_text(std::string_view key) {
  std::string known;
  std::string_view nearest;
  size_t best = std::numeric_limits<size_t>::max();
  for (const OptionRule& r : kRules) {
    known += (known.empty() ? "" : ", ") + std::string(r.key);
    // A key far longer than any known one has no near one; the cut bounds the work.
    const size_t distance = edit_distance(key.substr(0, 64), r.key);
    if (distance < best) {
      best = distance;
      nearest = r.key;
    }
  }
  return "unknown key " + in_quotes(key, 60) + ", nearest known key is '" + std::string(nearest) +
         "'; known keys: " + known;
}

Status refuse(const OptionRule& rule, const OptionValue& value) {
  return invalid_argument(std::string(rule.key) + " must be " + std::string(rule.rule) + ", got " +
                          describe(value));
}

Status apply(const OptionRule& rule, const OptionValue& value, BackendOptions* out) {
  const bool integer = value.kind == OptionKind::kInteger;
  if (rule.rule == kNumberRule) {
    const bool number = integer || value.kind == OptionKind::kFraction;
    // Written so that NaN fails.
    if (!number || !(value.number >= 0 && value.number < 1)) return refuse(rule, value);
    out->sparsity = value.number + 0.0;  // -0 becomes 0
    return {};
  }
  if (rule.rule == kCellRule) {
    const int64_t n = value.integer;
    if (!integer || (n != 1 && n != 2 && n != 4 && n != 8)) return refuse(rule, value);
    (rule.key == "n_k" ? out->n_k : out->n_q) = static_cast<int>(n);
    return {};
  }
  if (rule.rule == kCountRule) {
    if (!integer || value.integer < 0) return refuse(rule, value);
    if (rule.key == "skip_first_steps") out->skip_first_steps = value.integer;
    if (rule.key == "skip_first_layers") out->skip_first_layers = value.integer;
    if (rule.key == "min_seq_len") out->min_seq_len = value.integer;
    return {};
  }
  if (value.kind == OptionKind::kText && value.text == "sage_fp8") {
    return unsupported(
        "compute_mode 'sage_fp8' is a known name, but nothing here runs it; use "
        "'bf16'");
  }
  if (value.kind != OptionKind::kText || value.text != "bf16") return refuse(rule, value);
  out->compute_mode = value.text;
  return {};
}

bool looks_like_path(std::string_view text) {
  return text.find_first_of("{}[]\"\n") == std::string_view::npos &&
         (text.ends_with(".json") ||
          (text.find('/') != std::string_view::npos && text.find('=') == std::string_view::npos));
}

std::string_view without_mark(std::string_view text) {
  if (text.starts_with(kByteOrderMark)) text.remove_prefix(kByteOrderMark.size());
  return trimmed(text);
}

}  // namespace

Status parse_backend_text(std::string_view text, std::string_view source, BackendOptions* out) {
  text = without_mark(text);
  const auto prefixed = [&](const Status& s) {
    return Status(s.code(), std::string(source) + ": " + s.message());
  };
  if (text.size() > kMaxOptionBytes) {
    return prefixed(invalid_argument("the text has " + std::to_string(text.size()) +
                                     " bytes, at most " + std::to_string(kMaxOptionBytes) +
                                     " are accepted"));
  }
  BackendOptions options;
  if (text.empty()) {
    *out = options;
    return {};
  }
  std::vector<OptionValue> values;
  TESSERA_RETURN_IF_ERROR(parse_option_text(text, source, expectation, &values));
  for (const OptionValue& v : values) {
    if (expectation(v.key).empty()) return prefixed(invalid_argument(unknown_key_text(v.key)));
  }
  for (const OptionRule& rule : kRules) {
    const auto value = std::find_if(values.begin(), values.end(),
                                    [&](const OptionValue& v) { return v.key == rule.key; });
    if (value == values.end()) continue;
    if (Status s = apply(rule, *value, &options); !s.ok()) return prefixed(s);
  }
  *out = options;
  return {};
}

Status locate_backend_text(std::string_view text, OptionSource* out) {
  *out = {};
  text = without_mark(text);
  if (text.starts_with('@')) {
    out->path = trimmed(text.substr(1));
    if (!out->path.empty()) return {};
    return invalid_argument(std::string(kSource) + ": '@' names no file; write @FILE");
  }
  struct stat info {};
  const bool may_be_path = !text.empty() && text[0] != '{' && text.size() < 4096 &&
                           text.find('\0') == std::string_view::npos;
  if (may_be_path && (::stat(std::string(text).c_str(), &info) == 0 || looks_like_path(text))) {
    out->path = text;
  } else {
    out->text = text;
  }
  return {};
}

}  // namespace detail

Status parse_backend_options(std::string_view text, BackendOptions* out) try {
  detail::OptionSource source;
  TESSERA_RETURN_IF_ERROR(detail::locate_backend_text(text, &source));
  if (source.path.empty()) {
    std::string name(detail::kSource);
    if (source.text.find_first_of("={[\"\\") == std::string_view::npos) {
      name += " (not the name of an existing file)";
    }
    return detail::parse_backend_text(source.text, name, out);
  }
  const std::string name =
      std::string(detail::kSource) + " in file " + detail::in_quotes(source.path, 1024);
  std::string content;
  if (Status s = detail::read_text_file(source.path, detail::kMaxOptionBytes, &content); !s.ok()) {
    return invalid_argument(std::string(detail::kSource) + ": " + s.message());
  }
  return detail::parse_backend_text(content, name, out);
} catch (const std::bad_alloc&) {
  return out_of_memory("no memory to parse the attention backend options");
} catch (const std::exception& e) {
  return internal_error(std::string("parsing the attention backend options: ") + e.what());
}

std::string describe(const BackendOptions& options) {
  return "sparsity=" + detail::number_text(options.sparsity) +
         " n_k=" + std::to_string(options.n_k) + " n_q=" + std::to_string(options.n_q) +
         " skip_first_steps=" + std::to_string(options.skip_first_steps) +
         " skip_first_layers=" + std::to_string(options.skip_first_layers) +
         " min_seq_len=" + std::to_string(options.min_seq_len) +
         " compute_mode=" + options.compute_mode;
}

RouterConfig router_config(const BackendOptions& options) {
  RouterConfig config;
  config.n_q = options.n_q;
  config.n_k = options.n_k;
  config.budget.kind = BudgetKind::kSparsity;
  config.budget.sparsity = options.sparsity;
  return config;
}

}  // namespace tessera::io
