// The settings that made a file, as the text that is stored in it.
#pragma once

#include <map>
#include <string>
#include <string_view>

namespace h3::media {

using Settings = std::map<std::string, std::string>;  // "seed" -> "42"

/// One JSON object. Throws kInvalidArgument for text that is not UTF-8.
std::string settings_json(const Settings& settings);

/// The inverse; nothing for text that is no such object (comments of other programs).
Settings parse_settings(std::string_view text);

}  // namespace h3::media
