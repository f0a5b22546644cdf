#include "h3/models/dit/geometry.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "h3/common/error.h"

namespace h3::dit {
namespace {

constexpr int64_t kClip = 17, kClipLatents = 5, kTail = 5, kTailLatents = 2;
constexpr double kReferenceShortEdge = 2048;
constexpr int64_t kMaxSide = int64_t{1} << 20;

[[noreturn]] void refuse(const std::string& message, const std::string& hint = {}) {
  throw Error(ErrorCode::kInvalidArgument, message, hint);
}

int64_t nearest_multiple(double side) {
  const double n = std::nearbyint(side / double(kCanvasMultiple));  // half to even
  return std::max(kCanvasMultiple, int64_t(n) * kCanvasMultiple);
}

void check_sides(const Canvas& c, const char* what) {
  if (c.width < 1 || c.height < 1 || c.width > kMaxSide || c.height > kMaxSide) {
    refuse(fmt::format("{} is {} x {} pixels; accepted: sides of 1 to {}", what, c.width, c.height,
                       kMaxSide));
  }
}

}  // namespace

int64_t aligned_frames(int64_t frames) {
  if (frames < 1 || frames > INT32_MAX) {
    refuse(fmt::format("the number of frames is {}; accepted: 1 to {}", frames, INT32_MAX));
  }
  return frames + ((kTail - frames) % kClip + kClip) % kClip;
}

Timing timing_of_frames(int64_t frames) {
  if (frames < kTail || frames > INT32_MAX || (frames - kTail) % kClip != 0) {
    refuse(fmt::format("the number of frames is {}; accepted: 17 n + 5", frames),
           "round up with aligned_frames");
  }
  Timing t;
  t.frames = frames;
  t.latent_frames = (frames - kTail) / kClip * kClipLatents + kTailLatents;
  t.audio_latents = int64_t(std::nearbyint(t.seconds() * double(kAudioLatentsPerSecond)));
  return t;
}

Timing timing_of_seconds(double seconds) {
  if (!(seconds >= kMinSeconds && seconds <= kMaxSeconds)) {  // NaN fails
    refuse(
        fmt::format("the duration is {} s; accepted: {} to {}", seconds, kMinSeconds, kMaxSeconds));
  }
  const double frames = std::nearbyint(seconds * double(kFramesPerSecond));
  return timing_of_frames(aligned_frames(int64_t(frames)));
}

Canvas target_canvas(double aspect_width, double aspect_height, int64_t short_edge) {
  const double ratio = aspect_width / aspect_height;
  const double most = double(kMaxAspect);
  if (!(aspect_width > 0 && aspect_height > 0 && ratio >= 1 / most && ratio <= most)) {
    refuse(fmt::format("the aspect ratio is {}:{}; accepted: 1:4 to 4:1", aspect_width,
                       aspect_height));
  }
  if (short_edge < 1) {
    refuse(fmt::format("the short edge is {}; accepted: integers above 0", short_edge));
  }
  const double edge = double(short_edge);
  double width = ratio >= 1 ? edge * ratio : edge;
  double height = ratio >= 1 ? edge : edge / ratio;
  const double area = width * height;
  if (area > double(kCanvasPixels)) {
    const double scale = std::pow(double(kCanvasPixels) / area, 0.5);
    width *= scale;
    height *= scale;
  }
  return {nearest_multiple(width), nearest_multiple(height)};
}

Canvas reference_image_canvas(const Canvas& image, const Canvas& target, ReferenceResize mode) {
  check_sides(image, "the reference image");
  if (image.width > kMaxAspect * image.height || image.height > kMaxAspect * image.width) {
    refuse(fmt::format("the reference image is {} x {} pixels; accepted: ratios of 1:4 to 4:1",
                       image.width, image.height));
  }
  double scale = kReferenceShortEdge / double(std::min(image.width, image.height));
  if (mode == ReferenceResize::kMax) scale = std::min(1.0, scale);
  if (mode == ReferenceResize::kMatch) {
    check_sides(target, "the target canvas");
    const double area = double(target.width) * double(target.height);
    scale = std::min(1.0, std::sqrt(area / (double(image.width) * double(image.height))));
  }
  return {nearest_multiple(double(image.width) * scale),
          nearest_multiple(double(image.height) * scale)};
}

int64_t reference_video_frames(int64_t frames, int64_t target_frames) {
  const int64_t most = std::min(frames, target_frames);
  if (most < kClip + kTail) {
    refuse(
        fmt::format("the reference video has {} frames at 24 frames/s; accepted: 22 or more", most),
        "use a longer clip or an earlier start_time_seconds");
  }
  return most - (most - kTail) % kClip;
}

CoverCrop cover_crop(const Canvas& image, const Canvas& target) {
  check_sides(image, "the keyframe");
  check_sides(target, "the target canvas");
  const double scale = std::max(double(target.width) / double(image.width),
                                double(target.height) / double(image.height));
  const auto side = [&](int64_t from, int64_t least) {
    return std::max(least, int64_t(std::nearbyint(double(from) * scale)));
  };
  CoverCrop out;
  out.resized = {side(image.width, target.width), side(image.height, target.height)};
  out.left = (out.resized.width - target.width) / 2;
  out.top = (out.resized.height - target.height) / 2;
  return out;
}

}  // namespace h3::dit
