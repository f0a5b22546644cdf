// The transformer ready to run: first the plan (files, attention, degrees, memory), which reads no
// weight, then the loaded model.
//
//   DitSetup setup = plan_dit(options);
//   require_memory(setup, packed_rows);
//   auto dit = load_dit(setup, world, progress);
//   DenoiseJob job(dit->model(), request);
#pragma once

#include <c10/core/Device.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "h3/attention/runtime.h"
#include "h3/models/dit/checkpoint.h"
#include "h3/models/dit/model.h"
#include "h3/parallel/plan.h"
#include "h3/parallel/world.h"
#include "h3/weights/loader.h"

namespace h3::pipeline {

struct DitOptions {
  weights::ModelRequest model;
  Platform platform;
  c10::Device device = c10::Device(c10::DeviceType::CPU);
  /// Of everything that is no fp32 island. Unset: bf16 on CUDA and for sparse attention, else f32.
  std::optional<tessera::Dtype> compute;
  AttentionChoices attention;
  AttentionOverride request;  // of the request that is to run; checked against every layer
  parallel::DegreeRequest degrees;
};

struct DitSetup {
  dit::DitCheckpoint checkpoint;
  Platform platform;
  c10::Device device = c10::Device(c10::DeviceType::CPU);
  tessera::Dtype compute = tessera::Dtype::kBf16;
  parallel::Degrees degrees;
  AttentionPlan plan;
  std::vector<weights::TensorRecipe> recipes;  // of tensor rank 0; ranks differ in pieces only
  uint64_t weight_bytes = 0;                   // per rank

  /// Settings that ranks compare when they meet.
  parallel::ConfigRecord record() const;
};

/// Opens and checks the checkpoint (headers only), resolves attention for its layers and admits the
/// degrees. Throws as its parts, and for a request that the layers cannot follow.
DitSetup plan_dit(const DitOptions& options);

/// What one run needs beside the weights.
struct RunSize {
  int64_t rows = 0;     // packed
  int64_t moments = 0;  // distinct timesteps, summed over steps
  int local_ranks = 1;  // that share this host's memory
};

/// Throws kOutOfMemory if weights and one forward do not fit what is free on the device, or the
/// tables of the run what is available on the host (on the CPU both together), with the numbers and
/// what would help.
void require_memory(const DitSetup& setup, const RunSize& run);

class LoadedDit {
 public:
  LoadedDit(const DitSetup& setup, parallel::World* world,
            const std::function<void(const weights::LoadProgress&)>& progress, bool quiet);

  dit::DitModel& model() { return *model_; }
  AttentionRuntime& attention() { return *attention_; }
  double load_seconds() const { return load_seconds_; }
  double load_gb_per_second() const { return load_gb_per_second_; }

 private:
  std::optional<parallel::SequenceGroups> groups_;
  std::unique_ptr<AttentionRuntime> attention_;
  std::unique_ptr<dit::DitModel> model_;
  double load_seconds_ = 0, load_gb_per_second_ = 0;
};

/// Reads the weights of this rank to its device. `world`: null on one rank; outlives the result.
/// `quiet`: the table of backends is not logged.
std::unique_ptr<LoadedDit> load_dit(
    const DitSetup& setup, parallel::World* world,
    const std::function<void(const weights::LoadProgress&)>& progress = {}, bool quiet = false);

}  // namespace h3::pipeline
