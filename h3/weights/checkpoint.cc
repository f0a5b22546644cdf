// Opening a checkpoint: which files it has, whether index and shards tell the same story.
#include "h3/weights/checkpoint.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <utility>

#include "h3/common/error.h"
#include "h3/weights/faults.h"
#include "h3/weights/json_text.h"
#include "tessera/io/mapped_file.h"
#include "tessera/io/safetensors.h"
#include "tessera/io/text.h"

namespace h3::weights {
namespace {

namespace fs = std::filesystem;
using tessera::io::detail::in_quotes;
using tessera::io::detail::printable;

constexpr const char* kIndexNames[] = {"model.safetensors.index.json",
                                       "diffusion_pytorch_model.safetensors.index.json"};
constexpr const char* kHint = "fetch or write the checkpoint again";

struct Index {
  std::map<std::string, std::string> shard_of;  // tensor to file name
  std::optional<uint64_t> total_bytes;
};

[[noreturn]] void refuse(const std::string& path, const std::string& text,
                         const std::string& hint) {
  throw Error(ErrorCode::kInvalidArgument, printable(path, 1024) + ": " + text, hint);
}

Index read_index(const std::string& path) {
  const nlohmann::json json = read_json_object(path);
  Faults faults(path);
  Index index;
  const auto map = json.find("weight_map");
  if (map == json.end() || !map->is_object() || map->empty()) {
    faults.add(
        "weight_map is missing, empty or no object; tensor names with file names are needed");
  } else {
    for (const auto& [name, file] : map->items()) {
      const std::string text = file.is_string() ? file.get<std::string>() : "";
      // A shard lies beside its index; anything else could name any file of the machine.
      if (text.empty() || text.find('/') != std::string::npos || text == "." || text == "..") {
        faults.add("weight_map[" + in_quotes(name) + "] is " + json_value_text(file) +
                   "; the name of a file in the same folder is needed");
      } else {
        index.shard_of[name] = text;
      }
    }
  }
  if (const auto meta = json.find("metadata"); meta != json.end() && meta->is_object()) {
    if (const auto total = meta->find("total_size"); total != meta->end()) {
      if (total->is_number_unsigned()) {
        index.total_bytes = total->get<uint64_t>();
      } else {
        faults.add("metadata.total_size is " + json_value_text(*total) +
                   "; the bytes of all tensors as an integer are needed");
      }
    }
  }
  faults.throw_if_any(kHint);
  return index;
}

// The index or the single file that stands for a folder.
std::string entry_of_folder(const std::string& folder) {
  std::vector<std::string> indexes, files;
  std::error_code error;
  for (const char* name : kIndexNames) {
    if (fs::exists(fs::path(folder) / name, error)) indexes.push_back(name);
  }
  if (indexes.size() == 1) return (fs::path(folder) / indexes.front()).string();
  if (indexes.size() > 1) {
    refuse(folder, "holds two indexes: " + capped_list(indexes), "give the path of one of them");
  }
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    if (at->path().extension() == ".safetensors") files.push_back(at->path().filename().string());
  }
  if (error) refuse(folder, "cannot be listed: " + error.message(), "check the permissions");
  if (files.size() == 1) return (fs::path(folder) / files.front()).string();
  std::sort(files.begin(), files.end());
  if (files.empty()) {
    refuse(folder, "holds no .safetensors file and no " + std::string(kIndexNames[0]),
           "give the folder of the transformer, or a .safetensors file");
  }
  refuse(folder,
         "holds " + std::to_string(files.size()) + " .safetensors files (" + capped_list(files, 3) +
             ") but no index (" + kIndexNames[0] + " or " + kIndexNames[1] + ")",
         "fetch the index too, or give one file");
}

struct OpenedShard {
  std::string name;  // in the index
  CheckpointFile file;
  tessera::io::SafetensorsFile content;
  const std::byte* begin = nullptr;
};

std::optional<OpenedShard> open_shard(const std::string& path, const std::string& name,
                                      Faults& faults) {
  tessera::io::detail::MappedFile mapped;
  OpenedShard shard{name, {}, {}, nullptr};
  tessera::Status s = tessera::io::detail::map_file(path, &mapped);
  if (s.ok())
    s = tessera::io::SafetensorsFile::parse(mapped.data, mapped.bytes, path, &shard.content);
  if (!s.ok()) {
    faults.add(s.message());
    return std::nullopt;
  }
  shard.file = {path, mapped.bytes, std::move(mapped.mapping)};
  shard.begin = mapped.data;
  return shard;
}

// What the index says about a shard that could be opened.
void compare(const Index& index, const std::vector<OpenedShard>& shards, Faults& faults) {
  std::map<std::string, std::vector<std::string>> holders;  // tensor to shards
  std::map<std::string, bool> opened;
  uint64_t bytes = 0;
  for (const OpenedShard& shard : shards) {
    opened[shard.name] = true;
    for (const auto& entry : shard.content.entries()) {
      holders[entry.name].push_back(shard.name);
      bytes += entry.bytes;
    }
  }
  std::vector<std::string> absent, elsewhere, unlisted;
  for (const auto& [name, file] : index.shard_of) {
    if (!opened.contains(file)) continue;  // told with the file
    const auto found = holders.find(name);
    if (found == holders.end()) {
      absent.push_back(in_quotes(name) + " (" + printable(file) + ")");
    } else if (std::find(found->second.begin(), found->second.end(), file) == found->second.end()) {
      elsewhere.push_back(in_quotes(name) + " (" + printable(file) + ", found in " +
                          printable(found->second.front()) + ")");
    }
  }
  for (const auto& [name, files] : holders) {
    if (!index.shard_of.contains(name)) {
      unlisted.push_back(in_quotes(name) + " (" + printable(files.front()) + ")");
    }
  }
  faults.add_list("tensors that the index puts into a file that lacks them", absent);
  faults.add_list("tensors that the index puts into another file", elsewhere);
  faults.add_list("tensors that no entry of the index lists", unlisted);
  if (faults.empty() && index.total_bytes && *index.total_bytes != bytes) {
    faults.add("metadata.total_size of the index is " + std::to_string(*index.total_bytes) +
               ", but the tensors have " + std::to_string(bytes) + " bytes");
  }
}

}  // namespace

