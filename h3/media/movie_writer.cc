#include "h3/media/movie_writer.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>
#include <vector>

#include "h3/media/ffmpeg.h"
#include "h3/media/output_file.h"

namespace h3::media {
namespace {

using namespace detail;

constexpr int kMaxSide = 16384;

struct Quality {
  std::string_view name;
  int compression;
};
constexpr Quality kQualities[] = {
    {"default", 50}, {"low", 35}, {"medium", 55}, {"high", 90}, {"maximum", 100}};

constexpr std::string_view kPresets[] = {"ultrafast", "superfast", "veryfast", "faster",
                                         "fast",      "medium",    "slow",     "slower",
                                         "veryslow",  "placebo"};

[[noreturn]] void refuse(const std::string& message, const std::string& hint) {
  throw Error(ErrorCode::kInvalidArgument, message, hint);
}

void require_range(const char* name, int64_t value, int64_t least, int64_t most) {
  if (value >= least && value <= most) return;
  refuse(std::string("movie ") + name + " is " + std::to_string(value) + "; " +
             std::to_string(least) + " to " + std::to_string(most) + " is accepted",
         "change the output settings");
}

void check_settings(const MovieSettings& s) {
  require_range("width", s.width, 2, kMaxSide);
  require_range("height", s.height, 2, kMaxSide);
  require_range("frame count", s.frames, 0, int64_t{1} << 31);
  require_range("frame rate", s.fps, 1, 240);
  require_range("CRF", s.crf, 0, 51);
  require_range("audio bit rate", s.audio_bitrate, 8000, 512000);
  if (s.audio) require_range("sample rate", s.sample_rate, 8000, 96000);
  if (std::find(std::begin(kPresets), std::end(kPresets), s.preset) == std::end(kPresets)) {
    refuse("preset '" + s.preset +
               "'; libx264 has ultrafast, superfast, veryfast, faster, fast, "
               "medium, slow, slower, veryslow and placebo",
           "choose one of these");
  }
  if (s.width % 2 != 0 || s.height % 2 != 0) {
    refuse("movie size is " + std::to_string(s.width) + "x" + std::to_string(s.height) +
               "; yuv420p needs even sides",
           "crop a row or a column");
  }
}

struct Encoder {
  CodecPtr codec;
  AVStream* stream = nullptr;
  FramePtr frame;
  int64_t next = 0;  // time stamp of the next frame, in frames or samples
};

}  // namespace

struct MovieWriter::State {
  State(const std::string& path, const MovieSettings& s) : settings(s), file(path) {}

  void open();
  void open_video();
  void open_audio();
  void write_packets(Encoder& encoder, const AVFrame* frame);
  void send_audio(int64_t count);
  void check_complete() const;
  void require(int code, const char* what) const;

