// `h3 compare-runs` as users run it, on latents files and on folders of PNG frames.
#include <gtest/gtest.h>
#include <png.h>
#include <sys/stat.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>

#include "h3/cli/tests/run_h3.h"
#include "tessera/io/safetensors.h"

namespace h3::cli {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;
using tessera::Dtype;

struct Tensor {
  Dtype dtype = Dtype::kF32;
  std::vector<int64_t> shape;
  std::vector<float> data;  // of other types: bytes enough

  static Tensor ramp(std::vector<int64_t> shape, float offset = 0) {
    int64_t count = 1;
    for (const int64_t n : shape) count *= n;
    Tensor t{Dtype::kF32, std::move(shape), std::vector<float>(static_cast<size_t>(count))};
    for (size_t i = 0; i < t.data.size(); ++i)
      t.data[i] = static_cast<float>(i % 9) * 0.5f + offset;
    return t;
  }
};

class CompareRuns : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = testing::TempDir() + "h3_compare_XXXXXX";
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    root_ = name;
  }
  void TearDown() override { fs::remove_all(root_); }
  std::string path(const std::string& name) const { return root_ + "/" + name; }

  std::string write(const std::string& name, const std::map<std::string, Tensor>& tensors,
                    const std::map<std::string, std::string>& metadata = {}) const {
    std::vector<tessera::io::SafetensorsItem> items;
    for (const auto& [key, t] : tensors) items.push_back({key, t.dtype, t.shape, t.data.data()});
    const tessera::Status s = tessera::io::write_safetensors(path(name), items, metadata);
    EXPECT_TRUE(s.ok()) << s.message();
    return path(name);
  }
  std::string latents(const std::string& name, float offset,
                      const std::map<std::string, std::string>& metadata = {}) const {
    return write(
        name,
        {{"video", Tensor::ramp({1, 2, 7, 4, 6}, offset)}, {"audio", Tensor::ramp({2, 3, 5})}},
        metadata);
  }

  // A frame of one colour; `format` as in libpng's simplified interface.
  void frame(const std::string& name, uint32_t width, uint32_t height, uint32_t format,
             std::vector<uint8_t> pixel, const void* map = nullptr) const {
    fs::create_directories(fs::path(path(name)).parent_path());
    std::vector<uint8_t> data;
    for (uint32_t i = 0; i < width * height; ++i)
      data.insert(data.end(), pixel.begin(), pixel.end());
    png_image image{};
    image.version = PNG_IMAGE_VERSION;
    image.width = width;
    image.height = height;
    image.format = format;
    image.colormap_entries = map != nullptr ? 2 : 0;
    ASSERT_NE(png_image_write_to_file(&image, path(name).c_str(), 0, data.data(), 0, map), 0)
        << image.message;
  }
  void run_of_frames(const std::string& folder, uint8_t value) const {
    for (const char* name : {"/002.png", "/001.png", "/003.PNG"}) {
      frame(folder + name, 20, 12, PNG_FORMAT_RGB, {value, value, value});
    }
  }

  std::string root_;
};

Json json_of(std::vector<std::string> args) {
  args.insert(args.begin(), {"compare-runs", "--json"});
  const Outcome o = run_h3(args);
  EXPECT_EQ(o.exit_code, 0) << o.err;
  EXPECT_EQ(o.err, "");
  return Json::parse(o.out, nullptr, false);
}

void expect_refused(std::vector<std::string> args, const std::vector<std::string>& parts) {
  args.insert(args.begin(), "compare-runs");
  const Outcome o = run_h3(args);
  EXPECT_EQ(o.exit_code, 2) << parts.front() << "\n" << o.err;
  EXPECT_EQ(o.out, "");
  EXPECT_TRUE(o.err.starts_with("h3: error: ")) << o.err;
  EXPECT_EQ(std::count(o.err.begin(), o.err.end(), '\n'), 1) << o.err;
  expect_parts(o.err, parts);
}

TEST_F(CompareRuns, Latents_TableSaysHowFarApart) {
  const std::string a = latents("a.safetensors", 0, {{"seed", "1"}, {"steps", "50"}});
  const std::string b = latents("b.safetensors", 0.25f, {{"seed", "2"}, {"steps", "50"}});
  const Outcome o = run_h3({"compare-runs", a, b});
  EXPECT_EQ(o.exit_code, 0) << o.err;
  EXPECT_EQ(o.err, "");
  expect_parts(o.out,
               {a, b, "f32 [1, 2, 7, 4, 6]", "f32 [2, 3, 5]", "peak    4, the value range",
                "3 x 3, sigma 1.5: the largest odd one", "1.000000000", "2.5000e-01", "24.082",
                "the 5 frames with the lowest video ssim", "\"seed\": A \"1\", B \"2\""});
  EXPECT_EQ(o.out.find("steps"), std::string::npos) << "equal metadata are no news";
  const Outcome all = run_h3({"compare-runs", a, b, "--per-frame"});
  EXPECT_EQ(std::count(all.out.begin(), all.out.end(), '\n'),
            std::count(o.out.begin(), o.out.end(), '\n') + 2);
  expect_parts(all.out, {"every frame"});
}

