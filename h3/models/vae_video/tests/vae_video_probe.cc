// For the parity tests: what the video VAE of a checkpoint makes of given tensors.
//   h3_vae_video_probe FOLDER INPUT.safetensors OUTPUT.safetensors [OPTION...]
// FOLDER is one that open_video_vae accepts. Options: no-encoder-tiling, no-decoder-tiling,
// f32-rotary, tile-batch=N, frames=N. INPUT holds any of
//   pixels   f32 [B, 3, T, H, W]  -> mean, logvar, std, sample (seed 42), mode
//   clip     f32 [B, C, t, h, w]  -> decoded_clip, of denormalised latents
//   half     f32 [B, C, t, h, w]  -> decoded_half: one tile, blocks in f16 as under autocast
//   latents  f32 [B, C, T, h, w]  -> raw and frames (all chunks in a row), chunks i64 [n, 2]
//   image    i32 [B, H, W, 3]     -> image_latents (seed 42, rounded to f16) and image_mode
//   video    i32 [T, H, W, 3]     -> video_latents, video_mode
#include <ATen/Functions.h>
#include <ATen/core/Tensor.h>

#include <cstdio>
#include <cstring>
#include <set>
#include <string>

#include "h3/attention/h3_layers.h"
#include "h3/common/error.h"
#include "h3/models/vae_video/checkpoint.h"
#include "h3/models/vae_video/pixels.h"
#include "h3/models/vae_video/vae.h"
#include "h3/weights/loader.h"
#include "tessera/io/safetensors.h"

namespace {

using namespace h3;
using namespace h3::vae_video;
using tessera::io::SafetensorsEntry;
using tessera::io::SafetensorsFile;

void require(const tessera::Status& status) {
  if (!status.ok()) throw Error(ErrorCode::kInvalidArgument, status.message());
}

class Output {
 public:
  void keep(const std::string& name, const at::Tensor& t) {
    const bool whole = t.scalar_type() == at::kLong;
    kept_.push_back(t.to(whole ? at::kLong : at::kFloat).contiguous());
    items_.push_back({name, whole ? tessera::Dtype::kI64 : tessera::Dtype::kF32,
                      kept_.back().sizes().vec(), kept_.back().data_ptr()});
  }
  void write(const std::string& path) { require(tessera::io::write_safetensors(path, items_)); }

 private:
  std::vector<at::Tensor> kept_;
  std::vector<tessera::io::SafetensorsItem> items_;
};

at::Tensor tensor_of(const SafetensorsEntry& e) {
  const bool whole = e.dtype == tessera::Dtype::kI32;
  at::Tensor t = at::empty(e.shape, whole ? at::kInt : at::kFloat);
  if (t.nbytes() != e.bytes)
    throw Error(ErrorCode::kInvalidArgument, e.name + " is not f32 or i32");
  std::memcpy(t.data_ptr(), e.data, e.bytes);
  return whole ? t.to(at::kByte) : t;
}

int64_t number_option(const std::string& option, const std::string& name) {
  return option.starts_with(name) ? std::stoll(option.substr(name.size())) : 0;
}

void decode(VideoVae& vae, const at::Tensor& latents, DecodeOptions options, Output& out) {
  std::vector<at::Tensor> parts, raw;
  std::vector<int64_t> chunks;
  vae.decode(
      latents,
      [&](const FrameChunk& chunk) {
        parts.push_back(chunk.frames);
        chunks.push_back(chunk.first);
        chunks.push_back(chunk.frames.size(2));
      },
      options);
  options.raw = true;
  vae.decode(
      latents, [&](const FrameChunk& chunk) { raw.push_back(chunk.frames); }, options);
  out.keep("frames", at::cat(parts, 2));
  out.keep("rgb", rgb24(at::cat(parts, 2)));
  out.keep("raw", at::cat(raw, 2));
  out.keep("chunks", at::tensor(chunks, at::kLong).view({-1, 2}));
}

VideoVaeWeights loaded(const VideoVaeCheckpoint& checkpoint, Part part) {
  const VideoVaeConfig& config = checkpoint.config;
  return take_weights(
      config, part,
      weights::load_tensors(checkpoint.checkpoint, model_recipes(config, checkpoint.style, part)));
}

// The VAE itself refuses half types outside CUDA; the arithmetic is the same.
at::Tensor decoded_half(const VideoVaeCheckpoint& checkpoint, AttentionRuntime& attention,
                        const VideoVaeOptions& options, const at::Tensor& z) {
  VaeContext context;
  Decoder decoder(checkpoint.config, std::move(*loaded(checkpoint, Part::kDecoder).decoder),
                  attention, context, {at::kHalf, options.rotary});
  const VaeContext::Scope scope(context);
  return decoder.forward(z);
}

int run(int argc, char** argv) {
  const std::set<std::string> flags(argv + 4, argv + argc);
  VideoVaeOptions options;
  options.encoder_tiling = !flags.contains("no-encoder-tiling");
  options.decoder_tiling = !flags.contains("no-decoder-tiling");
  if (flags.contains("f32-rotary")) options.rotary = RotaryRule::kF32;
  DecodeOptions decoding;
  for (const std::string& flag : flags) {
    decoding.tile_batch += number_option(flag, "tile-batch=");
    decoding.frames += number_option(flag, "frames=");
  }
  const VideoVaeCheckpoint checkpoint = open_video_vae(argv[1]);
  const VideoVaeConfig& config = checkpoint.config;
  H3LayerOptions layers;
  layers.video_vae = {static_cast<int>(config.layers), static_cast<int>(config.heads),
                      static_cast<int>(config.head_dim)};
  const Platform platform = cpu_platform();
  AttentionRuntime attention(resolve_attention(minimax_h3_layers(platform, layers), {}, platform),
                             {.log = [](std::string_view) {}});
  VideoVae vae(config, loaded(checkpoint, Part::kAll), &attention, options);

  SafetensorsFile file;
  require(SafetensorsFile::open(argv[2], &file));
  Output out;
  for (const SafetensorsEntry& e : file.entries()) {
    const at::Tensor in = tensor_of(e);
    if (e.name == "pixels") {
      const Posterior posterior = posterior_of(vae.moments(in));
      out.keep("mean", posterior.mean);
      out.keep("logvar", posterior.logvar);
      out.keep("std", posterior.std());
      out.keep("sample", posterior.sample(make_cpu_generator(42)));
      out.keep("mode", posterior.mode());
    } else if (e.name == "clip") {
      out.keep("decoded_clip", vae.decode_clip(in, std::max<int64_t>(decoding.tile_batch, 1)));
    } else if (e.name == "half") {
      out.keep("decoded_half", decoded_half(checkpoint, attention, options, in));
    } else if (e.name == "latents") {
      decode(vae, in, decoding, out);
    } else if (e.name == "image") {
      out.keep("image_latents", vae.encode_images(in));
      out.keep("image_mode", vae.encode_images(in, {.seed = {}, .round_to_half = false}));
    } else if (e.name == "video") {
      out.keep("video_latents", vae.encode_video(in));
      out.keep("video_mode", vae.encode_video(in, {.seed = {}, .round_to_half = false}));
    } else {
      throw Error(ErrorCode::kInvalidArgument, "input " + e.name + " is unknown");
    }
  }
  out.write(argv[3]);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) {
    std::fprintf(stderr, "vae_video_probe FOLDER INPUT OUTPUT [OPTION...]\n");
    return 2;
  }
  try {
    return run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "vae_video_probe: %s\n", error.what());
    return 1;
  }
}
