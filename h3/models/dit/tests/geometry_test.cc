#include "h3/models/dit/geometry.h"

#include <gtest/gtest.h>

#include <cmath>

#include "h3/common/error.h"

namespace h3::dit {
namespace {

struct TimingCase {
  double seconds;
  int64_t frames, latent_frames, audio_latents, video_rows;
};

class TimingTable : public testing::TestWithParam<TimingCase> {};

TEST_P(TimingTable, IsThePublishedOne) {
  const TimingCase& c = GetParam();
  const Timing t = timing_of_seconds(c.seconds);
  EXPECT_EQ(t.frames, c.frames);
  EXPECT_EQ(t.latent_frames, c.latent_frames);
  EXPECT_EQ(t.audio_latents, c.audio_latents);
  EXPECT_EQ(Canvas({1344, 768}).latents(t.latent_frames).rows(), c.video_rows);
}

INSTANTIATE_TEST_SUITE_P(All, TimingTable,
                         testing::Values(TimingCase{4, 107, 32, 178, 32256},
                                         TimingCase{5, 124, 37, 207, 37296},
                                         TimingCase{8, 192, 57, 320, 57456},
                                         TimingCase{10, 243, 72, 405, 72576},
                                         TimingCase{15, 362, 107, 603, 107856}));

TEST(Geometry, Frames_SnapUpToTheClips) {
  EXPECT_EQ(aligned_frames(1), 5);
  EXPECT_EQ(aligned_frames(5), 5);
  EXPECT_EQ(aligned_frames(6), 22);
  EXPECT_EQ(aligned_frames(107), 107);
  EXPECT_EQ(aligned_frames(108), 124);
  EXPECT_THROW(aligned_frames(0), Error);
  EXPECT_THROW(timing_of_frames(108), Error);
  EXPECT_THROW(timing_of_frames(4), Error);
}

TEST(Geometry, HalfFrames_RoundToEven) {
  // 4.4375 s is 106.5 frames, 5.1875 s is 124.5: both to the even neighbour, and no higher clip.
  EXPECT_EQ(timing_of_seconds(4.4375).frames, 107);
  EXPECT_EQ(timing_of_seconds(124.5 / 24).frames, 124);
  EXPECT_EQ(timing_of_seconds(124.51 / 24).frames, 141);
  // 107.5 goes to 108, so to the next clip.
  EXPECT_EQ(timing_of_seconds(107.5 / 24).frames, 124);
}

TEST(Geometry, Durations_OutsideTheLimitsAreRefused) {
  for (const double s : {3.99, 15.01, 0.0, -5.0, std::nan(""), HUGE_VAL}) {
    EXPECT_THROW(timing_of_seconds(s), Error) << s;
  }
  EXPECT_NEAR(timing_of_seconds(15).seconds(), 15.0833, 1e-4);
}

struct CanvasCase {
  double w, h;
  int64_t short_edge;
  Canvas want;
};

class CanvasTable : public testing::TestWithParam<CanvasCase> {};

TEST_P(CanvasTable, IsThePublishedOne) {
  const CanvasCase& c = GetParam();
  const Canvas got = target_canvas(c.w, c.h, c.short_edge);
  EXPECT_EQ(got.width, c.want.width);
  EXPECT_EQ(got.height, c.want.height);
}

INSTANTIATE_TEST_SUITE_P(
    All, CanvasTable,
    testing::Values(CanvasCase{21, 9, 768, {1536, 672}}, CanvasCase{16, 9, 768, {1344, 768}},
                    CanvasCase{4, 3, 768, {1024, 768}}, CanvasCase{1, 1, 768, {768, 768}},
                    CanvasCase{3, 4, 768, {768, 1024}}, CanvasCase{9, 16, 768, {768, 1344}},
                    CanvasCase{1, 1, 16, {32, 32}},           // never below 32
                    CanvasCase{1, 1, 80, {64, 64}},           // 2.5 tiles: to the even 2
                    CanvasCase{1, 1, 112, {128, 128}},        // 3.5 tiles: to the even 4
                    CanvasCase{1, 1, 1000000, {1024, 1024}},  // cut to the area
                    CanvasCase{4, 1, 768, {2016, 512}}, CanvasCase{1, 4, 768, {512, 2016}}));

TEST(Geometry, Aspects_OutsideTheLimitsAreRefused) {
  EXPECT_THROW(target_canvas(4.01, 1), Error);
  EXPECT_THROW(target_canvas(1, 4.01), Error);
  EXPECT_THROW(target_canvas(0, 1), Error);
  EXPECT_THROW(target_canvas(-1, -1), Error);
  EXPECT_THROW(target_canvas(std::nan(""), 1), Error);
  EXPECT_THROW(target_canvas(1, 1, 0), Error);
}

TEST(Geometry, ReferenceImages_AreResizedByMode) {
  const Canvas target{1344, 768};
  using enum ReferenceResize;
  EXPECT_EQ(reference_image_canvas({1000, 500}, target, kDiffusers), Canvas({4096, 2048}));
  EXPECT_EQ(reference_image_canvas({1000, 500}, target, kMax), Canvas({992, 512}));
  EXPECT_EQ(reference_image_canvas({1000, 500}, target, kMatch), Canvas({992, 512}));
  EXPECT_EQ(reference_image_canvas({4000, 4000}, target, kMax), Canvas({2048, 2048}));
  EXPECT_EQ(reference_image_canvas({4000, 4000}, target, kMatch), Canvas({1024, 1024}));
  EXPECT_EQ(reference_image_canvas({8, 8}, target, kMax), Canvas({32, 32}));
  EXPECT_EQ(reference_image_canvas({400, 100}, target, kDiffusers), Canvas({8192, 2048}));
  EXPECT_THROW(reference_image_canvas({401, 100}, target, kDiffusers), Error);
  EXPECT_THROW(reference_image_canvas({100, 401}, target, kMax), Error);
  EXPECT_THROW(reference_image_canvas({0, 10}, target, kMax), Error);
}

TEST(Geometry, ReferenceVideos_AreTrimmedDownToClips) {
  EXPECT_EQ(reference_video_frames(48, 124), 39);
  EXPECT_EQ(reference_video_frames(22, 124), 22);
  EXPECT_EQ(reference_video_frames(38, 124), 22);
  EXPECT_EQ(reference_video_frames(360, 124), 124);
  EXPECT_THROW(reference_video_frames(21, 124), Error);
  EXPECT_THROW(reference_video_frames(0, 124), Error);
}

TEST(Geometry, SecondKeyframe_CoversTheCanvas) {
  const CoverCrop wide = cover_crop({2000, 1000}, {768, 768});
  EXPECT_EQ(wide.resized, Canvas({1536, 768}));
  EXPECT_EQ(wide.left, 384);
  EXPECT_EQ(wide.top, 0);
  const CoverCrop odd = cover_crop({101, 100}, {768, 768});
  EXPECT_EQ(odd.resized, Canvas({776, 768}));
  EXPECT_EQ(odd.left, 4);
  const CoverCrop same = cover_crop({1344, 768}, {1344, 768});
  EXPECT_EQ(same.resized, Canvas({1344, 768}));
  EXPECT_EQ(same.left + same.top, 0);
  EXPECT_THROW(cover_crop({0, 1}, {768, 768}), Error);
}

}  // namespace
}  // namespace h3::dit
