// The plan of a model before weights are read, and stopping a run.
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "h3/common/error.h"
#include "h3/models/dit/tiny.h"
#include "h3/pipeline/denoise.h"
#include "h3/pipeline/dit_engine.h"

namespace h3::pipeline {
namespace {

namespace fs = std::filesystem;

class DitEngine : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = testing::TempDir() + "h3_engine_XXXXXX";
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    folder_ = name;
    dit::write_random_transformer(folder_, dit::tiny_dit_config(), dit::NameStyle::kNative,
                                  tessera::Dtype::kF32, 1);
    options_.model.path = folder_;
    options_.platform = cpu_platform();
  }
  void TearDown() override { fs::remove_all(folder_); }

  static DenoiseRequest request() {
    DenoiseRequest r;
    r.text = at::randn({3, dit::tiny_dit_config().text_dim});
    r.layout.text_rows = 3;
    r.layout.target = {2, 4, 4};
    r.layout.target_audio_latents = 4;
    r.forwards = 4;
    return r;
  }

  std::string folder_;
  DitOptions options_;
};

TEST_F(DitEngine, Memory_IsCountedBeforeLoading) {
  DitSetup setup = plan_dit(options_);
  EXPECT_EQ(setup.compute, tessera::Dtype::kF32);
  EXPECT_NO_THROW(require_memory(setup, {.rows = 1024}));
  setup.weight_bytes = uint64_t{1} << 50;
  try {
    require_memory(setup, {.rows = 1024});
    FAIL() << "a petabyte fits?";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kOutOfMemory);
    for (const char* part : {"1125899.9", "free are", "1024 packed rows", "--tp-size"}) {
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
    }
  }
}

TEST_F(DitEngine, Stop_EndsAtTheNextStepAndSaysWhere) {
  const DitSetup setup = plan_dit(options_);
  const auto dit = load_dit(setup, nullptr);
  DenoiseJob job(dit->model(), request());
  std::stop_source stop;
  int64_t steps = 0;
  try {
    job.run(
        [&](const StepProgress& p) {
          ++steps;
          if (p.step == 1) stop.request_stop();
        },
        stop.get_token());
    FAIL() << "ran to the end";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kCancelled);
    EXPECT_NE(std::string(error.what()).find("step 2 of 4"), std::string::npos) << error.what();
  }
  EXPECT_EQ(steps, 2);
}

TEST_F(DitEngine, SameSeed_SameLatents_OtherSeed_OtherLatents) {
  const DitSetup setup = plan_dit(options_);
  const auto dit = load_dit(setup, nullptr);
  DenoiseRequest r = request();
  const DenoiseResult a = DenoiseJob(dit->model(), r).run(), b = DenoiseJob(dit->model(), r).run();
  EXPECT_TRUE(a.video.equal(b.video) && a.audio.equal(b.audio));
  r.seed += 1;
  EXPECT_FALSE(DenoiseJob(dit->model(), r).run().video.equal(a.video));
}

TEST_F(DitEngine, ConditionsThatDoNotFit_AreRefused) {
  const DitSetup setup = plan_dit(options_);
  const auto dit = load_dit(setup, nullptr);
  DenoiseRequest r = request();
  r.layout.keyframes = {dit::Keyframe::kFirst};
  EXPECT_THROW(DenoiseJob(dit->model(), r), Error);
  r.keyframes.push_back({at::randn({1, 24, 1, 4, 6}), {}});
  try {
    const DenoiseJob job(dit->model(), r);
    FAIL() << "a keyframe of another canvas was taken";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("[1, 24, 1, 4, 6]"), std::string::npos);
  }
}

}  // namespace
}  // namespace h3::pipeline
