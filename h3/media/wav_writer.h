// Sound alone: a stereo WAV file, float (exact) or 16 bit.
//
//   WavWriter writer("out.wav", {});
//   writer.add_audio(left, right, samples);
//   writer.finish();
#pragma once

#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "h3/media/output_file.h"
#include "h3/media/settings_text.h"

namespace h3::media {

enum class WavFormat { kFloat32, kPcm16 };

struct WavSettings {
  int sample_rate = 32000;
  WavFormat format = WavFormat::kFloat32;
  Settings metadata;  // stored as JSON in the comment of the file
};

/// Nothing stands under the name until `finish` ends; see OutputFile.
class WavWriter {
 public:
  /// Throws as OutputFile, and kInvalidArgument for a sample rate below 1.
  WavWriter(const std::string& path, const WavSettings& settings);
  ~WavWriter();
  WavWriter(const WavWriter&) = delete;
  WavWriter& operator=(const WavWriter&) = delete;

  /// Values are clamped to [-1, 1]; 16 bit: times 32767, rounded half to even. Throws
  /// kInvalidArgument for values that are not finite and beyond 4 GiB, which a WAV cannot say;
  /// kUnavailable if the disk refuses.
  void add_audio(const float* left, const float* right, int64_t samples);

  /// Throws kInvalidArgument without a single sample, kUnavailable if the disk refuses.
  void finish();

 private:
  void write(const void* data, size_t bytes);

  const WavSettings settings_;
  OutputFile file_;
  std::FILE* stream_ = nullptr;
  std::vector<uint8_t> chunk_;
  uint64_t data_bytes_ = 0;
  int64_t samples_ = 0;
};

}  // namespace h3::media
