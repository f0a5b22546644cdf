// A hash that is the same on every machine and in every build, for digests that ranks compare.
#pragma once

#include <cstdint>
#include <string_view>

namespace h3 {

/// FNV-1a, 64 bits.
constexpr uint64_t fnv1a(std::string_view text) {
  uint64_t hash = 14695981039346656037u;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211u;
  return hash;
}

}  // namespace h3
