// A media file that appears under its name only when it is complete and checked.
//
//   OutputFile file("out.mp4");
//   ... write to file.io_path() and read it back ...
//   file.commit();
#pragma once

#include <string>

namespace h3::media {

/// The data has no name until `commit` (O_TMPFILE), so that a killed program leaves nothing at all;
/// file systems that cannot do this get a hidden temporary file beside the target instead, which
/// the destructor removes. Links are followed; the mode of a replaced file is kept.
class OutputFile {
 public:
  /// Throws kInvalidArgument for a folder that is missing or cannot be written, and for a target
  /// that exists and is no regular file. `unnamed` false: as if the file system had no O_TMPFILE.
  explicit OutputFile(const std::string& path, bool unnamed = true);
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  const std::string& path() const { return path_; }        // as given, for messages
  const std::string& io_path() const { return io_path_; }  // may be opened any number of times

  /// Forces the data to the disk and moves it to its name. Throws kUnavailable; what was there
  /// before stays then.
  void commit();

 private:
  void open_unnamed();
  void open_named();
  [[noreturn]] void fail(const char* what, int error) const;

  std::string path_, target_, folder_, name_, io_path_;
  std::string temporary_;  // empty: no name yet
  int fd_ = -1;
  unsigned mode_ = 0;
};

}  // namespace h3::media
