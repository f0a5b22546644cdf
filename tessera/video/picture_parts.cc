#include "tessera/video/picture_parts.h"

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>

namespace tessera::video {

RgbImage clip_frame(const Clip& clip, int frame) {
  RgbImage image(clip.width, clip.height);
  const uint8_t* first = clip.pixel(frame, 0, 0);
  std::copy(first, first + image.rgb.size(), image.rgb.begin());
  return image;
}

std::vector<int> spread_steps(const TokenGrid& grid, int count, int must_have) {
  count = std::min(count, grid.t);
  std::vector<int> steps;
  for (int i = 0; i < count; ++i) {
    steps.push_back(count == 1 ? grid.t / 2 : i * (grid.t - 1) / (count - 1));
  }
  if (must_have >= 0) {
    *std::min_element(steps.begin(), steps.end(), [&](int a, int b) {
      return std::abs(a - must_have) < std::abs(b - must_have);
    }) = must_have;
  }
  return steps;
}

std::string step_label(const Clip& clip, int step) {
  const int frame = step * kTokenFrames;
  if (clip.info.fps <= 0) return format("frame %d", frame);
  return format("frame %d, %.2f s", frame, frame / clip.info.fps);
}

std::string with_commas(int64_t value) {
  std::string digits = std::to_string(value);
  for (int i = int(digits.size()) - 3; i > 0; i -= 3) digits.insert(size_t(i), ",");
  return digits;
}

std::string format(const char* pattern, ...) {
  char text[512];
  va_list arguments;
  va_start(arguments, pattern);
  std::vsnprintf(text, sizeof text, pattern, arguments);
  va_end(arguments);
  return text;
}

}  // namespace tessera::video
