// Staging beside the target, so that the last step is a rename within one file system.
#include "h3/weights/staged_folder.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>
#include <vector>

#include "h3/common/error.h"
#include "h3/weights/json_text.h"
#include "h3/weights/sharded_writer.h"
#include "tessera/io/text.h"

namespace h3::weights {
namespace {

namespace fs = std::filesystem;
using tessera::io::detail::in_quotes;

[[noreturn]] void refuse(const fs::path& path, const std::string& text, const std::string& hint) {
  throw Error(ErrorCode::kInvalidArgument, in_quotes(path.string(), 1024) + " " + text, hint);
}

[[noreturn]] void failed(const std::string& what, const fs::path& path, const std::error_code& e) {
  throw Error(ErrorCode::kUnavailable,
              what + " " + in_quotes(path.string(), 1024) + ": " + e.message());
}

// Files below a folder, relative to it; folders count by what is in them.
std::vector<std::string> files_below(const fs::path& folder) {
  std::vector<std::string> files;
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(folder)) {
    const bool plain = entry.is_directory() && !entry.is_symlink();
    if (!plain) files.push_back(entry.path().lexically_relative(folder).string());
  }
  std::sort(files.begin(), files.end());
  return files;
}

// Why a folder that is not empty may not be replaced; empty if it may.
std::string obstacle(const fs::path& folder, const std::string& maker) {
  const fs::path record = folder / kMadeByFile;
  if (!fs::is_regular_file(record)) return "is not empty and was not made by " + maker;
  const nlohmann::json json = read_json_object(record.string());
  const auto made_by = json.find("made_by");
  if (made_by == json.end() || *made_by != maker) return "was not made by " + maker;
  std::set<std::string> known{kMadeByFile};
  if (const auto files = json.find("files"); files != json.end() && files->is_array()) {
    for (const auto& file : *files) {
      if (file.is_string()) known.insert(file.get<std::string>());
    }
  }
  for (const std::string& file : files_below(folder)) {
    if (!known.contains(file))
      return "holds " + in_quotes(file) + ", which " + maker + " did not make";
  }
  return "";
}

// Links are followed and a slash at the end is dropped: the rename has to hit the folder itself.
fs::path full_path(const std::string& target) {
  if (target.empty()) {
    throw Error(ErrorCode::kInvalidArgument, "the folder's name is empty", "give a folder");
  }
  fs::path path =
      fs::exists(target) ? fs::canonical(target) : fs::absolute(target).lexically_normal();
  return path.has_filename() ? path : path.parent_path();
}

}  // namespace

StagedFolder::StagedFolder(const std::string& target, std::string maker) try
    : maker_(std::move(maker)) {
  const fs::path path = full_path(target);
  if (fs::exists(fs::symlink_status(path))) {
    if (!fs::is_directory(path)) refuse(path, "exists and is no folder", "give another name");
    const std::string reason = fs::is_empty(path) ? "" : obstacle(path, maker_);
    if (!reason.empty()) refuse(path, reason, "give a new or an empty folder");
  } else if (!fs::is_directory(path.parent_path())) {
    refuse(path.parent_path(), "is no folder", "create it first");
  }
  std::string name = path.string() + ".partial-XXXXXX";
  if (::mkdtemp(name.data()) == nullptr) {
    failed("cannot create a folder beside", path, std::error_code(errno, std::generic_category()));
  }
  target_ = path.string();
  staging_ = name;
  std::error_code ignored;
  fs::permissions(staging_, fs::perms(0755), ignored);  // mkdtemp makes it private
} catch (const fs::filesystem_error& error) {
  failed("cannot use", target, error.code());
}

StagedFolder::~StagedFolder() {
  std::error_code ignored;
  if (!staging_.empty()) fs::remove_all(staging_, ignored);
}

void StagedFolder::commit() {
  nlohmann::ordered_json record;
  record["made_by"] = maker_;
  record["files"] = files_below(staging_);
  write_text(staging_ + "/" + kMadeByFile, record.dump(2) + "\n");

  std::error_code error;
  std::string old;
  if (fs::exists(target_) && !fs::is_empty(target_)) {
    // Looked at again: files may have come since the constructor.
    const std::string reason = obstacle(target_, maker_);
    if (!reason.empty()) refuse(target_, reason, "give a new or an empty folder");
    old = staging_ + ".old";
    fs::rename(target_, old, error);
    if (error) failed("cannot replace", target_, error);
  }
  fs::rename(staging_, target_, error);
  if (error) {
    std::error_code ignored;
    if (!old.empty()) fs::rename(old, target_, ignored);
    failed("cannot create", target_, error);
  }
  staging_.clear();
  if (!old.empty()) fs::remove_all(old, error);
  if (error) failed("cannot remove", old, error);
}

}  // namespace h3::weights
