// The audio VAE at full size with random weights: time of encode and decode, peak memory.
//   h3_vae_audio_bench [--device cuda:0] [--seconds 5] [--samples 10] [--json]
// A clip of 5 s at 24 fps (124 frames) has 207 audio latents a channel.
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randn.h>
#include <c10/core/InferenceMode.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include "h3/attention/h3_layers.h"
#include "h3/layers/device_memory.h"
#include "h3/models/vae_audio/model.h"

namespace {

using namespace h3;

struct Arguments {
  std::string device = "cuda:0", capability = "9.0";
  int64_t latents = 207;
  int samples = 10;
  bool tiny = false, json = false, encode = true;
};

double now_ms() {
  return std::chrono::duration<double, std::milli>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

int run(const Arguments& a) {
  const c10::InferenceMode inference;
  const at::Device device(a.device);
  const Capability capability = capability_from_text(a.capability);
  const Platform platform =
      device.is_cpu() ? cpu_platform() : cuda_platform(capability.major, capability.minor);
  const vae_audio::AudioVaeConfig config =
      a.tiny ? vae_audio::tiny_audio_vae_config() : vae_audio::published_audio_vae_config();
  ModelLayers layers = minimax_h3_layers(platform);
  vae_audio::size_audio_layers(config, &layers);
  AttentionRuntime attention(resolve_attention(layers, {}, platform),
                             {.log = [](std::string_view) {}});
  vae_audio::AudioVae vae(config, vae_audio::random_weights(config, device, 1), attention);
  const double weights_gb = static_cast<double>(vae.weight_bytes()) / 1e9;
  const at::Tensor latents = at::randn({2, config.latent_channels, a.latents}).to(device);
  const at::Tensor waveform = (at::rand({2, 1, a.latents * config.hop()}) * 2 - 1).to(device);
  synchronize(device);

  const auto measure = [&](const char* name, const std::function<at::Tensor()>& call) {
    double start = now_ms();
    const double held = static_cast<double>(device_memory(device).allocated) / 1e9;
    reset_peak_memory(device);
    at::Tensor out = call();
    synchronize(device);
    const double first_ms = now_ms() - start;
    const double peak = static_cast<double>(device_memory(device).peak) / 1e9 - held;
    std::vector<double> times;
    for (int i = 0; i < a.samples; ++i) {
      start = now_ms();
      out = call();
      synchronize(device);
      times.push_back(now_ms() - start);
    }
    std::sort(times.begin(), times.end());
    const bool finite = out.isfinite().all().item<bool>();
    const char* line =
        a.json ? "{\"name\": \"%s\", \"latents\": %lld, \"median_ms\": %.3f, \"best_ms\": %.3f, "
                 "\"worst_ms\": %.3f, \"first_ms\": %.3f, \"peak_over_held_gb\": %.3f, "
                 "\"weights_gb\": %.3f, \"finite\": %s}\n"
               : "%s of %lld latents: %.2f ms [%.2f..%.2f], first call %.1f ms; peak over what is "
                 "held %.3f GB, weights %.3f GB; finite: %s\n";
    std::printf(line, name, static_cast<long long>(a.latents), times[times.size() / 2],
                times.front(), times.back(), first_ms, peak, weights_gb, finite ? "true" : "false");
  };
  measure("decode", [&] { return vae.decode(latents); });
  if (a.encode) measure("encode", [&] { return vae.encode(waveform); });
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  Arguments a;
  double seconds = 0;
  CLI::App app("Times the audio VAE at full size with random weights");
  app.add_option("--device", a.device);
  app.add_option("--capability", a.capability);
  app.add_option("--latents", a.latents, "Latents a channel")->check(CLI::Range(1, 40000));
  app.add_option("--seconds", seconds, "Instead of --latents")->check(CLI::Range(0.025, 1000.0));
  app.add_option("--samples", a.samples)->check(CLI::Range(1, 1000));
  app.add_flag("--tiny", a.tiny, "The tiny configuration");
  app.add_flag("--json", a.json);
  app.add_flag("!--no-encode", a.encode, "Decode only");
  CLI11_PARSE(app, argc, argv);
  if (seconds > 0) a.latents = static_cast<int64_t>(seconds * 40);
  try {
    return run(a);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "vae_audio_bench: %s\n", error.what());
    return 1;
  }
}
