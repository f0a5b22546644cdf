// Compiled without contraction into fused multiply-add (plan.cmake): it would change last bits.
#include "h3/models/dit/positions.h"

#include <array>
#include <cmath>
#include <span>

namespace h3::dit {
namespace {

constexpr double kSpatialScale = 32;
constexpr double kUnitsPerFrame = 5.0 / 3.0;                         // 40 units/s at 24 frames/s
constexpr std::array<double, 5> kFramesPerLatent = {1, 4, 4, 4, 4};  // of the video autoencoder

double units(int64_t frame) { return kUnitsPerFrame * kFramesPerLatent[size_t(frame % 5)]; }

// numpy.linspace(left, left + ratio, n, endpoint=False) * 32.
std::vector<double> axis(int64_t size, double root_area) {
  const double ratio = double(size) / root_area;
  const double left = (1.0 - ratio) / 2.0;
  const int64_t points = size / 2;
  const double step = ((left + ratio) - left) / double(points);
  std::vector<double> out(static_cast<size_t>(points));
  for (int64_t k = 0; k < points; ++k) {
    out[size_t(k)] = (double(k) * step + left) * kSpatialScale;
  }
  return out;
}

// The order in which numpy.sum adds contiguous doubles.
double numpy_sum(std::span<const double> x) {
  constexpr size_t kLanes = 8, kLeaf = 128;
  const size_t n = x.size();
  if (n > kLeaf) {
    const size_t half = n / 2 - (n / 2) % kLanes;
    return numpy_sum(x.first(half)) + numpy_sum(x.subspan(half));
  }
  double sum = 0;
  size_t i = 0;
  if (n >= kLanes) {
    std::array<double, kLanes> lane;
    for (size_t k = 0; k < kLanes; ++k) lane[k] = x[k];
    for (i = kLanes; i + kLanes <= n; i += kLanes) {
      for (size_t k = 0; k < kLanes; ++k) lane[k] += x[i + k];
    }
    sum = ((lane[0] + lane[1]) + (lane[2] + lane[3])) + ((lane[4] + lane[5]) + (lane[6] + lane[7]));
  }
  for (; i < n; ++i) sum += x[i];
  return sum;
}

}  // namespace

FrameGrid frame_grid(int64_t height, int64_t width) {
  const double root_area = std::sqrt(double(height) * double(width));
  return {axis(height, root_area), axis(width, root_area)};
}

std::vector<double> frame_times(int64_t frames, double origin) {
  std::vector<double> out(static_cast<size_t>(frames));
  double sum = 0;
  for (int64_t k = 0; k < frames; ++k) {
    out[size_t(k)] = origin + sum;
    sum += units(k);
  }
  return out;
}

double span_in_order(int64_t frames) {
  double sum = 0;
  for (int64_t k = 0; k < frames; ++k) sum += units(k);
  return sum;
}

double span_pairwise(int64_t frames) {
  std::vector<double> all(static_cast<size_t>(frames));
  for (int64_t k = 0; k < frames; ++k) all[size_t(k)] = units(k);
  return numpy_sum(all);
}

double last_keyframe_time(int64_t frames, double origin) {
  return origin + span_pairwise(frames) - kUnitsPerFrame;
}

}  // namespace h3::dit
