// The measurement behind `tessera video`: dense attention, routing and block-sparse attention on
// the same q, k, v, what the skipped blocks cost, and how much mass other routers would have kept.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tessera/execution.h"
#include "tessera/layout.h"
#include "tessera/plan.h"
#include "tessera/quality.h"
#include "tessera/router.h"
#include "tessera/status.h"
#include "tessera/video/qkv.h"

namespace tessera::video {

struct Experiment {
  BlockLayout layout;
  Plan plan;
  PlanStats stats;
  std::vector<uint16_t> dense_out, sparse_out;  // bf16 bits, [1, S, H, 128]
  std::vector<float> lse_dense;                 // [H, S]
  std::vector<float> recall;                    // [H, S], kept softmax mass of each row
  std::vector<float> block_mass;                // [H, G, G], true mass of each block pair
  std::vector<double> head_recall;              // [H]
  double mean_recall = 0, low_recall = 0;       // mean, and the value 99 % of the rows reach
  double overlap = 0;                           // mean Jaccard overlap of neighbouring lists
  double sharing_of_3 = 0;                      // listed / union over groups of 3
  ErrorStats errors;                            // sparse against dense output
  int repeats = 0;                              // the times are medians over this many runs
  double route_s = 0, sparse_s = 0, dense_s = 0;
  std::string kernel;

  double speed_up() const { return dense_s / (route_s + sparse_s); }
  /// Head with the lowest recall: the one to look at.
  int worst_head() const;
};

/// `routing` gives everything but q and k. Several runs are timed if they are short.
Status run_experiment(const Qkv& qkv, const RouteParams& routing, const Execution& exec,
                      Experiment* out);

/// Kept mass against sparsity. Kept blocks are ceil((1 - sparsity) * G), without the rounding to
/// groups of 8, so that the curves have no steps.
struct RecallCurve {
  std::string name;          // "n = 4", "oracle", "random lists"
  std::vector<double> mass;  // one per sparsity
};
struct RecallCurves {
  std::vector<double> sparsity;     // .5 .. .95
  std::vector<RecallCurve> curves;  // n = 1, 2, 4, 8, oracle, random lists
};

/// Routes once with each n = n_q = n_k; the oracle sorts by `block_mass` itself.
Status recall_curves(const Qkv& qkv, const Experiment& experiment, uint64_t seed,
                     const Execution& exec, RecallCurves* out);

}  // namespace tessera::video
