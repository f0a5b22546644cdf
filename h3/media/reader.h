// Reading what people have: pictures, video and sound in whatever the FFmpeg libraries decode.
// Files are recognised by their content; names and endings mean nothing, and no file leads to
// another one or to the network.
//
//   const MediaInfo info = probe_media("holiday.mov");
//   VideoReader video("holiday.mov", {.width = 1344, .height = 768, .max_frames = 124});
//   for (Image frame; video.next(&frame);) ...
//   const Audio sound = read_audio("holiday.mov", {.max_seconds = 5});
//
// All of it throws kInvalidArgument, with the path, for what is missing, no regular file, empty,
// not recognised, without the stream asked for, cut off, or not decodable here.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "h3/media/image.h"
#include "h3/media/settings_text.h"

namespace h3::media {

enum class MediaKind { kImage, kVideo, kAudio };

struct PictureInfo {
  std::string codec;                      // "h264"
  std::string pixel_format;               // "yuv420p10le"
  int width = 0, height = 0;              // stored
  int orientation = 1;                    // as in EXIF; of a picture known after decoding it
  int shown_width = 0, shown_height = 0;  // turned, with square pixels
  bool alpha = false;
  double fps = 0;      // average; 0: unknown or a picture
  int64_t frames = 0;  // declared; 0: unknown
  double seconds = 0;  // declared; 0: unknown
};

struct SoundInfo {
  std::string codec, layout;  // "aac", "5.1"
  int sample_rate = 0, channels = 0;
  double seconds = 0;  // declared; 0: unknown
};

struct MediaInfo {
  std::string path, container;
  MediaKind kind = MediaKind::kVideo;
  std::optional<PictureInfo> picture;  // cover pictures of sound files do not count
  std::optional<SoundInfo> sound;
  Settings settings;  // of files written here
};

/// What the file says about itself; a picture is decoded once for its orientation.
MediaInfo probe_media(const std::string& path);

/// One picture, turned upright, transparency dropped (not blended), palettes, grey and CMYK made
/// RGB. Of an animation the first frame. Refuses videos: nobody said which frame.
Image read_image(const std::string& path);

struct VideoRequest {
  int width = 0, height = 0;  // 0, 0: as shown
  double start_seconds = 0;
  int64_t max_frames = 0;  // 0: all
  int fps = 24;
  int threads = 0;  // of the decoder; never changes the pixels
};

/// The frames of a constant rate: output n shows the last frame whose time, rounded to 1 / fps, is
/// not after n. Frames are turned upright, their pixels made square, and scaled with
/// resize_lanczos. One decoded frame is in memory at a time, beside the decoder's own.
class VideoReader {
 public:
  explicit VideoReader(const std::string& path, const VideoRequest& request = {});
  ~VideoReader();
  VideoReader(const VideoReader&) = delete;
  VideoReader& operator=(const VideoReader&) = delete;

  const PictureInfo& info() const;
  /// False at the end. Throws for a file that ends before what it declares.
  bool next(Image* frame);
  int64_t delivered() const;
  /// Frames that the decoder marked as damaged so far; they are delivered as it concealed them.
  int64_t damaged() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

struct AudioRequest {
  double start_seconds = 0;
  double max_seconds = 0;       // 0: all
  int sample_rate = 32000;      // of the result
  int soundtrack_rate = 44100;  // sound of a video passes through this rate first, as the
                                // references do; 0: its own
};

struct Audio {
  int sample_rate = 0;
  std::vector<float> left, right;  // equally long, at least one sample
  double seconds() const {
    return sample_rate > 0 ? static_cast<double>(left.size()) / sample_rate : 0;
  }
};

/// Stereo: mono on both channels, more channels mixed down as FFmpeg does; then resample_sinc.
Audio read_audio(const std::string& path, const AudioRequest& request = {});

}  // namespace h3::media
