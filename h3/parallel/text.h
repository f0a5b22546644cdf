// Pieces of messages that several files of this folder need.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace h3::parallel {

/// Up to the first line break: engines append stack traces to what they throw.
inline std::string first_line(std::string_view text) {
  return std::string(text.substr(0, text.find('\n')));
}

/// "[1, 9, 4, 8]".
inline std::string shape_text(std::span<const int64_t> shape) {
  std::string text = "[";
  for (int64_t size : shape) text += (text.size() > 1 ? ", " : "") + std::to_string(size);
  return text + "]";
}

}  // namespace h3::parallel
