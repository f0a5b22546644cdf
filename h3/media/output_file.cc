#include "h3/media/output_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <random>

#include "h3/common/error.h"

namespace h3::media {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void refuse(const std::string& path, const std::string& text,
                         const std::string& hint) {
  throw Error(ErrorCode::kInvalidArgument, "output '" + path + "' " + text, hint);
}

unsigned default_mode() {
  const mode_t mask = ::umask(0);
  ::umask(mask);
  return 0666 & ~mask;
}

}  // namespace

OutputFile::OutputFile(const std::string& path, bool unnamed) : path_(path) {
  if (path.empty()) refuse(path, "has no name", "give a file name such as out.mp4");
  std::error_code ec;
  fs::path target(path);
  if (fs::is_symlink(fs::symlink_status(target, ec))) {
    target = fs::weakly_canonical(target, ec);
    if (ec) refuse(path, "is a link that leads nowhere (" + ec.message() + ")", "remove the link");
  }
  struct stat info = {};
  mode_ = default_mode();
  if (::stat(target.c_str(), &info) == 0) {
    if (!S_ISREG(info.st_mode)) {
      refuse(path, S_ISDIR(info.st_mode) ? "is a folder" : "exists and is no regular file",
             "give the name of a file");
    }
    mode_ = info.st_mode & 07777;
  }
  name_ = target.filename().string();
  if (name_.empty()) refuse(path, "ends in a slash", "give the name of a file");
  folder_ = target.parent_path().empty() ? "." : target.parent_path().string();
  target_ = target.string();
  if (!fs::is_directory(folder_, ec)) {
    refuse(path, "cannot be written: '" + folder_ + "' is no folder", "create the folder first");
  }
  if (unnamed) open_unnamed();
  if (fd_ < 0) open_named();
}

OutputFile::~OutputFile() {
  if (fd_ >= 0) ::close(fd_);
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

void OutputFile::open_unnamed() {
  fd_ = ::open(folder_.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0666);
  if (fd_ < 0) {
    const int error = errno;
    if (error == EOPNOTSUPP || error == EISDIR || error == EINVAL) return;  // not offered here
    refuse(path_, std::string("cannot be written: ") + std::strerror(error),
           "choose a folder that can be written");
  }
  io_path_ = "/proc/self/fd/" + std::to_string(fd_);
  if (::access(io_path_.c_str(), W_OK) == 0) return;
  ::close(fd_);  // no /proc to reach it through
  fd_ = -1;
}

void OutputFile::open_named() {
  std::string name = folder_ + "/." + name_ + ".XXXXXX";
  fd_ = ::mkostemp(name.data(), O_CLOEXEC);
  if (fd_ < 0) {
    refuse(path_, std::string("cannot be written: ") + std::strerror(errno),
           "choose a folder that can be written");
  }
  temporary_ = io_path_ = name;
}

void OutputFile::fail(const char* what, int error) const {
  throw Error(ErrorCode::kUnavailable,
              "output '" + path_ + "' cannot be " + what + ": " + std::strerror(error),
              "nothing was left under that name; free space on the disk or choose another folder");
}

void OutputFile::commit() {
  if (::fchmod(fd_, mode_) != 0 || ::fsync(fd_) != 0) fail("completed", errno);
  if (temporary_.empty()) {
    // A link cannot replace a file, a rename can: link under a name of chance first.
    std::random_device random;
    for (int tries = 0; temporary_.empty(); ++tries) {
      const std::string name = folder_ + "/." + name_ + "." + std::to_string(random());
      if (::linkat(AT_FDCWD, io_path_.c_str(), AT_FDCWD, name.c_str(), AT_SYMLINK_FOLLOW) == 0) {
        temporary_ = name;
      } else if (errno != EEXIST || tries == 100) {
        fail("named", errno);
      }
    }
  }
  if (::rename(temporary_.c_str(), target_.c_str()) != 0) fail("named", errno);
  temporary_.clear();
  const int folder = ::open(folder_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder >= 0) {
    ::fsync(folder);  // so that the name survives a power failure, where the system can promise it
    ::close(folder);
  }
}

}  // namespace h3::media
