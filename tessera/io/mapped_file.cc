// Opening regular files for reading (POSIX).
#include "tessera/io/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "tessera/io/text.h"

namespace tessera::io::detail {
namespace {

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  int get() const { return fd_; }

 private:
  int fd_;
};

Status cannot_read(const std::string& path, const std::string& reason) {
  return io_error("cannot read " + in_quotes(path, 1024) + ": " + reason);
}

// Opens without blocking, so that a FIFO without a writer is refused instead of waited for.
int open_for_reading(const std::string& path) {
  int fd = -1;
  do {
    fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  } while (fd < 0 && errno == EINTR);
  return fd;
}

Status regular_file_bytes(const std::string& path, int fd, size_t* bytes) {
  if (fd < 0) {
    const int error = errno;
    std::string reason = errno_text(error);
    if (error == ENOENT) reason += "; check the path";
    if (error == EACCES) reason += "; check the permissions";
    return cannot_read(path, reason);
  }
  struct stat info {};
  if (::fstat(fd, &info) != 0) return cannot_read(path, errno_text(errno));
  if (S_ISDIR(info.st_mode)) return cannot_read(path, errno_text(EISDIR) + "; give a file");
  if (!S_ISREG(info.st_mode)) {
    return cannot_read(path,
                       std::string(S_ISFIFO(info.st_mode) ? "it is a FIFO" : "it is a device") +
                           ", a regular file is needed; copy its content to a file first");
  }
  *bytes = static_cast<size_t>(info.st_size);
  return {};
}

Status check_path(const std::string& path) {
  if (path.find('\0') == std::string::npos) return {};
  return cannot_read(path, "a path cannot hold a NUL byte");
}

}  // namespace

Status map_file(const std::string& path, MappedFile* out) {
  TESSERA_RETURN_IF_ERROR(check_path(path));
  const Descriptor file(open_for_reading(path));
  size_t bytes = 0;
  TESSERA_RETURN_IF_ERROR(regular_file_bytes(path, file.get(), &bytes));
  if (bytes == 0) return cannot_read(path, "the file is empty (0 bytes)");
  void* address = ::mmap(nullptr, bytes, PROT_READ, MAP_PRIVATE, file.get(), 0);
  if (address == MAP_FAILED) return cannot_read(path, "mmap: " + errno_text(errno));
  out->mapping = std::shared_ptr<void>(address, [bytes](void* p) { ::munmap(p, bytes); });
  out->data = static_cast<const std::byte*>(address);
  out->bytes = bytes;
  return {};
}

Status read_text_file(const std::string& path, size_t max_bytes, std::string* out) {
  TESSERA_RETURN_IF_ERROR(check_path(path));
  const Descriptor file(open_for_reading(path));
  size_t bytes = 0;
  TESSERA_RETURN_IF_ERROR(regular_file_bytes(path, file.get(), &bytes));
  if (bytes > max_bytes) {
    return cannot_read(path, "it has " + std::to_string(bytes) + " bytes, at most " +
                                 std::to_string(max_bytes) + " are accepted");
  }
  std::string text(bytes, '\0');
  size_t done = 0;
  while (done < bytes) {
    const ssize_t n = ::read(file.get(), text.data() + done, bytes - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return cannot_read(path, errno_text(errno));
    if (n == 0) return cannot_read(path, "the file became shorter while it was read");
    done += static_cast<size_t>(n);
  }
  *out = std::move(text);
  return {};
}

}  // namespace tessera::io::detail
