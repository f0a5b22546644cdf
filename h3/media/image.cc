#include "h3/media/image.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numbers>
#include <string>
#include <utility>

#include "h3/common/error.h"

namespace h3::media {
namespace {

constexpr int kChannels = 3;
constexpr double kLobes = 3;
constexpr int kPrecisionBits = 32 - 8 - 2;  // 8 bits of pixel, 2 of headroom for overshoot
constexpr int kMaxSide = 65536;

// The weights of one axis, in fixed point.
struct Taps {
  struct Span {
    int first = 0, count = 0;
  };
  std::vector<Span> spans;   // per output position
  std::vector<int> weights;  // [outputs, width]
  int width = 0;
};

double sinc(double x) {
  if (x == 0) return 1;
  x *= std::numbers::pi;
  return std::sin(x) / x;
}

double lanczos(double x) { return x >= -kLobes && x < kLobes ? sinc(x) * sinc(x / kLobes) : 0; }

Taps make_taps(int in, int out) {
  const double scale = static_cast<double>(in) / out;
  const double stretch = std::max(scale, 1.0), support = kLobes * stretch;
  Taps taps;
  taps.width = static_cast<int>(std::ceil(support)) * 2 + 1;
  taps.weights.assign(static_cast<size_t>(out) * static_cast<size_t>(taps.width), 0);
  std::vector<double> row(static_cast<size_t>(taps.width));
  for (int o = 0; o < out; ++o) {
    const double center = (o + 0.5) * scale;
    const int first = std::max(0, static_cast<int>(center - support + 0.5));
    const int end = std::min(in, static_cast<int>(center + support + 0.5));
    double sum = 0;
    for (int i = 0; i < end - first; ++i) {
      row[static_cast<size_t>(i)] = lanczos((i + first - center + 0.5) * (1.0 / stretch));
      sum += row[static_cast<size_t>(i)];
    }
    int* weights = taps.weights.data() + static_cast<size_t>(o) * static_cast<size_t>(taps.width);
    for (int i = 0; i < end - first; ++i) {
      double w = row[static_cast<size_t>(i)];
      if (sum != 0) w /= sum;
      weights[i] = static_cast<int>((w < 0 ? -0.5 : 0.5) + w * (1 << kPrecisionBits));
    }
    taps.spans.push_back({first, end - first});
  }
  return taps;
}

uint8_t rounded(int sum) { return static_cast<uint8_t>(std::clamp(sum >> kPrecisionBits, 0, 255)); }

Image resize_rows(const Image& in, int width) {
  const Taps taps = make_taps(in.width, width);
  Image out{width, in.height, {}};
  out.rgb.resize(static_cast<size_t>(width) * static_cast<size_t>(in.height) * kChannels);
  uint8_t* target = out.rgb.data();
  for (int y = 0; y < in.height; ++y) {
    const uint8_t* row = in.rgb.data() + static_cast<size_t>(y) * in.width * kChannels;
    for (int x = 0; x < width; ++x) {
      const auto [first, count] = taps.spans[static_cast<size_t>(x)];
      const int* w = taps.weights.data() + static_cast<size_t>(x) * taps.width;
      int sum[kChannels];
      std::fill(sum, sum + kChannels, 1 << (kPrecisionBits - 1));
      const uint8_t* pixel = row + static_cast<size_t>(first) * kChannels;
      for (int i = 0; i < count; ++i) {
        for (int c = 0; c < kChannels; ++c) sum[c] += *pixel++ * w[i];
      }
      for (int c = 0; c < kChannels; ++c) *target++ = rounded(sum[c]);
    }
  }
  return out;
}

Image resize_columns(const Image& in, int height) {
  const Taps taps = make_taps(in.height, height);
  const size_t row_bytes = static_cast<size_t>(in.width) * kChannels;
  Image out{in.width, height, {}};
  out.rgb.resize(row_bytes * static_cast<size_t>(height));
  std::vector<int> sums(row_bytes);
  for (int y = 0; y < height; ++y) {
    const auto [first, count] = taps.spans[static_cast<size_t>(y)];
    const int* w = taps.weights.data() + static_cast<size_t>(y) * taps.width;
    std::fill(sums.begin(), sums.end(), 1 << (kPrecisionBits - 1));
    for (int i = 0; i < count; ++i) {
      const uint8_t* row = in.rgb.data() + static_cast<size_t>(first + i) * row_bytes;
      for (size_t b = 0; b < row_bytes; ++b) sums[b] += row[b] * w[i];
    }
    uint8_t* target = out.rgb.data() + static_cast<size_t>(y) * row_bytes;
    for (size_t b = 0; b < row_bytes; ++b) target[b] = rounded(sums[b]);
  }
  return out;
}

void check_sizes(const Image& image, int width, int height) {
  const size_t bytes =
      static_cast<size_t>(image.width) * static_cast<size_t>(image.height) * kChannels;
  if (image.width >= 1 && image.height >= 1 && image.rgb.size() == bytes && width >= 1 &&
      height >= 1 && width <= kMaxSide && height <= kMaxSide) {
    return;
  }
  throw Error(ErrorCode::kInvalidArgument, "resizing a picture of " + std::to_string(image.width) +
                                               "x" + std::to_string(image.height) + " to " +
                                               std::to_string(width) + "x" +
                                               std::to_string(height) + "; sides of 1 to " +
                                               std::to_string(kMaxSide) + " are accepted");
}

}  // namespace

Image oriented(Image image, int orientation) {
  if (orientation == 1) return image;
  if (orientation < 1 || orientation > 8) {
    throw Error(ErrorCode::kInvalidArgument,
                "orientation " + std::to_string(orientation) + "; 1 to 8 is accepted, as in EXIF");
  }
  const int w = image.width, h = image.height;
  const bool turned = orientation >= 5;
  Image out{turned ? h : w, turned ? w : h, {}};
  out.rgb.resize(image.rgb.size());
  uint8_t* target = out.rgb.data();
  for (int y = 0; y < out.height; ++y) {
    for (int x = 0; x < out.width; ++x) {
      const int u = turned ? y : x, v = turned ? x : y;
      const bool flip_u =
          orientation == 2 || orientation == 3 || orientation == 7 || orientation == 8;
      const bool flip_v =
          orientation == 3 || orientation == 4 || orientation == 6 || orientation == 7;
      const size_t sx = static_cast<size_t>(flip_u ? w - 1 - u : u),
                   sy = static_cast<size_t>(flip_v ? h - 1 - v : v);
      std::memcpy(target, image.rgb.data() + (sy * static_cast<size_t>(w) + sx) * kChannels,
                  kChannels);
      target += kChannels;
    }
  }
  return out;
}

Image resize_lanczos(const Image& image, int width, int height) {
  check_sizes(image, width, height);
  if (image.width == width && image.height == height) return image;
  if (image.width == width) return resize_columns(image, height);
  Image rows = resize_rows(image, width);
  return image.height == height ? rows : resize_columns(rows, height);
}

Image cover_crop(const Image& image, int width, int height) {
  check_sizes(image, width, height);
  if (image.width == width && image.height == height) return image;
  const double scale = std::max(static_cast<double>(width) / image.width,
                                static_cast<double>(height) / image.height);
  // Python's rounding: half to even.
  const int w = std::max(width, static_cast<int>(std::nearbyint(image.width * scale)));
  const int h = std::max(height, static_cast<int>(std::nearbyint(image.height * scale)));
  const Image scaled = resize_lanczos(image, w, h);
  const int left = (w - width) / 2, top = (h - height) / 2;
  Image out{width, height, {}};
  out.rgb.reserve(static_cast<size_t>(width) * static_cast<size_t>(height) * kChannels);
  for (int y = 0; y < height; ++y) {
    const auto row = scaled.rgb.begin() + (static_cast<ptrdiff_t>(y + top) * w + left) * kChannels;
    out.rgb.insert(out.rgb.end(), row, row + static_cast<ptrdiff_t>(width) * kChannels);
  }
  return out;
}

}  // namespace h3::media
