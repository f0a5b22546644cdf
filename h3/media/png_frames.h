// The frames alone, without loss: a folder of PNG files.
//
//   PngFrames writer("frames", {.width = 1344, .height = 768});
//   for (...) writer.add_frame(rgb);
//   writer.finish();    // frames/frame_000000.png, ..., frames/settings.json
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "h3/media/settings_text.h"

namespace h3::media {

struct PngSettings {
  int width = 0, height = 0;
  int64_t frames = 0;               // that must come; 0: any number from 1
  int compression = 3;              // of zlib, 0 to 9; the pixels are the same
  Settings metadata;                // settings.json; no file if empty
  std::string maker = "h3 decode";  // who may replace the folder later; see weights::StagedFolder
};

/// The folder appears under its name when it is complete; until then, and for good if the program
/// is killed, there is a folder NAME.partial-XXXXXX beside it.
class PngFrames {
 public:
  /// Throws as weights::StagedFolder (a folder with other files is refused), kInvalidArgument for
  /// settings out of range.
  PngFrames(const std::string& folder, const PngSettings& settings);
  ~PngFrames();
  PngFrames(const PngFrames&) = delete;
  PngFrames& operator=(const PngFrames&) = delete;

  /// RGB24, [height, width, 3] without gaps. Throws kInvalidArgument for one frame too many,
  /// kUnavailable if the disk refuses.
  void add_frame(const uint8_t* rgb);

  /// Throws kInvalidArgument for missing frames, and as StagedFolder::commit.
  void finish();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// One picture as a PNG file; the name appears when the file is complete. Throws as OutputFile.
void write_png(const std::string& path, int width, int height, const uint8_t* rgb);

}  // namespace h3::media
