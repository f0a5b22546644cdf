// Builds messages without a formatting library: cat("got ", 3, ", want ", 4).
#pragma once

#include <array>
#include <cstdint>
#include <sstream>
#include <string>

namespace tessera::internal {

template <class... Args>
std::string cat(const Args&... args) {
  std::ostringstream out;
  (out << ... << args);
  return out.str();
}

/// "[1, 200, 4, 128]"
template <size_t kRank>
std::string shape_text(const std::array<int64_t, kRank>& shape) {
  std::ostringstream out;
  out << '[';
  for (size_t i = 0; i < kRank; ++i) out << (i ? ", " : "") << shape[i];
  out << ']';
  return out.str();
}

}  // namespace tessera::internal
