// Builds the header and writes header and tensors through an atomic file.
#include <algorithm>
#include <exception>
#include <new>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>

#include "tessera/io/atomic_file.h"
#include "tessera/io/safetensors.h"
#include "tessera/io/safetensors_header.h"
#include "tessera/io/text.h"

namespace tessera::io {
namespace {

using detail::in_quotes;

constexpr uint64_t kAlignment = 64;  // of the data section in the file

struct Placed {
  const SafetensorsItem* item = nullptr;
  uint64_t bytes = 0;
};

// Largest power of two that divides the size, at most kAlignment (also for empty tensors).
uint64_t size_alignment(uint64_t bytes) {
  return bytes == 0 ? kAlignment : std::min(kAlignment, bytes & (~bytes + 1));
}

Status check_item(const SafetensorsItem& item, uint64_t* bytes) {
  const auto refuse = [&](const std::string& message) {
    return invalid_argument("tensor " + in_quotes(item.name) + ": " + message);
  };
  if (!detail::valid_utf8(item.name)) return refuse("the name is not UTF-8; rename the tensor");
  if (item.name == detail::kMetadataName) {
    return refuse("the name is reserved for metadata; rename the tensor");
  }
  if (detail::safetensors_dtype(item.dtype).empty()) {
    return refuse("dtype number " + std::to_string(static_cast<int>(item.dtype)) + " is unknown");
  }
  if (item.shape.size() > detail::kMaxRank) {
    return refuse("shape " + detail::shape_text(item.shape) + " has more than " +
                  std::to_string(detail::kMaxRank) + " sizes");
  }
  if (!detail::tensor_bytes(item.dtype, item.shape, bytes)) {
    return refuse("shape " + detail::shape_text(item.shape) +
                  " is negative or overflows; sizes from 0 with a product below 2^63 bytes are "
                  "accepted");
  }
  if (*bytes > 0 && item.data == nullptr) {
    return refuse("data is null but shape " + detail::shape_text(item.shape) + " needs " +
                  std::to_string(*bytes) + " bytes");
  }
  return {};
}

Status place_items(const std::vector<SafetensorsItem>& items, std::vector<Placed>* out) {
  std::set<std::string_view> names;
  for (const SafetensorsItem& item : items) {
    Placed placed{&item, 0};
    TESSERA_RETURN_IF_ERROR(check_item(item, &placed.bytes));
    if (!names.insert(item.name).second) {
      return invalid_argument("tensor " + in_quotes(item.name) +
                              " is given twice; names must be unique");
    }
    out->push_back(placed);
  }
  // The format allows no gaps, so the order makes the alignment: sizes divisible by the larger
  // power of two go first, then every tensor begins at a multiple of what divides its own size.
  std::stable_sort(out->begin(), out->end(), [](const Placed& a, const Placed& b) {
    return size_alignment(a.bytes) > size_alignment(b.bytes);
  });
  return {};
}

std::string json_string(const std::string& text) { return nlohmann::json(text).dump(); }

Status make_header(const std::vector<Placed>& placed,
                   const std::map<std::string, std::string>& metadata, std::string* out) {
  std::string text = "{";
  if (!metadata.empty()) {
    text += "\"__metadata__\":{";
    const char* separator = "";
    for (const auto& [key, value] : metadata) {
      if (!detail::valid_utf8(key) || !detail::valid_utf8(value)) {
        return invalid_argument("metadata " + in_quotes(key) + ": " + in_quotes(value, 40) +
                                " is not UTF-8; encode it first");
      }
      text += separator + json_string(key) + ":" + json_string(value);
      separator = ",";
    }
    text += "}";
  }
  uint64_t at = 0;
  for (const Placed& p : placed) {
    if (text.size() > 1) text += ",";
    text += json_string(p.item->name) + ":{\"dtype\":\"" +
            std::string(detail::safetensors_dtype(p.item->dtype)) + "\",\"shape\":[";
    for (size_t i = 0; i < p.item->shape.size(); ++i) {
      if (i > 0) text += ',';
      text += std::to_string(p.item->shape[i]);
    }
    const uint64_t begin = at;
    if (__builtin_add_overflow(at, p.bytes, &at) || at > static_cast<uint64_t>(INT64_MAX)) {
      return invalid_argument("tensor " + in_quotes(p.item->name) +
                              ": all tensors together exceed 2^63 bytes; write several files");
    }
    text += "],\"data_offsets\":[" + std::to_string(begin) + "," + std::to_string(at) + "]}";
  }
  text += "}";
  while ((8 + text.size()) % kAlignment != 0) text += ' ';
  if (text.size() > kMaxHeaderBytes) {
    return invalid_argument("the header would have " + std::to_string(text.size()) +
                            " bytes, at most " + std::to_string(kMaxHeaderBytes) +
                            " are accepted; write fewer tensors or less metadata");
  }
  *out = std::move(text);
  return {};
}

}  // namespace

Status write_safetensors(const std::string& path, const std::vector<SafetensorsItem>& items,
                         const std::map<std::string, std::string>& metadata) try {
  std::vector<Placed> placed;
  std::string header;
  Status s = place_items(items, &placed);
  if (s.ok()) s = make_header(placed, metadata, &header);
  if (!s.ok()) return {s.code(), "cannot write " + in_quotes(path, 1024) + ": " + s.message()};

  std::string length(8, '\0');
  for (size_t i = 0; i < length.size(); ++i) {
    length[i] = static_cast<char>(static_cast<uint64_t>(header.size()) >> (8 * i) & 0xff);
  }
  detail::AtomicFile file;
  TESSERA_RETURN_IF_ERROR(file.create(path));
  TESSERA_RETURN_IF_ERROR(file.write(length.data(), length.size()));
  TESSERA_RETURN_IF_ERROR(file.write(header.data(), header.size()));
  for (const Placed& p : placed) TESSERA_RETURN_IF_ERROR(file.write(p.item->data, p.bytes));
  return file.commit();
} catch (const std::bad_alloc&) {
  return out_of_memory("no memory to write a safetensors file");
} catch (const std::exception& e) {
  return internal_error(std::string("writing a safetensors file: ") + e.what());
}

}  // namespace tessera::io
