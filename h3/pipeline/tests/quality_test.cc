// PSNR, SSIM and agreement against values worked out by hand, and SSIM against its definition
// written out with a two-dimensional window in long double.
#include "h3/pipeline/quality.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "h3/common/error.h"

namespace h3::pipeline {
namespace {

constexpr uint32_t kSeed = 20261130;
constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct Latents {
  int64_t channels, frames, height, width;
  std::vector<float> data;

  Latents(int64_t c, int64_t t, int64_t h, int64_t w, float value = 0)
      : channels(c),
        frames(t),
        height(h),
        width(w),
        data(static_cast<size_t>(c * t * h * w), value) {}
  LatentView view() const { return {data.data(), channels, frames, height, width}; }
  float& at(int64_t c, int64_t t, int64_t y, int64_t x) {
    return data[static_cast<size_t>(((c * frames + t) * height + y) * width + x)];
  }
};

Latents random_latents(int64_t c, int64_t t, int64_t h, int64_t w, uint32_t seed, double mean = 0) {
  Latents l(c, t, h, w);
  std::mt19937 engine(seed);
  std::normal_distribution<double> normal(mean, 1);
  for (float& v : l.data) v = static_cast<float>(normal(engine));
  return l;
}

// The definition: window, weighted means, weighted central moments.
double plain_ssim(const float* a, const float* b, int64_t height, int64_t width, double peak,
                  double sigma = 1.5, int64_t side = 11) {
  side = std::min({side, height, width});
  side -= side % 2 == 0 ? 1 : 0;
  std::vector<long double> window(static_cast<size_t>(side * side));
  long double sum = 0, total = 0;
  for (int64_t i = 0; i < side * side; ++i) {
    const double y = static_cast<double>(i / side - side / 2),
                 x = static_cast<double>(i % side - side / 2);
    sum += window[i] = std::exp(-(y * y + x * x) / (2 * sigma * sigma));
  }
  const long double c1 = 1e-4L * peak * peak, c2 = 9e-4L * peak * peak;
  for (int64_t top = 0; top + side <= height; ++top) {
    for (int64_t left = 0; left + side <= width; ++left) {
      long double ma = 0, mb = 0, va = 0, vb = 0, ab = 0;
      const auto each = [&](const auto& work) {
        for (int64_t i = 0; i < side * side; ++i) {
          const int64_t at = (top + i / side) * width + left + i % side;
          work(window[i] / sum, static_cast<long double>(a[at]), static_cast<long double>(b[at]));
        }
      };
      each([&](long double w, long double x, long double y) { ma += w * x, mb += w * y; });
      each([&](long double w, long double x, long double y) {
        va += w * (x - ma) * (x - ma), vb += w * (y - mb) * (y - mb), ab += w * (x - ma) * (y - mb);
      });
      total += (2 * ma * mb + c1) * (2 * ab + c2) / ((ma * ma + mb * mb + c1) * (va + vb + c2));
    }
  }
  return static_cast<double>(total / ((height - side + 1) * (width - side + 1)));
}

// SSIM of one window position over a picture of zeros with one `peak`, where the window weighs it
// `g`, and its inverse.
double inverted_ssim(double g, double peak) {
  const double c1 = 1e-4 * peak * peak, c2 = 9e-4 * peak * peak;
  const double a = peak * g, b = peak * (1 - g), variance = peak * peak * g * (1 - g);
  return (2 * a * b + c1) * (-2 * variance + c2) / ((a * a + b * b + c1) * (2 * variance + c2));
}

// PSNR of a frame against its negative.
double psnr_of_double(Latents a, int64_t frame, double peak) {
  double squares = 0;
  for (int64_t i = 0; i < a.channels * a.height * a.width; ++i) {
    const int64_t size = a.height * a.width;
    const double v = a.data[static_cast<size_t>((i / size * a.frames + frame) * size + i % size)];
    squares += 4 * v * v;
  }
  return 10 *
         std::log10(peak * peak * static_cast<double>(a.channels * a.height * a.width) / squares);
}

template <class Work>
void expect_refused(const Work& work, const std::vector<std::string>& parts) {
  try {
    work();
    ADD_FAILURE() << "accepted, expected: " << parts.front();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    EXPECT_FALSE(error.hint().empty());
    for (const std::string& part : parts) {
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos)
          << "missing: " << part << "\nin: " << error.what();
    }
  }
}

TEST(LatentQuality, Identical_IsPerfect) {
  const Latents a = random_latents(3, 4, 12, 17, kSeed, 5);
  const LatentsQuality q = compare_latents(a.view(), a.view());
  EXPECT_EQ(q.agreement.cosine, 1.0);
  EXPECT_EQ(q.agreement.relative_l2, 0.0);
  EXPECT_EQ(q.agreement.max_abs, 0);
  EXPECT_EQ(q.window, 11);
  ASSERT_EQ(q.frames.size(), 4u);
  for (const FrameQuality& f : q.frames) {
    EXPECT_TRUE(f.identical());
    EXPECT_EQ(f.psnr_db, kInfinity);
    EXPECT_EQ(f.ssim, 1.0);
  }
}

TEST(LatentQuality, ConstantOffset_IsExact) {
  Latents a(2, 3, 4, 5);
  double squares = 0;
  for (size_t i = 0; i < a.data.size(); ++i) {
    a.data[i] = static_cast<float>(i % 11) * 0.5f;  // 0 to 5
    squares += a.data[i] * a.data[i];
  }
  Latents b = a;
  for (float& v : b.data) v += 0.5f;
  const LatentsQuality q = compare_latents(a.view(), b.view());
  EXPECT_EQ(q.peak, 5);
  EXPECT_EQ(q.agreement.max_abs, 0.5);
  EXPECT_DOUBLE_EQ(*q.agreement.relative_l2, 0.5 * std::sqrt(120 / squares));
  for (const FrameQuality& f : q.frames) {
    EXPECT_EQ(f.mean_squared_error, 0.25);
    EXPECT_DOUBLE_EQ(f.psnr_db, 20);  // peak 10 times the offset
    EXPECT_FALSE(f.identical());
  }
  const LatentsQuality wider = compare_latents(a.view(), b.view(), {.data_range = 50});
  EXPECT_DOUBLE_EQ(wider.frames[2].psnr_db, 40);
}

TEST(LatentQuality, ConstantFrames_LeaveTheLuminanceTerm) {
  const Latents a(1, 1, 20, 13, 3.0f), b(1, 1, 20, 13, 4.0f);
  const LatentsQuality q = compare_latents(a.view(), b.view(), {.data_range = 10});
  EXPECT_NEAR(q.frames[0].ssim, (24 + 0.01) / (25 + 0.01), 1e-12);
  EXPECT_EQ(q.agreement.cosine, 1.0);
  EXPECT_DOUBLE_EQ(q.frames[0].psnr_db, 20);
}

TEST(LatentQuality, Inverted_IsByHand) {
  const Latents a = random_latents(2, 2, 6, 6, kSeed);
  Latents b = a;
  for (float& v : b.data) v = -v;
  const LatentsQuality negative = compare_latents(a.view(), b.view());
  EXPECT_EQ(negative.agreement.cosine, -1.0);
  EXPECT_EQ(negative.agreement.relative_l2, 2.0);
  EXPECT_NEAR(negative.frames[0].psnr_db, psnr_of_double(a, 0, negative.peak), 1e-12);

  // A 3 x 3 window over 3 x 4 values has two places; the bright value is in the middle of the first
  // and beside the middle of the second.
  const double side = std::exp(-1 / 4.5), sum = 1 + 2 * side;
  Latents spot(2, 1, 3, 4), inverse(2, 1, 3, 4);
  spot.at(0, 0, 1, 1) = spot.at(1, 0, 1, 1) = 7;
  for (size_t i = 0; i < 12; ++i) inverse.data[i] = 7 - spot.data[i];
  std::copy_n(spot.data.begin() + 12, 12, inverse.data.begin() + 12);  // channel 1 is equal
  const LatentsQuality q = compare_latents(spot.view(), inverse.view());
  const double inverted =
      (inverted_ssim(1 / (sum * sum), 7) + inverted_ssim(side / (sum * sum), 7)) / 2;
  EXPECT_EQ(q.window, 3);
  EXPECT_NEAR(q.frames[0].ssim, (inverted + 1) / 2, 1e-12);
  EXPECT_DOUBLE_EQ(q.frames[0].psnr_db, 10 * std::log10(2.0));  // half of the values are 7 off
}

TEST(LatentQuality, Ssim_MatchesTheDefinition) {
  std::printf("seed %u\n", kSeed);
  const int64_t sizes[][2] = {{1, 1},  {1, 9},   {2, 2},   {3, 8},   {5, 6},  {8, 7},
                              {9, 40}, {10, 10}, {11, 11}, {12, 30}, {48, 20}};
  for (const auto& [height, width] : sizes) {
    SCOPED_TRACE(testing::Message() << height << " x " << width);
    const Latents a = random_latents(2, 3, height, width, kSeed + height);
    Latents b = a;
    const Latents noise = random_latents(2, 3, height, width, kSeed + 1000 + width);
    for (size_t i = 0; i < b.data.size(); ++i) b.data[i] += 0.3f * noise.data[i];
    const LatentsQuality q = compare_latents(a.view(), b.view(), {.data_range = 6});
    EXPECT_EQ(q.window, ssim_window(height, width));
    for (int64_t t = 0; t < 3; ++t) {
      double expected = 0, wrong = 0;
      for (int64_t c = 0; c < 2; ++c) {
        const int64_t at = (c * 3 + t) * height * width;
        expected += plain_ssim(&a.data[at], &b.data[at], height, width, 6) / 2;
        wrong += plain_ssim(&a.data[at], &b.data[at], height, width, 6, 1.4) / 2;
      }
      EXPECT_NEAR(q.frames[t].ssim, expected, 1e-12);
      if (q.window > 1) {
        EXPECT_GT(std::abs(q.frames[t].ssim - wrong), 1e-6) << "blind to sigma";
      }
    }
  }
}

// The contrast of values around 1000 is not lost in rounding.
TEST(LatentQuality, Ssim_IsStableFarFromZero) {
  const Latents noise = random_latents(2, 1, 24, 24, kSeed);
  Latents a(1, 1, 24, 24), b(1, 1, 24, 24);
  for (size_t i = 0; i < a.data.size(); ++i) {
    a.data[i] = 1000 + 0.001f * noise.data[i];
    b.data[i] = a.data[i] + 0.0005f * noise.data[i + a.data.size()];
  }
  const LatentsQuality q = compare_latents(a.view(), b.view());
  EXPECT_LT(q.peak, 0.01);
  EXPECT_NEAR(q.frames[0].ssim, plain_ssim(a.data.data(), b.data.data(), 24, 24, q.peak), 1e-9);
  EXPECT_LT(q.frames[0].ssim, 0.99);
}

TEST(LatentQuality, Frames_AreToldApart) {
  const Latents a = random_latents(2, 5, 12, 12, kSeed);
  Latents b = a;
  b.at(1, 3, 4, 4) += 1;
  const LatentsQuality q = compare_latents(a.view(), b.view());
  for (int64_t t = 0; t < 5; ++t) EXPECT_EQ(q.frames[t].identical(), t != 3);
  EXPECT_NEAR(q.frames[3].mean_squared_error, 1.0 / (2 * 12 * 12), 1e-7);
}

TEST(LatentQuality, Threads_GiveEqualBits) {
  const Latents a = random_latents(3, 9, 20, 30, kSeed),
                b = random_latents(3, 9, 20, 30, kSeed + 1);
  const LatentsQuality one = compare_latents(a.view(), b.view(), {.threads = 1});
  const LatentsQuality many = compare_latents(a.view(), b.view(), {.threads = 4});
  for (size_t t = 0; t < 9; ++t) {
    EXPECT_EQ(one.frames[t].ssim, many.frames[t].ssim);
    EXPECT_EQ(one.frames[t].psnr_db, many.frames[t].psnr_db);
  }
}

TEST(LatentQuality, BadInput_IsRefused) {
  const Latents a = random_latents(2, 3, 4, 5, kSeed), other(2, 3, 5, 4, 1), flat(2, 3, 4, 5, 2);
  expect_refused([&] { compare_latents(a.view(), other.view(), {.a = "dense", .b = "sparse"}); },
                 {"dense", "[2, 3, 4, 5]", "sparse", "[2, 3, 5, 4]"});
  const Latents none(2, 0, 4, 5);
  expect_refused([&] { compare_latents(none.view(), none.view()); }, {"[2, 0, 4, 5]"});
  Latents bad = a;
  bad.at(1, 2, 3, 0) = std::nanf("");
  bad.at(1, 0, 2, 4) = -std::numeric_limits<float>::infinity();
  expect_refused([&] { compare_latents(a.view(), bad.view()); },
                 {"B holds 2 NaN or infinite values of 120", "first (-inf) at [1, 0, 2, 4]"});
  expect_refused([&] { compare_latents(bad.view(), a.view()); }, {"A holds 2"});
  expect_refused([&] { compare_latents(flat.view(), a.view()); },
                 {"every value of A is 2", "--data-range"});
  for (const double range : {0.0, -1.0, std::nan(""), kInfinity}) {
    expect_refused([&] { compare_latents(a.view(), a.view(), {.data_range = range}); },
                   {"the data range is"});
  }
}

TEST(Agreement, ZeroNorms_HaveNoRatio) {
  const std::vector<float> zero(6, 0.0f), one(6, 1.0f);
  const std::vector<int64_t> shape = {2, 3};
  const Agreement from_zero = compare_values(zero, one, shape);
  EXPECT_FALSE(from_zero.cosine);
  EXPECT_FALSE(from_zero.relative_l2);
  EXPECT_EQ(from_zero.max_abs, 1);
  const Agreement to_zero = compare_values(one, zero, shape);
  EXPECT_FALSE(to_zero.cosine);
  EXPECT_EQ(to_zero.relative_l2, 1.0);
  expect_refused([&] { compare_values(one, {one.data(), 5}, shape); }, {"6 values", "has 5"});
}

TEST(Agreement, Cosine_IsByHand) {
  const std::vector<float> a = {3, 4}, b = {4, 3};
  const Agreement agreement = compare_values(a, b, std::vector<int64_t>{2});
  EXPECT_DOUBLE_EQ(*agreement.cosine, 24.0 / 25);
  EXPECT_DOUBLE_EQ(*agreement.relative_l2, std::sqrt(2.0) / 5);
}

Picture picture(int64_t height, int64_t width, std::vector<uint8_t> colour) {
  Picture p{height, width, static_cast<int64_t>(colour.size()), {}};
  for (int64_t i = 0; i < height * width; ++i) {
    p.data.insert(p.data.end(), colour.begin(), colour.end());
  }
  return p;
}

TEST(PictureQuality, Channels_AndLuma_AreByHand) {
  const Picture a = picture(12, 15, {100, 50, 200}), b = picture(12, 15, {110, 60, 180});
  const PictureQuality q = compare_pictures(a, b);
  EXPECT_DOUBLE_EQ(q.rgb.psnr_db, 10 * std::log10(255 * 255 / (600.0 / 3)));
  EXPECT_NEAR(q.luma.mean_squared_error, 6.58 * 6.58, 1e-12);  // 2.99 + 5.87 - 2.28
  const double c1 = 2.55 * 2.55;
  const auto flat = [&](double x, double y) { return (2 * x * y + c1) / (x * x + y * y + c1); };
  EXPECT_NEAR(q.rgb.ssim, (flat(100, 110) + flat(50, 60) + flat(200, 180)) / 3, 1e-9);
  const double la = 29.9 + 29.35 + 22.8, lb = la + 6.58;
  EXPECT_NEAR(q.luma.ssim, flat(la, lb), 1e-9);
  const PictureQuality same = compare_pictures(a, a);
  EXPECT_TRUE(same.luma.identical() && same.rgb.identical());
  EXPECT_EQ(same.luma.psnr_db, kInfinity);
  EXPECT_EQ(same.luma.ssim, 1);
  EXPECT_EQ(same.rgb.ssim, 1);
}

TEST(PictureQuality, InvertedGray_IsZeroDecibel) {
  Picture a = picture(16, 16, {0});
  for (size_t i = 0; i < a.data.size(); i += 3) a.data[i] = 255;
  Picture b = a;
  for (uint8_t& v : b.data) v = static_cast<uint8_t>(255 - v);
  const PictureQuality q = compare_pictures(a, b);
  EXPECT_EQ(q.rgb.psnr_db, 0);
  EXPECT_EQ(q.luma.psnr_db, 0);
  EXPECT_EQ(q.luma.ssim, q.rgb.ssim);
  const std::vector<float> fa(a.data.begin(), a.data.end()), fb(b.data.begin(), b.data.end());
  EXPECT_NEAR(q.rgb.ssim, plain_ssim(fa.data(), fb.data(), 16, 16, 255), 1e-10);
}

TEST(PictureQuality, BadInput_IsRefused) {
  const Picture a = picture(4, 6, {1, 2, 3});
  expect_refused(
      [&] {
        compare_pictures(a, picture(6, 4, {1, 2, 3}), {.b = "b.png"});
      },
      {"A is 6 x 4 with 3", "b.png is 4 x 6"});
  expect_refused([&] { compare_pictures(a, picture(4, 6, {1})); }, {"3 channels", "1 channels"});
  expect_refused([&] { compare_pictures(picture(4, 6, {1, 2, 3, 4}), a); }, {"4 channels"});
  Picture shorter = a;
  shorter.data.pop_back();
  expect_refused([&] { compare_pictures(a, shorter); }, {"71 bytes"});
}

TEST(Summary, MixedFrames_AreByHand) {
  const FrameSeries frames = {{1, 20, 0.9}, {0, kInfinity, 1}, {4, 14, 0.95}, {1, 20, 0.8}};
  const SeriesSummary s = summarize(frames, 10);
  EXPECT_EQ(s.identical, 1);
  EXPECT_DOUBLE_EQ(s.mean_psnr_db, 18);
  EXPECT_DOUBLE_EQ(s.pooled_psnr_db, 10 * std::log10(100 / 1.5));
  EXPECT_DOUBLE_EQ(s.mean_ssim, 3.65 / 4);
  EXPECT_EQ(s.worst_psnr, 2);
  EXPECT_EQ(s.worst_ssim, 3);
  const nlohmann::ordered_json json = frames_json(frames, 10);
  EXPECT_EQ(json["identical"], false);
  EXPECT_EQ(json["identical_frames"], 1);
  EXPECT_EQ(json["psnr_db"]["worst_frame"], 2);
  EXPECT_TRUE(json["frames"][1]["psnr_db"].is_null());
  EXPECT_EQ(json["frames"][1]["identical"], true);
  EXPECT_EQ(json["frames"][3]["ssim"], 0.8);

  const FrameSeries equal(2, {0, kInfinity, 1});
  EXPECT_EQ(summarize(equal, 10).mean_psnr_db, kInfinity);
  const nlohmann::ordered_json same = frames_json(equal, 10);
  EXPECT_EQ(same["identical"], true);
  EXPECT_TRUE(same["psnr_db"]["mean"].is_null());
  EXPECT_TRUE(same["psnr_db"]["pooled"].is_null());
}

TEST(Summary, Table_ListsTheWorstFirst) {
  const FrameSeries frames = {{1, 20, 0.9}, {0, kInfinity, 1}, {4, 14, 0.95}, {1, 20, 0.8}};
  const std::string text = frames_text({{"video", &frames, 10}}, 2);
  const size_t list = text.find("the 2 frames");
  ASSERT_NE(list, std::string::npos) << text;
  const size_t first = text.find("0.800000", list), second = text.find("0.900000", list);
  EXPECT_LT(first, second) << text;
  EXPECT_NE(second, std::string::npos);
  EXPECT_EQ(text.find("0.950000", list), std::string::npos) << text;
  const std::string all = frames_text({{"video", &frames, 10}}, std::nullopt);
  EXPECT_NE(all.find("inf"), std::string::npos) << all;
  EXPECT_NE(all.find("1 of 4 frames are identical"), std::string::npos);
}

TEST(FrameLoop, EveryItem_RunsOnce) {
  std::vector<std::atomic<int>> calls(100);
  for_each_frame(100, 3, [&](int64_t i) { ++calls[i]; });
  for (const auto& c : calls) EXPECT_EQ(c, 1);
  for_each_frame(0, 3, [](int64_t) { FAIL() << "no item"; });
}

TEST(FrameLoop, AfterAFailure_NoMoreBegin) {
  int calls = 0;
  const auto failing = [&](int64_t i) {
    ++calls;
    if (i >= 5) throw Error(ErrorCode::kInvalidArgument, "item " + std::to_string(i), "hint");
  };
  expect_refused([&] { for_each_frame(100, 1, failing); }, {"item 5"});
  EXPECT_EQ(calls, 6);
}

TEST(FrameLoop, OfTwoFailures_TheLowerItemComesOut) {
  std::atomic<bool> both = false;
  const auto failing = [&](int64_t i) {
    if (i == 1) {
      both = true;
      both.notify_all();
      std::this_thread::sleep_for(std::chrono::milliseconds(20));  // item 0 fails first
    } else {
      both.wait(false);
    }
    throw Error(ErrorCode::kInvalidArgument, "item " + std::to_string(i), "hint");
  };
  expect_refused([&] { for_each_frame(2, 2, failing); }, {"item 0"});
}

}  // namespace
}  // namespace h3::pipeline