Checkpoint Checkpoint::open(const std::string& path) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (!fs::exists(status)) refuse(path, "no such file or folder", "check the path");
  const std::string entry = fs::is_directory(status) ? entry_of_folder(path) : path;
  const bool indexed = entry.ends_with(".index.json");

  Checkpoint checkpoint;
  checkpoint.path_ = path;
  Faults faults(entry);
  Index index;
  std::vector<std::string> names;
  if (indexed) {
    index = read_index(entry);
    for (const auto& [tensor, file] : index.shard_of) names.push_back(file);
    std::sort(names.begin(), names.end());
    names.erase(std::unique(names.begin(), names.end()), names.end());
  } else {
    names.push_back(fs::path(entry).filename().string());
  }
  std::vector<OpenedShard> shards;
  for (const std::string& name : names) {
    const std::string file = indexed ? (fs::path(entry).parent_path() / name).string() : entry;
    if (auto shard = open_shard(file, name, faults)) shards.push_back(std::move(*shard));
  }
  if (indexed) compare(index, shards, faults);

  std::vector<std::string> twice;
  for (OpenedShard& shard : shards) {
    for (const auto& e : shard.content.entries()) {
      const bool prefixed = e.name.starts_with(kComfyPrefix);
      checkpoint.prefixed_ = checkpoint.prefixed_ || prefixed;
      const std::string name = prefixed ? e.name.substr(kComfyPrefix.size()) : e.name;
      const CheckpointTensor tensor{name,
                                    e.dtype,
                                    e.shape,
                                    checkpoint.files_.size(),
                                    static_cast<uint64_t>(e.data - shard.begin),
                                    e.bytes,
                                    e.data};
      if (!checkpoint.tensors_.emplace(name, tensor).second) twice.push_back(in_quotes(name));
    }
    checkpoint.files_.push_back(std::move(shard.file));
  }
  faults.add_list("tensors that are there twice", twice);
  faults.throw_if_any(kHint);
  return checkpoint;
}

const CheckpointTensor* Checkpoint::find(std::string_view name) const {
  const auto at = tensors_.find(name);
  return at == tensors_.end() ? nullptr : &at->second;
}

std::vector<std::string> Checkpoint::names() const {
  std::vector<std::string> names;
  for (const auto& [name, tensor] : tensors_) names.push_back(name);
  return names;
}

uint64_t Checkpoint::tensor_bytes() const {
  uint64_t bytes = 0;
  for (const auto& [name, tensor] : tensors_) bytes += tensor.bytes;
  return bytes;
}

}  // namespace h3::weights
