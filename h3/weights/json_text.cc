// Parsing with what the JSON library leaves out: duplicate keys, NUL bytes, readable errors.
#include "h3/weights/json_text.h"

#include <set>
#include <vector>

#include "h3/common/error.h"
#include "tessera/io/json_check.h"
#include "tessera/io/mapped_file.h"
#include "tessera/io/text.h"

namespace h3::weights {
namespace {

namespace io = tessera::io::detail;

constexpr size_t kMaxBytes = size_t{64} << 20;
constexpr int kMaxDepth = 64;

[[noreturn]] void refuse(std::string_view label, const std::string& text, const std::string& hint) {
  throw Error(ErrorCode::kInvalidArgument, io::printable(label, 1024) + ": " + text, hint);
}

}  // namespace

nlohmann::json parse_json_object(std::string_view text, std::string_view label) {
  const std::string hint = "the file is damaged; fetch or write it again";
  if (const size_t nul = io::nul_position(text); nul != 0) {
    refuse(label, "not JSON: a NUL byte at byte " + std::to_string(nul), hint);
  }
  std::vector<std::set<std::string>> keys;  // of the objects that are open
  std::string twice;
  bool too_deep = false;
  const auto watch = [&](int depth, nlohmann::json::parse_event_t event, nlohmann::json& value) {
    using Event = nlohmann::json::parse_event_t;
    too_deep = too_deep || depth > kMaxDepth;
    if (event == Event::object_start) keys.emplace_back();
    if (event == Event::object_end) keys.pop_back();
    if (event == Event::key && !keys.back().insert(value.get<std::string>()).second) {
      twice = value.get<std::string>();
    }
    return !too_deep;
  };
  nlohmann::json json;
  try {
    json = nlohmann::json::parse(text, watch);
  } catch (const nlohmann::json::parse_error& error) {
    refuse(label,
           "not JSON at byte " + std::to_string(error.byte) + ": " +
               io::syntax_error_text(error.what()),
           hint);
  }
  if (too_deep) refuse(label, "JSON nested deeper than " + std::to_string(kMaxDepth), hint);
  if (!json.is_object()) refuse(label, "holds no JSON object but " + json_value_text(json), hint);
  if (!twice.empty()) refuse(label, "key " + io::in_quotes(twice) + " is given twice", hint);
  return json;
}

nlohmann::json read_json_object(const std::string& path) {
  std::string text;
  if (const tessera::Status s = io::read_text_file(path, kMaxBytes, &text); !s.ok()) {
    throw Error(ErrorCode::kInvalidArgument, s.message());
  }
  return parse_json_object(text, path);
}

std::string json_value_text(const nlohmann::json& value) {
  if (value.is_object()) return "an object";
  return io::printable(value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace), 80);
}

}  // namespace h3::weights
