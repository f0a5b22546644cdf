#include "h3/media/png_frames.h"

#include <cstdio>
#include <cstring>

#include "h3/media/ffmpeg.h"
#include "h3/weights/staged_folder.h"
#include "tessera/io/safetensors.h"

namespace h3::media {
namespace {

using namespace detail;

constexpr int kMaxSide = 16384;

class PngEncoder {
 public:
  PngEncoder(int width, int height, int compression) {
    silence();
    if (width < 1 || height < 1 || width > kMaxSide || height > kMaxSide || compression < 0 ||
        compression > 9) {
      throw Error(ErrorCode::kInvalidArgument,
                  "PNG of " + std::to_string(width) + "x" + std::to_string(height) +
                      " with compression " + std::to_string(compression) + "; sides of 1 to " +
                      std::to_string(kMaxSide) + " and compression 0 to 9 are accepted");
    }
    const AVCodec* codec = avcodec_find_encoder(AV_CODEC_ID_PNG);
    if (codec == nullptr) {
      throw Error(ErrorCode::kUnsupported, "this FFmpeg has no PNG encoder",
                  "install an FFmpeg that was built with zlib");
    }
    codec_ = owned<CodecPtr>(avcodec_alloc_context3(codec));
    codec_->width = width;
    codec_->height = height;
    codec_->pix_fmt = AV_PIX_FMT_RGB24;
    codec_->time_base = {1, 24};
    codec_->thread_count = 1;  // one packet per frame, at once
    codec_->compression_level = compression;
    if (avcodec_open2(codec_.get(), codec, nullptr) < 0) {
      throw Error(ErrorCode::kUnsupported, "the PNG encoder does not start");
    }
    frame_ = owned<FramePtr>(av_frame_alloc());
    packet_ = owned<PacketPtr>(av_packet_alloc());
  }

  // Valid until the next call.
  const AVPacket& encode(const uint8_t* rgb) {
    AVFrame* frame = frame_.get();
    av_frame_unref(frame);
    frame->format = codec_->pix_fmt;
    frame->width = codec_->width;
    frame->height = codec_->height;
    frame->pts = next_++;
    int code = av_frame_get_buffer(frame, 0);
    const size_t row = static_cast<size_t>(codec_->width) * 3;
    for (int y = 0; code >= 0 && y < codec_->height; ++y) {
      std::memcpy(frame->data[0] + static_cast<ptrdiff_t>(y) * frame->linesize[0],
                  rgb + static_cast<size_t>(y) * row, row);
    }
    av_packet_unref(packet_.get());
    if (code >= 0) code = avcodec_send_frame(codec_.get(), frame);
    if (code >= 0) code = avcodec_receive_packet(codec_.get(), packet_.get());
    if (code < 0) {
      throw Error(ErrorCode::kOutOfMemory, "encoding a PNG failed: " + error_text(code));
    }
    return *packet_;
  }

 private:
  CodecPtr codec_;
  FramePtr frame_;
  PacketPtr packet_;
  int64_t next_ = 0;
};

void write_packet(const std::string& path, const AVPacket& packet) {
  const tessera::Status s =
      tessera::io::write_file_atomic(path, packet.data, static_cast<size_t>(packet.size));
  if (!s.ok()) throw Error(ErrorCode::kUnavailable, s.message());
}

}  // namespace

struct PngFrames::State {
  State(const std::string& path, const PngSettings& s)
      : settings(s), encoder(s.width, s.height, s.compression), name(path), folder(path, s.maker) {}

  const PngSettings settings;
  PngEncoder encoder;
  const std::string name;
  weights::StagedFolder folder;
  int64_t frames = 0;
  bool done = false;
};

PngFrames::PngFrames(const std::string& folder, const PngSettings& settings)
    : state_(std::make_unique<State>(folder, settings)) {}

PngFrames::~PngFrames() = default;

void PngFrames::add_frame(const uint8_t* rgb) {
  State& s = *state_;
  if (s.done || (s.settings.frames > 0 && s.frames == s.settings.frames)) {
    throw Error(ErrorCode::kInvalidArgument,
                "frames '" + s.name + "' got more than the " + std::to_string(s.frames) +
                    " frames it was opened for",
                "set the number of frames to what the decoder delivers");
  }
  char name[32];
  std::snprintf(name, sizeof name, "/frame_%06lld.png", static_cast<long long>(s.frames));
  write_packet(s.folder.path() + name, s.encoder.encode(rgb));
  ++s.frames;
}

void PngFrames::finish() {
  State& s = *state_;
  if (s.done || s.frames == 0 || (s.settings.frames > 0 && s.frames != s.settings.frames)) {
    throw Error(ErrorCode::kInvalidArgument,
                "frames '" + s.name + "' got " + std::to_string(s.frames) + " frames of " +
                    std::to_string(s.settings.frames) + ", or is already complete",
                "the decoder must deliver every frame");
  }
  if (!s.settings.metadata.empty()) {
    const std::string text = settings_json(s.settings.metadata) + "\n";
    const tessera::Status status = tessera::io::write_file_atomic(
        s.folder.path() + "/settings.json", text.data(), text.size());
    if (!status.ok()) throw Error(ErrorCode::kUnavailable, status.message());
  }
  s.done = true;
  s.folder.commit();
}

void write_png(const std::string& path, int width, int height, const uint8_t* rgb) {
  PngEncoder encoder(width, height, 6);
  write_packet(path, encoder.encode(rgb));
}

}  // namespace h3::media
