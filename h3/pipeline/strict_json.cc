#include "h3/pipeline/strict_json.h"

#include <fmt/format.h>

#include <set>
#include <vector>

#include "h3/common/error.h"
#include "tessera/io/json_check.h"
#include "tessera/io/text.h"

namespace h3 {
namespace {

using nlohmann::json;

constexpr int kMaxDepth = 16;
constexpr size_t kShownBytes = 80;

// Follows the parser to know where it is.
class Watcher {
 public:
  explicit Watcher(std::string_view label) : label_(label) {}

  bool operator()(int depth, json::parse_event_t event, json& parsed) {
    switch (event) {
      case json::parse_event_t::object_start:
      case json::parse_event_t::array_start:
        if (depth >= kMaxDepth) {
          throw Error(
              ErrorCode::kInvalidArgument,
              fmt::format("{}: {} is nested over {} levels deep", label_, path(), kMaxDepth));
        }
        open_.push_back({event == json::parse_event_t::array_start, 0, {}, {}});
        break;
      case json::parse_event_t::key: key(parsed.get_ref<const std::string&>()); break;
      case json::parse_event_t::object_end:
      case json::parse_event_t::array_end:
        open_.pop_back();
        step();
        break;
      case json::parse_event_t::value: step(); break;
    }
    return true;
  }

 private:
  struct Container {
    bool array = false;
    size_t index = 0;
    std::string key;
    std::set<std::string> keys;
  };

  void step() {
    if (!open_.empty() && open_.back().array) ++open_.back().index;
  }

  void key(const std::string& name) {
    Container& object = open_.back();
    object.key = name;
    if (object.keys.insert(name).second) return;
    throw Error(ErrorCode::kInvalidArgument, fmt::format("{}: {} is given twice", label_, path()),
                "give it once");
  }

  std::string path() const {
    std::string out;
    for (const Container& c : open_) {
      if (c.array) {
        out += fmt::format("[{}]", c.index);
      } else {
        out += (out.empty() ? "" : ".") + tessera::io::detail::printable(c.key, kShownBytes);
      }
    }
    return out;
  }

  std::string_view label_;
  std::vector<Container> open_;
};

}  // namespace

json parse_strict_json(std::string_view text, std::string_view label) {
  if (const size_t at = tessera::io::detail::nul_position(text); at != 0) {
    throw Error(ErrorCode::kInvalidArgument, fmt::format("{}: byte {} is NUL", label, at));
  }
  try {
    return json::parse(text.begin(), text.end(), Watcher(label));
  } catch (const json::exception& e) {
    throw Error(
        ErrorCode::kInvalidArgument,
        fmt::format("{}: no JSON: {}", label, tessera::io::detail::syntax_error_text(e.what())));
  }
}

std::string describe_json(const json& value) {
  if (value.is_null()) return "nothing";
  if (value.is_string()) {
    return tessera::io::detail::in_quotes(value.get_ref<const std::string&>(), kShownBytes);
  }
  if (value.is_object()) return "an object";
  if (value.is_array()) return fmt::format("a list of {}", value.size());
  return value.dump();
}

}  // namespace h3
