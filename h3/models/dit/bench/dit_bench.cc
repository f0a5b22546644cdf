// The transformer at full size with random weights: time of a dense and a sparse forward, split by
// phase, and the memory over the weights.
//   h3_dit_bench [--device cuda:0] [--layers 50] [--samples 5] [--steps 50] [--json]
// The request is t2va, 5 s at 1344 x 768: 50 text, 414 audio, 37296 video rows, 37760 packed rows.
#include <ATen/Functions.h>
#include <c10/core/InferenceMode.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <string>

#include "h3/attention/h3_layers.h"
#include "h3/layers/device_memory.h"
#include "h3/models/dit/model.h"
#include "h3/models/dit/sampling.h"

namespace {

using namespace h3;

struct Arguments {
  std::string device = "cuda:0", capability = "9.0", dense = "fa";
  int64_t layers = 50, text = 50, frames = 37, height = 48, width = 84, audio = 207, steps = 50;
  int samples = 5;
  bool tiny = false, json = false;
};

double now_ms() {
  return std::chrono::duration<double, std::milli>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

struct Result {
  double median = 0, best = 0, worst = 0;
  PhaseTimes phases{};  // of one forward
  double peak_gb = 0, reserved_gb = 0;
};

int run(const Arguments& a) {
  const c10::InferenceMode inference;
  const at::Device device(a.device);
  dit::DitConfig config = a.tiny ? dit::tiny_dit_config() : dit::DitConfig{};
  if (!a.tiny) config.layers = a.layers;
  const tessera::Dtype compute = device.is_cpu() ? tessera::Dtype::kF32 : tessera::Dtype::kBf16;
  const Capability capability = capability_from_text(a.capability);
  const Platform platform =
      device.is_cpu() ? cpu_platform() : cuda_platform(capability.major, capability.minor);
  H3LayerOptions options;
  options.dit = {static_cast<int>(config.layers), static_cast<int>(config.refiner_layers),
                 static_cast<int>(config.heads), compute};
  AttentionChoices choices;
  const BackendId dense = backend_from_text(a.dense, "--dense");
  if (device.is_cuda()) {
    // Early steps of the sparse backend are dense, so one model serves both measurements; another
    // dense kernel is a run of its own.
    const BackendId backend = dense == BackendId::kFa ? BackendId::kSubBlock : dense;
    choices.components.components["transformer"] = {backend, true};
  }
  AttentionRuntime attention(
      resolve_attention(minimax_h3_layers(platform, options), choices, platform));

  double start = now_ms();
  dit::DitModel model(config, dit::random_weights(config, compute, {}, device, 1), attention);
  synchronize(device);
  const double weights_gb = static_cast<double>(model.weight_bytes()) / 1e9;
  std::fprintf(stderr, "weights %.2f GB made in %.1f s\n", weights_gb, (now_ms() - start) / 1e3);

  dit::LayoutRequest request;
  request.text_rows = a.text;
  request.target = {a.frames, a.height, a.width};
  request.target_audio_latents = a.audio;
  const dit::PackedLayout layout = dit::pack_layout(request);
  const auto video_sigmas = dit::sigma_grid(a.steps, 12),
             audio_sigmas = dit::sigma_grid(a.steps, 3);
  std::vector<dit::RowTimesteps> steps;
  for (int64_t i = 0; i < a.steps; ++i) {
    steps.push_back(
        dit::row_timesteps(layout, {.video = 1 - video_sigmas[static_cast<size_t>(i)],
                                    .audio = 1 - audio_sigmas[static_cast<size_t>(i)]}));
  }
  at::manual_seed(2);
  const auto random = [&](int64_t rows, int64_t columns) {
    return at::randn({rows, columns}).to(device);
  };
  const at::Tensor video =
      random(static_cast<int64_t>(layout.video_rows.size()), config.video_row());
  const at::Tensor audio =
      random(static_cast<int64_t>(layout.audio_rows.size()), config.audio_row());
  start = now_ms();
  const at::Tensor text = model.refine_text(random(a.text, config.text_dim));
  synchronize(device);
  const double refine_ms = now_ms() - start;
  start = now_ms();
  dit::DitSession session(model, layout, text, steps);
  synchronize(device);
  const double session_ms = now_ms() - start;
  std::fprintf(stderr, "%lld packed rows, refiner %.1f ms, session of %lld steps %.1f ms\n",
               static_cast<long long>(layout.rows), refine_ms, static_cast<long long>(a.steps),
               session_ms);

  const auto measure = [&](int64_t step) {
    Result result;
    reset_peak_memory(device);
    session.forward(step, video, audio);
    synchronize(device);
    result.peak_gb = static_cast<double>(device_memory(device).peak) / 1e9 - weights_gb;
    result.reserved_gb = static_cast<double>(device_memory(device).reserved_peak) / 1e9;
    std::vector<double> times;
    for (int i = 0; i < a.samples; ++i) {
      const double begin = now_ms();
      session.forward(step, video, audio);
      synchronize(device);
      times.push_back(now_ms() - begin);
    }
    std::sort(times.begin(), times.end());
    result.median = times[times.size() / 2];
    result.best = times.front();
    result.worst = times.back();
    model.timer().enable(true);
    session.forward(step, video, audio);
    result.phases = model.timer().take_milliseconds();
    model.timer().enable(false);
    return result;
  };
  const auto report = [&](const char* name, const Result& r) {
    const auto phase = [&](Phase p) { return r.phases[static_cast<size_t>(p)]; };
    const double layers = static_cast<double>(config.layers);
    if (a.json) {
      std::printf(
          "{\"name\": \"%s\", \"layers\": %lld, \"rows\": %lld, \"step_ms\": %.3f, \"best_ms\": "
          "%.3f, \"worst_ms\": %.3f, \"peak_over_weights_gb\": %.3f, \"weights_gb\": %.3f",
          name, static_cast<long long>(config.layers), static_cast<long long>(layout.rows),
          r.median, r.best, r.worst, r.peak_gb, weights_gb);
      for (size_t p = 0; p < kPhases; ++p) {
        std::printf(", \"%s_ms\": %.3f", std::string(to_text(static_cast<Phase>(p))).c_str(),
                    r.phases[p]);
      }
      std::printf("}\n");
      return;
    }
    std::printf(
        "%-8s step %9.2f ms [%.2f..%.2f], %7.3f ms a layer: attention %.3f, linear %.3f, "
        "pointwise %.3f; embed %.2f, output %.2f ms; peak over weights %.2f GB\n",
        name, r.median, r.best, r.worst, r.median / layers, phase(Phase::kAttention) / layers,
        phase(Phase::kLinear) / layers, phase(Phase::kPointwise) / layers, phase(Phase::kEmbed),
        phase(Phase::kOutput), r.peak_gb);
  };
  report("dense", measure(0));
  if (dense == BackendId::kFa && a.steps > 10) report("sparse", measure(a.steps - 1));
  if (!a.json) std::printf("%s", attention.stats_text().c_str());
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  Arguments a;
  CLI::App app("Times the transformer at full size with random weights");
  app.add_option("--device", a.device);
  app.add_option("--capability", a.capability);
  app.add_option("--dense", a.dense, "Dense attention backend");
  app.add_option("--layers", a.layers)->check(CLI::Range(1, 50));
  app.add_option("--text", a.text);
  app.add_option("--frames", a.frames, "Latent frames");
  app.add_option("--height", a.height, "Latent height");
  app.add_option("--width", a.width, "Latent width");
  app.add_option("--audio", a.audio, "Audio latents per channel");
  app.add_option("--steps", a.steps)->check(CLI::Range(1, 1000));
  app.add_option("--samples", a.samples)->check(CLI::Range(1, 1000));
  app.add_flag("--tiny", a.tiny, "The tiny configuration");
  app.add_flag("--json", a.json);
  CLI11_PARSE(app, argc, argv);
  try {
    return run(a);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "dit_bench: %s\n", error.what());
    return 1;
  }
}
