// "Did you mean": the nearest known word to a mistyped one.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace tessera::cli {

/// The candidate with the smallest edit distance to `word`, or empty if none is close.
std::string nearest(std::string_view word, const std::vector<std::string>& candidates);

}  // namespace tessera::cli
