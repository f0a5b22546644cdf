// What commands check about numbers and files before they begin: nothing may be found out after
// hours of work.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace h3::cli {

/// A decimal number from 0 to 2^63 - 1, digits only. Throws kInvalidArgument with the option's
/// name.
int64_t parse_seed(const std::string& text, const char* option);

/// Throws kInvalidArgument unless a file can be written there: a folder that exists and is
/// writable, and nothing but a regular file under the name.
void require_writable(const std::string& path, const char* option);

/// Throws kInvalidArgument if two of the files are one. Each comes with what messages call it.
void require_distinct(const std::vector<std::pair<std::string, std::string>>& files);

}  // namespace h3::cli