  const MovieSettings settings;
  OutputFile file;  // before the muxer: it is closed after it
  OutputPtr muxer;
  PacketPtr packet = owned<PacketPtr>(av_packet_alloc());
  Encoder video, audio;
  ScalerPtr scaler;
  std::array<std::vector<float>, 2> waiting;  // samples that do not fill an AAC frame yet
  int64_t samples = 0;
  bool done = false;
};

void MovieWriter::State::require(int code, const char* what) const {
  if (code >= 0) return;
  throw Error(ErrorCode::kUnavailable,
              "output '" + file.path() + "': " + what + ": " + error_text(code),
              "nothing was left under that name; free space on the disk or choose another folder");
}

void MovieWriter::State::open_video() {
  const AVCodec* codec = avcodec_find_encoder_by_name("libx264");
  if (codec == nullptr) {
    throw Error(ErrorCode::kUnsupported, "this FFmpeg has no encoder libx264",
                "install an FFmpeg that was built with it, or write PNG frames");
  }
  video.codec = owned<CodecPtr>(avcodec_alloc_context3(codec));
  AVCodecContext* c = video.codec.get();
  c->width = settings.width;
  c->height = settings.height;
  c->pix_fmt = AV_PIX_FMT_YUV420P;
  c->time_base = {1, settings.fps};
  c->framerate = {settings.fps, 1};
  c->sample_aspect_ratio = {1, 1};
  c->thread_count = settings.threads;
  c->color_range = AVCOL_RANGE_MPEG;
  c->colorspace = AVCOL_SPC_BT709;
  c->color_primaries = AVCOL_PRI_BT709;
  c->color_trc = AVCOL_TRC_BT709;
  c->chroma_sample_location = AVCHROMA_LOC_LEFT;
  c->flags |= AV_CODEC_FLAG_GLOBAL_HEADER;
  if (av_opt_set(c->priv_data, "preset", settings.preset.c_str(), 0) < 0 ||
      av_opt_set_double(c->priv_data, "crf", settings.crf, 0) < 0 ||
      avcodec_open2(c, codec, nullptr) < 0) {
    refuse("libx264 does not start with preset '" + settings.preset + "', CRF " +
               std::to_string(settings.crf) + " and " + std::to_string(settings.width) + "x" +
               std::to_string(settings.height),
           "choose other output settings");
  }
  video.frame = owned<FramePtr>(av_frame_alloc());
  video.frame->format = c->pix_fmt;
  video.frame->width = c->width;
  video.frame->height = c->height;
  video.frame->colorspace = c->colorspace;
  video.frame->color_range = c->color_range;
  require(av_frame_get_buffer(video.frame.get(), 0), "no memory for a frame");
  scaler = make_converter(c->width, c->height, AV_PIX_FMT_RGB24, c->pix_fmt,
                          SWS_BICUBIC | SWS_ACCURATE_RND | SWS_FULL_CHR_H_INP,
                          AVCHROMA_LOC_UNSPECIFIED, AVCHROMA_LOC_LEFT);
  if (!scaler) require(AVERROR(ENOMEM), "no colour conversion");
  sws_setColorspaceDetails(scaler.get(), sws_getCoefficients(SWS_CS_DEFAULT), 1,
                           sws_getCoefficients(SWS_CS_ITU709), 0, 0, 1 << 16, 1 << 16);
}

void MovieWriter::State::open_audio() {
  const AVCodec* codec = avcodec_find_encoder(AV_CODEC_ID_AAC);
  if (codec == nullptr) {
    throw Error(ErrorCode::kUnsupported, "this FFmpeg has no AAC encoder",
                "install an FFmpeg that was built with it, or write a WAV file");
  }
  audio.codec = owned<CodecPtr>(avcodec_alloc_context3(codec));
  AVCodecContext* c = audio.codec.get();
  c->sample_rate = settings.sample_rate;
  c->sample_fmt = AV_SAMPLE_FMT_FLTP;
  c->ch_layout = AV_CHANNEL_LAYOUT_STEREO;
  c->bit_rate = settings.audio_bitrate;
  c->time_base = {1, settings.sample_rate};
  c->flags |= AV_CODEC_FLAG_GLOBAL_HEADER;
  if (const int code = avcodec_open2(c, codec, nullptr); code < 0) {
    refuse("the AAC encoder does not start with " + std::to_string(settings.sample_rate) + " Hz (" +
               error_text(code) + ")",
           "use 32000 Hz");
  }
  audio.frame = owned<FramePtr>(av_frame_alloc());
}

void MovieWriter::State::open() {
  silence();
  const std::string url = "file:" + file.io_path();
  AVFormatContext* raw = nullptr;
  require(avformat_alloc_output_context2(&raw, nullptr, "mp4", url.c_str()), "no MP4 muxer");
  muxer.reset(raw);
  open_video();
  if (settings.audio) open_audio();
  for (Encoder* encoder : {&video, &audio}) {
    if (!encoder->codec) continue;
    encoder->stream = avformat_new_stream(raw, nullptr);
    if (encoder->stream == nullptr) require(AVERROR(ENOMEM), "no memory for a stream");
    encoder->stream->time_base = encoder->codec->time_base;
    require(avcodec_parameters_from_context(encoder->stream->codecpar, encoder->codec.get()),
            "stream parameters");
  }
  video.stream->avg_frame_rate = {settings.fps, 1};
  raw->max_interleave_delta = 0;  // sound may come as a whole before the first frame
  if (!settings.metadata.empty()) {
    av_dict_set(&raw->metadata, "comment", settings_json(settings.metadata).c_str(), 0);
  }
  require(avio_open(&raw->pb, url.c_str(), AVIO_FLAG_WRITE), "cannot be opened");
  AVDictionary* options = nullptr;
  av_dict_set(&options, "movflags", "+faststart", 0);  // plays while it is still downloaded
  const int code = avformat_write_header(raw, &options);
  av_dict_free(&options);
  require(code, "cannot be written");
}

void MovieWriter::State::write_packets(Encoder& encoder, const AVFrame* frame) {
  require(avcodec_send_frame(encoder.codec.get(), frame), "encoding failed");
  for (;;) {
    const int code = avcodec_receive_packet(encoder.codec.get(), packet.get());
    if (code == AVERROR(EAGAIN) || code == AVERROR_EOF) return;
    require(code, "encoding failed");
    av_packet_rescale_ts(packet.get(), encoder.codec->time_base, encoder.stream->time_base);
    // Players take the last frame's length from here.
    if (packet->duration == 0 && encoder.stream == video.stream) {
      packet->duration = av_rescale_q(1, encoder.codec->time_base, encoder.stream->time_base);
    }
    packet->stream_index = encoder.stream->index;
    require(av_interleaved_write_frame(muxer.get(), packet.get()), "cannot be written");
  }
}

// Moves the first `count` waiting samples to the encoder.
void MovieWriter::State::send_audio(int64_t count) {
  AVFrame* frame = audio.frame.get();
  av_frame_unref(frame);
  frame->format = audio.codec->sample_fmt;
  frame->nb_samples = static_cast<int>(count);
  frame->sample_rate = settings.sample_rate;
  require(av_channel_layout_copy(&frame->ch_layout, &audio.codec->ch_layout), "channel layout");
  require(av_frame_get_buffer(frame, 0), "no memory for samples");
  for (size_t c = 0; c < waiting.size(); ++c) {
    std::copy_n(waiting[c].begin(), count, reinterpret_cast<float*>(frame->data[c]));
    waiting[c].erase(waiting[c].begin(), waiting[c].begin() + count);
  }
  frame->pts = audio.next;
  audio.next += count;
  write_packets(audio, frame);
}

void MovieWriter::State::check_complete() const {
  if (video.next == 0 || (settings.frames > 0 && video.next != settings.frames)) {
    refuse("output '" + file.path() + "' got " + std::to_string(video.next) + " frames; " +
               (settings.frames > 0 ? std::to_string(settings.frames) : "at least 1") +
               " are needed",
           "the decoder must deliver every frame");
  }
  if (!settings.audio) return;
  const double picture = static_cast<double>(video.next) / settings.fps;
  const double sound = static_cast<double>(samples) / settings.sample_rate;
  if (samples == 0 || std::abs(picture - sound) > kMaxDriftSeconds) {
    refuse("output '" + file.path() + "' got " + std::to_string(samples) + " samples (" +
               std::to_string(sound) + " s) for " + std::to_string(picture) +
               " s of picture; at most " + std::to_string(kMaxDriftSeconds) +
               " s apart is accepted",
           "give audio of the same length as the video");
  }
}

int crf_of_quality(std::string_view text) {
  const auto crf = [](int compression) { return (100 - compression) * 51 / 100; };
  for (const Quality& quality : kQualities) {
    if (text == quality.name) return crf(quality.compression);
  }
  int value = 0;
  bool digits = !text.empty() && text.size() <= 3;
  for (const char c : text) {
    digits = digits && c >= '0' && c <= '9';
    value = value * 10 + (c - '0');
  }
  if (!digits || value > 100) {
    refuse("output quality '" + std::string(text) +
               "'; default, low, medium, high, maximum or 0 to 100 is accepted",
           "choose one of these");
  }
  return crf(value);
}

MovieWriter::MovieWriter(const std::string& path, const MovieSettings& settings) {
  check_settings(settings);
  state_ = std::make_unique<State>(path, settings);
  state_->open();
}

MovieWriter::~MovieWriter() = default;

void MovieWriter::add_frame(const uint8_t* rgb) {
  State& s = *state_;
  if (s.done || (s.settings.frames > 0 && s.video.next == s.settings.frames)) {
    refuse("output '" + s.file.path() + "' got more frames than the " +
               std::to_string(s.video.next) + " it was opened for",
           "set the number of frames to what the decoder delivers");
  }
  AVFrame* frame = s.video.frame.get();
  s.require(av_frame_make_writable(frame), "no memory for a frame");
  const int stride = s.settings.width * 3;
  sws_scale(s.scaler.get(), &rgb, &stride, 0, s.settings.height, frame->data, frame->linesize);
  frame->pts = s.video.next++;
  s.write_packets(s.video, frame);
}

void MovieWriter::add_audio(const float* left, const float* right, int64_t samples) {
  State& s = *state_;
  if (s.done || !s.settings.audio || samples < 0) {
    refuse("output '" + s.file.path() + "' was opened without audio, or is complete",
           "open it with audio");
  }
  const float* channels[] = {left, right};
  for (size_t c = 0; c < s.waiting.size(); ++c) {
    s.waiting[c].reserve(s.waiting[c].size() + static_cast<size_t>(samples));
    for (int64_t i = 0; i < samples; ++i) {
      if (!std::isfinite(channels[c][i])) {
        refuse("audio sample " + std::to_string(s.samples + i) + " of channel " +
                   std::to_string(c) + " is not finite",
               "check what made the waveform");
      }
      s.waiting[c].push_back(std::clamp(channels[c][i], -1.0f, 1.0f));
    }
  }
  s.samples += samples;
  const int64_t frame = s.audio.codec->frame_size;
  while (static_cast<int64_t>(s.waiting[0].size()) >= frame) s.send_audio(frame);
}

void MovieWriter::finish() {
  State& s = *state_;
  if (s.done) refuse("output '" + s.file.path() + "' is already complete", "open another");
  s.check_complete();
  s.done = true;
  if (s.settings.audio) {
    if (!s.waiting[0].empty()) s.send_audio(static_cast<int64_t>(s.waiting[0].size()));
    s.write_packets(s.audio, nullptr);
  }
  s.write_packets(s.video, nullptr);
  s.require(av_write_trailer(s.muxer.get()), "cannot be completed");
  s.require(avio_closep(&s.muxer->pb), "cannot be completed");
  check_movie(s.file.io_path(),
              {.width = s.settings.width,
               .height = s.settings.height,
               .frames = s.video.next,
               .fps = s.settings.fps,
               .audio = s.settings.audio,
               .sample_rate = s.settings.sample_rate},
              s.file.path());
  s.file.commit();
}

int64_t MovieWriter::frames() const { return state_->video.next; }
int64_t MovieWriter::samples() const { return state_->samples; }

}  // namespace h3::media
