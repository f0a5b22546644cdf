// Movies, frames and sound that are written: their content, their contract, and what is left when
// writing ends early.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <cstring>
#include <fstream>
#include <iterator>
#include <limits>

#include "h3/media/ffmpeg.h"
#include "h3/media/movie_writer.h"
#include "h3/media/output_file.h"
#include "h3/media/png_frames.h"
#include "h3/media/tests/media_test_util.h"
#include "h3/media/wav_writer.h"

namespace h3::media {
namespace {

using testing::expect_text;
using testing::picture;
using testing::refusal;
using testing::TestFolder;
using testing::tone;

constexpr int kWidth = 64, kHeight = 48;

MovieSettings settings(int64_t frames = 12) {
  return {.width = kWidth, .height = kHeight, .frames = frames, .threads = 1};
}

void write_movie(const std::string& path, const MovieSettings& s, int64_t frames, double seconds) {
  MovieWriter writer(path, s);
  if (s.audio) {
    const auto left = tone(static_cast<int64_t>(seconds * s.sample_rate), 440),
               right = tone(static_cast<int64_t>(seconds * s.sample_rate), 880);
    writer.add_audio(left.data(), right.data(), static_cast<int64_t>(left.size()));
  }
  for (int64_t f = 0; f < frames; ++f) {
    writer.add_frame(picture(s.width, s.height, static_cast<int>(f)).data());
  }
  writer.finish();
}

std::string file_text(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

TEST(MovieWriter, Movie_MeetsItsContract) {
  const TestFolder folder;
  const std::string path = folder / "out.mp4";
  write_movie(path, settings(), 12, 0.5);
  EXPECT_EQ(folder.entries(), 1u);  // nothing temporary
  const MovieContract contract{.width = kWidth, .height = kHeight, .frames = 12};
  EXPECT_NO_THROW(check_movie(path, contract, "out"));
  // Every part of the contract can fail.
  const auto broken = [&](auto change) {
    MovieContract other = contract;
    change(other);
    return refusal(ErrorCode::kInternal, [&] { check_movie(path, other, "out"); });
  };
  expect_text(broken([](auto& c) { c.width = 62; }), {"the width is 64, not 62"});
  expect_text(broken([](auto& c) { c.height = 50; }), {"the height is 48, not 50"});
  expect_text(broken([](auto& c) { c.frames = 13; }), {"the number of frames is 12, not 13"});
  expect_text(broken([](auto& c) { c.fps = 25; }), {"the frame rate is 24.0", "not 25"});
  expect_text(broken([](auto& c) { c.sample_rate = 44100; }), {"sample rate is 32000"});
  expect_text(broken([](auto& c) { c.audio = false; }), {"audio streams is 1, not 0"});
}

TEST(MovieWriter, ContractOfOtherFiles_NamesEveryDifference) {
  const TestFolder folder;
  testing::ffmpeg(
      "-f lavfi -i testsrc2=s=64x48:r=24:d=0.5 -f lavfi -i sine=d=0.5:r=44100 -ac 1 "
      "-c:v mpeg4 -c:a mp3 " +
      folder / "a.mp4");
  const std::string text = refusal(ErrorCode::kInternal, [&] {
    check_movie(folder / "a.mp4", {.width = 64, .height = 48, .frames = 12}, "a.mp4");
  });
  expect_text(text, {"the video codec is mpeg4, not h264", "the audio codec is mp3, not aac",
                     "the sample rate is 44100, not 32000", "channels is 1, not 2"});
  testing::ffmpeg("-f lavfi -i testsrc2=s=64x48:r=24:d=0.5 -c:v libx264 -pix_fmt yuv444p " +
                  folder / "b.mkv");
  expect_text(refusal(ErrorCode::kInternal,
                      [&] {
                        check_movie(folder / "b.mkv",
                                    {.width = 64, .height = 48, .frames = 12, .audio = false}, "b");
                      }),
              {"the container is", "not mp4", "the pixel format is yuv444p"});
}

TEST(MovieWriter, Pictures_ComeBackInOrderAndColour) {
  const TestFolder folder;
  MovieSettings s = settings();
  s.crf = 4;
  write_movie(folder / "out.mp4", s, 12, 0.5);
  // The ffmpeg program decides what the colours are.
  testing::ffmpeg("-i " + folder / "out.mp4" +
                  " -vf scale=in_color_matrix=bt709 -f rawvideo -pix_fmt rgb24 " +
                  folder / "out.rgb");
  const std::string raw = file_text(folder / "out.rgb");
  ASSERT_EQ(raw.size(), size_t{12} * kWidth * kHeight * 3);
  for (int f = 0; f < 12; ++f) {
    const auto want = picture(kWidth, kHeight, f);
    double sum = 0;
    for (size_t i = 0; i < want.size(); ++i) {
      sum += std::abs(static_cast<uint8_t>(raw[f * want.size() + i]) - want[i]);
    }
    EXPECT_LT(sum / static_cast<double>(want.size()), 2.5) << "frame " << f;
  }
}

TEST(MovieWriter, Sound_ComesBackOnItsChannel) {
  const TestFolder folder;
  write_movie(folder / "out.mp4", settings(24), 24, 1.0);
  testing::ffmpeg("-i " + folder / "out.mp4" + " -f f32le -c:a pcm_f32le " + folder / "out.pcm");
  const std::string raw = file_text(folder / "out.pcm");
  std::vector<float> pcm(raw.size() / 4);
  std::memcpy(pcm.data(), raw.data(), pcm.size() * 4);
  ASSERT_GT(pcm.size(), 50000u);
  const double hertz[] = {440, 880};
  for (size_t c = 0; c < 2; ++c) {
    int crossings = 0;
    for (size_t i = 8000; i + 1 < 24000; ++i) {  // half a second in the middle
      crossings += pcm[2 * i + c] < 0 && pcm[2 * i + 2 + c] >= 0;
    }
    EXPECT_NEAR(crossings, hertz[c] / 2, 2) << "channel " << c;
  }
}

TEST(MovieWriter, Metadata_ComesBack) {
  const TestFolder folder;
  MovieSettings s = settings();
  s.metadata = {{"seed", "42"}, {"prompt", "a \"cat\" = dog; ü"}};
  write_movie(folder / "out.mp4", s, 12, 0.5);
  AVFormatContext* raw = nullptr;
  ASSERT_GE(avformat_open_input(&raw, (folder / "out.mp4").c_str(), nullptr, nullptr), 0);
  const detail::InputPtr input(raw);
  const AVDictionaryEntry* comment = av_dict_get(raw->metadata, "comment", nullptr, 0);
  ASSERT_NE(comment, nullptr);
  EXPECT_EQ(parse_settings(comment->value), s.metadata);
  EXPECT_TRUE(parse_settings("made with love").empty());
  EXPECT_TRUE(parse_settings("{\"seed\": 3}").empty());
}

TEST(MovieWriter, SilentMovie_HasNoAudioStream) {
  const TestFolder folder;
  MovieSettings s = settings(3);
  s.audio = false;
  write_movie(folder / "out.mp4", s, 3, 0);
  EXPECT_NO_THROW(check_movie(folder / "out.mp4",
                              {.width = kWidth, .height = kHeight, .frames = 3, .audio = false},
                              "out"));
}

TEST(MovieWriter, EqualInput_GivesEqualBytes) {
  const TestFolder folder;
  write_movie(folder / "a.mp4", settings(), 12, 0.5);
  write_movie(folder / "b.mp4", settings(), 12, 0.5);
  EXPECT_EQ(file_text(folder / "a.mp4"), file_text(folder / "b.mp4"));
}

TEST(MovieWriter, AbortedMovie_LeavesNothing) {
  const TestFolder folder;
  {
    MovieWriter writer(folder / "out.mp4", settings());
    writer.add_frame(picture(kWidth, kHeight).data());
  }
  EXPECT_EQ(folder.entries(), 0u);
  // An older file under the name stays as it is.
  std::ofstream(folder / "out.mp4") << "older";
  {
    MovieWriter writer(folder / "out.mp4", settings());
    writer.add_frame(picture(kWidth, kHeight).data());
    refusal(ErrorCode::kInvalidArgument, [&] { writer.finish(); });
  }
  EXPECT_EQ(folder.entries(), 1u);
  EXPECT_EQ(file_text(folder / "out.mp4"), "older");
}

TEST(MovieWriter, KilledProgram_LeavesNothing) {
  const TestFolder folder;
  const pid_t child = fork();
  if (child == 0) {
    MovieWriter writer(folder / "out.mp4", settings(100));
    for (int f = 0; f < 60; ++f) writer.add_frame(picture(kWidth, kHeight, f).data());
    raise(SIGKILL);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status));
  EXPECT_FALSE(std::filesystem::exists(folder / "out.mp4"));
  EXPECT_EQ(folder.entries(), 0u);  // this file system has files without names
}

// A limit on the size of files stands for a disk that is full.
int exit_code_with_file_limit(rlim_t bytes, const std::function<void()>& work) {
  const pid_t child = fork();
  if (child == 0) {
    signal(SIGXFSZ, SIG_IGN);
    const struct rlimit limit = {bytes, bytes};
    if (setrlimit(RLIMIT_FSIZE, &limit) != 0) _exit(90);
    try {
      work();
    } catch (const Error& error) {
      std::fprintf(stderr, "%s\n", error.what());
      _exit(error.code() == ErrorCode::kUnavailable ? 10 : 11);
    }
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(MovieWriter, FullDisk_IsAnErrorAndLeavesNothing) {
  const TestFolder folder;
  const auto work = [&] { write_movie(folder / "out.mp4", settings(48), 48, 2.0); };
  for (const rlim_t limit : {0, 100, 3000, 12000}) {
    EXPECT_EQ(exit_code_with_file_limit(limit, work), 10) << limit;
    EXPECT_EQ(folder.entries(), 0u) << limit;
  }
  EXPECT_EQ(exit_code_with_file_limit(1 << 24, work), 0);
  EXPECT_EQ(folder.entries(), 1u);
}

TEST(MovieWriter, FramesAndSoundThatDoNotFit_AreRefused) {
  const TestFolder folder;
  const auto frame = picture(kWidth, kHeight);
  const auto wave = tone(16000, 440);
  {
    MovieWriter writer(folder / "out.mp4", settings(1));
    writer.add_frame(frame.data());
    expect_text(refusal(ErrorCode::kInvalidArgument, [&] { writer.add_frame(frame.data()); }),
                {"more frames than the 1"});
    expect_text(refusal(ErrorCode::kInvalidArgument, [&] { writer.finish(); }),
                {"0 samples", "0.25"});
    writer.add_audio(wave.data(), wave.data(), 16000);  // 0.5 s for 1 / 24 s
    expect_text(refusal(ErrorCode::kInvalidArgument, [&] { writer.finish(); }),
                {"16000 samples (0.5", "apart"});
    const float bad[] = {0, std::numeric_limits<float>::quiet_NaN()};
    expect_text(
        refusal(ErrorCode::kInvalidArgument, [&] { writer.add_audio(wave.data(), bad, 2); }),
        {"audio sample 16001 of channel 1 is not finite"});
  }
  MovieSettings s = settings(2);
  s.audio = false;
  MovieWriter writer(folder / "out.mp4", s);
  refusal(ErrorCode::kInvalidArgument, [&] { writer.add_audio(wave.data(), wave.data(), 1); });
  expect_text(refusal(ErrorCode::kInvalidArgument, [&] { writer.finish(); }),
              {"got 0 frames; 2 are needed"});
  EXPECT_EQ(folder.entries(), 0u);
}

TEST(MovieWriter, SettingsOutOfRange_AreNamed) {
  const TestFolder folder;
  const auto text = [&](auto change) {
    MovieSettings s = settings();
    change(s);
    return refusal(ErrorCode::kInvalidArgument, [&] { MovieWriter(folder / "out.mp4", s); });
  };
  expect_text(text([](auto& s) { s.width = 63; }), {"63x48", "even"});
  expect_text(text([](auto& s) { s.height = 0; }), {"height is 0", "2 to"});
  expect_text(text([](auto& s) { s.crf = 52; }), {"CRF is 52", "0 to 51"});
  expect_text(text([](auto& s) { s.preset = "quick"; }), {"preset 'quick'", "ultrafast"});
  expect_text(text([](auto& s) { s.fps = 0; }), {"frame rate is 0"});
  expect_text(text([](auto& s) { s.metadata = {{"a", "\xff"}}; }), {"UTF-8"});
  EXPECT_EQ(folder.entries(), 0u);
}

TEST(MovieWriter, Quality_IsACrf) {
  EXPECT_EQ(crf_of_quality("default"), 25);
  EXPECT_EQ(crf_of_quality("low"), 33);
  EXPECT_EQ(crf_of_quality("medium"), 22);
  EXPECT_EQ(crf_of_quality("high"), 5);
  EXPECT_EQ(crf_of_quality("maximum"), 0);
  EXPECT_EQ(crf_of_quality("50"), 25);
  EXPECT_EQ(crf_of_quality("0"), 51);
  for (const char* text : {"best", "", "101", "-1", "1e1", "1000"}) {
    expect_text(refusal(ErrorCode::kInvalidArgument, [&] { crf_of_quality(text); }),
                {"maximum or 0 to 100"});
  }
}

TEST(OutputFile, PathsThatCannotBeWritten_AreRefusedAtOnce) {
  const TestFolder folder;
  const auto text = [](const std::string& path) {
    return refusal(ErrorCode::kInvalidArgument, [&] { OutputFile file(path); });
  };
  expect_text(text(folder / "missing/out.mp4"), {"missing' is no folder"});
  expect_text(text(folder.path()), {"is a folder"});
  expect_text(text("/dev/null"), {"no regular file"});
  expect_text(text(""), {"no name"});
  expect_text(text("/proc/out.mp4"), {"cannot be written"});
}

TEST(OutputFile, LinkAndMode_AreKept) {
  const TestFolder folder;
  std::ofstream(folder / "real.mp4") << "older";
  ASSERT_EQ(::chmod((folder / "real.mp4").c_str(), 0640), 0);
  std::filesystem::create_symlink("real.mp4", folder / "link.mp4");
  OutputFile file(folder / "link.mp4");
  std::ofstream(file.io_path()) << "newer";
  EXPECT_EQ(file_text(folder / "real.mp4"), "older");
  file.commit();
  EXPECT_EQ(file_text(folder / "real.mp4"), "newer");
  EXPECT_TRUE(std::filesystem::is_symlink(folder / "link.mp4"));
  struct stat info = {};
  ASSERT_EQ(::stat((folder / "real.mp4").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 07777, 0640u);
  EXPECT_EQ(folder.entries(), 2u);
}

TEST(OutputFile, WithoutUnnamedFiles_HidesATemporaryOne) {
  const TestFolder folder;
  {
    OutputFile file(folder / "out.mp4", /*unnamed=*/false);
    std::ofstream(file.io_path()) << "half";
    EXPECT_EQ(folder.entries(), 1u);
    EXPECT_EQ(std::filesystem::path(file.io_path()).filename().string().find(".out.mp4."), 0u);
  }
  EXPECT_EQ(folder.entries(), 0u);
  OutputFile file(folder / "out.mp4", /*unnamed=*/false);
  std::ofstream(file.io_path()) << "whole";
  file.commit();
  EXPECT_EQ(folder.entries(), 1u);
  EXPECT_EQ(file_text(folder / "out.mp4"), "whole");
}

TEST(WavWriter, Samples_AreKept) {
  const TestFolder folder;
  const std::vector<float> left{0.25f, -2.0f, 1.0f / 3}, right{0, 0.5f, -0.75f};
  for (const WavFormat format : {WavFormat::kFloat32, WavFormat::kPcm16}) {
    WavWriter writer(folder / "out.wav", {.format = format, .metadata = {{"seed", "7"}}});
    writer.add_audio(left.data(), right.data(), 2);
    writer.add_audio(left.data() + 2, right.data() + 2, 1);
    writer.finish();
    testing::ffmpeg("-i " + folder / "out.wav" + " -f f32le -c:a pcm_f32le " + folder / "out.pcm");
    const std::string raw = file_text(folder / "out.pcm");
    ASSERT_EQ(raw.size(), 24u);
    float pcm[6];
    std::memcpy(pcm, raw.data(), sizeof pcm);
    const float exact[] = {0.25f, 0, -1.0f, 0.5f, 1.0f / 3, -0.75f};
    for (int i = 0; i < 6; ++i) {
      const float want =
          format == WavFormat::kFloat32 ? exact[i] : std::nearbyint(exact[i] * 32767.0f) / 32768.0f;
      EXPECT_EQ(pcm[i], want) << i;
    }
    EXPECT_NE(file_text(folder / "out.wav").find(R"({"seed":"7"})"), std::string::npos);
  }
}

TEST(WavWriter, EmptyOrBrokenSound_LeavesNothing) {
  const TestFolder folder;
  {
    WavWriter writer(folder / "out.wav", {});
    refusal(ErrorCode::kInvalidArgument, [&] { writer.finish(); });
    const float bad[] = {std::numeric_limits<float>::infinity()};
    expect_text(refusal(ErrorCode::kInvalidArgument, [&] { writer.add_audio(bad, bad, 1); }),
                {"sample 0", "not finite"});
  }
  EXPECT_EQ(folder.entries(), 0u);
  EXPECT_EQ(exit_code_with_file_limit(1000,
                                      [&] {
                                        WavWriter writer(folder / "out.wav", {});
                                        const auto wave = tone(32000, 440);
                                        writer.add_audio(wave.data(), wave.data(), 32000);
                                        writer.finish();
                                      }),
            10);
  EXPECT_EQ(folder.entries(), 0u);
}

TEST(PngFrames, Pixels_AreKept) {
  const TestFolder folder;
  PngFrames writer(folder / "frames",
                   {.width = 33, .height = 17, .frames = 3, .metadata = {{"seed", "7"}}});
  for (int f = 0; f < 3; ++f) writer.add_frame(picture(33, 17, f).data());
  EXPECT_FALSE(std::filesystem::exists(folder / "frames"));
  refusal(ErrorCode::kInvalidArgument, [&] { writer.add_frame(picture(33, 17).data()); });
  writer.finish();
  EXPECT_EQ(file_text(folder / "frames/settings.json"), "{\"seed\":\"7\"}\n");
  testing::ffmpeg("-i " + folder / "frames/frame_%06d.png" + " -f rawvideo -pix_fmt rgb24 " +
                  folder / "out.rgb");
  std::string want;
  for (int f = 0; f < 3; ++f) {
    const auto rgb = picture(33, 17, f);
    want.append(rgb.begin(), rgb.end());
  }
  EXPECT_EQ(file_text(folder / "out.rgb"), want);
}

TEST(PngFrames, AbortedOrForeignFolder_IsLeftAlone) {
  const TestFolder folder;
  {
    PngFrames writer(folder / "frames", {.width = 8, .height = 8, .frames = 2});
    writer.add_frame(picture(8, 8).data());
    refusal(ErrorCode::kInvalidArgument, [&] { writer.finish(); });
  }
  EXPECT_EQ(folder.entries(), 0u);
  std::filesystem::create_directory(folder / "mine");
  std::ofstream(folder / "mine/letter.txt") << "dear";
  refusal(ErrorCode::kInvalidArgument,
          [&] { PngFrames(folder / "mine", {.width = 8, .height = 8}); });
  EXPECT_EQ(file_text(folder / "mine/letter.txt"), "dear");
}

}  // namespace
}  // namespace h3::media
