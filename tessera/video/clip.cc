#include "tessera/video/clip.h"

extern "C" {
#include <libavcodec/avcodec.h>
#include <libavformat/avformat.h>
#include <libavutil/imgutils.h>
#include <libavutil/log.h>
#include <libswscale/swscale.h>
}

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <memory>
#include <new>
#include <string_view>
#include <system_error>

namespace tessera::video {
namespace {

struct FormatCloser {
  void operator()(AVFormatContext* c) const { avformat_close_input(&c); }
};
struct CodecCloser {
  void operator()(AVCodecContext* c) const { avcodec_free_context(&c); }
};
struct FrameCloser {
  void operator()(AVFrame* f) const { av_frame_free(&f); }
};
struct PacketCloser {
  void operator()(AVPacket* p) const { av_packet_free(&p); }
};
struct ScalerCloser {
  void operator()(SwsContext* c) const { sws_freeContext(c); }
};

std::string error_text(int code) {
  char text[AV_ERROR_MAX_STRING_SIZE] = {};
  av_strerror(code, text, sizeof text);
  return text;
}

// Demuxers that accept almost any text, or that would open further files named inside this one.
bool is_refused_container(std::string_view name) {
  constexpr std::array<std::string_view, 7> kRefused = {"tty",       "hls", "concat", "dash",
                                                        "subviewer", "sdp", "bin"};
  return std::find(kRefused.begin(), kRefused.end(), name) != kRefused.end();
}

struct Input {
  std::unique_ptr<AVFormatContext, FormatCloser> format;
  AVStream* stream = nullptr;
};

constexpr const char* kNextStep = "give a video file that FFmpeg can read, such as .mp4 or .mkv";

Status open_input(const std::string& path, Input* out) {
  // FFmpeg prints to stderr by itself; every failure is reported through Status instead.
  av_log_set_level(AV_LOG_QUIET);
  std::error_code ec;
  const auto kind = std::filesystem::status(path, ec).type();
  if (kind == std::filesystem::file_type::not_found) {
    return invalid_argument("clip '" + path + "': no such file; " + kNextStep);
  }
  if (kind == std::filesystem::file_type::directory) {
    return invalid_argument("clip '" + path + "' is a folder, not a file; " + kNextStep);
  }
  AVFormatContext* raw = nullptr;
  // The prefix keeps a path such as "http://x" or "a:b" from being read as a network address.
  int code = avformat_open_input(&raw, ("file:" + path).c_str(), nullptr, nullptr);
  out->format.reset(raw);
  if (code < 0) {
    return invalid_argument("clip '" + path + "' is not a video that can be opened (" +
                            error_text(code) + "; a cut-off file may lack its index); " +
                            kNextStep);
  }
  if (is_refused_container(raw->iformat->name)) {
    return invalid_argument("clip '" + path + "' is not a video (recognised as '" +
                            raw->iformat->name + "'); " + kNextStep);
  }
  code = avformat_find_stream_info(raw, nullptr);
  const int index = av_find_best_stream(raw, AVMEDIA_TYPE_VIDEO, -1, -1, nullptr, 0);
  if (index < 0) {
    return invalid_argument("clip '" + path + "' has no video stream (" +
                            std::to_string(raw->nb_streams) + " other streams, container '" +
                            raw->iformat->name + "'); " + kNextStep);
  }
  out->stream = raw->streams[index];
  const AVCodecParameters& codec = *out->stream->codecpar;
  if (codec.width <= 0 || codec.height <= 0) {
    return invalid_argument(
        "clip '" + path + "': the video stream has a size of " + std::to_string(codec.width) + "x" +
        std::to_string(codec.height) + " pixels, at least 1x1 is needed" +
        (code < 0 ? " (" + error_text(code) + ")" : std::string()) + "; " + kNextStep);
  }
  return {};
}

// Turns decoded frames into RGB of the requested size and appends them to the clip.
class FrameSink {
 public:
  FrameSink(const DecodeRequest& request, Clip* clip) : request_(request), clip_(clip) {}

  bool full() const { return clip_->frames >= request_.frames; }

  void add(const AVFrame& frame) {
    // The size or pixel format may change inside a stream, so the scaler is looked up every time.
    scaler_.reset(sws_getCachedContext(
        scaler_.release(), frame.width, frame.height, AVPixelFormat(frame.format), request_.width,
        request_.height, AV_PIX_FMT_RGB24, SWS_AREA | SWS_ACCURATE_RND | SWS_FULL_CHR_H_INT,
        nullptr, nullptr, nullptr));
    if (!scaler_) return;  // counted as lost: the frame never arrives
    const size_t bytes = size_t(request_.width) * request_.height * 3;
    // swscale may write a few bytes past a row, which the padded scratch absorbs.
    scratch_.resize(bytes + 64);
    std::array<uint8_t*, 4> planes{scratch_.data()};
    std::array<int, 4> strides{request_.width * 3};
    if (sws_scale(scaler_.get(), frame.data, frame.linesize, 0, frame.height, planes.data(),
                  strides.data()) != request_.height) {
      return;
    }
    clip_->rgb.insert(clip_->rgb.end(), scratch_.begin(), scratch_.begin() + long(bytes));
    ++clip_->frames;
    const bool damaged = (frame.flags & AV_FRAME_FLAG_CORRUPT) || frame.decode_error_flags != 0;
    clip_->damaged_frames += damaged;
  }

