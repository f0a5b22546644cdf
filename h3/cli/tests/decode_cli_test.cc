// `h3 decode` as users run it: from the latents of `h3 denoise` to a movie, with the tiny model.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>

#include "h3/cli/tests/run_h3.h"
#include "h3/media/movie_writer.h"
#include "tessera/io/safetensors.h"

namespace h3::cli {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr int64_t kLatents = 7, kSide = 4, kSound = 40;

class DecodeCommand : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    std::string name = testing::TempDir() + "h3_decode_XXXXXX";
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    root_ = new std::string(name);
    setenv("OMP_NUM_THREADS", "1", 0);  // several tests at once on few cores
    const Outcome o = run_h3({"make-tiny", path("tiny"), "--seed", "3"});
    ASSERT_EQ(o.exit_code, 0) << o.err;
    write_latents("latents.safetensors", kLatents);
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

  // A wave in every channel: nothing depends on a generator.
  static void write_latents(const std::string& name, int64_t frames, float first = 0,
                            int64_t channels = 24) {
    std::vector<float> video(static_cast<size_t>(channels * frames * kSide * kSide)),
        audio(static_cast<size_t>(2 * 32 * kSound));
    for (size_t i = 0; i < video.size(); ++i) video[i] = std::sin(0.37f * static_cast<float>(i));
    for (size_t i = 0; i < audio.size(); ++i) audio[i] = std::sin(0.53f * static_cast<float>(i));
    video[0] = first;
    ASSERT_TRUE(
        tessera::io::write_safetensors(
            path(name),
            {{"video", tessera::Dtype::kF32, {1, channels, frames, kSide, kSide}, video.data()},
             {"audio", tessera::Dtype::kF32, {2, 32, kSound}, audio.data()}},
            {{"seed", "77"}})
            .ok());
  }

  static std::vector<std::string> arguments(const std::string& latents, const std::string& output,
                                            std::vector<std::string> more = {}) {
    std::vector<std::string> args = {"decode", path(latents), "--model-path", path("tiny"),
                                     "-o",     path(output),  "--device",     "cpu"};
    args.insert(args.end(), more.begin(), more.end());
    return args;
  }

  static void refuses(const std::vector<std::string>& args, const std::vector<std::string>& parts) {
    const Outcome o = run_h3(args);
    EXPECT_EQ(o.exit_code, 2) << o.err;
    expect_parts(o.err, parts);
    EXPECT_EQ(o.out, "");
    for (const auto& entry : fs::directory_iterator(*root_)) {
      EXPECT_NE(entry.path().extension(), ".mp4") << entry.path();
    }
  }

  static std::string* root_;
};
std::string* DecodeCommand::root_ = nullptr;

TEST_F(DecodeCommand, WritesAMovieThatMeetsTheContract_SameBytesTwice) {
  const Outcome o = run_h3(arguments("latents.safetensors", "out.mp4", {"--json"}));
  ASSERT_EQ(o.exit_code, 0) << o.err;
  const Json report = Json::parse(o.out);
  EXPECT_EQ(report["size"], "64x64");
  EXPECT_EQ(report["frames"], 22);  // 7 latents
  EXPECT_EQ(report["samples"], 800 * kSound);
  EXPECT_NO_THROW(
      media::check_movie(path("out.mp4"), {.width = 64, .height = 64, .frames = 22}, "the movie"));
  EXPECT_NE(bytes("out.mp4").find("\"seed\":\"77\""), std::string::npos);
  ASSERT_EQ(run_h3(arguments("latents.safetensors", "again.mp4")).exit_code, 0);
  EXPECT_EQ(bytes("out.mp4"), bytes("again.mp4"));
  fs::remove(path("out.mp4"));
  fs::remove(path("again.mp4"));
}

TEST_F(DecodeCommand, TwoRanks_WriteTheSameMovie) {
  ASSERT_EQ(run_h3(arguments("latents.safetensors", "one.mp4")).exit_code, 0);
  const Outcome o = run_h3(arguments("latents.safetensors", "two.mp4", {"--num-gpus", "2"}));
  ASSERT_EQ(o.exit_code, 0) << o.err;
  EXPECT_EQ(bytes("one.mp4"), bytes("two.mp4"));
  fs::remove(path("one.mp4"));
  fs::remove(path("two.mp4"));
}

TEST_F(DecodeCommand, BadInput_IsRefusedAndLeavesNothing) {
  refuses(arguments("missing.safetensors", "bad.mp4"), {"missing.safetensors"});
  write_latents("short.safetensors", 2);
  refuses(arguments("short.safetensors", "bad.mp4"), {"2", "latent"});
  write_latents("nan.safetensors", kLatents, std::numeric_limits<float>::quiet_NaN());
  refuses(arguments("nan.safetensors", "bad.mp4"), {"video has 1 of", "not finite"});
  write_latents("channels.safetensors", kLatents, 0, 16);
  refuses(arguments("channels.safetensors", "bad.mp4"), {"16", "24"});
  refuses(arguments("latents.safetensors", "no/such/bad.mp4"), {"no/such"});
  refuses(arguments("latents.safetensors", "bad.mp4", {"--output-quality", "best"}), {"best"});
  std::vector<std::string> model = arguments("latents.safetensors", "bad.mp4");
  model[3] = path("tiny/transformer");
  refuses(model, {"video VAE"});
}

}  // namespace
}  // namespace h3::cli
