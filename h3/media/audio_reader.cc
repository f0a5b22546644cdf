// Sound of any file as stereo of the rate asked for.
#include <algorithm>
#include <cmath>

#include "h3/media/input.h"
#include "h3/media/reader.h"
#include "h3/media/resample.h"

namespace h3::media {
namespace {

using namespace detail;

constexpr double kMaxSeconds = 24 * 3600;

// Decoded frames as planar stereo floats of one rate, appended to `out`.
class StereoConverter {
 public:
  StereoConverter(const std::string& path, int rate, Audio* out)
      : path_(path), rate_(rate), out_(out) {}

  void add(const AVFrame& frame) {
    if (!fits(frame)) {
      flush();
      open(frame);
    }
    convert(const_cast<const uint8_t**>(frame.extended_data), frame.nb_samples);
  }

  void flush() {
    if (resampler_) convert(nullptr, 0);
  }

 private:
  bool fits(const AVFrame& frame) const {
    return resampler_ && frame.sample_rate == in_rate_ && frame.format == in_format_ &&
           frame.ch_layout.nb_channels == in_channels_;
  }

  void open(const AVFrame& frame) {
    in_rate_ = frame.sample_rate;
    in_format_ = frame.format;
    in_channels_ = frame.ch_layout.nb_channels;
    AVChannelLayout in = {};
    int code = frame.ch_layout.order == AV_CHANNEL_ORDER_UNSPEC
                   ? (av_channel_layout_default(&in, in_channels_), 0)
                   : av_channel_layout_copy(&in, &frame.ch_layout);
    AVChannelLayout stereo = AV_CHANNEL_LAYOUT_STEREO;  // FFmpeg 5 takes no const
    SwrContext* raw = nullptr;
    if (code >= 0) {
      code = swr_alloc_set_opts2(&raw, &stereo, AV_SAMPLE_FMT_FLTP, rate_, &in,
                                 static_cast<AVSampleFormat>(in_format_), in_rate_, 0, nullptr);
    }
    av_channel_layout_uninit(&in);
    resampler_.reset(raw);
    // As the model's references: mono at full level on both sides. FFmpeg would take 3 dB off.
    constexpr double kBoth[] = {1, 1};
    if (code >= 0 && in_channels_ == 1) code = swr_set_matrix(raw, kBoth, 1);
    if (code >= 0) code = swr_init(raw);
    if (code < 0) {
      refuse_input(path_,
                   "has " + std::to_string(in_channels_) + " channels at " +
                       std::to_string(in_rate_) + " Hz, which cannot be converted to stereo (" +
                       error_text(code) + ")",
                   "convert it to stereo");
    }
  }

  void convert(const uint8_t** data, int samples) {
    const int most = swr_get_out_samples(resampler_.get(), samples);
    if (most <= 0) return;
    const size_t at = out_->left.size();
    out_->left.resize(at + static_cast<size_t>(most));
    out_->right.resize(at + static_cast<size_t>(most));
    uint8_t* planes[] = {reinterpret_cast<uint8_t*>(out_->left.data() + at),
                         reinterpret_cast<uint8_t*>(out_->right.data() + at)};
    const int got = swr_convert(resampler_.get(), planes, most, data, samples);
    if (got < 0) refuse_input(path_, "has sound that cannot be converted", "convert it to WAV");
    out_->left.resize(at + static_cast<size_t>(got));
    out_->right.resize(at + static_cast<size_t>(got));
  }

  const std::string& path_;
  const int rate_;
  Audio* const out_;
  ResamplerPtr resampler_;
  int in_rate_ = 0, in_format_ = -1, in_channels_ = 0;
};

void check_request(const std::string& path, const AudioRequest& r) {
  const auto span = [](double seconds) {
    return std::isfinite(seconds) && seconds >= 0 && seconds <= kMaxSeconds;
  };
  if (span(r.start_seconds) && span(r.max_seconds) && r.sample_rate >= 1 &&
      r.soundtrack_rate >= 0 && r.sample_rate <= 768000 && r.soundtrack_rate <= 768000) {
    return;
  }
  refuse_input(path,
               "was asked for " + std::to_string(r.max_seconds) + " s of sound from " +
                   std::to_string(r.start_seconds) + " s at " + std::to_string(r.sample_rate) +
                   " Hz; 0 to 86400 s and 1 to 768000 Hz are accepted",
               "change the request");
}

void cut(std::vector<float>* samples, int64_t begin, int64_t count) {
  const auto size = static_cast<int64_t>(samples->size());
  begin = std::min(begin, size);
  samples->erase(samples->begin(), samples->begin() + begin);
  if (count > 0 && count < size - begin) samples->resize(static_cast<size_t>(count));
}

}  // namespace

Audio read_audio(const std::string& path, const AudioRequest& request) {
  check_request(path, request);
  Input input(path);
  AVStream* stream = input.audio();
  if (stream == nullptr) {
    refuse_input(path,
                 std::string("has no sound (container '") + input.format().iformat->name + "')",
                 "give a file with a sound track");
  }
  StreamDecoder decoder(input, *stream, 1, false);
  Audio audio;
  int rate = stream->codecpar->sample_rate;
  if (input.video() != nullptr && request.soundtrack_rate > 0) rate = request.soundtrack_rate;
  std::unique_ptr<StereoConverter> converter;
  int64_t end = 0;  // samples that are enough
  while (decoder.next()) {
    const AVFrame& frame = decoder.frame();
    if (!converter) {
      if (rate <= 0) rate = frame.sample_rate;
      converter = std::make_unique<StereoConverter>(path, rate, &audio);
      // A track that begins later than the picture keeps its place.
      const int64_t stamp = frame.best_effort_timestamp;
      const double late =
          stamp == AV_NOPTS_VALUE
              ? 0
              : static_cast<double>(stamp) * av_q2d(stream->time_base) - input.start_seconds();
      if (late > 0 && late <= kMaxSeconds) {
        audio.left.assign(static_cast<size_t>(std::llround(late * rate)), 0.0f);
        audio.right = audio.left;
      }
      if (request.max_seconds > 0) {
        end = std::llround((request.start_seconds + request.max_seconds) * rate);
      }
    }
    converter->add(frame);
    if (end > 0 && static_cast<int64_t>(audio.left.size()) >= end) break;
  }
  if (converter) converter->flush();
  const int64_t begin = std::llround(request.start_seconds * rate);
  const int64_t count = std::llround(request.max_seconds * rate);
  for (auto* channel : {&audio.left, &audio.right}) {
    cut(channel, begin, count);
    if (channel->empty()) {
      refuse_input(path, "has no sound after " + std::to_string(request.start_seconds) + " s",
                   "start earlier");
    }
    *channel = resample_sinc(*channel, rate, request.sample_rate);
  }
  audio.sample_rate = request.sample_rate;
  return audio;
}

}  // namespace h3::media