 private:
  DecodeRequest request_;
  Clip* clip_;
  std::unique_ptr<SwsContext, ScalerCloser> scaler_;
  std::vector<uint8_t> scratch_;
};

Status decode_into(const ClipInfo& info, const DecodeRequest& request, Clip* out) {
  Input input;
  TESSERA_RETURN_IF_ERROR(open_input(info.path, &input));
  const AVCodecParameters* parameters = input.stream->codecpar;
  const AVCodec* codec = avcodec_find_decoder(parameters->codec_id);
  if (!codec) {
    return invalid_argument("clip '" + info.path + "': this FFmpeg has no decoder for '" +
                            info.codec + "'; re-encode the clip, for example as H.264 in .mp4");
  }
  std::unique_ptr<AVCodecContext, CodecCloser> decoder(avcodec_alloc_context3(codec));
  std::unique_ptr<AVFrame, FrameCloser> frame(av_frame_alloc());
  std::unique_ptr<AVPacket, PacketCloser> packet(av_packet_alloc());
  if (!decoder || !frame || !packet) return out_of_memory("no memory for the video decoder");
  int code = avcodec_parameters_to_context(decoder.get(), parameters);
  decoder->thread_count = request.threads;
  if (code >= 0) code = avcodec_open2(decoder.get(), codec, nullptr);
  if (code < 0) {
    return invalid_argument("clip '" + info.path + "': the '" + info.codec +
                            "' decoder cannot start (" + error_text(code) + "); " + kNextStep);
  }

  *out = Clip{.info = info, .width = request.width, .height = request.height};
  FrameSink sink(request, out);
  int64_t rejected_packets = 0, discarded_packets = 0;
  bool input_ended = false;
  while (!sink.full()) {
    if (!input_ended) {
      code = av_read_frame(input.format.get(), packet.get());
      if (code < 0) {
        input_ended = true;
        avcodec_send_packet(decoder.get(), nullptr);
      } else if (packet->stream_index == input.stream->index) {
        // An edit list may hide frames that the container still counts.
        discarded_packets += (packet->flags & AV_PKT_FLAG_DISCARD) != 0;
        rejected_packets += avcodec_send_packet(decoder.get(), packet.get()) < 0;
      }
      av_packet_unref(packet.get());
    }
    while (!sink.full() && (code = avcodec_receive_frame(decoder.get(), frame.get())) >= 0) {
      sink.add(*frame);
      av_frame_unref(frame.get());
    }
    if (input_ended && code != AVERROR(EAGAIN) && code < 0) break;
  }
  const int64_t expected =
      info.declared_frames > 0
          ? std::min<int64_t>(request.frames, info.declared_frames - discarded_packets)
          : std::min<int64_t>(request.frames, out->frames + rejected_packets);
  out->lost_frames = std::max<int64_t>(0, expected - out->frames);
  if (out->frames == 0) {
    return invalid_argument("clip '" + info.path + "': none of its frames could be decoded (" +
                            std::to_string(info.declared_frames) + " declared, codec '" +
                            info.codec + "'); the file is damaged, fetch or export it again");
  }
  return {};
}

}  // namespace

Status probe_clip(const std::string& path, ClipInfo* out) {
  Input input;
  TESSERA_RETURN_IF_ERROR(open_input(path, &input));
  const AVStream& stream = *input.stream;
  const AVRational rate =
      stream.avg_frame_rate.num > 0 ? stream.avg_frame_rate : stream.r_frame_rate;
  ClipInfo info{.path = path,
                .container = input.format->iformat->name,
                .codec = avcodec_get_name(stream.codecpar->codec_id),
                .width = stream.codecpar->width,
                .height = stream.codecpar->height,
                .fps = rate.num > 0 && rate.den > 0 ? av_q2d(rate) : 0.0,
                .declared_frames = stream.nb_frames};
  if (info.declared_frames <= 0) {
    double seconds = 0;
    if (stream.duration > 0) {
      seconds = double(stream.duration) * av_q2d(stream.time_base);
    } else if (input.format->duration > 0) {
      seconds = double(input.format->duration) / AV_TIME_BASE;
    }
    const double frames = seconds * info.fps;
    // A bound keeps a lying header from overflowing the conversion.
    info.declared_frames = frames > 0 && frames < 1e9 ? std::llround(frames) : 0;
  }
  *out = std::move(info);
  return {};
}

Status decode_clip(const ClipInfo& info, const DecodeRequest& request, Clip* out) {
  if (request.width < 1 || request.height < 1 || request.frames < 1) {
    return invalid_argument("decoding '" + info.path + "' to " + std::to_string(request.width) +
                            "x" + std::to_string(request.height) + " pixels, " +
                            std::to_string(request.frames) +
                            " frames: each must be at least 1; give a positive --size, --frames");
  }
  try {
    return decode_into(info, request, out);
  } catch (const std::bad_alloc&) {
    return out_of_memory("no memory for " + std::to_string(request.frames) + " frames of " +
                         std::to_string(request.width) + "x" + std::to_string(request.height) +
                         " pixels; choose fewer --tokens");
  }
}

}  // namespace tessera::video
