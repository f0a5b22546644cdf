// Cosine, PSNR and SSIM, and their tables. SSIM streams over the rows of a frame: a ring of
// horizontally filtered rows stays in the cache, whatever the size of the frame.
#include "h3/pipeline/quality.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <exception>
#include <limits>
#include <mutex>
#include <nlohmann/json.hpp>
#include <numeric>
#include <thread>

#include "h3/common/error.h"

namespace h3::pipeline {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kWindow = 11;
constexpr double kSigma = 1.5, kK1 = 0.01, kK2 = 0.03;

[[noreturn]] void refuse(const std::string& text, const std::string& hint) {
  throw Error(ErrorCode::kInvalidArgument, text, hint);
}

std::string index_text(int64_t flat, std::span<const int64_t> shape) {
  std::vector<int64_t> index(shape.size());
  for (size_t d = shape.size(); d-- > 0; flat /= shape[d]) index[d] = flat % shape[d];
  return shape_text(index);
}

void require_finite(std::span<const float> values, std::span<const int64_t> shape,
                    const std::string& name) {
  const auto bad = [](float v) { return !std::isfinite(v); };
  const auto first = std::find_if(values.begin(), values.end(), bad);
  if (first == values.end()) return;
  refuse(fmt::format("{} holds {} NaN or infinite values of {}, the first ({}) at {}", name,
                     std::count_if(first, values.end(), bad), values.size(), *first,
                     index_text(first - values.begin(), shape)),
         "only finite values can be compared; look for where the run went wrong");
}

std::vector<int64_t> shape_of(const LatentView& v) {
  return {v.channels, v.frames, v.height, v.width};
}

double psnr_db(double mean_squared_error, double peak) {
  if (mean_squared_error == 0) return std::numeric_limits<double>::infinity();
  return 10 * std::log10(peak * peak / mean_squared_error);
}

// Row y of a frame as doubles less `center`: a variance from E[x^2] - E[x]^2 of values far from
// zero would drown in rounding.
struct LatentRows {
  const float* frame;
  int64_t width;
  double center;
  void operator()(int64_t y, double* out) const {
    const float* row = frame + y * width;
    for (int64_t x = 0; x < width; ++x) out[x] = row[x] - center;
  }
};

struct PictureRows {
  const Picture& picture;
  int64_t channel;
  static constexpr double center = 0;
  void operator()(int64_t y, double* out) const {
    const int64_t n = picture.channels;
    const uint8_t* row = picture.data.data() + y * picture.width * n + channel;
    for (int64_t x = 0; x < picture.width; ++x) out[x] = row[x * n];
  }
};

struct LumaRows {
  const Picture& picture;
  static constexpr double center = 0;
  void operator()(int64_t y, double* out) const {
    const uint8_t* p = picture.data.data() + y * picture.width * 3;
    for (int64_t x = 0; x < picture.width; ++x, p += 3) {
      out[x] = 0.299 * p[0] + 0.587 * p[1] + 0.114 * p[2];
    }
  }
};

struct Buffers {
  std::vector<double> rows, ring, sums;
};

// The mean over all window positions. N: side of the window, fixed so that the taps unroll.
template <int N, class RowsA, class RowsB>
double ssim_of(const RowsA& rows_a, const RowsB& rows_b, int64_t height, int64_t width, double peak,
               Buffers& buffers) {
  std::array<double, N> tap;
  for (int k = 0; k < N; ++k) {
    const double d = k - N / 2;
    tap[k] = std::exp(-d * d / (2 * kSigma * kSigma));
  }
  const double sum = std::accumulate(tap.begin(), tap.end(), 0.0);
  for (double& t : tap) t /= sum;

  // Four filtered maps are enough, because SSIM needs the variances only as a sum.
  constexpr int kMaps = 4;  // a, b, a^2 + b^2, a b
  const int64_t out = width - N + 1, stride = kMaps * out;
  buffers.rows.resize(static_cast<size_t>(kMaps * width));
  buffers.ring.resize(static_cast<size_t>(N * stride));
  buffers.sums.resize(static_cast<size_t>(stride));
  double *const a = buffers.rows.data(), *const b = a + width, *const squares = b + width,
                *const product = squares + width;
  double* const sums = buffers.sums.data();
  const double c1 = (kK1 * peak) * (kK1 * peak), c2 = (kK2 * peak) * (kK2 * peak);
  double total = 0;
  for (int64_t y = 0; y < height; ++y) {
    rows_a(y, a);
    rows_b(y, b);
    for (int64_t x = 0; x < width; ++x) {
      squares[x] = a[x] * a[x] + b[x] * b[x];
      product[x] = a[x] * b[x];
    }
    for (int map = 0; map < kMaps; ++map) {
      const double* in = a + map * width;
      double* filtered = buffers.ring.data() + (y % N) * stride + map * out;
      for (int64_t x = 0; x < out; ++x) {
        double value = 0;
        for (int k = 0; k < N; ++k) value += tap[k] * in[x + k];
        filtered[x] = value;
      }
    }
    if (y + 1 < N) continue;
    std::array<const double*, N> line;
    for (int k = 0; k < N; ++k) line[k] = buffers.ring.data() + ((y + 1 + k) % N) * stride;
    for (int64_t x = 0; x < stride; ++x) {
      double value = 0;
      for (int k = 0; k < N; ++k) value += tap[k] * line[k][x];
      sums[x] = value;
    }
    for (int64_t x = 0; x < out; ++x) {
      const double ma = sums[x], mb = sums[out + x];
      const double variances = std::max(0.0, sums[2 * out + x] - (ma * ma + mb * mb));
      // Bounded as it is in exact arithmetic: equal frames of one colour give exactly 1.
      const double covariance =
          std::clamp(sums[3 * out + x] - ma * mb, -variances / 2, variances / 2);
      const double mean_a = ma + rows_a.center, mean_b = mb + rows_b.center;
      total += (2 * mean_a * mean_b + c1) * (2 * covariance + c2) /
               ((mean_a * mean_a + mean_b * mean_b + c1) * (variances + c2));
    }
  }
  return total / static_cast<double>(out * (height - N + 1));
}

template <class RowsA, class RowsB>
double ssim(const RowsA& a, const RowsB& b, int64_t height, int64_t width, double peak,
            Buffers& buffers) {
  switch (ssim_window(height, width)) {
    case 1: return ssim_of<1>(a, b, height, width, peak, buffers);
    case 3: return ssim_of<3>(a, b, height, width, peak, buffers);
    case 5: return ssim_of<5>(a, b, height, width, peak, buffers);
    case 7: return ssim_of<7>(a, b, height, width, peak, buffers);
    case 9: return ssim_of<9>(a, b, height, width, peak, buffers);
    default: return ssim_of<kWindow>(a, b, height, width, peak, buffers);
  }
}

double peak_of(std::span<const float> a, const CompareOptions& options) {
  if (options.data_range) {
    const double range = *options.data_range;
    if (std::isfinite(range) && range >= 1e-30 && range <= 1e40) return range;
    refuse(fmt::format("the data range is {}; 1e-30 to 1e40 is accepted", range),
           "give the distance between the smallest and the largest value that latents can take");
  }
  const auto [low, high] = std::minmax_element(a.begin(), a.end());
  if (*low == *high) {
    refuse(fmt::format("every value of {} is {}, so that its value range is no peak for PSNR",
                       options.a, *low),
           "give the data range (--data-range)");
  }
  return double{*high} - double{*low};
}

double mean_of(const float* values, int64_t count) {
  return std::accumulate(values, values + count, 0.0) / static_cast<double>(count);
}

FrameQuality latent_frame(const LatentView& a, const LatentView& b, int64_t frame, double peak,
                          Buffers& buffers) {
  const int64_t size = a.height * a.width;
  double errors = 0, ssims = 0;
  for (int64_t c = 0; c < a.channels; ++c) {
    const int64_t offset = (c * a.frames + frame) * size;
    const float *const pa = a.data + offset, *const pb = b.data + offset;
    for (int64_t i = 0; i < size; ++i) {
      const double d = double{pa[i]} - double{pb[i]};
      errors += d * d;
    }
    ssims += ssim(LatentRows{pa, a.width, mean_of(pa, size)},
                  LatentRows{pb, a.width, mean_of(pb, size)}, a.height, a.width, peak, buffers);
  }
  const double error = errors / static_cast<double>(a.channels * size);
  return {error, psnr_db(error, peak), ssims / static_cast<double>(a.channels)};
}

std::string picture_text(const Picture& p) {
  return fmt::format("{} x {} with {} channels", p.width, p.height, p.channels);
}

void require_picture(const Picture& p, const std::string& name) {
  if (p.height < 1 || p.width < 1 || (p.channels != 1 && p.channels != 3) ||
      p.data.size() != static_cast<size_t>(p.height * p.width * p.channels)) {
    refuse(fmt::format("{} is {} in {} bytes; a picture has 1 (gray) or 3 (RGB) channels and a "
                       "byte for each value",
                       name, picture_text(p), p.data.size()),
           "convert it to 8-bit gray or RGB");
  }
}

std::string db_text(double value) { return fmt::format("{:.3f}", value); }  // "inf" for equal

Json finite(double value) { return std::isfinite(value) ? Json(value) : Json(); }

}  // namespace

