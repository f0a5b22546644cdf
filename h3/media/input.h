// A media file opened by its content, and the decoding of one of its streams.
#pragma once

#include <cstdint>
#include <string>

#include "h3/media/ffmpeg.h"
#include "h3/media/image.h"

namespace h3::media::detail {

[[noreturn]] void refuse_input(const std::string& path, const std::string& text,
                               const std::string& hint);

/// Data goes through functions of our own: no name for FFmpeg to guess from, and a demuxer that
/// wants another file or address gets none.
class Input {
 public:
  explicit Input(const std::string& path);
  ~Input() { close(); }
  Input(const Input&) = delete;
  Input& operator=(const Input&) = delete;

  AVFormatContext& format() const { return *format_; }
  const std::string& path() const { return path_; }
  bool is_picture() const;  // a container of pictures, not of video
  /// nullptr if there is none. Cover pictures are no video.
  AVStream* video() const;
  AVStream* audio() const;
  double start_seconds() const;  // of the file's clock
  /// A RIFF file (WAV, AVI, WebP) that says it is longer than it is; FFmpeg reads what is there.
  bool shorter_than_declared() const { return shorter_than_declared_; }

 private:
  void open();
  void close();

  std::string path_;
  int fd_ = -1;
  bool shorter_than_declared_ = false;
  AVIOContext* io_ = nullptr;
  InputPtr format_;
};

/// Decoded frames of one stream in order, and a check at the end that the file was whole.
class StreamDecoder {
 public:
  /// `strict`: any damage is an error (pictures).
  StreamDecoder(Input& input, AVStream& stream, int threads, bool strict);

  /// False at the end. The frame is valid until the next call.
  bool next();
  const AVFrame& frame() const { return *frame_; }
  int64_t frames() const { return frames_; }
  int64_t damaged() const { return damaged_; }
  /// Before `next`: continues at the last key frame not after `seconds`.
  void seek(double seconds);

 private:
  void read_packet();
  void check_whole() const;

  Input& input_;
  AVStream& stream_;
  const bool strict_;
  CodecPtr codec_;
  FramePtr frame_;
  PacketPtr packet_;
  bool ended_ = false;
  int read_error_ = 0, late_errors_ = 0;
  int64_t frames_ = 0, damaged_ = 0, rejected_ = 0;
  double reached_ = 0;  // seconds, of any stream
};

/// Orientation (EXIF numbers) that a stream or frame asks for; 0 if it says nothing. Throws for
/// angles that are no multiple of 90 degrees.
int stream_orientation(const AVStream& stream, const std::string& path);
int frame_orientation(const AVFrame& frame, const std::string& path);
/// Of a PNG's eXIf chunk, which FFmpeg does not read; 0 if there is none.
int png_orientation(const std::string& path);

/// Frames as RGB, colours by what the frame says of its matrix and range.
class RgbConverter {
 public:
  Image convert(const AVFrame& frame, const std::string& path);

 private:
  struct Key {
    int width = 0, height = 0;
    AVPixelFormat format = AV_PIX_FMT_NONE;
    AVChromaLocation location = AVCHROMA_LOC_UNSPECIFIED;
    friend bool operator==(const Key&, const Key&) = default;
  };
  Key key_;
  ScalerPtr scaler_;
};

/// Width and height with square pixels, turned.
void shown_size(int width, int height, AVRational aspect, int orientation, int* shown_width,
                int* shown_height);

}  // namespace h3::media::detail
