#include "tessera/video/study.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <thread>
#include <utility>

#include "tessera/io/safetensors.h"
#include "tessera/video/pictures.h"
#include "tessera/video/rope.h"

namespace tessera::video {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr std::array<const char*, 5> kFiles = {"report.json", "summary.txt", "kept_blocks.png",
                                               "recall.png", "attention.png"};

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Finds out before minutes of work whether the results can be stored, by writing a small file.
Status prepare_folder(const std::string& folder) {
  constexpr const char* kNext = "; give -o a folder that you can write";
  if (folder.empty()) return io_error(std::string("the output folder has an empty name") + kNext);
  std::error_code ec;
  fs::create_directories(folder, ec);
  if (ec || !fs::is_directory(folder)) {
    return io_error("output folder '" + folder + "' cannot be created: " +
                    (ec ? ec.message() : "a file of that name exists") + kNext);
  }
  for (const char* name : kFiles) {
    const fs::path path = fs::path(folder) / name;
    if (fs::exists(path, ec) && !fs::is_regular_file(path, ec)) {
      return io_error("'" + path.string() +
                      "' exists and is not a regular file; move it away or "
                      "give -o another folder");
    }
  }
  const std::string probe = (fs::path(folder) / ".tessera_write_check").string();
  if (Status s = io::write_file_atomic(probe, "x", 1); !s.ok()) {
    return {s.code(), "output folder '" + folder + "' cannot be written: " + s.message() + kNext};
  }
  fs::remove(probe, ec);
  return {};
}

// Fits the grid to the frames that really came out of the decoder.
Status shorten_grid(const Clip& clip, TokenGrid* grid) {
  if (clip.frames < kTokenFrames) {
    return invalid_argument("clip '" + clip.info.path + "': only " + std::to_string(clip.frames) +
                            " frames could be decoded (" + std::to_string(clip.lost_frames) +
                            " lost), at least 4 are needed (one token spans 4 frames); give a "
                            "longer or undamaged clip");
  }
  grid->t = std::min(grid->t, clip.frames / kTokenFrames);
  return {};
}

}  // namespace

Status plan_study(const StudyOptions& options, ClipInfo* info, TokenGrid* grid) {
  TESSERA_RETURN_IF_ERROR(probe_clip(options.clip, info));
  TESSERA_RETURN_IF_ERROR(choose_grid(*info, options.grid, grid));
  return prepare_folder(options.folder);
}

Status run_study(const StudyOptions& options,
                 const std::function<Status(const TokenGrid&, RouteParams*)>& routing,
                 const Execution& exec, const std::function<void(const std::string&)>& stage,
                 Study* out) {
  const auto start = Clock::now();
  const auto say = [&](const std::string& what) {
    if (stage) stage(what);
  };
  Study study{.options = options};
  study.threads =
      exec.threads > 0 ? exec.threads : int(std::max(1u, std::thread::hardware_concurrency()));
  TESSERA_RETURN_IF_ERROR(plan_study(options, &study.info, &study.grid));
  RouteParams route_params;
  // Early, for its errors; once more below, because lost frames may make the grid smaller.
  TESSERA_RETURN_IF_ERROR(routing(study.grid, &route_params));

  say("decoding " + std::to_string(study.grid.frames()) + " frames at " +
      std::to_string(study.grid.width()) + "x" + std::to_string(study.grid.height()));
  Clip clip;
  TESSERA_RETURN_IF_ERROR(decode_clip(study.info,
                                      {.width = study.grid.width(),
                                       .height = study.grid.height(),
                                       .frames = study.grid.frames(),
                                       .threads = exec.threads},
                                      &clip));
  TESSERA_RETURN_IF_ERROR(shorten_grid(clip, &study.grid));
  study.lost_frames = clip.lost_frames;
  study.damaged_frames = clip.damaged_frames;
  study.unused_frames = clip.frames - study.grid.frames();

  say("making q, k and v from " + std::to_string(study.grid.tokens()) + " patches");
  Pca pca;
  Qkv qkv;
  {
    const std::vector<float> patches = patch_features(clip, study.grid);
    TESSERA_RETURN_IF_ERROR(fit_pca(patches, study.grid.tokens(), &pca));
    TESSERA_RETURN_IF_ERROR(make_qkv(project(pca, patches, Scaling::kWhitened),
                                     project(pca, patches, Scaling::kPixels),
                                     token_positions(study.grid), options.qkv, &qkv));
  }
  study.pca_rank = pca.rank;
  study.pca_explained = pca.explained;
  study.prepare_s = seconds_since(start);

  say("routing, sparse and dense attention");
  TESSERA_RETURN_IF_ERROR(routing(study.grid, &route_params));
  study.router = route_params.config;
  TESSERA_RETURN_IF_ERROR(run_experiment(qkv, route_params, exec, &study.experiment));
  study.pixel_rms = pixel_difference(study.grid, pca, study.experiment);

  say("recall curves");
  TESSERA_RETURN_IF_ERROR(
      recall_curves(qkv, study.experiment, options.qkv.seed, exec, &study.curves));

  say("drawing");
  TESSERA_RETURN_IF_ERROR(draw_kept_blocks(clip, study.grid, study.experiment, &study.pictures[0]));
  TESSERA_RETURN_IF_ERROR(draw_recall(study.curves, study.experiment, &study.pictures[1]));
  TESSERA_RETURN_IF_ERROR(
      draw_attention(clip, study.grid, pca, study.experiment, &study.pictures[2]));
  for (const char* name : kFiles) {
    study.files.push_back((fs::path(options.folder) / name).string());
  }
  study.total_s = seconds_since(start);
  *out = std::move(study);
  return {};
}

Status write_study(const Study& study) {
  const std::string report = report_json(study), summary = summary_text(study);
  TESSERA_RETURN_IF_ERROR(io::write_file_atomic(study.files[0], report.data(), report.size()));
  TESSERA_RETURN_IF_ERROR(io::write_file_atomic(study.files[1], summary.data(), summary.size()));
  for (size_t i = 0; i < study.pictures.size(); ++i) {
    const std::vector<uint8_t>& picture = study.pictures[i];
    TESSERA_RETURN_IF_ERROR(
        io::write_file_atomic(study.files[2 + i], picture.data(), picture.size()));
  }
  return {};
}

}  // namespace tessera::video
