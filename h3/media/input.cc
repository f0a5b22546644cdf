#include "h3/media/input.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <string_view>

namespace h3::media::detail {
namespace {

constexpr const char* kHint =
    "give a picture, video or sound file that FFmpeg can read, such as .png, .mp4 or .wav";
constexpr int kIoBytes = 1 << 16;
constexpr int kMaxLateErrors = 64;
constexpr double kMissingSeconds = 0.5;  // at the end: containers round their durations

int read_some(void* opaque, uint8_t* buffer, int size) {
  const ssize_t got = ::read(static_cast<int>(reinterpret_cast<intptr_t>(opaque)), buffer,
                             static_cast<size_t>(size));
  if (got < 0) return AVERROR(errno);
  return got == 0 ? AVERROR_EOF : static_cast<int>(got);
}

int64_t seek_to(void* opaque, int64_t offset, int whence) {
  const int fd = static_cast<int>(reinterpret_cast<intptr_t>(opaque));
  if (whence == AVSEEK_SIZE) {
    struct stat info = {};
    return ::fstat(fd, &info) == 0 ? info.st_size : AVERROR(errno);
  }
  const off_t at = ::lseek(fd, offset, whence & ~AVSEEK_FORCE);
  return at < 0 ? AVERROR(errno) : at;
}

int refuse_other_files(AVFormatContext*, AVIOContext**, const char*, int, AVDictionary**) {
  return AVERROR(EPERM);
}

// The length in the header is 0 or the largest number if a stream was recorded.
bool is_cut_riff(int fd, int64_t size) {
  uint8_t head[12];
  if (::pread(fd, head, sizeof head, 0) != sizeof head || std::memcmp(head, "RIFF", 4) != 0) {
    return false;
  }
  const int64_t declared =
      int64_t{head[4]} | int64_t{head[5]} << 8 | int64_t{head[6]} << 16 | int64_t{head[7]} << 24;
  return declared != 0 && declared != 0xffffffff && size < declared + 8;
}

// Demuxers that accept almost any text, or that only name further files.
bool is_refused_container(std::string_view name) {
  constexpr std::array<std::string_view, 12> kRefused = {"tty",       "hls", "concat", "dash",
                                                         "subviewer", "sdp", "bin",    "imf",
                                                         "xbin",      "adf", "idf",    "data"};
  return std::find(kRefused.begin(), kRefused.end(), name) != kRefused.end();
}

}  // namespace

void refuse_input(const std::string& path, const std::string& text, const std::string& hint) {
  throw Error(ErrorCode::kInvalidArgument, "media file '" + path + "' " + text, hint);
}

Input::Input(const std::string& path) : path_(path) {
  silence();
  try {
    open();
  } catch (...) {
    close();
    throw;
  }
}

void Input::open() {
  // Never waits: opening a FIFO would.
  fd_ = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  struct stat info = {};
  if (fd_ < 0 || ::fstat(fd_, &info) != 0) {
    refuse_input(path_, std::string("cannot be read: ") + std::strerror(errno), kHint);
  }
  if (S_ISDIR(info.st_mode)) refuse_input(path_, "is a folder", kHint);
  if (!S_ISREG(info.st_mode)) refuse_input(path_, "is no regular file", kHint);
  if (info.st_size == 0) refuse_input(path_, "is empty (0 bytes)", kHint);
  shorter_than_declared_ = is_cut_riff(fd_, info.st_size);
  auto* buffer = static_cast<uint8_t*>(av_malloc(kIoBytes));
  AVFormatContext* raw = avformat_alloc_context();
  format_.reset(raw);
  if (buffer != nullptr) {
    io_ =
        avio_alloc_context(buffer, kIoBytes, 0, reinterpret_cast<void*>(static_cast<intptr_t>(fd_)),
                           read_some, nullptr, seek_to);
  }
  if (raw == nullptr || io_ == nullptr) {
    if (io_ == nullptr) av_free(buffer);
    throw Error(ErrorCode::kOutOfMemory, "no memory to open '" + path_ + "'");
  }
  raw->pb = io_;
  raw->io_open = refuse_other_files;
  static_cast<void>(format_.release());  // the call frees it on failure
  const int code = avformat_open_input(&raw, "", nullptr, nullptr);
  format_.reset(raw);
  if (code < 0) {
    refuse_input(path_, "is of no known kind, or damaged (" + error_text(code) + ")", kHint);
  }
  if (is_refused_container(raw->iformat->name)) {
    refuse_input(
        path_, std::string("is no media file (recognised as '") + raw->iformat->name + "')", kHint);
  }
  avformat_find_stream_info(raw, nullptr);  // what it cannot find, decoding will miss and say
}

void Input::close() {
  format_.reset();
  if (io_ != nullptr) {
    av_freep(&io_->buffer);
    avio_context_free(&io_);
  }
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
}

bool Input::is_picture() const {
  const std::string_view name = format_->iformat->name;
  return name.ends_with("_pipe") || name == "image2" || name == "gif" || name == "apng" ||
         name == "ico";
}

AVStream* Input::video() const {
  AVStream* best = nullptr;
  for (unsigned i = 0; i < format_->nb_streams; ++i) {
    AVStream* s = format_->streams[i];
    if (s->codecpar->codec_type != AVMEDIA_TYPE_VIDEO) continue;
    if (s->disposition & AV_DISPOSITION_ATTACHED_PIC) continue;
    const auto pixels = [](const AVStream* stream) {
      return int64_t{stream->codecpar->width} * stream->codecpar->height;
    };
    const bool chosen = (s->disposition & AV_DISPOSITION_DEFAULT) != 0;
    const bool best_chosen = best != nullptr && (best->disposition & AV_DISPOSITION_DEFAULT) != 0;
    if (best == nullptr || chosen > best_chosen ||
        (chosen == best_chosen && pixels(s) > pixels(best))) {
      best = s;
    }
  }
  return best;
}

AVStream* Input::audio() const {
  const int index = av_find_best_stream(format_.get(), AVMEDIA_TYPE_AUDIO, -1, -1, nullptr, 0);
  return index < 0 ? nullptr : format_->streams[index];
}

double Input::start_seconds() const {
  if (format_->start_time == AV_NOPTS_VALUE) return 0;
  return static_cast<double>(format_->start_time) / AV_TIME_BASE;
}

StreamDecoder::StreamDecoder(Input& input, AVStream& stream, int threads, bool strict)
    : input_(input), stream_(stream), strict_(strict) {
  const std::string name = avcodec_get_name(stream.codecpar->codec_id);
  const AVCodec* codec = avcodec_find_decoder(stream.codecpar->codec_id);
  if (codec == nullptr) {
    refuse_input(input.path(), "is coded as '" + name + "', which this FFmpeg does not decode",
                 "convert it, for example to H.264 and AAC in .mp4");
  }
  codec_ = owned<CodecPtr>(avcodec_alloc_context3(codec));
  int code = avcodec_parameters_to_context(codec_.get(), stream.codecpar);
  codec_->thread_count = threads;
  codec_->pkt_timebase = stream.time_base;
  if (strict) codec_->err_recognition |= AV_EF_EXPLODE | AV_EF_CRCCHECK | AV_EF_BUFFER;
  if (code >= 0) code = avcodec_open2(codec_.get(), codec, nullptr);
  if (code < 0) {
    refuse_input(input.path(), "cannot be decoded as '" + name + "' (" + error_text(code) + ")",
                 "the file is damaged; fetch or export it again");
  }
  frame_ = owned<FramePtr>(av_frame_alloc());
  packet_ = owned<PacketPtr>(av_packet_alloc());
}

void StreamDecoder::seek(double seconds) {
  const auto target = static_cast<int64_t>((seconds + input_.start_seconds()) * AV_TIME_BASE);
  const int code = avformat_seek_file(&input_.format(), -1, INT64_MIN, target, target, 0);
  // Without an index the frames before are decoded and dropped.
  if (code < 0) avformat_seek_file(&input_.format(), -1, INT64_MIN, INT64_MIN, 0, 0);
  avcodec_flush_buffers(codec_.get());
}

void StreamDecoder::read_packet() {
  const int code = av_read_frame(&input_.format(), packet_.get());
  if (code < 0) {
    ended_ = true;
    if (code != AVERROR_EOF) read_error_ = code;
    avcodec_send_packet(codec_.get(), nullptr);
    return;
  }
  const AVStream& from = *input_.format().streams[packet_->stream_index];
  const int64_t stamp = packet_->pts == AV_NOPTS_VALUE ? packet_->dts : packet_->pts;
  if (stamp != AV_NOPTS_VALUE) {
    const double end = static_cast<double>(stamp + packet_->duration) * av_q2d(from.time_base);
    reached_ = std::max(reached_, end - input_.start_seconds());
  }
  if (packet_->stream_index == stream_.index) {
    const int sent = avcodec_send_packet(codec_.get(), packet_.get());
    if (sent < 0 && sent != AVERROR(EAGAIN)) {
      ++rejected_;
      if (strict_) {
        refuse_input(input_.path(), "is damaged or cut off (" + error_text(sent) + ")",
                     "fetch or export the file again");
      }
    }
  }
  av_packet_unref(packet_.get());
}

bool StreamDecoder::next() {
  av_frame_unref(frame_.get());
  for (;;) {
    const int code = avcodec_receive_frame(codec_.get(), frame_.get());
    if (code >= 0) break;
    if (code != AVERROR(EAGAIN) && code != AVERROR_EOF) {
      ++rejected_;
      if (strict_) {
        refuse_input(input_.path(), "is damaged or cut off (" + error_text(code) + ")",
                     "fetch or export the file again");
      }
    }
    if (ended_) {
      // A decoder may report some last errors before its end, but not without end.
      if (code != AVERROR_EOF && ++late_errors_ < kMaxLateErrors) continue;
      check_whole();
      return false;
    }
    read_packet();
  }
  ++frames_;
  const bool bad = (frame_->flags & AV_FRAME_FLAG_CORRUPT) || frame_->decode_error_flags != 0;
  damaged_ += bad;
  if (bad && strict_) {
    refuse_input(input_.path(), "is damaged or cut off", "fetch or export the file again");
  }
  return true;
}

void StreamDecoder::check_whole() const {
  if (frames_ == 0) {
    refuse_input(input_.path(),
                 "has nothing that can be decoded (" + std::to_string(rejected_) + " packets of '" +
                     avcodec_get_name(stream_.codecpar->codec_id) + "' were refused)",
                 "the file is damaged; fetch or export it again");
  }
  const AVFormatContext& f = input_.format();
  const bool declared =
      f.duration != AV_NOPTS_VALUE && f.duration_estimation_method == AVFMT_DURATION_FROM_STREAM;
  const double seconds = declared ? static_cast<double>(f.duration) / AV_TIME_BASE : 0;
  const bool cut = !input_.is_picture() && seconds - reached_ > kMissingSeconds;
  if (read_error_ == 0 && !cut && !input_.shorter_than_declared()) return;
  refuse_input(
      input_.path(),
      "is cut off or damaged: " + (cut ? "it declares " + std::to_string(seconds) +
                                             " s and ends after " + std::to_string(reached_) + " s"
                                       : error_text(read_error_)),
      "fetch or export the file again, or ask for no more than its beginning");
}

}  // namespace h3::media::detail
