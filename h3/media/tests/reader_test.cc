// Files as people have them: turned, of uneven rate and size, with few or many channels, deep,
// transparent, damaged, mislabelled.
#include "h3/media/reader.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cmath>
#include <fstream>
#include <iterator>

#include "h3/media/movie_writer.h"
#include "h3/media/png_frames.h"
#include "h3/media/tests/media_test_util.h"

namespace h3::media {
namespace {

using testing::expect_text;
using testing::ffmpeg;
using testing::refusal;
using testing::TestFolder;

std::string refused(const std::function<void()>& call) {
  return refusal(ErrorCode::kInvalidArgument, call);
}

std::vector<Image> all_frames(const std::string& path, const VideoRequest& request = {}) {
  VideoReader reader(path, request);
  std::vector<Image> frames;
  for (Image frame; reader.next(&frame);) frames.push_back(frame);
  EXPECT_EQ(reader.delivered(), static_cast<int64_t>(frames.size()));
  return frames;
}

double mean_difference(const std::vector<uint8_t>& a, const std::vector<uint8_t>& b) {
  EXPECT_EQ(a.size(), b.size());
  if (a.size() != b.size()) return 1e9;
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += std::abs(int{a[i]} - int{b[i]});
  return sum / static_cast<double>(a.size());
}

double level(const std::vector<float>& x) {
  double sum = 0;
  for (const float v : x) sum += static_cast<double>(v) * v;
  return std::sqrt(sum / static_cast<double>(x.size()));
}

int rising(const std::vector<float>& x) {
  int count = 0;
  for (size_t i = 0; i + 1 < x.size(); ++i) count += x[i] < 0 && x[i + 1] >= 0;
  return count;
}

void truncate_file(const std::string& path, double part) {
  const auto size = std::filesystem::file_size(path);
  std::filesystem::resize_file(path, static_cast<uintmax_t>(static_cast<double>(size) * part));
}

// A movie of our own: the picture's blue channel tells the frame.
void write_movie(const std::string& path, int64_t frames, int width = 64, int height = 48) {
  MovieSettings s{.width = width, .height = height, .frames = frames, .crf = 2, .threads = 1};
  s.metadata = {{"seed", "42"}};
  MovieWriter writer(path, s);
  const auto wave = testing::tone(frames * 32000 / 24, 500);
  writer.add_audio(wave.data(), wave.data(), static_cast<int64_t>(wave.size()));
  for (int64_t f = 0; f < frames; ++f) {
    writer.add_frame(testing::picture(width, height, static_cast<int>(f)).data());
  }
  writer.finish();
}

TEST(Reader, OwnMovie_ComesBack) {
  const TestFolder folder;
  write_movie(folder / "a.mp4", 24);
  const MediaInfo info = probe_media(folder / "a.mp4");
  EXPECT_EQ(info.kind, MediaKind::kVideo);
  ASSERT_TRUE(info.picture && info.sound);
  EXPECT_EQ(info.picture->codec, "h264");
  EXPECT_EQ(info.picture->pixel_format, "yuv420p");
  EXPECT_EQ(info.picture->width, 64);
  EXPECT_DOUBLE_EQ(info.picture->fps, 24);
  EXPECT_EQ(info.picture->frames, 24);
  EXPECT_EQ(info.sound->sample_rate, 32000);
  EXPECT_EQ(info.sound->channels, 2);
  EXPECT_EQ(info.settings, (Settings{{"seed", "42"}}));
  const auto frames = all_frames(folder / "a.mp4");
  ASSERT_EQ(frames.size(), 24u);
  for (int f = 0; f < 24; ++f) {
    EXPECT_LT(mean_difference(frames[static_cast<size_t>(f)].rgb, testing::picture(64, 48, f)), 2)
        << f;
  }
  const Audio audio = read_audio(folder / "a.mp4");
  EXPECT_EQ(audio.sample_rate, 32000);
  EXPECT_NEAR(audio.seconds(), 1.0, 0.05);
  EXPECT_NEAR(level(audio.left), 0.5 / std::sqrt(2.0), 0.02);
  EXPECT_NEAR(rising({audio.left.begin() + 3200, audio.left.begin() + 28800}), 400, 2);
}

TEST(Reader, PartOfAMovie_BeginsAndEndsWhereAsked) {
  const TestFolder folder;
  write_movie(folder / "a.mp4", 48);
  const auto frames = all_frames(folder / "a.mp4", {.start_seconds = 0.5, .max_frames = 5});
  ASSERT_EQ(frames.size(), 5u);
  for (int f = 0; f < 5; ++f) {
    EXPECT_LT(mean_difference(frames[static_cast<size_t>(f)].rgb, testing::picture(64, 48, 12 + f)),
              2);
  }
  const Audio audio = read_audio(folder / "a.mp4", {.start_seconds = 0.5, .max_seconds = 0.75});
  EXPECT_EQ(audio.left.size(), 24000u);
  expect_text(refused([&] { all_frames(folder / "a.mp4", {.start_seconds = 9}); }),
              {"no frame at or after 9"});
  expect_text(refused([&] { read_audio(folder / "a.mp4", {.start_seconds = 9}); }),
              {"no sound after 9"});
}

TEST(Reader, TurnedVideo_StandsUpright) {
  const TestFolder folder;
  write_movie(folder / "a.mp4", 3);
  const struct { int degrees, orientation; } cases[] = {{90, 8}, {180, 3}, {270, 6}};
  for (const auto& [degrees, orientation] : cases) {
    const std::string path = folder / "turned.mp4";
    ffmpeg("-i " + folder / "a.mp4" + " -c copy -metadata:s:v rotate=" + std::to_string(degrees) +
           " " + path);
    const MediaInfo info = probe_media(path);
    const bool turned = degrees != 180;
    EXPECT_EQ(info.picture->shown_width, turned ? 48 : 64) << degrees;
    // What the ffmpeg program makes of it decides.
    ffmpeg("-i " + path +
           " -vf scale=in_color_matrix=bt709 -frames:v 1 -f rawvideo -pix_fmt rgb24 " +
           folder / "out.rgb");
    std::ifstream in(folder / "out.rgb", std::ios::binary);
    const std::vector<uint8_t> want{std::istreambuf_iterator<char>(in), {}};
    const auto frames = all_frames(path);
    ASSERT_EQ(frames.size(), 3u);
    EXPECT_EQ(frames[0].width, turned ? 48 : 64);
    EXPECT_LT(mean_difference(frames[0].rgb, want), 2) << degrees;  // turned wrongly: 50
    const Image upright = oriented({64, 48, testing::picture(64, 48)}, info.picture->orientation);
    EXPECT_LT(mean_difference(frames[0].rgb, upright.rgb), 2) << degrees;
  }
}

TEST(Reader, UnevenRate_BecomesConstant) {
  const TestFolder folder;
  // Frames at 0, 1/12, 2/12 ..., then every half second: counts as the fps filter.
  ffmpeg(
      "-f lavfi -i testsrc2=s=64x48:r=12:d=1 -f lavfi -i testsrc2=s=64x48:r=2:d=2 "
      "-filter_complex \"[0][1]concat=n=2\" -fps_mode vfr -c:v libx264 -crf 1 " +
      folder / "vfr.mp4");
  ffmpeg(
      "-i " + folder / "vfr.mp4" +
      " -vf "
      "\"fps=24,scale=flags=accurate_rnd+full_chroma_int+bicubic:in_h_chr_pos=0:in_v_chr_pos=128,"
      "format=rgb24\" -f rawvideo " +
      folder / "want.rgb");
  std::ifstream in(folder / "want.rgb", std::ios::binary);
  const std::vector<uint8_t> want{std::istreambuf_iterator<char>(in), {}};
  const auto frames = all_frames(folder / "vfr.mp4");
  // The program drops a last frame without a length, which here lasts as long as the average.
  const size_t count = want.size() / (64 * 48 * 3);
  ASSERT_GE(frames.size(), count);
  ASSERT_LE(frames.size(), count + 3);
  for (size_t f = 0; f < count; ++f) {
    const std::vector<uint8_t> one(want.begin() + static_cast<ptrdiff_t>(f * 64 * 48 * 3),
                                   want.begin() + static_cast<ptrdiff_t>((f + 1) * 64 * 48 * 3));
    EXPECT_LT(mean_difference(frames[f].rgb, one), 2) << f;
  }
  for (const char* rate : {"60", "25", "30000/1001", "10"}) {
    ffmpeg(std::string("-f lavfi -i testsrc2=s=64x48:d=2:r=") + rate + " -c:v libx264 " +
           folder / "r.mp4");
    EXPECT_NEAR(static_cast<double>(all_frames(folder / "r.mp4").size()), 48, 1) << rate;
  }
}

TEST(Reader, OddAndDeepAndAnamorphicVideo_IsScaled) {
  const TestFolder folder;
  ffmpeg("-f lavfi -i testsrc=s=63x47:r=24:d=0.2 -c:v libx264 -pix_fmt yuv444p " +
         folder / "odd.mkv");
  EXPECT_EQ(all_frames(folder / "odd.mkv").at(0).width, 63);
  const auto scaled = all_frames(folder / "odd.mkv", {.width = 32, .height = 64});
  EXPECT_EQ(scaled.at(0).rgb.size(), size_t{32} * 64 * 3);
  ffmpeg(
      "-f lavfi -i color=c=0x4080c0:s=64x48:r=24:d=0.2 -c:v libx265 -x265-params log-level=0 "
      "-pix_fmt yuv420p10le " +
      folder / "deep.mp4");
  EXPECT_EQ(probe_media(folder / "deep.mp4").picture->pixel_format, "yuv420p10le");
  const Image deep = all_frames(folder / "deep.mp4").at(0);
  EXPECT_NEAR(deep.rgb[0], 0x40, 3);
  EXPECT_NEAR(deep.rgb[1], 0x80, 3);
  EXPECT_NEAR(deep.rgb[2], 0xc0, 3);
  ffmpeg("-f lavfi -i testsrc2=s=64x48:r=24:d=0.2 -vf setsar=2 -c:v libx264 " +
         folder / "wide.mp4");
  EXPECT_EQ(probe_media(folder / "wide.mp4").picture->shown_width, 128);
  EXPECT_EQ(all_frames(folder / "wide.mp4").at(0).width, 128);
}

TEST(Reader, Colours_FollowMatrixAndRange) {
  const TestFolder folder;
  const struct {
    const char* name;
    const char* options;
  } cases[] = {
      {"601", "-vf scale=out_color_matrix=bt601 -colorspace smpte170m"},
      {"709", "-vf scale=out_color_matrix=bt709 -colorspace bt709"},
      {"full", "-vf scale=out_color_matrix=bt709:out_range=pc -colorspace bt709 -color_range pc"}};
  for (const auto& [name, options] : cases) {
    const std::string path = folder / (std::string(name) + ".mp4");
    ffmpeg(std::string("-f lavfi -i color=c=0xc04020:s=64x48:r=24:d=0.1 ") + options +
           " -c:v libx264 -crf 1 -pix_fmt yuv420p " + path);
    const Image image = all_frames(path).at(0);
    EXPECT_NEAR(image.rgb[0], 0xc0, 3) << name;
    EXPECT_NEAR(image.rgb[1], 0x40, 3) << name;
    EXPECT_NEAR(image.rgb[2], 0x20, 3) << name;
  }
}

TEST(Reader, MonoSurroundAndOtherRates_BecomeStereo32k) {
  const TestFolder folder;
  for (const int rate : {8000, 22050, 44100, 48000, 96000}) {
    ffmpeg("-f lavfi -i \"sine=f=500:r=" + std::to_string(rate) +
           ":d=1,volume=4\" -ac 1 -c:a pcm_f32le " + folder / "mono.wav");
    const Audio audio = read_audio(folder / "mono.wav");
    EXPECT_EQ(audio.left.size(), 32000u) << rate;
    EXPECT_EQ(audio.left, audio.right);
    EXPECT_NEAR(rising(audio.left), 500, 1);
    EXPECT_NEAR(level(audio.left), 0.5 / std::sqrt(2.0), 5e-3) << "mono keeps its level";
  }
  // 5.1 with a tone on the left only: it stays on the left.
  ffmpeg("-f lavfi -i \"aevalsrc=0.5*sin(2*PI*500*t)|0|0|0|0|0:c=5.1:s=48000:d=1\" -c:a flac " +
         folder / "six.flac");
  EXPECT_EQ(probe_media(folder / "six.flac").sound->channels, 6);
  const Audio six = read_audio(folder / "six.flac");
  EXPECT_GT(level(six.left), 0.1);
  EXPECT_LT(level(six.right), 1e-3);
  for (const char* file : {"a.mp3", "a.ogg", "a.m4a", "a.opus"}) {
    ffmpeg(std::string("-f lavfi -i sine=f=500:r=48000:d=1 -ac 2 ") + folder / file);
    const Audio audio = read_audio(folder / file);
    EXPECT_NEAR(audio.seconds(), 1, 0.08) << file;
    EXPECT_NEAR(rising(audio.left), 500, 20) << file;
  }
}

TEST(Reader, LateSound_KeepsItsPlace) {
  const TestFolder folder;
  ffmpeg(
      "-f lavfi -i testsrc2=s=64x48:r=24:d=2 -itsoffset 1 -f lavfi -i sine=f=500:r=44100:d=1 "
      "-c:v libx264 -c:a pcm_s16le " +
      folder / "late.mkv");
  const Audio audio = read_audio(folder / "late.mkv");
  EXPECT_NEAR(audio.seconds(), 2, 0.05);
  EXPECT_LT(level({audio.left.begin(), audio.left.begin() + 31000}), 1e-3);
  EXPECT_GT(level({audio.left.begin() + 33000, audio.left.begin() + 60000}), 0.05);
}

TEST(Reader, FilesWithoutTheStreamAsked_AreRefused) {
  const TestFolder folder;
  ffmpeg("-f lavfi -i testsrc2=s=64x48:r=24:d=0.2 -c:v libx264 " + folder / "silent.mp4");
  expect_text(refused([&] { read_audio(folder / "silent.mp4"); }), {"silent.mp4", "has no sound"});
  EXPECT_FALSE(probe_media(folder / "silent.mp4").sound);
  // A cover picture makes no video.
  ffmpeg("-f lavfi -i testsrc2=s=64x48 -frames:v 1 " + folder / "cover.png");
  ffmpeg("-f lavfi -i sine=d=0.5 -i " + folder / "cover.png" +
         " -map 0 -map 1 -c:v copy -disposition:v attached_pic " + folder / "song.mp3");
  EXPECT_EQ(probe_media(folder / "song.mp3").kind, MediaKind::kAudio);
  expect_text(refused([&] { VideoReader(folder / "song.mp3"); }), {"has no video"});
  expect_text(refused([&] { VideoReader(folder / "cover.png"); }), {"is a picture, no video"});
  expect_text(refused([&] { read_image(folder / "silent.mp4"); }), {"is a video"});
  expect_text(refused([&] { read_image(folder / "song.mp3"); }), {"no picture"});
}

TEST(Reader, ContentDecides_NotTheName) {
  const TestFolder folder;
  ffmpeg("-f lavfi -i testsrc2=s=64x48 -frames:v 1 " + folder / "a.png");
  std::filesystem::rename(folder / "a.png", folder / "image%03d.mp4");
  EXPECT_EQ(probe_media(folder / "image%03d.mp4").kind, MediaKind::kImage);
  EXPECT_EQ(read_image(folder / "image%03d.mp4").width, 64);
  write_movie(folder / "b.mp4", 2);
  std::filesystem::rename(folder / "b.mp4", folder / "b.jpg");
  EXPECT_EQ(all_frames(folder / "b.jpg").size(), 2u);
  ffmpeg("-f lavfi -i sine=d=0.2 " + folder / "c.wav");
  std::filesystem::rename(folder / "c.wav", folder / "http:c.png");
  EXPECT_EQ(probe_media(folder / "http:c.png").kind, MediaKind::kAudio);
}

TEST(Reader, NoMediaFiles_AreRefusedByName) {
  const TestFolder folder;
  const auto text_of = [](const std::string& path) { return refused([&] { probe_media(path); }); };
  expect_text(text_of(folder / "missing.mp4"), {"missing.mp4", "No such file"});
  expect_text(text_of(folder.path()), {"is a folder"});
  std::ofstream(folder / "empty.mp4").flush();
  expect_text(text_of(folder / "empty.mp4"), {"is empty (0 bytes)"});
  expect_text(refused([&] { read_image(folder / "empty.mp4"); }), {"is empty"});
  std::ofstream(folder / "letter.mp4") << "Dear reader, this is no movie at all.\n";
  expect_text(text_of(folder / "letter.mp4"), {"letter.mp4"});
  ASSERT_EQ(::mkfifo((folder / "pipe.mp4").c_str(), 0600), 0);
  expect_text(text_of(folder / "pipe.mp4"), {"no regular file"});
  // Lists of other files lead nowhere.
  write_movie(folder / "a.mp4", 2);
  std::ofstream(folder / "list.m3u8") << "#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\na.mp4\n"
                                      << "#EXT-X-ENDLIST\n";
  text_of(folder / "list.m3u8");
  std::ofstream(folder / "list.txt") << "ffconcat version 1.0\nfile a.mp4\n";
  text_of(folder / "list.txt");
}

TEST(Reader, CutOffFiles_AreRefused) {
  const TestFolder folder;
  write_movie(folder / "a.mp4", 96);  // its index is in front
  truncate_file(folder / "a.mp4", 0.5);
  expect_text(refused([&] { all_frames(folder / "a.mp4"); }), {"a.mp4", "cut off"});
  expect_text(refused([&] { read_audio(folder / "a.mp4"); }), {"a.mp4", "cut off"});
  EXPECT_EQ(all_frames(folder / "a.mp4", {.max_frames = 2}).size(), 2u);  // enough is there
  ffmpeg("-f lavfi -i testsrc2=s=64x48:r=24:d=3 -c:v libx264 " + folder / "b.mp4");
  truncate_file(folder / "b.mp4", 0.7);  // its index was at the end
  expect_text(refused([&] { VideoReader(folder / "b.mp4"); }), {"b.mp4"});
  ffmpeg("-f lavfi -i testsrc2=s=64x48:r=24:d=3 -c:v libx264 -g 12 " + folder / "c.mkv");
  truncate_file(folder / "c.mkv", 0.5);
  expect_text(refused([&] { all_frames(folder / "c.mkv"); }), {"c.mkv", "cut off"});
  ffmpeg("-f lavfi -i sine=d=3 " + folder / "d.wav");
  truncate_file(folder / "d.wav", 0.5);
  expect_text(refused([&] { read_audio(folder / "d.wav"); }), {"d.wav", "cut off"});
  for (const char* file : {"e.png", "e.jpg", "e.bmp"}) {
    ffmpeg("-f lavfi -i testsrc2=s=320x240 -frames:v 1 " + folder / file);
    EXPECT_EQ(read_image(folder / file).width, 320) << file;
    truncate_file(folder / file, 0.5);
    expect_text(refused([&] { read_image(folder / file); }), {file});
  }
}

TEST(Reader, RequestsThatMakeNoSense_AreRefused) {
  const TestFolder folder;
  write_movie(folder / "a.mp4", 2);
  for (const VideoRequest& r : {VideoRequest{.width = 64}, VideoRequest{.width = -1, .height = -1},
                                VideoRequest{.start_seconds = -1}, VideoRequest{.max_frames = -1},
                                VideoRequest{.fps = 0}, VideoRequest{.start_seconds = NAN}}) {
    expect_text(refused([&] { VideoReader(folder / "a.mp4", r); }), {"was asked for"});
  }
  for (const AudioRequest& r : {AudioRequest{.max_seconds = -1}, AudioRequest{.sample_rate = 0},
                                AudioRequest{.start_seconds = INFINITY}}) {
    expect_text(refused([&] { read_audio(folder / "a.mp4", r); }), {"was asked for"});
  }
}

}  // namespace
}  // namespace h3::media
