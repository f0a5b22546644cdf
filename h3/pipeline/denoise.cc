#include "h3/pipeline/denoise.h"

#include <ATen/Functions.h>
#include <c10/core/InferenceMode.h>

#include <chrono>

#include "h3/common/error.h"
#include "h3/models/dit/noise.h"
#include "h3/models/dit/sampling.h"

namespace h3::pipeline {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

[[noreturn]] void refuse(const std::string& text, const std::string& hint) {
  throw Error(ErrorCode::kInvalidArgument, text, hint);
}

std::string sizes_text(const at::Tensor& t) {
  if (!t.defined()) return "absent";
  std::string text = "[";
  for (const int64_t n : t.sizes()) text += (text.size() > 1 ? ", " : "") + std::to_string(n);
  return text + "]";
}

void require_visual(const std::string& name, const at::Tensor& t, const dit::LatentShape& shape,
                    int64_t channels) {
  const std::vector<int64_t> want = {1, channels, shape.frames, shape.height, shape.width};
  if (t.defined() && t.sizes() == at::IntArrayRef(want)) return;
  refuse(name + " latents are " + sizes_text(t) + "; accepted: [1, " + std::to_string(channels) +
             ", " + std::to_string(shape.frames) + ", " + std::to_string(shape.height) + ", " +
             std::to_string(shape.width) + "]",
         "encode the condition for the canvas of the request");
}

void require_audio(const std::string& name, const at::Tensor& t, int64_t latents,
                   int64_t channels) {
  const std::vector<int64_t> want = {dit::kStereo, channels, latents};
  if (t.defined() && t.sizes() == at::IntArrayRef(want)) return;
  refuse(name + " latents are " + sizes_text(t) + "; accepted: [2, " + std::to_string(channels) +
             ", " + std::to_string(latents) + "]",
         "encode the sound of the condition as stereo");
}

// Rows of both modalities in the order of the layout: conditions, then targets.
struct Rows {
  std::vector<at::Tensor> video, audio;
};

void add_visual(const DenoiseRequest& r, const dit::LatentShape& shape, const at::Tensor& latents,
                int64_t channels, Rows* rows) {
  const at::Tensor clean = dit::patchify_video(latents.to(at::kFloat));
  if (r.visual_level >= 1) {
    rows->video.push_back(clean);
    return;
  }
  int64_t visual = static_cast<int64_t>(r.layout.keyframes.size());
  for (const dit::Reference& reference : r.layout.references) {
    visual += reference.kind != dit::ReferenceKind::kAudio;
  }
  const at::Tensor noise =
      dit::visual_condition_noise(r.seed, shape, r.layout.target.frames, visual, channels);
  rows->video.push_back(dit::mix_condition(clean, noise, r.visual_level));
}

void add_audio(const DenoiseRequest& r, int64_t latents, const at::Tensor& sound, int64_t channels,
               Rows* rows) {
  const at::Tensor clean = dit::pack_audio(sound.to(at::kFloat));
  rows->audio.push_back(
      r.audio_level >= 1
          ? clean
          : dit::mix_condition(clean, dit::audio_condition_noise(r.seed, latents, channels),
                               r.audio_level));
}

Rows starting_rows(const DenoiseRequest& r, const dit::DitConfig& config) {
  Rows rows;
  const dit::LayoutRequest& layout = r.layout;
  if (r.keyframes.size() != layout.keyframes.size() ||
      r.references.size() != layout.references.size()) {
    refuse("latents of " + std::to_string(r.keyframes.size()) + " keyframes and " +
               std::to_string(r.references.size()) + " references were given; the request has " +
               std::to_string(layout.keyframes.size()) + " and " +
               std::to_string(layout.references.size()),
           "give one entry per condition");
  }
  for (size_t i = 0; i < r.keyframes.size(); ++i) {
    dit::LatentShape shape = layout.target;
    shape.frames = 1;
    require_visual("keyframe " + std::to_string(i), r.keyframes[i].visual, shape,
                   config.video_channels);
    add_visual(r, shape, r.keyframes[i].visual, config.video_channels, &rows);
  }
  for (size_t i = 0; i < r.references.size(); ++i) {
    const dit::Reference& reference = layout.references[i];
    const std::string name = "reference " + std::to_string(i);
    if (reference.audio_latents > 0) {
      require_audio(name, r.references[i].audio, reference.audio_latents, config.audio_channels);
      add_audio(r, reference.audio_latents, r.references[i].audio, config.audio_channels, &rows);
    }
    if (reference.kind != dit::ReferenceKind::kAudio) {
      require_visual(name, r.references[i].visual, reference.visual, config.video_channels);
      add_visual(r, reference.visual, r.references[i].visual, config.video_channels, &rows);
    }
  }
  rows.video.push_back(dit::video_noise(r.seed, layout.target, config.video_channels));
  rows.audio.push_back(
      dit::audio_noise(r.seed, layout.target_audio_latents, config.audio_channels));
  return rows;
}

// The published order of roundings: mul, add, mul, mul, add. A fused multiply-add would round once
// less, so products and sums are separate operations.
void euler(const at::Tensor& x, const at::Tensor& velocity, float sigma, float sigma_next) {
  const dit::EulerFactors f = dit::euler_factors(sigma, sigma_next);
  const at::Tensor den = x.add(velocity.mul(f.one_minus_t));
  if (sigma == 0) {
    x.copy_(den);
  } else {
    x.copy_(x.mul(f.ratio).add_(den.mul(f.one_minus_ratio)));
  }
}

}  // namespace

