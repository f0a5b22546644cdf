#include "tessera/tests/video/clip_maker.h"

#include <gtest/gtest.h>
#include <unistd.h>

extern "C" {
#include <libavcodec/avcodec.h>
#include <libavformat/avformat.h>
#include <libavutil/log.h>
}

#include <cmath>
#include <filesystem>
#include <system_error>

namespace tessera::video {
namespace {

struct Writer {
  AVFormatContext* format = nullptr;
  AVCodecContext* encoder = nullptr;
  AVFrame* frame = av_frame_alloc();
  AVPacket* packet = av_packet_alloc();
  AVStream* stream = nullptr;

  ~Writer() {
    av_packet_free(&packet);
    av_frame_free(&frame);
    avcodec_free_context(&encoder);
    if (format) avio_closep(&format->pb);
    avformat_free_context(format);
  }

  void drain() {
    while (avcodec_receive_packet(encoder, packet) >= 0) {
      av_packet_rescale_ts(packet, encoder->time_base, stream->time_base);
      packet->stream_index = 0;
      ASSERT_GE(av_interleaved_write_frame(format, packet), 0);
    }
  }
};

void write_clip(const std::string& path, int frames, int width, int height, const Paint& paint) {
  av_log_set_level(AV_LOG_QUIET);
  Writer w;
  ASSERT_GE(avformat_alloc_output_context2(&w.format, nullptr, "matroska", path.c_str()), 0);
  const AVCodec* codec = avcodec_find_encoder(AV_CODEC_ID_FFV1);
  ASSERT_NE(codec, nullptr);
  w.stream = avformat_new_stream(w.format, nullptr);
  w.encoder = avcodec_alloc_context3(codec);
  w.encoder->width = width;
  w.encoder->height = height;
  w.encoder->pix_fmt = AV_PIX_FMT_BGR0;
  w.encoder->time_base = {1, 25};
  w.encoder->framerate = {25, 1};
  w.encoder->flags |= AV_CODEC_FLAG_GLOBAL_HEADER;
  ASSERT_GE(avcodec_open2(w.encoder, codec, nullptr), 0);
  ASSERT_GE(avcodec_parameters_from_context(w.stream->codecpar, w.encoder), 0);
  w.stream->time_base = w.encoder->time_base;
  w.stream->avg_frame_rate = w.encoder->framerate;
  ASSERT_GE(avio_open(&w.format->pb, path.c_str(), AVIO_FLAG_WRITE), 0);
  ASSERT_GE(avformat_write_header(w.format, nullptr), 0);
  w.frame->format = AV_PIX_FMT_BGR0;
  w.frame->width = width;
  w.frame->height = height;
  ASSERT_GE(av_frame_get_buffer(w.frame, 0), 0);
  for (int f = 0; f < frames; ++f) {
    ASSERT_GE(av_frame_make_writable(w.frame), 0);
    for (int y = 0; y < height; ++y) {
      for (int x = 0; x < width; ++x) {
        const std::array<uint8_t, 3> c = paint(f, y, x);
        uint8_t* p = w.frame->data[0] + y * w.frame->linesize[0] + x * 4;
        p[0] = c[2], p[1] = c[1], p[2] = c[0], p[3] = 0;
      }
    }
    w.frame->pts = f;
    ASSERT_GE(avcodec_send_frame(w.encoder, w.frame), 0);
    w.drain();
  }
  ASSERT_GE(avcodec_send_frame(w.encoder, nullptr), 0);
  w.drain();
  ASSERT_GE(av_write_trailer(w.format), 0);
}

}  // namespace

std::string scratch_path(const std::string& name) {
  // One folder a process: ctest runs the cases of this binary side by side. Removed at its end.
  struct Folder {
    std::filesystem::path path =
        std::filesystem::temp_directory_path() / ("tessera_video_test_" + std::to_string(getpid()));
    Folder() { std::filesystem::create_directories(path); }
    ~Folder() {
      std::error_code ignored;
      std::filesystem::remove_all(path, ignored);
    }
  };
  static const Folder folder;
  return (folder.path / name).string();
}

std::string make_clip(const std::string& name, int frames, int width, int height,
                      const Paint& paint) {
  const std::string path = scratch_path(name);
  write_clip(path, frames, width, height, paint);
  return path;
}

std::string make_moving_clip(const std::string& name, int frames, int width, int height) {
  return make_clip(name, frames, width, height, [](int f, int y, int x) {
    const auto wave = [](double v) { return uint8_t(127.5 + 120.0 * std::sin(v)); };
    return std::array<uint8_t, 3>{wave(0.11 * x + 0.3 * f), wave(0.07 * y - 0.2 * f),
                                  wave(0.002 * x * y + 0.05 * f)};
  });
}

}  // namespace tessera::video
