// From latents to a file people can watch: the audio is decoded first, so that the video can be
// written while it is decoded, a clip of 17 frames at a time.
//
//   VaeSetup setup = plan_vaes(options);           // reads no weights
//   LoadedVaes vaes(setup);
//   DecodeReport report = decode_to_movie(vaes, latents, "out.mp4", settings);
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "h3/attention/runtime.h"
#include "h3/layers/device_memory.h"
#include "h3/media/movie_writer.h"
#include "h3/models/vae_audio/model.h"
#include "h3/models/vae_audio/names.h"
#include "h3/models/vae_video/checkpoint.h"
#include "h3/models/vae_video/vae.h"
#include "h3/parallel/group.h"

namespace h3::pipeline {

struct VaeOptions {
  std::string folder;  // with video_vae/ or vae/, and audio_vae/
  Platform platform;
  c10::Device device = c10::Device(c10::DeviceType::CPU);
  AttentionChoices attention;
};

struct VaeSetup {
  Platform platform;
  c10::Device device = c10::Device(c10::DeviceType::CPU);
  vae_video::VideoVaeCheckpoint video;
  vae_audio::AudioVaeCheckpoint audio;
  AttentionPlan plan;
};

/// Opens both checkpoints (headers only) and resolves attention for their layers. Throws as its
/// parts.
VaeSetup plan_vaes(const VaeOptions& options);

class LoadedVaes {
 public:
  explicit LoadedVaes(const VaeSetup& setup, vae_video::Part part = vae_video::Part::kDecoder);
  vae_video::VideoVae& video() { return *video_; }
  vae_audio::AudioVae& audio() { return *audio_; }
  AttentionRuntime& attention() { return *attention_; }
  double load_seconds() const { return load_seconds_; }

 private:
  std::unique_ptr<AttentionRuntime> attention_;
  std::unique_ptr<vae_video::VideoVae> video_;
  std::unique_ptr<vae_audio::AudioVae> audio_;
  double load_seconds_ = 0;
};

/// Normalised latents as `h3 denoise` writes them: video [1, C, T, h, w], audio [2, C, T'].
struct Latents {
  at::Tensor video, audio;
};

/// Reads them from a safetensors file. Throws kInvalidArgument for a file without both tensors or
/// with others, for another rank or type than f32, and for values that are not finite.
Latents read_latents(const std::string& path);

struct DecodeReport {
  int64_t frames = 0, width = 0, height = 0, samples = 0;
  double audio_seconds = 0, video_seconds = 0;  // video: decoding and writing together
  double write_seconds = 0;                     // of it, inside the writer
  DeviceMemory memory;
};

struct MovieOptions {
  int crf = 25;
  std::string preset = "fast";
  media::Settings metadata;
  /// After every chunk: frames so far, frames in all.
  std::function<void(int64_t, int64_t)> progress;
};

/// Decodes and writes `path`. Nothing is left under the name unless the file is complete and meets
/// the output contract. With a `group` all its ranks call this and share the tiles; rank 0 decodes
/// the audio and writes. Throws kInvalidArgument for latents that the models do not take.
DecodeReport decode_to_movie(LoadedVaes& vaes, const Latents& latents, const std::string& path,
                             const MovieOptions& options, parallel::Group* group = nullptr);

}  // namespace h3::pipeline
