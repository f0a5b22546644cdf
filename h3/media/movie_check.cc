// A finished movie against what it has to be.
#include <cmath>
#include <string>
#include <string_view>

#include "h3/media/ffmpeg.h"
#include "h3/media/movie_writer.h"

namespace h3::media {
namespace {

using namespace detail;

class Differences {
 public:
  template <class T>
  void expect(const char* what, const T& got, const T& wanted) {
    if (got == wanted) return;
    add(std::string(what) + " is " + text(got) + ", not " + text(wanted));
  }
  void add(const std::string& difference) { text_ += (text_.empty() ? "" : ", ") + difference; }
  const std::string& all() const { return text_; }

 private:
  static std::string text(int64_t value) { return std::to_string(value); }
  static std::string text(const std::string& value) { return value; }
  std::string text_;
};

double seconds_of(const AVStream& stream) {
  if (stream.duration == AV_NOPTS_VALUE) return 0;
  return static_cast<double>(stream.duration) * av_q2d(stream.time_base);
}

std::string name_of(AVPixelFormat format) {
  const char* name = av_get_pix_fmt_name(format);
  return name == nullptr ? "unknown" : name;
}

}  // namespace

void check_movie(const std::string& path, const MovieContract& contract, const std::string& label) {
  silence();
  Differences differences;
  const auto finish = [&] {
    if (differences.all().empty()) return;
    throw Error(
        ErrorCode::kInternal,
        "the movie written for '" + label + "' is not what was asked for: " + differences.all(),
        "nothing was left under that name; please report this");
  };
  AVFormatContext* raw = nullptr;
  int code = avformat_open_input(&raw, ("file:" + path).c_str(), nullptr, nullptr);
  const InputPtr input(raw);
  if (code >= 0) code = avformat_find_stream_info(raw, nullptr);
  if (code < 0) {
    differences.add("it cannot be read (" + error_text(code) + ")");
    finish();
  }
  if (std::string_view(raw->iformat->name).find("mp4") == std::string_view::npos) {
    differences.add(std::string("the container is ") + raw->iformat->name + ", not mp4");
  }
  const AVStream *video = nullptr, *audio = nullptr;
  int64_t videos = 0, audios = 0, others = 0;
  for (unsigned i = 0; i < raw->nb_streams; ++i) {
    const AVMediaType type = raw->streams[i]->codecpar->codec_type;
    if (type == AVMEDIA_TYPE_VIDEO) {
      video = raw->streams[i];
      ++videos;
    } else if (type == AVMEDIA_TYPE_AUDIO) {
      audio = raw->streams[i];
      ++audios;
    } else {
      ++others;
    }
  }
  differences.expect<int64_t>("the number of video streams", videos, 1);
  differences.expect<int64_t>("the number of audio streams", audios, contract.audio ? 1 : 0);
  differences.expect<int64_t>("the number of other streams", others, 0);
  if (video == nullptr) finish();

  int64_t frames = 0;
  const PacketPtr packet = owned<PacketPtr>(av_packet_alloc());
  while ((code = av_read_frame(raw, packet.get())) >= 0) {
    frames += packet->stream_index == video->index;
    av_packet_unref(packet.get());
  }
  if (code != AVERROR_EOF) differences.add("it ends early (" + error_text(code) + ")");
  const AVCodecParameters& v = *video->codecpar;
  differences.expect<std::string>("the video codec", avcodec_get_name(v.codec_id), "h264");
  differences.expect("the pixel format", name_of(static_cast<AVPixelFormat>(v.format)),
                     std::string("yuv420p"));
  differences.expect<int64_t>("the width", v.width, contract.width);
  differences.expect<int64_t>("the height", v.height, contract.height);
  differences.expect<int64_t>("the number of frames", frames, contract.frames);
  const double rate = av_q2d(video->avg_frame_rate);
  if (std::abs(rate - contract.fps) > 1e-6) {
    differences.add("the frame rate is " + std::to_string(rate) + ", not " +
                    std::to_string(contract.fps));
  }
  const double picture = seconds_of(*video);
  if (picture <= 0) differences.add("the video has no duration");
  if (audio != nullptr) {
    const AVCodecParameters& a = *audio->codecpar;
    differences.expect<std::string>("the audio codec", avcodec_get_name(a.codec_id), "aac");
    differences.expect<int64_t>("the sample rate", a.sample_rate, contract.sample_rate);
    differences.expect<int64_t>("the number of channels", a.ch_layout.nb_channels, 2);
    const double sound = seconds_of(*audio);
    if (sound <= 0) differences.add("the audio has no duration");
    if (std::abs(sound - picture) > kMaxDriftSeconds) {
      differences.add("the audio lasts " + std::to_string(sound) + " s and the video " +
                      std::to_string(picture) + " s");
    }
  }
  finish();
}

}  // namespace h3::media
