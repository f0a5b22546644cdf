// The whole job on small clips: files, determinism, numbers that must hold, refused folders.
#include "tessera/video/study.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "tessera/tests/video/clip_maker.h"

namespace tessera::video {
namespace {

Status keep_two(const TokenGrid&, RouteParams* params) {
  params->config.budget = {.kind = BudgetKind::kKeep, .keep = 2};
  return {};
}

Execution two_threads() {
  Execution exec;
  exec.threads = 2;
  return exec;
}

StudyOptions small_study(const std::string& clip, const std::string& folder) {
  StudyOptions options{.clip = clip, .folder = scratch_path(folder)};
  options.grid.max_tokens = 1000;
  options.qkv.heads = 2;
  return options;
}

TEST(Study, SmallClip_WritesFiveFilesWithPlausibleNumbers) {
  // 4 x 5 x 10 tokens: 4 blocks, the last of 8 tokens.
  const std::string clip = make_moving_clip("study.mkv", 18, 320, 160);
  Study study;
  const Status status =
      run_study(small_study(clip, "out/new"), keep_two, two_threads(), {}, &study);
  ASSERT_TRUE(status.ok()) << status.message();
  ASSERT_TRUE(write_study(study).ok());
  EXPECT_EQ(study.grid.tokens(), 200);
  EXPECT_EQ(study.experiment.layout.query_blocks, 4);
  EXPECT_EQ(study.experiment.stats.kept_pairs, 2 * 4 * 2);
  EXPECT_GT(study.experiment.mean_recall, 0.3);
  EXPECT_LE(study.experiment.mean_recall, 1.0 + 1e-4);
  ASSERT_EQ(study.files.size(), 5u);
  for (const std::string& file : study.files) {
    EXPECT_GT(std::filesystem::file_size(file), 200u) << file;
  }
  for (size_t i = 2; i < 5; ++i) {
    std::ifstream in(study.files[i], std::ios::binary);
    std::string magic(4, '\0');
    in.read(magic.data(), 4);
    EXPECT_EQ(magic, "\x89PNG") << study.files[i];
  }
  std::ifstream in(study.files[0]);
  const nlohmann::json report = nlohmann::json::parse(in);
  EXPECT_EQ(report["grid"]["tokens"], 200);
  EXPECT_EQ(report["router"]["kept_max"], 2);
  EXPECT_NEAR(report["recall"]["mean"], study.experiment.mean_recall, 1e-9);
}

TEST(Study, OracleCurve_IsAboveEveryOtherAndRecallAgreesWithBlockMass) {
  const std::string clip = make_moving_clip("curves.mkv", 16, 320, 160);
  Study study;
  ASSERT_TRUE(run_study(small_study(clip, "curves"), keep_two, two_threads(), {}, &study).ok());
  const auto& curves = study.curves.curves;
  ASSERT_EQ(curves.size(), 6u);
  ASSERT_EQ(curves[4].name, "oracle");
  for (const RecallCurve& c : curves) {
    for (size_t i = 0; i < c.mass.size(); ++i) {
      ASSERT_LE(c.mass[i], curves[4].mass[i] + 1e-6) << c.name << " at " << i;
    }
  }
  // Sparsity 0.5 of 4 blocks keeps 2, as the run did with n = 4: two ways to the same number.
  EXPECT_NEAR(curves[2].mass[0], study.experiment.mean_recall, 2e-3);
}

TEST(Study, SameSeed_SameOutputForAnyThreadCount) {
  const std::string clip = make_moving_clip("seed.mkv", 8, 256, 160);
  StudyOptions options = small_study(clip, "seed");
  Execution one = two_threads();
  one.threads = 1;
  Study a, b, c;
  ASSERT_TRUE(run_study(options, keep_two, two_threads(), {}, &a).ok());
  ASSERT_TRUE(run_study(options, keep_two, one, {}, &b).ok());
  options.qkv.seed = 99;
  ASSERT_TRUE(run_study(options, keep_two, one, {}, &c).ok());
  EXPECT_EQ(a.experiment.plan.index, b.experiment.plan.index);
  EXPECT_EQ(a.experiment.sparse_out, b.experiment.sparse_out);
  EXPECT_EQ(a.pictures, b.pictures);
  EXPECT_NE(a.experiment.sparse_out, c.experiment.sparse_out);
}

TEST(Study, OneTokenAndConstantFrames_RunWithoutNan) {
  const auto grey = [](int, int, int) { return std::array<uint8_t, 3>{90, 90, 90}; };
  for (const auto& [name, size] : {std::pair{"one.mkv", 32}, {"flat.mkv", 320}}) {
    const std::string clip = make_clip(name, 4, size, size, grey);
    Study study;
    const Status status = run_study(small_study(clip, std::string(name) + ".out"), keep_two,
                                    two_threads(), {}, &study);
    ASSERT_TRUE(status.ok()) << status.message();
    EXPECT_TRUE(std::isfinite(study.experiment.mean_recall));
    EXPECT_EQ(study.experiment.errors.non_finite, 0);
    EXPECT_EQ(study.pca_rank, 0);
    EXPECT_NEAR(study.pixel_rms, 0.0, 1e-6);
  }
}

TEST(Study, CutOffClip_SaysHowManyFramesWereLost) {
  const std::string clip = make_moving_clip("lost.mkv", 24, 128, 96);
  std::filesystem::resize_file(clip, std::filesystem::file_size(clip) / 2);
  Study study;
  ASSERT_TRUE(run_study(small_study(clip, "lost"), keep_two, two_threads(), {}, &study).ok());
  EXPECT_GT(study.lost_frames, 0);
  EXPECT_EQ(study.grid.frames() + study.unused_frames + study.lost_frames, 24);
  EXPECT_NE(summary_text(study).find(std::to_string(study.lost_frames) + " frames lost"),
            std::string::npos);
}

TEST(Study, TooShortClip_IsRefused) {
  const std::string clip = make_moving_clip("short.mkv", 3, 64, 64);
  Study study;
  const Status status = run_study(small_study(clip, "short"), keep_two, two_threads(), {}, &study);
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("at least 4"), std::string::npos) << status.message();
}

TEST(Study, UnwritableFolder_IsRefusedBeforeDecoding) {
  const std::string clip = make_moving_clip("folder.mkv", 8, 64, 64);
  const std::string file = scratch_path("a_file");
  std::ofstream(file) << "x";
  for (const std::string& folder : {file, file + "/below", std::string()}) {
    StudyOptions options = small_study(clip, "unused");
    options.folder = folder;
    int stages = 0;
    Study study;
    const Status status = run_study(
        options, keep_two, two_threads(), [&](const std::string&) { ++stages; }, &study);
    EXPECT_EQ(status.code(), StatusCode::kIo) << status.message();
    EXPECT_EQ(stages, 0) << "work started for folder '" << folder << "'";
  }
}

}  // namespace
}  // namespace tessera::video
