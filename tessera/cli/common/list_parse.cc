#include "tessera/cli/common/list_parse.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <string_view>

namespace tessera::cli {

namespace {

constexpr int32_t kMaxBlock =
    (1 << 24) - 1;  // 2^30 tokens; keeps "0-99999999999" from filling memory

bool parse_number(std::string_view text, int32_t* out) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *out);
  return error == std::errc() && end == text.data() + text.size() && !text.empty() &&
         text.front() != '-' && *out <= kMaxBlock;
}

}  // namespace

Status parse_block_list(const std::string& option, const std::string& text,
                        std::vector<int32_t>* out) {
  std::vector<int32_t> blocks;
  std::string_view rest = text;
  while (!text.empty()) {
    const size_t comma = rest.find(',');
    const std::string_view part = rest.substr(0, comma);
    const size_t dash = part.find('-');
    int32_t first = 0, last = 0;
    const bool good = dash == std::string_view::npos
                          ? parse_number(part, &first) && ((last = first), true)
                          : parse_number(part.substr(0, dash), &first) &&
                                parse_number(part.substr(dash + 1), &last) && first <= last;
    if (!good) {
      return invalid_argument(
          fmt::format("{} \"{}\": \"{}\" is no block number or range; accepted: numbers from 0 to "
                      "{} and ascending ranges, for example 0,3,5-9",
                      option, text, part, kMaxBlock));
    }
    for (int32_t block = first; block <= last; ++block) blocks.push_back(block);
    if (comma == std::string_view::npos) break;
    rest.remove_prefix(comma + 1);
  }
  std::sort(blocks.begin(), blocks.end());
  blocks.erase(std::unique(blocks.begin(), blocks.end()), blocks.end());
  *out = std::move(blocks);
  return {};
}

}  // namespace tessera::cli
