// `h3 encode` as users run it, on media made here, with the tiny model.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "h3/cli/tests/run_h3.h"
#include "h3/media/movie_writer.h"
#include "tessera/io/safetensors.h"

namespace h3::cli {
namespace {

namespace fs = std::filesystem;
using tessera::io::SafetensorsFile;

constexpr int kWidth = 96, kHeight = 64, kFrames = 24, kSamples = 32000;

class EncodeCommand : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    std::string name = testing::TempDir() + "h3_encode_XXXXXX";
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    root_ = new std::string(name);
    setenv("OMP_NUM_THREADS", "1", 0);  // several tests at once on few cores
    const Outcome o = run_h3({"make-tiny", path("tiny"), "--seed", "3"});
    ASSERT_EQ(o.exit_code, 0) << o.err;
    media::MovieWriter movie(path("clip.mp4"), {.width = kWidth, .height = kHeight});
    std::vector<uint8_t> rgb(kWidth * kHeight * 3);
    for (int f = 0; f < kFrames; ++f) {
      for (size_t i = 0; i < rgb.size(); ++i) rgb[i] = static_cast<uint8_t>(3 * i + 5 * f);
      movie.add_frame(rgb.data());
    }
    std::vector<float> wave(kSamples);
    for (int i = 0; i < kSamples; ++i) wave[i] = 0.5f * std::sin(0.05f * static_cast<float>(i));
    movie.add_audio(wave.data(), wave.data(), kSamples);
    movie.finish();
  }
  static void TearDownTestSuite() {
    fs::remove_all(*root_);
    delete root_;
  }
  static std::string path(const std::string& name) { return *root_ + "/" + name; }
  static std::string bytes(const std::string& name) {
    std::ifstream file(path(name), std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  static std::vector<std::string> arguments(const std::string& media, const std::string& output,
                                            std::vector<std::string> more = {}) {
    std::vector<std::string> args = {"encode", path(media),  "--model-path", path("tiny"),
                                     "-o",     path(output), "--device",     "cpu"};
    args.insert(args.end(), more.begin(), more.end());
    return args;
  }
  static std::string* root_;
};
std::string* EncodeCommand::root_ = nullptr;

TEST_F(EncodeCommand, Clip_BecomesAConditionBesideTheText) {
  const Outcome o = run_h3(arguments("clip.mp4", "a.safetensors",
                                     {"--size", "96x64", "--name", "condition.1", "--into",
                                      path("tiny/examples/t2va.safetensors")}));
  ASSERT_EQ(o.exit_code, 0) << o.err;
  expect_parts(o.out, {"22 frames on 96x64", "condition.1.visual [1, 24, 7, 4, 6]"});
  SafetensorsFile file;
  ASSERT_TRUE(SafetensorsFile::open(path("a.safetensors"), &file).ok());
  EXPECT_EQ(file.find("condition.1.visual")->shape, (std::vector<int64_t>{1, 24, 7, 4, 6}));
  const auto& sound = file.find("condition.1.audio")->shape;
  ASSERT_EQ(sound.size(), 3u);
  EXPECT_EQ(sound[0], 2);
  EXPECT_EQ(sound[1], 32);
  // AAC completes its last frame, so a second of sound may be a few latents longer.
  EXPECT_GE(sound[2], 40);
  EXPECT_LE(sound[2], 43);
  SafetensorsFile text;
  ASSERT_TRUE(SafetensorsFile::open(path("tiny/examples/t2va.safetensors"), &text).ok());
  EXPECT_EQ(file.find("text")->shape, text.find("text")->shape);
  const auto* values = reinterpret_cast<const float*>(file.find("condition.1.visual")->data);
  for (int i = 0; i < 24 * 7 * 4 * 6; ++i) ASSERT_TRUE(std::isfinite(values[i]));
  ASSERT_EQ(run_h3(arguments("clip.mp4", "b.safetensors",
                             {"--size", "96x64", "--name", "condition.1", "--into",
                              path("tiny/examples/t2va.safetensors")}))
                .exit_code,
            0);
  EXPECT_EQ(bytes("a.safetensors"), bytes("b.safetensors"));
}

TEST_F(EncodeCommand, BadInput_IsRefusedAndLeavesNothing) {
  std::ofstream(path("empty.png"));
  std::ofstream(path("text.png")) << "not a picture";
  const struct {
    std::string media;
    std::vector<std::string> more, parts;
  } cases[] = {
      {"missing.png", {}, {"missing.png"}},
      {"empty.png", {}, {"empty.png"}},
      {"text.png", {}, {"text.png"}},
      {"clip.mp4", {"--size", "100x64"}, {"100x64", "multiples of 32"}},
      {"clip.mp4", {"--size", "wide"}, {"--size is wide"}},
      {"clip.mp4", {"--size", "96x64", "--max-frames", "10"}, {"10", "22"}},
      {"clip.mp4", {"--size", "96x64", "--into", path("text.png")}, {"text.png"}},
      {"clip.mp4", {"--fit", "squeeze"}, {"--fit"}},
  };
  for (const auto& c : cases) {
    const Outcome o = run_h3(arguments(c.media, "bad.safetensors", c.more));
    EXPECT_EQ(o.exit_code, 2) << c.media << o.err;
    expect_parts(o.err, c.parts);
    EXPECT_FALSE(fs::exists(path("bad.safetensors")));
  }
}

}  // namespace
}  // namespace h3::cli