std::string shape_text(std::span<const int64_t> shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

int64_t ssim_window(int64_t height, int64_t width) {
  const int64_t side = std::min({kWindow, height, width});
  return side - (side % 2 == 0 ? 1 : 0);
}

void for_each_frame(int64_t count, int threads, const std::function<void(int64_t)>& work) {
  if (threads <= 0) threads = static_cast<int>(std::thread::hardware_concurrency());
  const int64_t workers = std::clamp<int64_t>(threads, 1, std::max<int64_t>(count, 1));
  std::atomic<int64_t> next = 0;
  std::mutex mutex;
  int64_t failed = count;  // the lowest item that threw
  std::exception_ptr failure;
  const auto loop = [&] {
    for (int64_t i; (i = next.fetch_add(1)) < count;) {
      try {
        work(i);
      } catch (...) {
        next = count;
        const std::lock_guard lock(mutex);
        if (i < failed) {
          failed = i;
          failure = std::current_exception();
        }
      }
    }
  };
  {
    std::vector<std::jthread> others;  // joined at the end of the block
    for (int64_t i = 1; i < workers; ++i) others.emplace_back(loop);
    loop();
  }
  if (failure) std::rethrow_exception(failure);
}

Agreement compare_values(std::span<const float> a, std::span<const float> b,
                         std::span<const int64_t> shape, const CompareOptions& options) {
  if (a.size() != b.size() || a.empty()) {
    refuse(fmt::format("{} has {} values, {} has {}", options.a, a.size(), options.b, b.size()),
           "compare two runs of one size that hold something");
  }
  require_finite(a, shape, options.a);
  require_finite(b, shape, options.b);
  double aa = 0, bb = 0, ab = 0, dd = 0;
  Agreement agreement;
  for (size_t i = 0; i < a.size(); ++i) {
    const double x = a[i], y = b[i], d = x - y;
    aa += x * x;
    bb += y * y;
    ab += x * y;
    dd += d * d;
    agreement.max_abs = std::max(agreement.max_abs, std::abs(d));
  }
  // One root of the product: exactly 1 for equal input.
  if (aa > 0 && bb > 0) agreement.cosine = std::clamp(ab / std::sqrt(aa * bb), -1.0, 1.0);
  if (aa > 0) agreement.relative_l2 = std::sqrt(dd / aa);
  return agreement;
}

LatentsQuality compare_latents(const LatentView& a, const LatentView& b,
                               const CompareOptions& options) {
  const std::vector<int64_t> shape = shape_of(a);
  if (shape != shape_of(b) ||
      std::any_of(shape.begin(), shape.end(), [](auto n) { return n < 1; })) {
    refuse(fmt::format("{} is [channels, frames, height, width] = {}, {} is {}", options.a,
                       shape_text(shape), options.b, shape_text(shape_of(b))),
           "both must have one shape, without zeros");
  }
  const auto count = static_cast<size_t>(a.channels * a.frames * a.height * a.width);
  LatentsQuality quality;
  quality.agreement = compare_values({a.data, count}, {b.data, count}, shape, options);
  quality.peak = peak_of({a.data, count}, options);
  quality.window = ssim_window(a.height, a.width);
  quality.frames.resize(static_cast<size_t>(a.frames));
  for_each_frame(a.frames, options.threads, [&](int64_t t) {
    Buffers buffers;
    quality.frames[static_cast<size_t>(t)] = latent_frame(a, b, t, quality.peak, buffers);
  });
  return quality;
}

PictureQuality compare_pictures(const Picture& a, const Picture& b, const CompareOptions& options) {
  require_picture(a, options.a);
  require_picture(b, options.b);
  if (a.height != b.height || a.width != b.width || a.channels != b.channels) {
    refuse(
        fmt::format("{} is {}, {} is {}", options.a, picture_text(a), options.b, picture_text(b)),
        "compare pictures of one size and one number of channels");
  }
  const auto pixels = static_cast<double>(a.height * a.width);
  Buffers buffers;
  int64_t squares = 0;
  double luma_squares = 0;
  for (size_t i = 0; i < a.data.size(); i += static_cast<size_t>(a.channels)) {
    std::array<int, 3> d{};
    for (int64_t c = 0; c < a.channels; ++c) {
      d[c] = int{a.data[i + c]} - int{b.data[i + c]};
      squares += d[c] * d[c];
    }
    const double luma = a.channels == 1 ? d[0] : 0.299 * d[0] + 0.587 * d[1] + 0.114 * d[2];
    luma_squares += luma * luma;
  }
  PictureQuality quality;
  quality.rgb.mean_squared_error = static_cast<double>(squares) / (pixels * a.channels);
  quality.rgb.psnr_db = psnr_db(quality.rgb.mean_squared_error, kPicturePeak);
  quality.rgb.ssim = 0;
  for (int64_t c = 0; c < a.channels; ++c) {
    quality.rgb.ssim +=
        ssim(PictureRows{a, c}, PictureRows{b, c}, a.height, a.width, kPicturePeak, buffers) /
        a.channels;
  }
  quality.luma = quality.rgb;
  if (a.channels == 3) {
    quality.luma.mean_squared_error = luma_squares / pixels;
    quality.luma.psnr_db = psnr_db(quality.luma.mean_squared_error, kPicturePeak);
    quality.luma.ssim = ssim(LumaRows{a}, LumaRows{b}, a.height, a.width, kPicturePeak, buffers);
  }
  return quality;
}

SeriesSummary summarize(const FrameSeries& frames, double peak) {
  SeriesSummary s;
  const auto count = static_cast<int64_t>(frames.size());
  double errors = 0;
  for (int64_t t = 0; t < count; ++t) {
    const FrameQuality& f = frames[t];
    s.identical += f.identical() ? 1 : 0;
    s.mean_psnr_db += f.identical() ? 0 : f.psnr_db;
    s.mean_ssim += f.ssim;
    errors += f.mean_squared_error;
    if (f.psnr_db < frames[s.worst_psnr].psnr_db) s.worst_psnr = t;
    if (f.ssim < frames[s.worst_ssim].ssim) s.worst_ssim = t;
  }
  s.mean_psnr_db = s.identical == count ? std::numeric_limits<double>::infinity()
                                        : s.mean_psnr_db / static_cast<double>(count - s.identical);
  s.pooled_psnr_db = psnr_db(errors / static_cast<double>(count), peak);
  s.mean_ssim /= static_cast<double>(count);
  return s;
}

std::string frames_text(const std::vector<NamedSeries>& series, std::optional<int64_t> worst) {
  std::string text =
      fmt::format("{:<14}{:>12}{:>12}{:>12}{:>8}\n", "frames", "mean", "pooled", "worst", "frame");
  for (const NamedSeries& n : series) {
    const FrameSeries& frames = *n.frames;
    const SeriesSummary s = summarize(frames, n.peak);
    text +=
        fmt::format("{:<14}{:>12}{:>12}{:>12}{:>8}\n", n.name + " psnr dB", db_text(s.mean_psnr_db),
                    db_text(s.pooled_psnr_db), db_text(frames[s.worst_psnr].psnr_db), s.worst_psnr);
    text += fmt::format("{:<14}{:>12.6f}{:>12}{:>12.6f}{:>8}\n", n.name + " ssim", s.mean_ssim, "-",
                        frames[s.worst_ssim].ssim, s.worst_ssim);
    if (s.identical == static_cast<int64_t>(frames.size())) {
      text += fmt::format("all {} frames are identical in {}\n", frames.size(), n.name);
    } else if (s.identical > 0) {
      text += fmt::format("{} of {} frames are identical in {}; the mean psnr is of the others\n",
                          s.identical, frames.size(), n.name);
    }
  }
  const FrameSeries& first = *series.front().frames;
  std::vector<size_t> order(first.size());
  std::iota(order.begin(), order.end(), size_t{0});
  if (worst) {
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t x, size_t y) { return first[x].ssim < first[y].ssim; });
    order.resize(std::min(order.size(), static_cast<size_t>(std::max<int64_t>(0, *worst))));
    text +=
        fmt::format("\nthe {} frames with the lowest {} ssim\n", order.size(), series.front().name);
  } else {
    text += "\nevery frame\n";
  }
  text += fmt::format("{:>6}", "frame");
  for (const NamedSeries& n : series) {
    text += fmt::format("{:>16}{:>14}", n.name + " psnr dB", n.name + " ssim");
  }
  text += "\n";
  for (const size_t t : order) {
    text += fmt::format("{:>6}", t);
    for (const NamedSeries& n : series) {
      const FrameQuality& f = (*n.frames)[t];
      text += fmt::format("{:>16}{:>14.6f}", db_text(f.psnr_db), f.ssim);
    }
    text += "\n";
  }
  return text;
}

