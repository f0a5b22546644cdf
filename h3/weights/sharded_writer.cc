// Splits tensors among files and tells the index.
#include "h3/weights/sharded_writer.h"

#include <cstdio>
#include <nlohmann/json.hpp>
#include <utility>

#include "h3/common/error.h"

namespace h3::weights {
namespace {

void require(const tessera::Status& s) {
  if (s.ok()) return;
  const bool io = s.code() == tessera::StatusCode::kIo;
  throw Error(io ? ErrorCode::kUnavailable : ErrorCode::kInvalidArgument, s.message());
}

uint64_t item_bytes(const tessera::io::SafetensorsItem& item) {
  uint64_t bytes = dtype_bytes(item.dtype);
  for (const int64_t size : item.shape) bytes *= static_cast<uint64_t>(size);
  return bytes;
}

std::string shard_name(const std::string& stem, size_t at, size_t count) {
  char number[64];
  std::snprintf(number, sizeof number, "-%05zu-of-%05zu", at + 1, count);
  return stem + number + ".safetensors";
}

}  // namespace

void write_sharded(const std::string& folder, const std::string& stem, size_t shards,
                   const std::vector<tessera::io::SafetensorsItem>& items) {
  if (shards == 0 || shards > items.size()) {
    throw Error(ErrorCode::kInvalidArgument, std::to_string(shards) + " shards for " +
                                                 std::to_string(items.size()) +
                                                 " tensors; 1 to that many are accepted");
  }
  uint64_t total = 0;
  for (const auto& item : items) total += item_bytes(item);
  std::vector<std::vector<tessera::io::SafetensorsItem>> files(shards);
  uint64_t done = 0;
  size_t at = 0;
  for (size_t i = 0; i < items.size(); ++i) {
    // The next file begins where its share does, or as late as it may without staying empty.
    const bool full = done >= total / shards * (at + 1) || items.size() - i < shards - at;
    if (at + 1 < shards && full && !files[at].empty()) ++at;
    files[at].push_back(items[i]);
    done += item_bytes(items[i]);
  }
  nlohmann::ordered_json index;
  index["metadata"]["total_size"] = total;
  nlohmann::json map;  // sorted by name, as published
  for (size_t i = 0; i < shards; ++i) {
    const std::string name = shard_name(stem, i, shards);
    require(tessera::io::write_safetensors(folder + "/" + name, files[i], {{"format", "pt"}}));
    for (const auto& item : files[i]) map[item.name] = name;
  }
  index["weight_map"] = map;
  write_text(folder + "/" + stem + ".safetensors.index.json", index.dump(2) + "\n");
}

void write_text(const std::string& path, const std::string& text) {
  require(tessera::io::write_file_atomic(path, text.data(), text.size()));
}

}  // namespace h3::weights
