// Pictures, tones and folders of the media tests.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "h3/common/error.h"

namespace h3::media::testing {

/// A folder of its own, removed at the end.
class TestFolder {
 public:
  TestFolder() {
    std::string name = ::testing::TempDir() + "h3_media_XXXXXX";
    path_ = ::mkdtemp(name.data());
  }
  ~TestFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }
  const std::string& path() const { return path_; }
  size_t entries() const {
    size_t count = 0;
    for ([[maybe_unused]] const auto& e : std::filesystem::directory_iterator(path_)) ++count;
    return count;
  }

 private:
  std::string path_;
};

/// Smooth colours that tell left from right, top from bottom, and frames apart.
inline std::vector<uint8_t> picture(int width, int height, int frame = 0) {
  std::vector<uint8_t> rgb;
  for (int y = 0; y < height; ++y) {
    for (int x = 0; x < width; ++x) {
      rgb.push_back(static_cast<uint8_t>(40 + 160 * x / width));
      rgb.push_back(static_cast<uint8_t>(40 + 160 * y / height));
      rgb.push_back(static_cast<uint8_t>(60 + 8 * (frame % 16)));
    }
  }
  return rgb;
}

inline std::vector<float> tone(int64_t samples, double hertz, int rate = 32000,
                               double level = 0.5) {
  std::vector<float> wave(static_cast<size_t>(samples));
  for (size_t i = 0; i < wave.size(); ++i) {
    wave[i] = static_cast<float>(
        level * std::sin(2 * 3.14159265358979 * hertz * static_cast<double>(i) / rate));
  }
  return wave;
}

/// The message of the h3::Error that `call` throws; a test failure if it throws none.
inline std::string refusal(ErrorCode code, const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(static_cast<int>(error.code()), static_cast<int>(code)) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "nothing was refused";
  return "";
}

inline void expect_text(const std::string& text, std::initializer_list<const char*> parts) {
  for (const char* part : parts) {
    EXPECT_NE(text.find(part), std::string::npos) << "'" << part << "' not in: " << text;
  }
}

/// Runs the ffmpeg program, which makes the sources that nothing here can write.
inline void ffmpeg(const std::string& arguments) {
  const std::string command = "ffmpeg -hide_banner -loglevel error -nostdin -y " + arguments;
  ASSERT_EQ(std::system(command.c_str()), 0) << command;
}

}  // namespace h3::media::testing