Json agreement_json(const Agreement& agreement) {
  Json json;
  json["cosine"] = agreement.cosine ? Json(*agreement.cosine) : Json();
  json["relative_l2"] = agreement.relative_l2 ? Json(*agreement.relative_l2) : Json();
  json["max_abs"] = agreement.max_abs;
  return json;
}

Json frames_json(const FrameSeries& frames, double peak) {
  const SeriesSummary s = summarize(frames, peak);
  const bool identical = s.identical == static_cast<int64_t>(frames.size());
  Json json = {{"identical", identical}, {"identical_frames", s.identical}, {"peak", peak}};
  json["psnr_db"] = {{"mean", finite(s.mean_psnr_db)},
                     {"pooled", finite(s.pooled_psnr_db)},
                     {"worst", finite(frames[s.worst_psnr].psnr_db)},
                     {"worst_frame", s.worst_psnr}};
  json["ssim"] = {
      {"mean", s.mean_ssim}, {"worst", frames[s.worst_ssim].ssim}, {"worst_frame", s.worst_ssim}};
  json["frames"] = Json::array();
  for (const FrameQuality& f : frames) {
    json["frames"].push_back({{"frame", json["frames"].size()},
                              {"psnr_db", finite(f.psnr_db)},
                              {"identical", f.identical()},
                              {"ssim", f.ssim}});
  }
  return json;
}

}  // namespace h3::pipeline
