// JSON objects and key=value lists, without any conversion between kinds.
#include "tessera/io/option_text.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "tessera/io/json_check.h"
#include "tessera/io/text.h"

namespace tessera::io::detail {
namespace {

using Json = nlohmann::json;

constexpr size_t kShownBytes = 200;  // of a received text

std::string received(std::string_view text) {
  return "; received: " + in_quotes(text, kShownBytes);
}

constexpr std::string_view kHint =
    "; if a shell changed the quotes, put the JSON into a file and pass @FILE, or pass "
    "key=value,key=value such as sparsity=0.75,n_k=4";

class OptionReader : public nlohmann::json_sax<Json> {
 public:
  bool null() override { return add(OptionKind::kNull, "null"); }
  bool boolean(bool value) override { return add(OptionKind::kBool, value ? "true" : "false"); }
  bool number_integer(number_integer_t value) override {
    return add(OptionKind::kInteger, std::to_string(value), value, static_cast<double>(value));
  }
  bool number_unsigned(number_unsigned_t value) override {
    // Beyond int64 there is no integer to hand on; the caller's range check names the text.
    if (value > static_cast<uint64_t>(INT64_MAX)) {
      return add(OptionKind::kFraction, std::to_string(value), 0, static_cast<double>(value));
    }
    return number_integer(static_cast<int64_t>(value));
  }
  bool number_float(number_float_t value, const string_t& raw) override {
    return add(OptionKind::kFraction, raw, 0, value);
  }
  bool string(string_t& value) override { return add(OptionKind::kText, value); }
  bool binary(binary_t&) override { return add(OptionKind::kText, "binary data"); }

  bool start_object(size_t) override {
    if (depth_ > 0) return open(OptionKind::kObject, "an object");
    depth_ = 1;
    return true;
  }
  bool end_object() override {
    --depth_;
    return true;
  }
  bool start_array(size_t) override { return open(OptionKind::kArray, "an array"); }
  bool end_array() override {
    --depth_;
    return true;
  }
  bool key(string_t& value) override {
    if (depth_ == 1) {
      key_ = value;
      value_pending_ = true;
    }
    return true;
  }
  bool parse_error(size_t position, const std::string&,
                   const nlohmann::detail::exception& error) override {
    position_ = position;
    error_ = syntax_error_text(error.what());
    return false;
  }

  std::vector<OptionValue> values_;
  std::string outer_;  // what stood where the object should be
  std::string key_;
  bool value_pending_ = false;  // key_ was read, its value was not
  size_t position_ = 0;
  std::string error_;

 private:
  bool add(OptionKind kind, std::string text, int64_t integer = 0, double number = 0) {
    if (depth_ == 0) outer_ = kind == OptionKind::kText ? "a string" : text;
    if (depth_ != 1) return true;
    value_pending_ = false;
    values_.push_back({key_, kind, integer, number, std::move(text)});
    return true;
  }
  // Content of nested values is skipped: what counts is that no option takes one.
  bool open(OptionKind kind, const char* text) {
    add(kind, text);
    ++depth_;
    return true;
  }

  size_t depth_ = 0;
};

Status parse_json(std::string_view text, std::string_view source,
                  std::string (*expectation)(std::string_view key), std::vector<OptionValue>* out) {
  const auto not_json = [&](size_t position, const std::string& why) {
    return invalid_argument(std::string(source) + ": not JSON at byte " + std::to_string(position) +
                            ": " + why + received(text) + std::string(kHint));
  };
  if (const size_t at = nul_position(text); at != 0) return not_json(at, "a NUL byte");
  OptionReader reader;
  if (!Json::sax_parse(text.begin(), text.end(), &reader)) {
    std::string why = reader.error_;
    if (reader.value_pending_) {
      const std::string expected = expectation(reader.key_);
      if (!expected.empty()) why += "; " + reader.key_ + " must be " + expected;
    }
    return not_json(reader.position_, why);
  }
  if (!reader.outer_.empty()) {
    return invalid_argument(std::string(source) + ": a JSON object {...} is needed, got " +
                            printable(reader.outer_, 40) + received(text) + std::string(kHint));
  }
  *out = std::move(reader.values_);
  return {};
}

OptionValue plain_value(std::string_view key, std::string_view text) {
  OptionValue value;
  value.key = key;
  value.text = text;
  const char* const end = text.data() + text.size();
  // from_chars knows no leading '+', and neither does JSON.
  if (auto [at, error] = std::from_chars(text.data(), end, value.integer);
      error == std::errc() && at == end) {
    value.kind = OptionKind::kInteger;
    value.number = static_cast<double>(value.integer);
  } else if (auto [at2, error2] = std::from_chars(text.data(), end, value.number);
             error2 != std::errc::invalid_argument && at2 == end) {
    value.kind = OptionKind::kFraction;
    // Nothing was stored for a number too large or too small for a double; no range holds a NaN.
    if (error2 != std::errc()) value.number = std::numeric_limits<double>::quiet_NaN();
  } else if (text == "true" || text == "false") {
    value.kind = OptionKind::kBool;
  } else {
    value.kind = OptionKind::kText;
  }
  return value;
}

Status parse_pairs(std::string_view text, std::string_view source, std::vector<OptionValue>* out) {
  size_t at = 0;
  while (at <= text.size()) {
    const size_t comma = std::min(text.find(',', at), text.size());
    const std::string_view pair = text.substr(at, comma - at);
    const size_t equals = pair.find('=');
    const std::string_view key = trimmed(pair.substr(0, equals));
    const std::string_view value =
        equals == std::string_view::npos ? std::string_view() : trimmed(pair.substr(equals + 1));
    if (key.empty() || value.empty()) {
      return invalid_argument(std::string(source) + ": key=value is needed at byte " +
                              std::to_string(at + 1) + ", got " + in_quotes(pair, 60) +
                              received(text) + "; write key=value,key=value or a JSON object");
    }
    out->push_back(plain_value(key, value));
    at = comma + 1;
  }
  return {};
}

}  // namespace

std::string describe(const OptionValue& value) {
  if (value.kind == OptionKind::kText) return "the string " + in_quotes(value.text, 60);
  return printable(value.text, 60);
}

Status parse_option_text(std::string_view text, std::string_view source,
                         std::string (*expectation)(std::string_view key),
                         std::vector<OptionValue>* out) {
  constexpr std::string_view kJsonStarts = "{[\"\\";
  std::vector<OptionValue> values;
  const bool pairs = !text.empty() && kJsonStarts.find(text[0]) == std::string_view::npos &&
                     text.find('=') != std::string_view::npos;
  TESSERA_RETURN_IF_ERROR(pairs ? parse_pairs(text, source, &values)
                                : parse_json(text, source, expectation, &values));
  std::vector<std::string_view> keys;
  keys.reserve(values.size());
  for (const OptionValue& v : values) keys.push_back(v.key);
  std::sort(keys.begin(), keys.end());
  if (const auto twice = std::adjacent_find(keys.begin(), keys.end()); twice != keys.end()) {
    return invalid_argument(std::string(source) + ": key " + in_quotes(*twice) +
                            " is given twice; give it once" + received(text));
  }
  *out = std::move(values);
  return {};
}

}  // namespace tessera::io::detail
