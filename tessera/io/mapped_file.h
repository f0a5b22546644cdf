// Read-only access to whole regular files: mapped (tensors) or copied (small texts).
//
//   MappedFile file;
//   if (Status s = map_file(path, &file); !s.ok()) return s;
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "tessera/status.h"

namespace tessera::io::detail {

struct MappedFile {
  std::shared_ptr<void> mapping;  // unmaps when the last owner goes
  const std::byte* data = nullptr;
  size_t bytes = 0;
};

/// kIo with path and reason for anything but a readable, non-empty regular file (folders, FIFOs,
/// devices and missing files included; never blocks on a FIFO). A file that another process
/// shortens while it is mapped is not handled: reading the lost part raises SIGBUS, as with every
/// mapped file. Replace files by rename (write_file_atomic) and running readers keep the old bytes.
Status map_file(const std::string& path, MappedFile* out);

/// Whole content of a regular file of at most `max_bytes`; kIo otherwise.
Status read_text_file(const std::string& path, size_t max_bytes, std::string* out);

}  // namespace tessera::io::detail