TEST_F(CompareRuns, LatentsJson_HasEveryFrame) {
  const std::string a = latents("a.safetensors", 0, {{"seed", "1"}});
  const Json json = json_of({a, latents("b.safetensors", 0.5f), "--data-range", "5"});
  EXPECT_EQ(json["kind"], "latents");
  EXPECT_EQ(json["ssim_window"], 3);
  EXPECT_EQ(json["peak_from"], "data range");
  EXPECT_EQ(json["video"]["peak"], 5);
  EXPECT_EQ(json["video"]["shape"], (std::vector<int>{1, 2, 7, 4, 6}));
  EXPECT_EQ(json["video"]["max_abs"], 0.5);
  ASSERT_EQ(json["video"]["frames"].size(), 7u);
  EXPECT_NEAR(json["video"]["frames"][6]["psnr_db"].get<double>(), 20, 1e-12);
  EXPECT_EQ(json["video"]["frames"][6]["identical"], false);
  EXPECT_EQ(json["audio"]["relative_l2"], 0);
  EXPECT_EQ(json["audio"]["cosine"], 1);
  EXPECT_EQ(json["metadata"]["a"]["seed"], "1");

  const Json same = json_of({a, a});
  EXPECT_EQ(same["video"]["identical"], true);
  EXPECT_EQ(same["video"]["cosine"], 1);
  EXPECT_TRUE(same["video"]["psnr_db"]["mean"].is_null());
  EXPECT_TRUE(same["video"]["frames"][0]["psnr_db"].is_null());
  EXPECT_EQ(same["video"]["ssim"]["worst"], 1);
  EXPECT_EQ(same["peak_from"], "values of A");
  expect_parts(run_h3({"compare-runs", a, a}).out, {"inf", "all 7 frames are identical"});
}

TEST_F(CompareRuns, OtherTensors_AreNamed) {
  const std::string a = latents("a.safetensors", 0);
  const std::string b = write("b.safetensors", {{"video", Tensor::ramp({1, 2, 7, 4, 6})},
                                                {"audio", Tensor::ramp({2, 3, 5}, 1)},
                                                {"noise", Tensor::ramp({3})}});
  expect_parts(run_h3({"compare-runs", a, b}).out, {"not compared, of " + b + ": noise"});
  EXPECT_EQ(json_of({a, b})["not_compared"]["b"], Json{"noise"});
}

