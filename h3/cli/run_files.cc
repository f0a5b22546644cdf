#include "h3/cli/run_files.h"

#include <unistd.h>

#include <charconv>
#include <filesystem>
#include <map>

#include "h3/common/error.h"

namespace h3::cli {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void refuse(const std::string& text, const std::string& hint) {
  throw Error(ErrorCode::kInvalidArgument, text, hint);
}

}  // namespace

int64_t parse_seed(const std::string& text, const char* option) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size() || value < 0 ||
      (text.size() > 1 && text[0] == '0')) {
    refuse(std::string(option) + " is " + text + "; accepted: 0 to 9223372036854775807",
           "write a decimal number");
  }
  return value;
}

void require_writable(const std::string& path, const char* option) {
  const fs::path target(path);
  fs::path folder = target.parent_path();
  if (folder.empty()) folder = ".";
  if (fs::exists(target) && !fs::is_regular_file(target)) {
    refuse(std::string(option) + " " + path + " is no regular file", "give the name of a file");
  }
  if (!fs::is_directory(folder) || access(folder.c_str(), W_OK | X_OK) != 0) {
    refuse(std::string(option) + " " + path + " cannot be written: the folder " + folder.string() +
               " is missing or not writable",
           "create the folder first");
  }
}

void require_distinct(const std::vector<std::pair<std::string, std::string>>& files) {
  std::map<std::string, std::string> seen;  // real path -> name
  for (const auto& [name, path] : files) {
    std::error_code error;
    const fs::path real = fs::weakly_canonical(path, error);
    const auto [at, added] = seen.emplace(error ? path : real.string(), name);
    if (!added) {
      refuse(name + " and " + at->second + " are one file, " + path, "give each a name of its own");
    }
  }
}

}  // namespace h3::cli
