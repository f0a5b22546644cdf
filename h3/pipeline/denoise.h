// From text features, condition latents and a seed to the latents of a video and its sound: packs
// the sequence, draws the noise, walks the sigma grids.
//
//   DenoiseJob job(model, request);
//   DenoiseResult result = job.run([](const StepProgress& p) { ... }, stop);
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <stop_token>
#include <string>
#include <vector>

#include "h3/layers/device_memory.h"
#include "h3/models/dit/model.h"

namespace h3::pipeline {

/// Clean, normalised latents of one condition, f32: [1, C, T, H, W] of keyframes, images and
/// videos, [2, C, T] of sound. Undefined where the condition has none.
struct ConditionLatents {
  at::Tensor visual, audio;
};

struct DenoiseRequest {
  dit::LayoutRequest layout;
  at::Tensor text;                                      // features [text rows, text_dim]
  std::vector<ConditionLatents> keyframes, references;  // in the order of the layout's lists
  int64_t forwards = 50;
  double video_shift = 12, audio_shift = 3;
  uint64_t seed = 42;
  /// How clean conditions are: 1 is untouched. Mix and timestep both follow it.
  double visual_level = 0.999, audio_level = 1.0;
};

struct StepProgress {
  int64_t step = 0, steps = 0;  // the step that has just ended, 0-based
  double seconds = 0;           // of this step
};

struct StepReport {
  double seconds = 0;
  PhaseTimes phases{};  // milliseconds on the device; zero unless profiled
};

struct DenoiseResult {
  at::Tensor video;  // [1, C, T, H, W] f32 on the CPU, normalised
  at::Tensor audio;  // [2, C, T] f32 on the CPU, normalised
  std::vector<StepReport> steps;
  double prepare_seconds = 0;  // noise, tables; the refiner if it ran here
  DeviceMemory memory;         // at the end; peaks are of this run
};

struct DenoiseOptions {
  bool profile = false;  // time the phases of every step
  /// Asked between steps with what this rank knows; says what all ranks do. Unset: this rank alone.
  std::function<bool(bool)> agree_to_stop;
};

/// Several outputs of one prompt share nothing but `refined`; see refine below. Deterministic for a
/// request, a device and a topology.
class DenoiseJob {
 public:
  /// Draws noise (published streams: a Mersenne twister per stream, on the CPU), packs the sequence
  /// and computes what all steps share. `refined`: of DitModel::refine_text for request.text, or
  /// undefined to do it here. Throws kInvalidArgument for conditions that do not fit the layout and
  /// as the parts it calls.
  DenoiseJob(dit::DitModel& model, const DenoiseRequest& request, const at::Tensor& refined = {});
  ~DenoiseJob();

  /// All steps. Every step waits for the device, so that progress is true. `on_step` runs after
  /// each step. Throws kCancelled at the next step boundary after `stop` is requested. Once only.
  DenoiseResult run(const std::function<void(const StepProgress&)>& on_step = {},
                    std::stop_token stop = {}, const DenoiseOptions& options = {});

  const dit::PackedLayout& layout() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace h3::pipeline
