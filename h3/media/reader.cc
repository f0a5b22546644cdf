#include "h3/media/reader.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "h3/media/input.h"

namespace h3::media {
namespace {

using namespace detail;

constexpr double kMaxSeconds = 24 * 3600;

double seconds_of(const Input& input, const AVStream& stream) {
  if (stream.duration != AV_NOPTS_VALUE && stream.duration > 0) {
    return static_cast<double>(stream.duration) * av_q2d(stream.time_base);
  }
  const int64_t all = input.format().duration;
  return all == AV_NOPTS_VALUE ? 0 : static_cast<double>(all) / AV_TIME_BASE;
}

AVRational aspect_of(const AVStream& stream) {
  return stream.sample_aspect_ratio.num > 0 ? stream.sample_aspect_ratio
                                            : stream.codecpar->sample_aspect_ratio;
}

PictureInfo picture_info(const Input& input, const AVStream& stream, int orientation) {
  const AVCodecParameters& c = *stream.codecpar;
  PictureInfo info;
  info.codec = avcodec_get_name(c.codec_id);
  const auto format = static_cast<AVPixelFormat>(c.format);
  if (const AVPixFmtDescriptor* d = av_pix_fmt_desc_get(format)) {
    info.pixel_format = d->name;
    info.alpha = (d->flags & AV_PIX_FMT_FLAG_ALPHA) != 0;
  }
  info.width = c.width;
  info.height = c.height;
  info.orientation = std::max(orientation, 1);
  shown_size(c.width, c.height, aspect_of(stream), info.orientation, &info.shown_width,
             &info.shown_height);
  if (input.is_picture()) return info;
  const AVRational rate =
      stream.avg_frame_rate.num > 0 ? stream.avg_frame_rate : stream.r_frame_rate;
  if (rate.num > 0 && rate.den > 0) info.fps = av_q2d(rate);
  info.frames = stream.nb_frames;
  info.seconds = seconds_of(input, stream);
  return info;
}

std::string layout_text(const AVChannelLayout& layout) {
  char text[128] = {};
  return av_channel_layout_describe(&layout, text, sizeof text) > 0 ? text : "unknown";
}

struct DecodedPicture {
  Image image;
  int orientation = 1;
};

DecodedPicture decode_picture(Input& input, AVStream& stream) {
  StreamDecoder decoder(input, stream, 1, /*strict=*/true);
  if (!decoder.next()) refuse_input(input.path(), "has no picture", "give another file");
  DecodedPicture picture;
  int orientation = stream_orientation(stream, input.path());
  if (orientation == 0) orientation = frame_orientation(decoder.frame(), input.path());
  if (orientation == 0) orientation = png_orientation(input.path());
  picture.orientation = std::max(orientation, 1);
  RgbConverter converter;
  picture.image = converter.convert(decoder.frame(), input.path());
  return picture;
}

void check_span(const std::string& path, double start, double length) {
  if (std::isfinite(start) && std::isfinite(length) && start >= 0 && length >= 0 &&
      start <= kMaxSeconds && length <= kMaxSeconds) {
    return;
  }
  refuse_input(path,
               "was asked for " + std::to_string(length) + " s from " + std::to_string(start) +
                   " s; 0 to 86400 is accepted for both",
               "change the request");
}

}  // namespace

MediaInfo probe_media(const std::string& path) {
  Input input(path);
  MediaInfo info;
  info.path = path;
  info.container = input.format().iformat->name;
  AVStream* video = input.video();
  const AVStream* audio = input.audio();
  if (video != nullptr && input.is_picture()) {
    info.kind = MediaKind::kImage;
    info.picture = picture_info(input, *video, decode_picture(input, *video).orientation);
    return info;
  }
  if (video == nullptr && audio == nullptr) {
    refuse_input(path,
                 "has neither pictures nor sound (" + std::to_string(input.format().nb_streams) +
                     " other streams, container '" + info.container + "')",
                 "give a picture, video or sound file");
  }
  info.kind = video != nullptr ? MediaKind::kVideo : MediaKind::kAudio;
  if (video != nullptr) {
    info.picture = picture_info(input, *video, stream_orientation(*video, path));
  }
  if (audio != nullptr) {
    const AVCodecParameters& c = *audio->codecpar;
    info.sound = SoundInfo{avcodec_get_name(c.codec_id), layout_text(c.ch_layout), c.sample_rate,
                           c.ch_layout.nb_channels, seconds_of(input, *audio)};
  }
  for (const char* key : {"comment", "ICMT"}) {
    if (const auto* tag = av_dict_get(input.format().metadata, key, nullptr, 0)) {
      info.settings = parse_settings(tag->value);
    }
  }
  return info;
}

Image read_image(const std::string& path) {
  Input input(path);
  AVStream* stream = input.video();
  if (stream == nullptr || !input.is_picture()) {
    refuse_input(path,
                 std::string("is ") + (stream == nullptr ? "no picture" : "a video") +
                     " (container '" + input.format().iformat->name + "')",
                 "give a picture, such as .png or .jpg");
  }
  DecodedPicture picture = decode_picture(input, *stream);
  return oriented(std::move(picture.image), picture.orientation);
}

struct VideoReader::State {
  State(const std::string& path, const VideoRequest& r) : request(r), input(path) {}