TEST_F(CompareRuns, BadLatents_AreRefused) {
  const std::string a = latents("a.safetensors", 0);
  const Tensor video = Tensor::ramp({1, 2, 7, 4, 6}), audio = Tensor::ramp({2, 3, 5});
  const auto with = [&](const char* name, Tensor v, Tensor s) {
    return write(name, {{"video", std::move(v)}, {"audio", std::move(s)}});
  };
  expect_refused({a, with("t", Tensor::ramp({1, 2, 6, 4, 6}), audio)},
                 {"'video'", "f32 [1, 2, 7, 4, 6]", "f32 [1, 2, 6, 4, 6]"});
  Tensor half = video;
  half.dtype = Dtype::kBf16;
  expect_refused({a, with("h", half, audio)}, {"f32 [1, 2, 7, 4, 6] in", "bf16 [1, 2, 7, 4, 6]"});
  expect_refused({with("h", half, audio), path("h")}, {"accepted: f32 [1, channels"});
  expect_refused({a, with("r", video, Tensor::ramp({2, 15}))}, {"'audio'", "[2, 15]", "[2, 3, 5]"});
  expect_refused({with("l", Tensor::ramp({2, 1, 7, 4, 6}), audio), path("l")}, {"[2, 1, 7, 4, 6]"});
  expect_refused({with("e", video, Tensor::ramp({2, 0, 5})), path("e")}, {"[2, 0, 5]"});
  expect_refused({a, write("m", {{"video", video}, {"sound", audio}})},
                 {"no tensor 'audio'", "it holds", "sound", "video"});
  expect_refused({write("v", {{"audio", audio}}), a}, {"no tensor 'video'"});

  Tensor bad = video;
  bad.data[(1 * 7 + 2) * 24 + 3 * 6 + 5] = std::nanf("");
  bad.data.back() = std::numeric_limits<float>::infinity();
  expect_refused({a, with("nan", bad, audio)},
                 {"'video' of " + path("nan"), "2 NaN or infinite values of 336",
                  "the first (nan) at [1, 2, 3, 5]"});
  Tensor bad_sound = audio;
  bad_sound.data[7] = std::nanf("");
  expect_refused({with("nan", video, bad_sound), a}, {"'audio' of", "1 NaN", "at [0, 1, 2]"});

  Tensor flat = video;
  std::fill(flat.data.begin(), flat.data.end(), 3.0f);
  expect_refused({with("flat", flat, audio), a},
                 {"every value of 'video'", "is 3", "--data-range"});
  EXPECT_EQ(json_of({path("flat"), a, "--data-range", "4"})["video"]["peak"], 4);
  for (const char* range : {"0", "-1", "nan", "inf"}) {
    expect_refused({a, a, std::string("--data-range=") + range}, {"the data range is"});
  }
  expect_refused({a, a, "--data-range", "wide"}, {"wide", "h3 compare-runs --help"});

  fs::resize_file(a, 200);
  expect_refused({a, path("flat")}, {"a.safetensors"});
  std::ofstream(path("text")) << "no tensors";
  expect_refused({path("text"), path("flat")}, {path("text"), "two latents files"});
}

TEST_F(CompareRuns, Frames_AreComparedInOrderOfTheirNames) {
  run_of_frames("a", 100);
  run_of_frames("b", 100);
  frame("b/002.png", 20, 12, PNG_FORMAT_RGBA, {110, 50, 80, 255});
  std::ofstream(path("b/report.json")) << "{}";  // other files do not matter
  const Json json = json_of({path("a"), path("b")});
  EXPECT_EQ(json["kind"], "frames");
  EXPECT_EQ(json["count"], 3);
  EXPECT_EQ(json["ssim_window"], 11);
  EXPECT_EQ(json["files"][2]["a"], "003.PNG");
  EXPECT_EQ(json["luma"]["identical_frames"], 2);
  EXPECT_EQ(json["luma"]["psnr_db"]["worst_frame"], 1);
  EXPECT_TRUE(json["luma"]["frames"][0]["psnr_db"].is_null());
  EXPECT_EQ(json["luma"]["frames"][0]["identical"], true);
  EXPECT_NEAR(json["rgb"]["frames"][1]["psnr_db"].get<double>(),
              10 * std::log10(255 * 255 / ((100 + 2500 + 400) / 3.0)), 1e-9);
  const double luma = 0.299 * 10 - 0.587 * 50 - 0.114 * 20;
  EXPECT_NEAR(json["luma"]["frames"][1]["psnr_db"].get<double>(),
              20 * std::log10(255 / std::abs(luma)), 1e-9);
  const Outcome o = run_h3({"compare-runs", path("a"), path("b")});
  expect_parts(o.out, {"3, 20 x 12 RGB", "11 x 11", "luma psnr dB", "rgb ssim", "inf",
                       "2 of 3 frames are identical"});
}

// Folders list their files in no order; a wrong order has to show among so many.
TEST_F(CompareRuns, ManyFrames_AreSorted) {
  std::vector<std::string> names;
  for (int i = 0; i < 12; ++i) names.push_back(std::to_string(100 + i * 37 % 12) + ".png");
  for (const std::string& name : names) {
    frame("a/" + name, 2, 2, PNG_FORMAT_GRAY, {static_cast<uint8_t>(name[2])});
  }
  const Json json = json_of({path("a"), path("a")});
  std::sort(names.begin(), names.end());
  ASSERT_EQ(json["files"].size(), names.size());
  for (size_t i = 0; i < names.size(); ++i) EXPECT_EQ(json["files"][i]["a"], names[i]);
}

TEST_F(CompareRuns, GrayFrames_HaveNoRgb) {
  frame("a/1.png", 8, 6, PNG_FORMAT_GRAY, {0});
  frame("b/1.png", 8, 6, PNG_FORMAT_GRAY, {255});
  const Json json = json_of({path("a"), path("b")});
  EXPECT_EQ(json["luma"]["psnr_db"]["mean"], 0);
  EXPECT_TRUE(json["rgb"].is_null());
  EXPECT_EQ(json["ssim_window"], 5);
}

