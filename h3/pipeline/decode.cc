#include "h3/pipeline/decode.h"

#include <ATen/Functions.h>
#include <c10/core/InferenceMode.h>

#include <chrono>
#include <cstring>

#include "h3/attention/h3_layers.h"
#include "h3/common/error.h"
#include "h3/models/vae_audio/weights.h"
#include "h3/models/vae_video/pixels.h"
#include "h3/weights/loader.h"
#include "tessera/io/safetensors.h"

namespace h3::pipeline {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

at::Tensor read_floats(const tessera::io::SafetensorsFile& file, const char* name, int64_t rank) {
  const tessera::io::SafetensorsEntry* entry = file.find(name);
  if (!entry || entry->dtype != tessera::Dtype::kF32 ||
      static_cast<int64_t>(entry->shape.size()) != rank) {
    throw Error(ErrorCode::kInvalidArgument,
                file.label() + (entry ? ": " : " has no tensor ") + name +
                    (entry ? " is " + std::string(tessera::dtype_name(entry->dtype)) + " of rank " +
                                 std::to_string(entry->shape.size()) + "; accepted: f32 of rank " +
                                 std::to_string(rank)
                           : ""),
                "give latents as `h3 denoise` writes them");
  }
  at::Tensor t = at::empty(entry->shape, at::kFloat);
  if (entry->bytes > 0) std::memcpy(t.data_ptr(), entry->data, entry->bytes);
  return t;
}

}  // namespace

VaeSetup plan_vaes(const VaeOptions& options) {
  VaeSetup setup;
  setup.platform = options.platform;
  setup.device = options.device;
  setup.video = vae_video::open_video_vae(options.folder);
  setup.audio = vae_audio::open_audio_vae(options.folder + "/audio_vae");
  H3LayerOptions sizes;
  sizes.video_vae = {static_cast<int>(setup.video.config.layers),
                     static_cast<int>(setup.video.config.heads),
                     static_cast<int>(setup.video.config.head_dim)};
  ModelLayers layers = minimax_h3_layers(options.platform, sizes);
  vae_audio::size_audio_layers(setup.audio.config, &layers);
  setup.plan = resolve_attention(layers, options.attention, options.platform);
  return setup;
}

LoadedVaes::LoadedVaes(const VaeSetup& setup, vae_video::Part part) {
  const auto start = Clock::now();
  attention_ = std::make_unique<AttentionRuntime>(setup.plan);
  weights::LoadOptions load;
  load.device = setup.device;
  const auto audio = vae_audio::model_recipes(setup.audio.config, setup.audio.style);
  audio_ = std::make_unique<vae_audio::AudioVae>(
      setup.audio.config,
      vae_audio::take_weights(setup.audio.config,
                              weights::load_tensors(setup.audio.checkpoint, audio, load)),
      *attention_);
  const auto video = vae_video::model_recipes(setup.video.config, setup.video.style, part);
  video_ = std::make_unique<vae_video::VideoVae>(
      setup.video.config,
      vae_video::take_weights(setup.video.config, part,
                              weights::load_tensors(setup.video.checkpoint, video, load)),
      attention_.get());
  load_seconds_ = seconds_since(start);
}

Latents read_latents(const std::string& path) {
  tessera::io::SafetensorsFile file;
  if (const tessera::Status s = tessera::io::SafetensorsFile::open(path, &file); !s.ok()) {
    throw Error(ErrorCode::kInvalidArgument, s.message(),
                "give latents as `h3 denoise` writes them");
  }
  for (const tessera::io::SafetensorsEntry& entry : file.entries()) {
    if (entry.name == "video" || entry.name == "audio") continue;
    throw Error(ErrorCode::kInvalidArgument,
                path + " holds tensor " + entry.name + "; accepted: video and audio",
                "give latents as `h3 denoise` writes them");
  }
  Latents latents{read_floats(file, "video", 5), read_floats(file, "audio", 3)};
  for (const auto& [name, t] : {std::pair{"video", latents.video}, {"audio", latents.audio}}) {
    if (const int64_t bad = at::isfinite(t).logical_not().sum().item<int64_t>(); bad > 0) {
      throw Error(ErrorCode::kInvalidArgument,
                  path + ": " + name + " has " + std::to_string(bad) + " of " +
                      std::to_string(t.numel()) + " values that are not finite",
                  "denoise again");
    }
  }
  return latents;
}

DecodeReport decode_to_movie(LoadedVaes& vaes, const Latents& latents, const std::string& path,
                             const MovieOptions& options, parallel::Group* group) {
  const c10::InferenceMode inference;
  const c10::Device device = vaes.video().device();
  const int64_t ratio = vaes.video().config().space_ratio();
  const vae_video::DecodePlan plan =
      vae_video::plan_decode(vaes.video().geometry(), latents.video.size(2));
  DecodeReport report;
  report.width = latents.video.size(4) * ratio;
  report.height = latents.video.size(3) * ratio;
  reset_peak_memory(device);
  if (group && group->rank() > 0) {
    vaes.video().decode(latents.video.to(device), {}, {.group = group});
    return report;
  }

  // Opened first: a path that cannot be written is known before anything is decoded.
  media::MovieSettings settings;
  settings.width = static_cast<int>(report.width);
  settings.height = static_cast<int>(report.height);
  settings.frames = plan.frames;
  settings.sample_rate = static_cast<int>(vaes.audio().config().sample_rate);
  settings.crf = options.crf;
  settings.preset = options.preset;
  settings.metadata = options.metadata;
  media::MovieWriter writer(path, settings);

  auto start = Clock::now();
  const at::Tensor pcm =
      vae_audio::stereo_channels(
          vaes.audio().decode(vaes.audio().denormalize(latents.audio.to(device))))
          .to(at::kCPU)
          .contiguous();
  report.audio_seconds = seconds_since(start);
  report.samples = pcm.size(1);
  writer.add_audio(pcm[0].data_ptr<float>(), pcm[1].data_ptr<float>(), report.samples);

  start = Clock::now();
  const auto write = [&](const vae_video::FrameChunk& chunk) {
    const at::Tensor rgb = vae_video::rgb24(chunk.frames).to(at::kCPU).contiguous();
    const auto begin = Clock::now();
    for (int64_t f = 0; f < rgb.size(1); ++f) writer.add_frame(rgb[0][f].data_ptr<uint8_t>());
    report.write_seconds += seconds_since(begin);
    report.frames += rgb.size(1);
    if (options.progress) options.progress(report.frames, chunk.of_frames);
  };
  vaes.video().decode(latents.video.to(device), write, {.group = group});
  const auto begin = Clock::now();
  writer.finish();
  report.write_seconds += seconds_since(begin);
  report.video_seconds = seconds_since(start);
  report.memory = device_memory(device);
  return report;
}

}  // namespace h3::pipeline
