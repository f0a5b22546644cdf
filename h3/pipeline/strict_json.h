// JSON for requests: a key given twice, a NUL byte, deep nesting or trailing text is an error, not
// a matter of luck.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace h3 {

/// Throws kInvalidArgument; the message begins with `label` and names the path of a key that is
/// given twice or the byte of a syntax error.
nlohmann::json parse_strict_json(std::string_view text, std::string_view label);

/// A value for messages: strings in single quotes, bounded and printable; "nothing" for null.
std::string describe_json(const nlohmann::json& value);

}  // namespace h3
