// The whole job of `tessera video`: clip in, measured attention and pictures out.
//
//   Study study;
//   Status s = run_study({.clip = "in.mp4", .folder = "out"}, routing, exec, {}, &study);
//   s = write_study(study);
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tessera/execution.h"
#include "tessera/router.h"
#include "tessera/status.h"
#include "tessera/video/clip.h"
#include "tessera/video/experiment.h"
#include "tessera/video/features.h"
#include "tessera/video/grid.h"
#include "tessera/video/qkv.h"

namespace tessera::video {

struct StudyOptions {
  std::string clip;
  std::string folder;  // created if missing
  GridRequest grid;
  QkvOptions qkv;
};

struct Study {
  StudyOptions options;
  RouterConfig router;
  int threads = 0;
  ClipInfo info;
  TokenGrid grid;
  int64_t lost_frames = 0, damaged_frames = 0;
  int unused_frames = 0;  // decoded, but fewer than 4 were left for a token
  int pca_rank = 0;
  double pca_explained = 0;
  Experiment experiment;
  RecallCurves curves;
  double pixel_rms = 0;  // grey levels of 255
  double prepare_s = 0;  // decoding, features, q, k, v
  double total_s = 0;
  std::array<std::vector<uint8_t>, 3> pictures;  // PNG: kept blocks, recall, attention
  std::vector<std::string> files;                // where `write_study` puts them, in order
};

/// Settles everything that needs no decoding: the grid, and that `folder` can be written.
Status plan_study(const StudyOptions& options, ClipInfo* info, TokenGrid* grid);

/// Everything but the writing of files; calls `plan_study` first. `routing` builds the routing
/// settings once the number of tokens is known (q and k are filled in here). `stage` is told what
/// happens next; may be empty.
Status run_study(const StudyOptions& options,
                 const std::function<Status(const TokenGrid&, RouteParams*)>& routing,
                 const Execution& exec, const std::function<void(const std::string&)>& stage,
                 Study* out);

/// Writes `study.files`, each to a temporary name that is then renamed. kIo with the reason.
Status write_study(const Study& study);

/// report.json: everything measured, with the curves.
std::string report_json(const Study& study);

/// summary.txt: the same for people.
std::string summary_text(const Study& study);

}  // namespace tessera::video
