// Checks a safetensors file as a whole and hands out views of its tensors.
#include <algorithm>
#include <bit>
#include <exception>
#include <new>
#include <string>
#include <utility>

#include "tessera/io/mapped_file.h"
#include "tessera/io/safetensors.h"
#include "tessera/io/safetensors_header.h"
#include "tessera/io/text.h"

namespace tessera::io {
namespace {

using detail::HeaderTensor;
using detail::in_quotes;

constexpr uint64_t kLengthBytes = 8;  // little-endian header length in front of the header

uint64_t little_endian_u64(const std::byte* bytes) {
  uint64_t value = 0;
  for (int i = 7; i >= 0; --i) value = value << 8 | std::to_integer<uint64_t>(bytes[i]);
  return value;
}

std::string offsets_text(const HeaderTensor& t) {
  return "data_offsets [" + std::to_string(t.begin) + ", " + std::to_string(t.end) + "]";
}

Status check_span(const HeaderTensor& t, uint64_t data_bytes) {
  if (t.begin > t.end) {
    return invalid_argument(offsets_text(t) + " end before they begin; begin <= end is needed");
  }
  if (t.end > data_bytes) {
    return invalid_argument(offsets_text(t) + " reach beyond the " + std::to_string(data_bytes) +
                            " bytes of tensor data; the file is truncated or damaged");
  }
  if (t.end - t.begin != t.bytes) {
    return invalid_argument(offsets_text(t) + " span " + std::to_string(t.end - t.begin) +
                            " bytes, but " + std::string(dtype_name(t.dtype)) + " of shape " +
                            detail::shape_text(t.shape) + " needs " + std::to_string(t.bytes));
  }
  return {};
}

// `tensors` in the order of their data: each must begin where the one before ended.
Status check_cover(const std::vector<HeaderTensor>& tensors, uint64_t data_bytes) {
  uint64_t at = 0;
  for (const HeaderTensor& t : tensors) {
    if (t.begin != at) {
      return invalid_argument("tensor " + in_quotes(t.name) + ": data begins at byte " +
                              std::to_string(t.begin) +
                              (t.begin < at ? ", inside the tensor before it, which ends at "
                                            : ", leaving a gap behind byte ") +
                              std::to_string(at) + "; tensors must follow each other exactly");
    }
    at = t.end;
  }
  if (at != data_bytes) {
    return invalid_argument(std::to_string(data_bytes - at) +
                            " bytes follow the last tensor, which ends at byte " +
                            std::to_string(at) + " of " + std::to_string(data_bytes) +
                            "; the file is damaged or holds something else");
  }
  return {};
}

}  // namespace

Status SafetensorsFile::parse(const std::byte* bytes, size_t size, std::string_view label,
                              SafetensorsFile* out) try {
  const auto refuse = [&](const std::string& message) {
    return invalid_argument(in_quotes(label, 1024) + ": " + message);
  };
  if (size < kLengthBytes) {
    return refuse("only " + std::to_string(size) +
                  " bytes, a safetensors file begins with 8 bytes of header length");
  }
  const uint64_t header_bytes = little_endian_u64(bytes);
  if (header_bytes > kMaxHeaderBytes) {
    return refuse("header length " + std::to_string(header_bytes) + " is above the limit of " +
                  std::to_string(kMaxHeaderBytes) + " bytes; the file is not safetensors");
  }
  if (header_bytes > size - kLengthBytes) {
    return refuse("header length " + std::to_string(header_bytes) + " does not fit the file of " +
                  std::to_string(size) + " bytes; the file is truncated or not safetensors");
  }
  const std::string_view text(reinterpret_cast<const char*>(bytes + kLengthBytes), header_bytes);
  detail::Header header;
  TESSERA_RETURN_IF_ERROR(detail::parse_header(text, label, &header));

  const std::byte* data = bytes + kLengthBytes + header_bytes;
  const uint64_t data_bytes = size - kLengthBytes - header_bytes;
  for (const HeaderTensor& t : header.tensors) {
    if (Status s = check_span(t, data_bytes); !s.ok()) {
      return refuse("tensor " + in_quotes(t.name) + ": " + s.message());
    }
  }
  // Empty tensors share their begin with the tensor behind them and go first.
  std::stable_sort(header.tensors.begin(), header.tensors.end(),
                   [](const HeaderTensor& a, const HeaderTensor& b) {
                     return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
                   });
  if (Status s = check_cover(header.tensors, data_bytes); !s.ok()) return refuse(s.message());

  SafetensorsFile file;
  file.label_ = label;
  file.metadata_ = std::move(header.metadata);
  file.entries_.reserve(header.tensors.size());
  for (HeaderTensor& t : header.tensors) {
    const std::byte* at = data + t.begin;
    if (t.bytes > 0 && std::bit_cast<uintptr_t>(at) % dtype_bytes(t.dtype) != 0) {
      return refuse("tensor " + in_quotes(t.name) + ": data begins at byte " +
                    std::to_string(at - bytes) + " of the file, not a multiple of the " +
                    std::to_string(dtype_bytes(t.dtype)) + " bytes of " +
                    std::string(dtype_name(t.dtype)) +
                    "; write the file again with a writer that aligns tensors");
    }
    file.entries_.push_back({std::move(t.name), t.dtype, std::move(t.shape), at, t.bytes});
  }
  *out = std::move(file);
  return {};
} catch (const std::bad_alloc&) {
  return out_of_memory("no memory for the header of " + std::string(label.substr(0, 200)));
} catch (const std::exception& e) {
  return internal_error(std::string("reading a safetensors header: ") + e.what());
}

Status SafetensorsFile::open(const std::string& path, SafetensorsFile* out) try {
  detail::MappedFile file;
  TESSERA_RETURN_IF_ERROR(detail::map_file(path, &file));
  SafetensorsFile parsed;
  TESSERA_RETURN_IF_ERROR(parse(file.data, file.bytes, path, &parsed));
  parsed.mapping_ = std::move(file.mapping);
  *out = std::move(parsed);
  return {};
} catch (const std::bad_alloc&) {
  return out_of_memory("no memory to open a safetensors file");
}

const SafetensorsEntry* SafetensorsFile::find(std::string_view name) const {
  const auto it = std::find_if(entries_.begin(), entries_.end(),
                               [&](const SafetensorsEntry& e) { return e.name == name; });
  return it == entries_.end() ? nullptr : &*it;
}

}  // namespace tessera::io
