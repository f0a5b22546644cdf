// Temporary file, fsync, rename (POSIX).
#include "tessera/io/atomic_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <memory>
#include <new>

#include "tessera/io/safetensors.h"
#include "tessera/io/text.h"

namespace tessera::io {
namespace detail {
namespace {

// Two threads of one process never ask for the same name; O_EXCL settles the rest.
std::string temporary_name(const std::string& folder) {
  static std::atomic<unsigned> counter{0};
  return folder + "/.tessera-" + std::to_string(::getpid()) + "-" + std::to_string(counter++) +
         ".tmp";
}

std::string folder_of(const std::string& path) {
  const size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

std::string advice(int error, const std::string& folder) {
  switch (error) {
    case ENOENT:
    case ENOTDIR: return "; create the folder " + in_quotes(folder, 1024) + " first";
    case EACCES:
    case EROFS:
    case EPERM: return "; choose a folder that can be written";
    case ENOSPC:
    case EDQUOT:
    case EFBIG: return "; free some space or choose another folder (nothing was changed)";
    default: return "";
  }
}

}  // namespace

AtomicFile::~AtomicFile() {
  if (fd_ >= 0) ::close(fd_);
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

Status AtomicFile::failure(int error) const {
  return io_error("cannot write " + in_quotes(path_, 1024) + ": " + errno_text(error) +
                  advice(error, folder_));
}

Status AtomicFile::create(const std::string& path) {
  path_ = path;
  if (path.empty() || path.back() == '/' || path.find('\0') != std::string::npos) {
    return io_error("cannot write " + in_quotes(path, 1024) +
                    ": it names no file; give a file name");
  }
  target_ = path;
  folder_ = folder_of(path);
  struct stat info {};
  if (::lstat(path.c_str(), &info) == 0 && S_ISLNK(info.st_mode)) {
    const std::unique_ptr<char, void (*)(void*)> real(::realpath(path.c_str(), nullptr), std::free);
    if (!real) {
      return io_error("cannot write " + in_quotes(path, 1024) + ": it is a link to nowhere: " +
                      errno_text(errno) + "; remove the link or repair it");
    }
    target_ = real.get();
    folder_ = folder_of(target_);
  }
  const bool replaces = ::stat(target_.c_str(), &info) == 0;
  if (replaces && S_ISDIR(info.st_mode)) return failure(EISDIR);
  if (replaces && !S_ISREG(info.st_mode)) {
    return io_error("cannot write " + in_quotes(path, 1024) +
                    ": it exists and is not a regular file; give another name");
  }
  constexpr int kAttempts = 100;  // names left behind by a killed process with the same id
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    const std::string name = temporary_name(folder_);
    fd_ = ::open(name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd_ >= 0) {
      temporary_ = name;
      break;
    }
    if (errno != EEXIST && errno != EINTR) return failure(errno);
  }
  if (fd_ < 0) return failure(EEXIST);
  if (replaces && ::fchmod(fd_, info.st_mode & 07777) != 0) return failure(errno);
  return {};
}

Status AtomicFile::write(const void* data, size_t bytes) {
  const char* at = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t n = ::write(fd_, at, bytes);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return failure(errno);
    if (n == 0) return failure(ENOSPC);
    at += n;
    bytes -= static_cast<size_t>(n);
  }
  return {};
}

Status AtomicFile::commit() {
  // Without the fsync a crash soon after the rename could leave an empty file under the name.
  if (::fsync(fd_) != 0) return failure(errno);
  const int fd = fd_;
  fd_ = -1;
  if (::close(fd) != 0) return failure(errno);
  if (::rename(temporary_.c_str(), target_.c_str()) != 0) return failure(errno);
  temporary_.clear();
  // The new file is complete and visible now; syncing the folder only makes the rename itself
  // survive a power cut, and some file systems refuse it, so its result decides nothing.
  const int folder = ::open(folder_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder >= 0) {
    ::fsync(folder);
    ::close(folder);
  }
  return {};
}

}  // namespace detail

Status write_file_atomic(const std::string& path, const void* data, size_t bytes) try {
  if (data == nullptr && bytes > 0) {
    return invalid_argument("cannot write " + detail::in_quotes(path, 1024) +
                            ": data is null but " + std::to_string(bytes) +
                            " bytes were announced; pass the bytes");
  }
  detail::AtomicFile file;
  TESSERA_RETURN_IF_ERROR(file.create(path));
  TESSERA_RETURN_IF_ERROR(file.write(data, bytes));
  return file.commit();
} catch (const std::bad_alloc&) {
  return out_of_memory("no memory to write a file");
}

}  // namespace tessera::io