struct DenoiseJob::State {
  dit::DitModel* model;
  dit::PackedLayout layout;
  dit::LatentShape target;
  std::vector<float> video_sigmas, audio_sigmas;
  at::Tensor video, audio;  // all rows, f32, on the device
  std::unique_ptr<dit::DitSession> session;
  double prepare_seconds = 0;
};

DenoiseJob::DenoiseJob(dit::DitModel& model, const DenoiseRequest& request,
                       const at::Tensor& refined)
    : state_(std::make_unique<State>()) {
  const c10::InferenceMode inference;
  const auto start = Clock::now();
  State& s = *state_;
  s.model = &model;
  reset_peak_memory(model.device());
  s.layout = dit::pack_layout(request.layout, model.sequence_ranks());
  s.target = request.layout.target;
  s.video_sigmas = dit::sigma_grid(request.forwards, request.video_shift);
  s.audio_sigmas = dit::sigma_grid(request.forwards, request.audio_shift);
  const Rows rows = starting_rows(request, model.config());
  s.video = at::cat(rows.video).to(model.device());
  s.audio = at::cat(rows.audio).to(model.device());
  std::vector<dit::RowTimesteps> steps;
  for (int64_t i = 0; i < request.forwards; ++i) {
    const auto at = static_cast<size_t>(i);
    steps.push_back(
        dit::row_timesteps(s.layout, {.video = 1 - s.video_sigmas[at],
                                      .audio = 1 - s.audio_sigmas[at],
                                      .condition_video = static_cast<float>(request.visual_level),
                                      .condition_audio = static_cast<float>(request.audio_level)}));
  }
  const at::Tensor text = refined.defined() ? refined : model.refine_text(request.text);
  s.session = std::make_unique<dit::DitSession>(model, s.layout, text, steps);
  synchronize(model.device());
  s.prepare_seconds = seconds_since(start);
}

DenoiseJob::~DenoiseJob() = default;

const dit::PackedLayout& DenoiseJob::layout() const { return state_->layout; }

DenoiseResult DenoiseJob::run(const std::function<void(const StepProgress&)>& on_step,
                              std::stop_token stop, const DenoiseOptions& options) {
  const c10::InferenceMode inference;
  State& s = *state_;
  DenoiseResult result;
  result.prepare_seconds = s.prepare_seconds;
  const auto targets = [](const at::Tensor& rows, int64_t conditions) {
    return rows.narrow(0, conditions, rows.size(0) - conditions);
  };
  const at::Tensor video = targets(s.video, s.layout.condition_video_rows);
  const at::Tensor audio = targets(s.audio, s.layout.condition_audio_rows);
  PhaseTimer& timer = s.model->timer();
  const bool was_on = timer.enabled();
  timer.enable(options.profile);
  for (int64_t i = 0; i < s.session->steps(); ++i) {
    const bool asked = stop.stop_requested();
    if (options.agree_to_stop ? options.agree_to_stop(asked) : asked) {
      timer.enable(was_on);
      throw Error(ErrorCode::kCancelled, "cancelled before step " + std::to_string(i) + " of " +
                                             std::to_string(s.session->steps()));
    }
    const auto start = Clock::now();
    const auto at = static_cast<size_t>(i);
    const dit::Velocity v = s.session->forward(i, s.video, s.audio);
    euler(video, v.video, s.video_sigmas[at], s.video_sigmas[at + 1]);
    euler(audio, v.audio, s.audio_sigmas[at], s.audio_sigmas[at + 1]);
    synchronize(s.model->device());
    StepReport report;
    report.seconds = seconds_since(start);
    if (options.profile) report.phases = timer.take_milliseconds();
    result.steps.push_back(report);
    if (on_step) on_step({i, s.session->steps(), report.seconds});
  }
  timer.enable(was_on);
  result.memory = device_memory(s.model->device());
  result.video = dit::unpatchify_video(video.to(at::kCPU), s.target);
  result.audio = dit::unpack_audio(audio.to(at::kCPU));
  return result;
}

}  // namespace h3::pipeline
