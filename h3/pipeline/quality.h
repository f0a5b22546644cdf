// How far two runs are apart: cosine and relative L2 of latents, PSNR and SSIM of every frame.
// Everything is summed in double by one thread per frame: equal input gives equal bits.
//
//   LatentsQuality q = compare_latents(dense, sparse, {.a = "dense", .b = "sparse"});
//   std::string table = frames_text({{"video", &q.frames, q.peak}}, 5);
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace h3::pipeline {

/// Borrowed f32 values [channels, frames, height, width], contiguous, in host memory. Views may
/// alias.
struct LatentView {
  const float* data = nullptr;
  int64_t channels = 0, frames = 0, height = 0, width = 0;
};

/// A picture of 8-bit values, [height, width, channels], contiguous; 1 channel (gray) or 3 (RGB).
struct Picture {
  int64_t height = 0, width = 0, channels = 0;
  std::vector<uint8_t> data;
};

/// Of B against the reference A. Absent where a norm that it divides by is zero.
struct Agreement {
  std::optional<double> cosine;       // a . b / (||a|| ||b||)
  std::optional<double> relative_l2;  // ||a - b|| / ||a||
  double max_abs = 0;                 // largest |a - b|
};

struct FrameQuality {
  double mean_squared_error = 0;
  double psnr_db = 0;  // 10 log10(peak^2 / mean_squared_error); infinite for equal frames
  double ssim = 1;
  bool identical() const { return mean_squared_error == 0; }  // equal in every value
};

using FrameSeries = std::vector<FrameQuality>;

/// Of a series that is not empty.
struct SeriesSummary {
  int64_t identical = 0;
  double mean_psnr_db = 0;    // over the frames that are not identical; infinite if all are
  double pooled_psnr_db = 0;  // of the mean squared error of all frames together
  double mean_ssim = 0;
  int64_t worst_psnr = 0, worst_ssim = 0;  // frame numbers; the first of equals
};
SeriesSummary summarize(const FrameSeries& frames, double peak);

struct CompareOptions {
  std::string a = "A", b = "B";      // what messages call the two
  std::optional<double> data_range;  // peak of PSNR and SSIM, in latent units; else A's value range
  int threads = 0;                   // 0: as many as the machine runs at once
};

struct LatentsQuality {
  Agreement agreement;
  FrameSeries frames;  // over all channels; SSIM is the mean of the channels' SSIM
  double peak = 0;     // largest minus smallest value of A, or the data range given
  int64_t window = 0;  // side of the SSIM window
};

/// PSNR and SSIM of every latent frame. SSIM is that of Wang, Bovik, Sheikh and Simoncelli (2004),
/// eq. 13, K1 = 0.01, K2 = 0.03, L = peak, with a Gaussian window of 11 x 11 and sigma 1.5 that
/// sums to 1, moved over every place where it lies whole inside the frame; no downsampling. It is
/// made for values from 0 to L, latents are signed: around zero a flipped sign can hide in it (two
/// negative factors), so read it beside PSNR and cosine. Throws kInvalidArgument for shapes that
/// differ or are empty, NaN or infinite values (how many, where first), a data range that is not
/// positive, and an A of one single value without a data range.
LatentsQuality compare_latents(const LatentView& a, const LatentView& b,
                               const CompareOptions& options = {});

/// Of any two tensors of one size. Throws kInvalidArgument as compare_latents; `shape` is that of
/// both and places the first bad value in messages.
Agreement compare_values(std::span<const float> a, std::span<const float> b,
                         std::span<const int64_t> shape, const CompareOptions& options = {});

struct PictureQuality {
  FrameQuality luma;  // 0.299 R + 0.587 G + 0.114 B (ITU-R BT.601), not rounded; gray: as it is
  FrameQuality rgb;   // PSNR over all channels; SSIM the mean of the channels' SSIM
};

/// Peak of 8-bit pictures.
inline constexpr double kPicturePeak = 255;

/// Throws kInvalidArgument for sizes or channel counts that differ, are empty or do not fit `data`.
PictureQuality compare_pictures(const Picture& a, const Picture& b,
                                const CompareOptions& options = {});

/// Side of the SSIM window: 11, or for smaller frames the largest odd number that fits both sides.
int64_t ssim_window(int64_t height, int64_t width);

/// Runs work(0) ... work(count - 1) on up to `threads` threads (0: as many as the machine runs at
/// once). Items that have begun end before it returns; after a failure no others begin. Rethrows
/// the exception of the lowest item that threw.
void for_each_frame(int64_t count, int threads, const std::function<void(int64_t)>& work);

/// "[1, 24, 37, 48, 84]".
std::string shape_text(std::span<const int64_t> shape);

struct NamedSeries {
  std::string name;
  const FrameSeries* frames = nullptr;  // borrowed; as many in every series
  double peak = 0;
};

/// A table of means and worst frames, and one of the `worst` frames with the lowest SSIM of the
/// first series, lowest first; without `worst` every frame in order.
std::string frames_text(const std::vector<NamedSeries>& series, std::optional<int64_t> worst);

/// {"cosine", "relative_l2", "max_abs"}; null where there is none.
nlohmann::ordered_json agreement_json(const Agreement& agreement);
/// {"identical_frames", "psnr_db": {...}, "ssim": {...}, "frames": [...]}. A PSNR that is infinite
/// is null, beside "identical": true.
nlohmann::ordered_json frames_json(const FrameSeries& frames, double peak);

}  // namespace h3::pipeline
