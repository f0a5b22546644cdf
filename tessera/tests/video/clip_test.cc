// Decoding, the token order, and everything that is refused before the work starts.
#include "tessera/video/clip.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "tessera/tests/video/clip_maker.h"
#include "tessera/video/features.h"
#include "tessera/video/grid.h"

namespace tessera::video {
namespace {

Status open(const std::string& path) {
  ClipInfo info;
  return probe_clip(path, &info);
}

void expect_refused(const Status& status, const std::string& part) {
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << status.message();
  EXPECT_NE(status.message().find(part), std::string::npos) << status.message();
}

TEST(Clip, ColourOfPatch_IsItsTokenIndex) {
  // 2 x 2 x 3 tokens; the red channel of every pixel is 20 times the index of its token.
  const TokenGrid grid{2, 2, 3};
  const std::string path = make_clip("order.mkv", 8, 96, 64, [&](int f, int y, int x) {
    const int token = (f / 4 * 2 + y / 32) * 3 + x / 32;
    return std::array<uint8_t, 3>{uint8_t(20 * token), uint8_t(x % 32), uint8_t(f)};
  });
  ClipInfo info;
  ASSERT_TRUE(probe_clip(path, &info).ok());
  EXPECT_EQ(info.declared_frames, 8);
  Clip clip;
  ASSERT_TRUE(decode_clip(info, {.width = 96, .height = 64, .frames = 8}, &clip).ok());
  EXPECT_EQ(clip.lost_frames, 0);
  const std::vector<float> patches = patch_features(clip, grid);
  ASSERT_EQ(patches.size(), 12u * kPatchValues);
  for (int token = 0; token < 12; ++token) {
    for (int i = 0; i < kPatchValues; ++i) {
      const int channel = i % 3, column = i / 3 % kCells, frame = i / (3 * kCells * kCells);
      // Green averages the 4 columns of a cell: 4 c + 1.5.
      const double expected = channel == 0   ? 20.0 * token
                              : channel == 1 ? 4.0 * column + 1.5
                                             : double(token / 6 * 4 + frame);
      ASSERT_NEAR(255.0 * patches[size_t(token * kPatchValues + i)], expected, 0.01)
          << "token " << token << " value " << i;
    }
  }
}

TEST(Clip, ScaledDecode_KeepsTheColours) {
  const std::string path = make_clip("scale.mkv", 4, 128, 64, [](int, int, int x) {
    return x < 64 ? std::array<uint8_t, 3>{200, 40, 10} : std::array<uint8_t, 3>{10, 40, 200};
  });
  ClipInfo info;
  ASSERT_TRUE(probe_clip(path, &info).ok());
  Clip clip;
  ASSERT_TRUE(decode_clip(info, {.width = 64, .height = 32, .frames = 4}, &clip).ok());
  EXPECT_NEAR(clip.pixel(3, 16, 10)[0], 200, 2);
  EXPECT_NEAR(clip.pixel(3, 16, 50)[2], 200, 2);
}

TEST(Clip, NotAVideo_IsRefused) {
  const std::string text = scratch_path("notes.txt");
  std::ofstream(text) << std::string(5000, 'x');
  expect_refused(open(text), "not a video");
  const std::string noise = scratch_path("noise.mp4");
  std::ofstream(noise) << "\x01\x02not a video at all";
  expect_refused(open(noise), "noise.mp4");
  const std::string empty = scratch_path("empty.mp4");
  std::ofstream(empty).flush();
  expect_refused(open(empty), "empty.mp4");
}

TEST(Clip, MissingFileAndFolder_AreRefused) {
  expect_refused(open(scratch_path("absent.mp4")), "no such file");
  expect_refused(open(std::filesystem::temp_directory_path().string()), "is a folder");
}

TEST(Clip, SoundOnly_IsRefused) {
  const std::string path = scratch_path("sound.wav");
  // 8000 silent mono 8-bit samples at 8 kHz.
  std::string wav =
      "RIFF\x64\x1f"
      "XXWAVEfmt \x10XXX\x01X\x01X\x40\x1fXX\x40\x1fXX\x01X\x08Xdata\x40\x1fXX";
  for (char& c : wav) c = c == 'X' ? '\0' : c;
  std::ofstream(path, std::ios::binary) << wav << std::string(8000, '\x80');
  expect_refused(open(path), "no video stream");
}

TEST(Clip, CutOffFile_GivesTheFramesThatDecode) {
  const std::string path = make_moving_clip("cut.mkv", 24, 96, 64);
  std::filesystem::resize_file(path, std::filesystem::file_size(path) / 2);
  ClipInfo info;
  ASSERT_TRUE(probe_clip(path, &info).ok());
  ASSERT_EQ(info.declared_frames, 24);
  Clip clip;
  ASSERT_TRUE(decode_clip(info, {.width = 96, .height = 64, .frames = 24}, &clip).ok());
  EXPECT_GT(clip.frames, 4);
  EXPECT_LT(clip.frames, 20);
  EXPECT_EQ(clip.frames + clip.lost_frames, 24);
}

TEST(Grid, Automatic_StaysBelowTheCapAndNeverEnlarges) {
  for (int64_t cap : {1, 5, 64, 1000, 4096, 8192, 50000}) {
    for (const auto& [w, h] : {std::pair{1280, 720}, {640, 272}, {176, 144}, {32, 2000}, {7, 9}}) {
      const ClipInfo info{.width = w, .height = h, .declared_frames = 132};
      TokenGrid grid;
      ASSERT_TRUE(choose_grid(info, {.max_tokens = cap}, &grid).ok());
      EXPECT_LE(grid.tokens(), cap);
      EXPECT_GE(grid.tokens(), 1);
      EXPECT_LE(grid.frames(), 132);
      EXPECT_LT(grid.width(), std::max(w, 32) + 32);
      EXPECT_LT(grid.height(), std::max(h, 32) + 32);
    }
  }
  TokenGrid grid;
  const ClipInfo info{.width = 1280, .height = 720, .declared_frames = 132};
  ASSERT_TRUE(choose_grid(info, {.max_tokens = 8192}, &grid).ok());
  EXPECT_GT(grid.tokens(), 7000) << "most of the cap is used";
}

TEST(Grid, BadRequests_NameTheAcceptedValues) {
  const ClipInfo info{.path = "a.mp4", .width = 640, .height = 320, .declared_frames = 40};
  TokenGrid grid;
  expect_refused(choose_grid(info, {.width = 100, .height = 64}, &grid), "multiples of 32");
  expect_refused(choose_grid(info, {.width = 0, .height = 64}, &grid), "--size 0x64");
  expect_refused(choose_grid(info, {.frames = 6}, &grid), "multiple of 4");
  expect_refused(choose_grid(info, {.frames = 44}, &grid), "has only 40");
  expect_refused(choose_grid(info, {.max_tokens = 0}, &grid), "--tokens 0");
  expect_refused(choose_grid(info, {.max_tokens = 10, .width = 640, .height = 320}, &grid),
                 "200 tokens in one step");
  expect_refused(
      choose_grid({.path = "b.mp4", .width = 64, .height = 64, .declared_frames = 3}, {}, &grid),
      "at least 4");
}

}  // namespace
}  // namespace tessera::video
