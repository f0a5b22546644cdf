#include "tessera/cli/cmd_video.h"

#include <fmt/format.h>

#include <charconv>
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>

#include "tessera/cli/commands.h"
#include "tessera/cli/common/input.h"
#include "tessera/cli/common/output.h"
#include "tessera/cli/common/plan_summary.h"
#include "tessera/cli/common/progress.h"
#include "tessera/cli/common/routing.h"
#include "tessera/video/study.h"

namespace tessera::cli {
namespace {

struct Options {
  video::StudyOptions study;
  std::string size;
  int64_t seed = 1;
  RoutingOptions routing;
  CLI::App* sub = nullptr;
};

Status check_options(const Options& options, video::StudyOptions* study) {
  *study = options.study;
  if (options.sub->count("--size") > 0) {
    TESSERA_RETURN_IF_ERROR(parse_size(options.size, &study->grid.width, &study->grid.height));
  }
  if (options.sub->count("--frames") > 0 && study->grid.frames < 4) {
    return invalid_argument(
        fmt::format("--frames {}: accepted: a multiple of 4, at least 4 (one token spans 4 frames)",
                    study->grid.frames));
  }
  if (options.seed < 0) {
    return invalid_argument(fmt::format(
        "--seed {}: accepted: 0 or a positive whole number; try --seed 1", options.seed));
  }
  study->qkv.seed = uint64_t(options.seed);
  if (study->qkv.heads < 1 || study->qkv.heads > 64) {
    return invalid_argument(
        fmt::format("--heads {}: accepted: 1 to 64; try --heads 4", study->qkv.heads));
  }
  return {};
}

Status run_video(const Options& options, const GlobalOptions& global) {
  Routing routing;
  TESSERA_RETURN_IF_ERROR(check_routing_options(options.routing, &routing));
  video::StudyOptions study_options;
  TESSERA_RETURN_IF_ERROR(check_options(options, &study_options));

  // The shared option rules want an input; a clip is one unpacked document.
  Input input;
  input.path = study_options.clip;
  const auto route_params = [&](const video::TokenGrid& grid, RouteParams* out) -> Status {
    input.layout = single_document(grid.tokens(), grid.tokens());
    TESSERA_RETURN_IF_ERROR(resolve_routing(options.routing, input, &routing));
    *out = routing.params(input, {});
    return {};
  };
  Execution exec = make_execution(global);
  ProgressBar bar("attention");
  exec.progress = bar.hook();
  const auto stage = [&](const std::string& what) {
    bar.finish();
    message(what);
  };
  video::Study study;
  TESSERA_RETURN_IF_ERROR(video::run_study(study_options, route_params, exec, stage, &study));
  bar.finish();
  {
    WriteGuard guard;
    TESSERA_RETURN_IF_ERROR(video::write_study(study));
  }
  report_accepted(routing, summarize_plan(study.experiment.plan, study.experiment.layout));
  if (study.lost_frames > 0) {
    message(
        fmt::format("warning: {} of the frames of {} could not be decoded; the other {} were "
                    "used",
                    study.lost_frames, study.info.path, study.grid.frames()));
  }
  if (global.json) return print_text(video::report_json(study));
  std::string text = video::summary_text(study) + "files       ";
  for (const std::string& file : study.files) text += " " + file;
  return print_text(text + "\n");
}

}  // namespace

Status parse_size(const std::string& text, int* width, int* height) {
  const char* const end = text.data() + text.size();
  const auto [at, error] = std::from_chars(text.data(), end, *width);
  if (error == std::errc() && at != end && (*at == 'x' || *at == 'X')) {
    const auto [last, second_error] = std::from_chars(at + 1, end, *height);
    if (second_error == std::errc() && last == end && *width > 0 && *height > 0) return {};
  }
  return invalid_argument(fmt::format(
      "--size '{}': accepted: WIDTHxHEIGHT in pixels, both positive multiples of 32; try "
      "--size 640x352",
      text));
}

void add_video_command(CLI::App& app, GlobalOptions& global) {
  auto options = std::make_shared<Options>();
  CLI::App* sub =
      add_command(app, global, "video",
                  "Cut a video into tokens, route, attend dense and sparse, draw what happened",
                  "tessera video clip.mp4 -o out --tokens 8192 --sparsity 0.75",
                  [options, &global] { return run_video(*options, global); });
  options->sub = sub;
  video::StudyOptions& study = options->study;
  sub->add_option("clip", study.clip, "Video file, anything FFmpeg reads")
      ->required()
      ->type_name("CLIP");
  sub->add_option("-o,--output", study.folder,
                  "Folder for report.json, summary.txt and the pictures; created if missing")
      ->required()
      ->type_name("DIR");
  const std::string group = "Clip";
  sub->add_option("--tokens", study.grid.max_tokens,
                  "Most tokens to use; picks size and frames (8192)")
      ->check(accepts_number<int64_t>("a whole number, 1 or more"))
      ->group(group)
      ->type_name("N");
  sub->add_option("--size", options->size, "Scale frames to this, multiples of 32 pixels")
      ->group(group)
      ->type_name("WxH");
  sub->add_option("--frames", study.grid.frames, "Use this many frames, a multiple of 4")
      ->check(accepts_number<int>("a multiple of 4, at least 4"))
      ->group(group)
      ->type_name("N");
  sub->add_option("--heads", study.qkv.heads, "Attention heads, 1 to 64 (4)")
      ->check(accepts_number<int>("1 to 64"))
      ->group(group)
      ->type_name("H");
  sub->add_option("--seed", options->seed, "Seed of the q and k projections (1)")
      ->check(accepts_number<int64_t>("a whole number, 0 or more"))
      ->group(group)
      ->type_name("N");
  add_routing_options(sub, options->routing);
}

}  // namespace tessera::cli
