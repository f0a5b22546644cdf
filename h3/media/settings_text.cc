#include "h3/media/settings_text.h"

#include <nlohmann/json.hpp>

#include "h3/common/error.h"

namespace h3::media {

std::string settings_json(const Settings& settings) {
  try {
    return nlohmann::json(settings).dump();
  } catch (const nlohmann::json::exception&) {
    throw Error(ErrorCode::kInvalidArgument, "the settings to store in the file are not UTF-8",
                "give the text as UTF-8");
  }
}

Settings parse_settings(std::string_view text) {
  const auto json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  Settings settings;
  if (!json.is_object()) return settings;
  for (const auto& [key, value] : json.items()) {
    if (!value.is_string()) return {};
    settings[key] = value.get<std::string>();
  }
  return settings;
}

}  // namespace h3::media
