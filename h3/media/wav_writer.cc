// RIFF/WAVE: format and fact chunk, the comment in a LIST chunk, then the data.
#include "h3/media/wav_writer.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <limits>

#include "h3/common/error.h"

namespace h3::media {
namespace {

constexpr int kChannels = 2;
constexpr uint64_t kMaxBytes = std::numeric_limits<uint32_t>::max() - (uint64_t{1} << 20);

int bytes_per_sample(WavFormat format) { return format == WavFormat::kFloat32 ? 4 : 2; }

class Bytes {
 public:
  void tag(const char* four) { data_.append(four, 4); }
  void u16(uint32_t value) { integer(value, 2); }
  void u32(uint32_t value) { integer(value, 4); }
  void text(const std::string& value) { data_ += value; }
  const std::string& all() const { return data_; }

 private:
  void integer(uint32_t value, int bytes) {
    for (int i = 0; i < bytes; ++i) data_.push_back(static_cast<char>(value >> (8 * i)));
  }
  std::string data_;
};

std::string header(const WavSettings& settings, uint64_t data_bytes, int64_t samples) {
  const int width = bytes_per_sample(settings.format);
  Bytes body;
  body.tag("WAVE");
  body.tag("fmt ");
  body.u32(18);
  body.u16(settings.format == WavFormat::kFloat32 ? 3 : 1);
  body.u16(kChannels);
  body.u32(static_cast<uint32_t>(settings.sample_rate));
  body.u32(static_cast<uint32_t>(settings.sample_rate * kChannels * width));
  body.u16(static_cast<uint32_t>(kChannels * width));
  body.u16(static_cast<uint32_t>(8 * width));
  body.u16(0);
  body.tag("fact");
  body.u32(4);
  body.u32(static_cast<uint32_t>(samples));
  if (!settings.metadata.empty()) {
    std::string comment = settings_json(settings.metadata);
    comment.push_back('\0');
    if (comment.size() % 2 != 0) comment.push_back('\0');
    body.tag("LIST");
    body.u32(static_cast<uint32_t>(12 + comment.size()));
    body.tag("INFO");
    body.tag("ICMT");
    body.u32(static_cast<uint32_t>(comment.size()));
    body.text(comment);
  }
  body.tag("data");
  body.u32(static_cast<uint32_t>(data_bytes));
  Bytes all;
  all.tag("RIFF");
  all.u32(static_cast<uint32_t>(body.all().size() + data_bytes));
  return all.all() + body.all();
}

}  // namespace

WavWriter::WavWriter(const std::string& path, const WavSettings& settings)
    : settings_(settings), file_(path) {
  if (settings_.sample_rate < 1) {
    throw Error(ErrorCode::kInvalidArgument, "sample rate of '" + path + "' is " +
                                                 std::to_string(settings_.sample_rate) +
                                                 "; 1 or more is accepted");
  }
  stream_ = std::fopen(file_.io_path().c_str(), "wbe");
  if (stream_ == nullptr) {
    throw Error(ErrorCode::kUnavailable,
                "output '" + path + "' cannot be opened: " + std::strerror(errno));
  }
  const auto bytes = header(settings_, 0, 0);
  write(bytes.data(), bytes.size());
}

WavWriter::~WavWriter() {
  if (stream_ != nullptr) std::fclose(stream_);
}

void WavWriter::write(const void* data, size_t bytes) {
  if (std::fwrite(data, 1, bytes, stream_) == bytes) return;
  throw Error(ErrorCode::kUnavailable,
              "output '" + file_.path() + "' cannot be written: " + std::strerror(errno),
              "nothing was left under that name; free space on the disk or choose another folder");
}

void WavWriter::add_audio(const float* left, const float* right, int64_t samples) {
  const auto width = static_cast<uint64_t>(bytes_per_sample(settings_.format));
  const uint64_t bytes = static_cast<uint64_t>(samples) * kChannels * width;
  if (stream_ == nullptr || data_bytes_ + bytes > kMaxBytes) {
    throw Error(ErrorCode::kInvalidArgument,
                "output '" + file_.path() + "' is complete, or would exceed the 4 GiB of a WAV",
                "write shorter files");
  }
  chunk_.resize(bytes);
  for (int64_t i = 0; i < samples; ++i) {
    const float values[] = {left[i], right[i]};
    for (int c = 0; c < kChannels; ++c) {
      if (!std::isfinite(values[c])) {
        throw Error(ErrorCode::kInvalidArgument,
                    "audio sample " + std::to_string(samples_ + i) + " of channel " +
                        std::to_string(c) + " is not finite",
                    "check what made the waveform");
      }
      const float value = std::clamp(values[c], -1.0f, 1.0f);
      uint8_t* out = chunk_.data() + static_cast<size_t>(kChannels * i + c) * width;
      if (settings_.format == WavFormat::kFloat32) {
        std::memcpy(out, &value, 4);
      } else {
        const auto integer = static_cast<int16_t>(std::nearbyint(value * 32767.0f));
        std::memcpy(out, &integer, 2);
      }
    }
  }
  write(chunk_.data(), chunk_.size());
  data_bytes_ += bytes;
  samples_ += samples;
}

void WavWriter::finish() {
  if (samples_ == 0 || stream_ == nullptr) {
    throw Error(ErrorCode::kInvalidArgument,
                "output '" + file_.path() + "' has no samples, or is already complete",
                "give at least one sample");
  }
  const auto bytes = header(settings_, data_bytes_, samples_);
  std::FILE* stream = stream_;
  std::rewind(stream);
  write(bytes.data(), bytes.size());
  stream_ = nullptr;
  if (std::fclose(stream) != 0) {
    throw Error(ErrorCode::kUnavailable,
                "output '" + file_.path() + "' cannot be completed: " + std::strerror(errno),
                "nothing was left under that name; free space on the disk");
  }
  file_.commit();
}

}  // namespace h3::media
