// Option texts as a list of keys and typed values: a JSON object or `key=value,key=value`. Knows
// no option; which keys exist and what they accept is the caller's business.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/status.h"

namespace tessera::io::detail {

enum class OptionKind : uint8_t { kNull, kBool, kInteger, kFraction, kText, kArray, kObject };

struct OptionValue {
  std::string key;
  OptionKind kind = OptionKind::kNull;
  int64_t integer = 0;  // kInteger
  double number = 0;    // kInteger and kFraction; may be NaN or infinite in key=value texts
  std::string text;     // kText: the string; else what was written (integers beyond int64 included)
};

/// "the string '0.85'", "true", "4.9": a value for messages.
std::string describe(const OptionValue& value);

/// Parses text that is neither empty nor a file name. `source` names where it came from in
/// messages ("--attention-backend-config", "file 'x.json'"). A key given twice is refused. Errors
/// give the byte position (from 1), the text received and a hint; `expectation(key)` may say what
/// the value being read should have been (empty: nothing to say).
Status parse_option_text(std::string_view text, std::string_view source,
                         std::string (*expectation)(std::string_view key),
                         std::vector<OptionValue>* out);

}  // namespace tessera::io::detail
