// Any bytes as a safetensors file: refused with a message, or every byte of every entry is
// readable and the entries cover the data exactly.
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "tessera/io/safetensors.h"
#include "tessera/io/text.h"

namespace {

void require(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "broken: %s\n", what);
  std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  // An exact copy, so that a read beyond the end is seen, at an address aligned as a mapping is.
  const std::unique_ptr<std::byte[]> bytes(new std::byte[size]);
  if (size > 0) std::memcpy(bytes.get(), data, size);
  tessera::io::SafetensorsFile file;
  const tessera::Status s = tessera::io::SafetensorsFile::parse(bytes.get(), size, "fuzz", &file);
  if (!s.ok()) {
    require(!s.message().empty(), "a refusal says why");
    require(tessera::io::detail::valid_utf8(s.message()), "a message is UTF-8");
    require(s.message().size() < 4096, "a message is short");
    require(s.code() == tessera::StatusCode::kInvalidArgument ||
                s.code() == tessera::StatusCode::kUnsupported,
            "hostile bytes are the caller's fault");
    return 0;
  }
  uint64_t total = 0;
  unsigned sum = 0;
  for (const tessera::io::SafetensorsEntry& entry : file.entries()) {
    uint64_t elements = 1;
    for (const int64_t n : entry.shape) elements *= static_cast<uint64_t>(n);
    require(elements * dtype_bytes(entry.dtype) == entry.bytes, "bytes match dtype and shape");
    for (size_t i = 0; i < entry.bytes; ++i) sum += std::to_integer<unsigned>(entry.data[i]);
    total += entry.bytes;
    require(file.find(entry.name) == &entry, "names are unique");
  }
  require(total < size, "entries lie behind the header");
  // Keeps the reads above from being optimised away.
  static std::atomic<unsigned> sink;
  sink.store(sum, std::memory_order_relaxed);
  return 0;
}
