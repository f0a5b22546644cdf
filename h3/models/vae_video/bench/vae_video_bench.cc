// The video VAE at full size with random weights: time of a decode, split by phase, frames per
// second, and the memory over the weights.
//   h3_vae_video_bench [--device cuda:0] [--width 1344] [--height 768] [--frames 124]
//                      [--tile-batch 0] [--backend fa] [--samples 3] [--encode] [--json]
// 124 frames are 37 latent frames: 7 clips of 28 tiles.
#include <ATen/Functions.h>
#include <c10/core/InferenceMode.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <string>

#include "h3/attention/h3_layers.h"
#include "h3/common/error.h"
#include "h3/layers/device_memory.h"
#include "h3/models/vae_video/vae.h"

namespace {

using namespace h3;
using namespace h3::vae_video;

struct Arguments {
  std::string device = "cuda:0", capability = "9.0", backend, type;
  int64_t width = 1344, height = 768, frames = 124, layers = 36, tile_batch = 0;
  int samples = 3;
  bool tiny = false, encode = false, json = false, report = false;
};

double now_ms() {
  return std::chrono::duration<double, std::milli>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

double gb(int64_t bytes) { return static_cast<double>(bytes) / 1e9; }

std::optional<at::ScalarType> type_of(const std::string& name) {
  if (name.empty()) return {};
  if (name == "f32") return at::kFloat;
  if (name == "bf16") return at::kBFloat16;
  return at::kHalf;
}

struct Times {
  double median = 0, best = 0, worst = 0;
};

template <class Call>
Times timed(int samples, const at::Device& device, Call call) {
  std::vector<double> times;
  for (int i = 0; i < samples; ++i) {
    const double begin = now_ms();
    call();
    synchronize(device);
    times.push_back(now_ms() - begin);
  }
  std::sort(times.begin(), times.end());
  return {times[times.size() / 2], times.front(), times.back()};
}

int run(const Arguments& a) {
  const c10::InferenceMode inference;
  const at::Device device(a.device);
  VideoVaeConfig config = a.tiny ? tiny_video_vae_config() : VideoVaeConfig{};
  if (!a.tiny) config.layers = a.layers;
  const int64_t unit = config.space_ratio();
  if (a.width % unit != 0 || a.height % unit != 0) {
    throw Error(ErrorCode::kInvalidArgument,
                "width and height are multiples of " + std::to_string(unit));
  }
  const Capability capability = capability_from_text(a.capability);
  const Platform platform =
      device.is_cpu() ? cpu_platform() : cuda_platform(capability.major, capability.minor);
  H3LayerOptions layers;
  layers.video_vae = {static_cast<int>(config.layers), static_cast<int>(config.heads),
                      static_cast<int>(config.head_dim)};
  AttentionChoices choices;
  if (!a.backend.empty()) {
    choices.components.components["video_vae"] = {backend_from_text(a.backend, "--backend"), true};
  }
  RuntimeOptions runtime;
  if (!a.report) runtime.log = [](std::string_view) {};
  AttentionRuntime attention(
      resolve_attention(minimax_h3_layers(platform, layers), choices, platform), runtime);

  double start = now_ms();
  VideoVae vae(config, random_weights(config, a.encode ? Part::kAll : Part::kDecoder, device, 1),
               &attention, {.decode_type = type_of(a.type)});
  synchronize(device);
  const int64_t weights = device_memory(device).allocated;
  std::fprintf(stderr, "weights %.2f GB on the device, made in %.1f s, %lld matrices converted\n",
               gb(weights), (now_ms() - start) / 1e3,
               static_cast<long long>(vae.decoder()->converted()));

  const TemporalGeometry& g = vae.geometry();
  const int64_t clips = std::max<int64_t>((a.frames - g.frame_overlap) / g.clip_frames, 1);
  const int64_t latent_frames = clips * g.clip_latents + g.latent_overlap;
  at::manual_seed(2);
  const at::Tensor latents =
      at::randn({1, config.latent_channels, latent_frames, a.height / unit, a.width / unit})
          .to(device);
  const DecodeMemory bound = vae.memory_for(1, latents.size(3), latents.size(4));
  int64_t frames = 0;
  double checksum = 0;
  const auto decode = [&](bool sum) {
    frames = 0;
    vae.decode(latents,
               [&](const FrameChunk& chunk) {
                 frames += chunk.frames.size(2);
                 if (sum) checksum += chunk.frames.sum(at::kDouble).item<double>();
               },
               {.tile_batch = a.tile_batch});
  };
  decode(true);
  synchronize(device);
  reset_peak_memory(device);
  const Times t = timed(a.samples, device, [&] { decode(false); });
  const DeviceMemory memory = device_memory(device);
  vae.decoder()->timer().enable(true);
  decode(false);
  const PhaseTimes phases = vae.decoder()->timer().take_milliseconds();
  vae.decoder()->timer().enable(false);

  const double seconds = t.median / 1e3;
  const auto count = static_cast<double>(frames);
  if (a.json) {
    std::printf(
        "{\"name\": \"decode\", \"width\": %lld, \"height\": %lld, \"frames\": %lld, "
        "\"median_ms\": "
        "%.2f, \"best_ms\": %.2f, \"worst_ms\": %.2f, \"weights_gb\": %.3f, "
        "\"peak_over_weights_gb\": %.3f, \"reserved_gb\": %.3f, \"bound_gb\": %.3f",
        static_cast<long long>(a.width), static_cast<long long>(a.height),
        static_cast<long long>(frames), t.median, t.best, t.worst, gb(weights),
        gb(memory.peak - weights), gb(memory.reserved_peak),
        gb(bound.total(std::max<int64_t>(a.tile_batch, 1))));
    for (size_t p = 0; p < kPhases; ++p) {
      std::printf(", \"%s_ms\": %.2f", std::string(to_text(static_cast<Phase>(p))).c_str(),
                  phases[p]);
    }
    std::printf("}\n");
  } else {
    std::printf("decode %lldx%lld, %lld frames: %.3f s [%.3f..%.3f], %.1f frames/s, mean %.4f\n",
                static_cast<long long>(a.width), static_cast<long long>(a.height),
                static_cast<long long>(frames), seconds, t.best / 1e3, t.worst / 1e3,
                count / seconds, checksum / (count * 3 * static_cast<double>(a.width * a.height)));
    std::printf(
        "memory over weights %.2f GB (bound with 1 tile a forward %.2f GB, %.2f GB for each more), "
        "reserved %.2f GB\n",
        gb(memory.peak - weights), gb(bound.total(1)), gb(bound.per_tile),
        gb(memory.reserved_peak));
    for (size_t p = 0; p < kPhases; ++p) {
      std::printf("  %-10s %9.1f ms\n", std::string(to_text(static_cast<Phase>(p))).c_str(),
                  phases[p]);
    }
  }
  if (a.encode) {
    const at::Tensor rgb =
        at::randint(0, 256, {g.clip_frames + g.frame_overlap, a.height, a.width, 3}, at::kByte);
    vae.encode_video(rgb);
    reset_peak_memory(device);
    const Times e = timed(a.samples, device, [&] { vae.encode_video(rgb); });
    std::printf("encode %lld frames: %.3f s, memory over weights %.2f GB\n",
                static_cast<long long>(rgb.size(0)), e.median / 1e3,
                gb(device_memory(device).peak - weights));
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  Arguments a;
  CLI::App app("Times the video VAE at full size with random weights");
  app.add_option("--device", a.device);
  app.add_option("--capability", a.capability);
  app.add_option("--backend", a.backend, "Attention backend of video_vae");
  app.add_option("--type", a.type, "Decode type")->check(CLI::IsMember({"f16", "bf16", "f32"}));
  app.add_option("--width", a.width)->check(CLI::PositiveNumber);
  app.add_option("--height", a.height)->check(CLI::PositiveNumber);
  app.add_option("--frames", a.frames)->check(CLI::PositiveNumber);
  app.add_option("--layers", a.layers)->check(CLI::Range(1, 36));
  app.add_option("--tile-batch", a.tile_batch, "Tiles per forward, 0: by free memory");
  app.add_option("--samples", a.samples)->check(CLI::Range(1, 1000));
  app.add_flag("--tiny", a.tiny, "The tiny configuration");
  app.add_flag("--encode", a.encode, "Also encode 22 frames");
  app.add_flag("--report", a.report, "Print the attention table");
  app.add_flag("--json", a.json);
  CLI11_PARSE(app, argc, argv);
  try {
    return run(a);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "vae_video_bench: %s\n", error.what());
    return 1;
  }
}
