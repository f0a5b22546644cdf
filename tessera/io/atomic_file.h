// A file that appears under its name only when it is complete.
//
//   AtomicFile file;
//   if (Status s = file.create(path); !s.ok()) return s;
//   if (Status s = file.write(data, bytes); !s.ok()) return s;
//   return file.commit();
#pragma once

#include <cstddef>
#include <string>

#include "tessera/status.h"

namespace tessera::io::detail {

/// Writes to a temporary file beside the target and renames it in `commit`; the destructor removes
/// what was not committed. Links are followed, so a link stays a link; the mode of a replaced file
/// is kept. Targets that exist and are not regular files (folders, /dev/null) are refused.
class AtomicFile {
 public:
  AtomicFile() = default;
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;
  ~AtomicFile();

  Status create(const std::string& path);
  Status write(const void* data, size_t bytes);
  Status commit();

 private:
  Status failure(int error) const;

  std::string path_;    // as given, for messages
  std::string target_;  // `path_` with links resolved
  std::string folder_;
  std::string temporary_;  // empty: nothing to remove
  int fd_ = -1;
};

}  // namespace tessera::io::detail