  bool decode();  // the next frame that is not before the start
  bool prepare();
  Image show();

  VideoRequest request;
  Input input;
  AVStream* stream = nullptr;
  std::unique_ptr<StreamDecoder> decoder;
  PictureInfo info;
  RgbConverter converter;
  Image waiting;             // decoded last
  int64_t waiting_from = 0;  // the first output that shows it
  int64_t waiting_end = 0;   // by its own duration
  int64_t output = 0;        // the next output's number
  int64_t first = 0;
  bool has_waiting = false, ended = false;
  int64_t position = 0, position_end = 0;  // of the frame in the decoder, in outputs
  int64_t delivered = 0;
};

VideoReader::VideoReader(const std::string& path, const VideoRequest& request)
    : state_(std::make_unique<State>(path, request)) {
  State& s = *state_;
  check_span(path, request.start_seconds, 0);
  if (request.width < 0 || request.height < 0 || (request.width == 0) != (request.height == 0) ||
      request.fps < 1 || request.fps > 1000 || request.max_frames < 0) {
    refuse_input(path,
                 "was asked for " + std::to_string(request.max_frames) + " frames of " +
                     std::to_string(request.width) + "x" + std::to_string(request.height) + " at " +
                     std::to_string(request.fps) +
                     " a second; sizes from 1 (or 0x0: as it is), rates of 1 to 1000 and counts "
                     "from 0 (all) are accepted",
                 "change the request");
  }
  s.stream = s.input.video();
  const std::string container = s.input.format().iformat->name;
  if (s.stream == nullptr || (s.input.is_picture() && container != "gif")) {
    refuse_input(path,
                 std::string(s.stream == nullptr ? "has no video" : "is a picture, no video") +
                     " (container '" + container + "')",
                 "give a video, such as .mp4");
  }
  s.decoder = std::make_unique<StreamDecoder>(s.input, *s.stream, request.threads, false);
  s.info = picture_info(s.input, *s.stream, stream_orientation(*s.stream, path));
  if (request.start_seconds > 0) s.decoder->seek(request.start_seconds);
}

VideoReader::~VideoReader() = default;

bool VideoReader::State::decode() {
  const AVRational out{1, request.fps};
  const AVRational base = stream->time_base;
  const auto origin = static_cast<int64_t>(
      std::llround((input.start_seconds() + request.start_seconds) / av_q2d(base)));
  while (decoder->next()) {
    const AVFrame& frame = decoder->frame();
    int64_t stamp = frame.best_effort_timestamp;
    if (stamp == AV_NOPTS_VALUE) stamp = origin + (position_end > 0 ? position_end : 0);
    if (stamp < origin) continue;  // before the start
    int64_t duration = frame.pkt_duration;
    if (duration <= 0 && info.fps > 0) {
      duration = static_cast<int64_t>(std::llround(1 / info.fps / av_q2d(base)));
    }
    const auto rounding = static_cast<AVRounding>(AV_ROUND_NEAR_INF | AV_ROUND_PASS_MINMAX);
    position = av_rescale_q_rnd(stamp - origin, base, out, rounding);
    position_end = av_rescale_q_rnd(stamp - origin + duration, base, out, rounding);
    return true;
  }
  return false;
}

Image VideoReader::State::show() {
  const AVFrame& frame = decoder->frame();
  int orientation = stream_orientation(*stream, input.path());
  if (orientation == 0) orientation = frame_orientation(frame, input.path());
  orientation = std::max(orientation, 1);
  int width = request.width, height = request.height;
  if (width == 0) {
    const AVRational aspect =
        aspect_of(*stream).num > 0 ? aspect_of(*stream) : frame.sample_aspect_ratio;
    // The first frame decides; later ones are brought to its size.
    shown_size(frame.width, frame.height, aspect, orientation, &request.width, &request.height);
    width = request.width;
    height = request.height;
  }
  return resize_lanczos(oriented(converter.convert(frame, input.path()), orientation), width,
                        height);
}

// Makes `waiting` the frame that output number `output` shows; false at the end.
bool VideoReader::State::prepare() {
  if (!has_waiting) {
    if (ended || !decode()) {
      ended = true;
      return false;
    }
    waiting = show();
    has_waiting = true;
    waiting_end = position_end;
    output = first = position;
    if (!decode()) ended = true;
  }
  // The decoder holds the frame after the waiting one.
  while (!ended && position <= output) {
    waiting = show();
    waiting_end = position_end;
    if (!decode()) ended = true;
  }
  return !ended || output < std::max(waiting_end, first + 1);
}

bool VideoReader::next(Image* frame) {
  State& s = *state_;
  if (s.request.max_frames > 0 && s.delivered == s.request.max_frames) return false;
  if (!s.prepare()) {
    if (s.delivered == 0) {
      refuse_input(s.input.path(),
                   "has no frame at or after " + std::to_string(s.request.start_seconds) + " s",
                   "start earlier");
    }
    return false;
  }
  *frame = s.waiting;
  ++s.output;
  ++s.delivered;
  return true;
}

const PictureInfo& VideoReader::info() const { return state_->info; }
int64_t VideoReader::delivered() const { return state_->delivered; }
int64_t VideoReader::damaged() const { return state_->decoder->damaged(); }

}  // namespace h3::media
