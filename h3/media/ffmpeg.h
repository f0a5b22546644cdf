// FFmpeg's objects with owners, for the sources of this folder only.
#pragma once

extern "C" {
#include <libavcodec/avcodec.h>
#include <libavformat/avformat.h>
#include <libavutil/channel_layout.h>
#include <libavutil/display.h>
#include <libavutil/imgutils.h>
#include <libavutil/log.h>
#include <libavutil/opt.h>
#include <libavutil/pixdesc.h>
#include <libswresample/swresample.h>
#include <libswscale/swscale.h>
}

#include <memory>
#include <string>

#include "h3/common/error.h"

namespace h3::media::detail {

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
struct ResamplerCloser {
  void operator()(SwrContext* c) const { swr_free(&c); }
};
struct InputCloser {
  void operator()(AVFormatContext* c) const { avformat_close_input(&c); }
};
struct OutputCloser {
  void operator()(AVFormatContext* c) const {
    if (c != nullptr) avio_closep(&c->pb);
    avformat_free_context(c);
  }
};

using CodecPtr = std::unique_ptr<AVCodecContext, CodecCloser>;
using FramePtr = std::unique_ptr<AVFrame, FrameCloser>;
using PacketPtr = std::unique_ptr<AVPacket, PacketCloser>;
using ScalerPtr = std::unique_ptr<SwsContext, ScalerCloser>;
using ResamplerPtr = std::unique_ptr<SwrContext, ResamplerCloser>;
using InputPtr = std::unique_ptr<AVFormatContext, InputCloser>;
using OutputPtr = std::unique_ptr<AVFormatContext, OutputCloser>;

/// FFmpeg's own words for one of its error codes.
inline std::string error_text(int code) {
  char text[AV_ERROR_MAX_STRING_SIZE] = {};
  av_strerror(code, text, sizeof text);
  return text;
}

/// Objects that only fail to be made without memory.
template <class Ptr, class Raw>
Ptr owned(Raw* raw) {
  if (raw == nullptr) throw Error(ErrorCode::kOutOfMemory, "no memory for the media libraries");
  return Ptr(raw);
}

/// A scaler between pictures of one size. Where chroma samples sit (AVCHROMA_LOC_*) counts: swscale
/// itself takes the centre for everything, a quarter pixel off for most videos.
ScalerPtr make_converter(int width, int height, AVPixelFormat from, AVPixelFormat to, int flags,
                         AVChromaLocation from_location, AVChromaLocation to_location);

/// FFmpeg prints to standard error by itself; here every fault becomes an Error.
inline void silence() { av_log_set_level(AV_LOG_QUIET); }

}  // namespace h3::media::detail