TEST_F(CompareRuns, BadFrames_AreRefused) {
  run_of_frames("a", 1);
  const std::string a = path("a");
  const auto folder_with = [&](const std::string& name, uint32_t format, std::vector<uint8_t> pixel,
                               const void* map = nullptr) {
    run_of_frames(name, 1);
    frame(name + "/002.png", 20, 12, format, std::move(pixel), map);
    return path(name);
  };
  expect_refused({a, folder_with("deep", PNG_FORMAT_LINEAR_RGB, {0, 1, 0, 1, 0, 1})},
                 {"002.png", "16-bit RGB", "8-bit gray, RGB or RGBA"});
  const uint8_t colours[] = {1, 2, 3, 4, 5, 6};
  expect_refused({a, folder_with("map", PNG_FORMAT_RGB_COLORMAP, {1}, colours)},
                 {"002.png", "palette"});
  expect_refused({a, folder_with("ga", PNG_FORMAT_GA, {1, 255})}, {"gray with alpha"});
  expect_refused({a, folder_with("gray", PNG_FORMAT_GRAY, {1})},
                 {"001.png is 20 x 12 8-bit RGB", "002.png is 20 x 12 8-bit gray"});
  expect_refused({a, folder_with("glass", PNG_FORMAT_RGBA, {1, 1, 1, 200})},
                 {"002.png is not opaque: alpha is 200 at x 0, y 0"});

  run_of_frames("size", 1);
  frame("size/003.PNG", 12, 20, PNG_FORMAT_RGB, {1, 1, 1});
  expect_refused({a, path("size")}, {"20 x 12", "003.PNG is 12 x 20"});
  run_of_frames("count", 1);
  fs::remove(path("count/001.png"));
  expect_refused({a, path("count")}, {"a holds 3 frames", "count holds 2"});

  run_of_frames("cut", 1);
  fs::resize_file(path("cut/002.png"), fs::file_size(path("cut/002.png")) - 12);  // its end mark
  expect_refused({a, path("cut")}, {"002.png is no complete PNG"});
  run_of_frames("flip", 1);
  {
    std::fstream file(path("flip/002.png"), std::ios::in | std::ios::out | std::ios::binary);
    const std::string bytes(std::istreambuf_iterator<char>(file), {});
    file.seekp(static_cast<std::streamoff>(bytes.find("IDAT") + 12));  // inside the pixels
    file.put('\x55');
  }
  expect_refused({a, path("flip")}, {"002.png is no complete PNG"});
  run_of_frames("key", 1);
  {
    std::ifstream whole(path("key/002.png"), std::ios::binary);
    std::string bytes(std::istreambuf_iterator<char>(whole), {});
    using namespace std::string_literals;
    bytes.insert(bytes.find("IDAT") - 4,
                 "\0\0\0\6tRNS\0\1\0\1\0\1\x25\x03\x74\x80"s);  // with its CRC
    std::ofstream(path("key/002.png"), std::ios::binary) << bytes;
  }
  expect_refused({a, path("key")}, {"002.png is 20 x 12 8-bit RGB with a transparent colour"});
  run_of_frames("text", 1);
  std::ofstream(path("text/002.png")) << "no picture";
  expect_refused({a, path("text")}, {"002.png is no complete PNG"});
  run_of_frames("pipe", 1);
  fs::remove(path("pipe/002.png"));
  ASSERT_EQ(mkfifo(path("pipe/002.png").c_str(), 0600), 0);
  expect_refused({a, path("pipe")}, {"002.png is no regular file"});
  fs::create_directory(path("empty"));
  expect_refused({a, path("empty")}, {"empty holds no .png files"});
  expect_refused({a, a, "--data-range", "255"}, {"--data-range 255", "peak is 255"});
}

TEST_F(CompareRuns, BadCalls_AreRefused) {
  const std::string file = latents("a.safetensors", 0);
  run_of_frames("a", 1);
  expect_refused({}, {"required"});
  expect_refused({file}, {"required"});
  expect_refused({file, path("a")}, {"a.safetensors is a file", "a is a folder"});
  expect_refused({path("a"), file}, {"is a folder", "is a file"});
  expect_refused({file, path("absent")}, {"absent does not exist", "two folders"});
  expect_refused({file, "/dev/null"}, {"neither a file nor a folder"});
  expect_refused({file, file, "--perframe"}, {"unknown option --perframe", "--per-frame"});
  EXPECT_EQ(run_h3({"compare-runs", "--help"}).exit_code, 0);
}

}  // namespace
}  // namespace h3::cli
