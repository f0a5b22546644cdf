#include "h3/attention/override.h"

#include <fmt/format.h>

#include "h3/common/error.h"
#include "tessera/io/option_text.h"
#include "tessera/io/text.h"

namespace h3 {
namespace {

using tessera::io::detail::OptionKind;
using tessera::io::detail::OptionValue;

const std::vector<std::string> kFields = {
    "backend",           "sparsity",    "target_mass", "skip_first_steps",
    "skip_first_layers", "min_seq_len", "off"};

std::string expected(std::string_view key) {
  if (key == "backend") return "a string";
  if (key == "sparsity") return "a number in [0, 1)";
  if (key == "target_mass") return "a number in (0, 1]";
  if (key == "min_seq_len") return fmt::format("an integer from {}", kMinSparseTokens);
  if (key == "off") return "true or false";
  if (key == "skip_first_steps" || key == "skip_first_layers") return "an integer from 0";
  return {};
}

class Faults {
 public:
  void add(std::string text) { texts_.push_back(std::move(text)); }
  bool none() const { return texts_.empty(); }
  std::string text() const { return fmt::format("{}", fmt::join(texts_, "; ")); }

 private:
  std::vector<std::string> texts_;
};

// null keeps the default, as an absent field does.
void take(const OptionValue& v, AttentionOverride* out, Faults* faults) {
  const bool number = v.kind == OptionKind::kInteger || v.kind == OptionKind::kFraction;
  const bool integer = v.kind == OptionKind::kInteger;
  bool right_kind = false;
  if (v.kind == OptionKind::kNull && !expected(v.key).empty()) return;
  if (v.key == "backend") {
    right_kind = v.kind == OptionKind::kText;
    if (right_kind) {
      try {
        out->backend = backend_from_text(v.text, "backend");
      } catch (const Error& e) {
        faults->add(e.what());
      }
    }
  } else if (v.key == "off") {
    right_kind = v.kind == OptionKind::kBool;
    out->off = right_kind && v.text == "true";
  } else if (v.key == "sparsity" || v.key == "target_mass") {
    right_kind = number;
    if (number) (v.key == "sparsity" ? out->sparsity : out->target_mass) = v.number;
  } else if (!expected(v.key).empty()) {
    right_kind = integer;
    auto& field = v.key == "min_seq_len"        ? out->min_seq_len
                  : v.key == "skip_first_steps" ? out->skip_first_steps
                                                : out->skip_first_layers;
    if (integer) field = v.integer;
  } else {
    const std::string near = nearest_name(v.key, kFields);
    faults->add(fmt::format("unknown field {}{}; known fields: {}",
                            tessera::io::detail::in_quotes(v.key, 60),
                            near.empty() ? "" : ", nearest is '" + near + "'", joined(kFields)));
    return;
  }
  if (!right_kind) {
    faults->add(fmt::format("{} must be {}, got {}", v.key, expected(v.key),
                            tessera::io::detail::describe(v)));
  }
}

}  // namespace

std::string override_faults(const AttentionOverride& o) {
  Faults faults;
  const auto range = [&](std::string_view key, auto value, bool ok) {
    if (!ok) faults.add(fmt::format("{} must be {}, got {}", key, expected(key), value));
  };
  // Written so that NaN fails.
  if (o.sparsity) range("sparsity", *o.sparsity, *o.sparsity >= 0 && *o.sparsity < 1);
  if (o.target_mass)
    range("target_mass", *o.target_mass, *o.target_mass > 0 && *o.target_mass <= 1);
  if (o.skip_first_steps) range("skip_first_steps", *o.skip_first_steps, *o.skip_first_steps >= 0);
  if (o.skip_first_layers) {
    range("skip_first_layers", *o.skip_first_layers, *o.skip_first_layers >= 0);
  }
  if (o.min_seq_len) range("min_seq_len", *o.min_seq_len, *o.min_seq_len >= kMinSparseTokens);
  if (o.sparsity && o.target_mass) faults.add("sparsity and target_mass exclude each other");
  if (o.off && o.changes_schedule()) {
    faults.add("off excludes sparsity, target_mass and the schedule fields");
  }
  if (o.off && o.backend && is_sparse(*o.backend)) {
    faults.add(fmt::format("off excludes the sparse backend {}", to_text(*o.backend)));
  }
  if (o.backend && !is_sparse(*o.backend) && o.changes_schedule()) {
    faults.add(
        fmt::format("backend {} is dense; sparsity, target_mass and the schedule fields need "
                    "subblock_sparse_attn",
                    to_text(*o.backend)));
  }
  return faults.text();
}

AttentionOverride parse_attention_override(std::string_view json, std::string_view field) {
  AttentionOverride out;
  json = tessera::io::detail::trimmed(json);
  if (json.empty() || json == "null") return out;
  std::vector<OptionValue> values;
  const auto refuse = [&](const std::string& text) {
    throw Error(ErrorCode::kInvalidArgument, text);
  };
  if (json[0] != '{')
    refuse(fmt::format("{}: a JSON object or null is needed, got {}", field,
                       tessera::io::detail::in_quotes(json, 120)));
  const tessera::Status s = tessera::io::detail::parse_option_text(json, field, expected, &values);
  if (!s.ok()) refuse(s.message());
  Faults faults;
  for (const OptionValue& v : values) take(v, &out, &faults);
  if (const std::string more = override_faults(out); !more.empty()) faults.add(more);
  if (!faults.none()) refuse(fmt::format("{}: {}", field, faults.text()));
  return out;
}

SubBlockSettings with_override(const SubBlockSettings& base, const AttentionOverride& o) {
  SubBlockSettings s = base;
  s.off = base.off || o.off;
  if (o.sparsity) {
    s.options.sparsity = *o.sparsity + 0.0;  // -0 becomes 0
    s.target_mass.reset();
  }
  if (o.target_mass) s.target_mass = o.target_mass;
  if (o.skip_first_steps) s.options.skip_first_steps = *o.skip_first_steps;
  if (o.skip_first_layers) s.options.skip_first_layers = *o.skip_first_layers;
  if (o.min_seq_len) s.options.min_seq_len = *o.min_seq_len;
  return s;
}

std::string batch_signature(const AttentionOverride& o) {
  std::string text;
  const auto add = [&](std::string_view key, const auto& value) {
    if (value) text += fmt::format("{}={};", key, *value);
  };
  if (o.backend) text += fmt::format("backend={};", to_text(*o.backend));
  if (o.sparsity) text += fmt::format("sparsity={};", *o.sparsity + 0.0);  // -0 equals 0
  add("target_mass", o.target_mass);
  add("skip_first_steps", o.skip_first_steps);
  add("skip_first_layers", o.skip_first_layers);
  add("min_seq_len", o.min_seq_len);
  if (o.off) text += "off;";
  return text;
}

}  // namespace h3
