// JSON files of a model folder, read strictly: one object, no key twice, bounded size.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace h3::weights {

/// `text` as one JSON object. Throws kInvalidArgument that begins with `label` for syntax errors
/// (with the position), NUL bytes, anything but an object, and a key given twice in one object.
nlohmann::json parse_json_object(std::string_view text, std::string_view label);

/// The same for a file of at most 64 MiB. Throws kInvalidArgument if it cannot be read.
nlohmann::json read_json_object(const std::string& path);

/// The value as short, printable text for a message.
std::string json_value_text(const nlohmann::json& value);

}  // namespace h3::weights
