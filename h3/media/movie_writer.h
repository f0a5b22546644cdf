// Writes the MP4 that people watch: H.264 yuv420p and AAC, frame by frame, so that no more than the
// encoder's own window is in memory.
//
//   MovieWriter writer("out.mp4", {.width = 1344, .height = 768, .frames = 124});
//   writer.add_audio(left, right, samples);        // before or between the frames
//   for (...) writer.add_frame(rgb);
//   writer.finish();                                // checks the file, then gives it its name
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "h3/media/settings_text.h"

namespace h3::media {

struct MovieSettings {
  int width = 0, height = 0;  // even
  int64_t frames = 0;         // that must come; 0: any number from 1
  int fps = 24;
  bool audio = true;  // false: no audio stream
  int sample_rate = 32000;
  int crf = 25;                 // 0 (lossless) to 51; crf_of_quality
  std::string preset = "fast";  // of libx264
  int threads = 0;              // of the encoder; 0: one per processor. Other counts, other bits.
  int64_t audio_bitrate = 192000;
  Settings metadata;  // stored as JSON in the comment of the file
};

/// "default", "low", "medium", "high", "maximum" or a compression from 0 to 100, as a CRF:
/// trunc((1 - c / 100) 51) with c = 50, 35, 55, 90, 100. Throws kInvalidArgument for other text.
int crf_of_quality(std::string_view text);

/// Sound may differ this much in length from the picture.
inline constexpr double kMaxDriftSeconds = 0.25;

/// One movie. Whatever leaves early, an exception or a killed program included, leaves nothing
/// under the name. Colours are BT.709, limited range, and marked so.
class MovieWriter {
 public:
  /// Throws kInvalidArgument for settings out of range and for a path that cannot be written,
  /// kUnsupported for an FFmpeg without libx264 or AAC.
  MovieWriter(const std::string& path, const MovieSettings& settings);
  ~MovieWriter();
  MovieWriter(const MovieWriter&) = delete;
  MovieWriter& operator=(const MovieWriter&) = delete;

  /// RGB24, [height, width, 3] without gaps. Throws kInvalidArgument for one frame too many,
  /// kUnavailable if the disk refuses.
  void add_frame(const uint8_t* rgb);

  /// Both channels, values outside of [-1, 1] are clamped. Throws kInvalidArgument for values that
  /// are not finite and for a movie without audio.
  void add_audio(const float* left, const float* right, int64_t samples);

  /// Completes the file, reads it back, compares it with the settings (check_movie), and gives it
  /// its name. Throws kInvalidArgument for missing frames or sound or for a drift above
  /// kMaxDriftSeconds, kUnavailable if the disk refuses, kInternal for a file that is not what
  /// was asked for; the file is gone then. Nothing may follow.
  void finish();

  int64_t frames() const;
  int64_t samples() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// What a finished movie must be.
struct MovieContract {
  int width = 0, height = 0;
  int64_t frames = 0;
  int fps = 24;
  bool audio = true;
  int sample_rate = 32000;
};

/// Reads `path` (FFmpeg opens it) and throws kInternal, naming `label` and every difference, unless
/// it is an MP4 of exactly one H.264 yuv420p stream of the size, rate and number of frames, and
/// with audio exactly one AAC stereo stream, no longer or shorter than kMaxDriftSeconds.
void check_movie(const std::string& path, const MovieContract& contract, const std::string& label);

}  // namespace h3::media
