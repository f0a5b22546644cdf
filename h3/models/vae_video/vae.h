// The MiniMax-H3 video VAE: pictures and videos to normalised latents, latents to frames. Long
// videos are streamed: a clip of 17 frames at a time is in memory.
//
//   VideoVae vae(config, take_weights(...), &attention);
//   vae.decode(latents, [&](const FrameChunk& chunk) { writer.add(rgb24(chunk.frames)); });
//   at::Tensor condition = vae.encode_image(rgb);
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "h3/attention/runtime.h"
#include "h3/models/vae_video/decoder.h"
#include "h3/models/vae_video/encoder.h"
#include "h3/models/vae_video/tiling.h"
#include "h3/models/vae_video/weights.h"
#include "h3/parallel/group.h"

namespace h3::vae_video {

struct VideoVaeOptions {
  /// Of the decoder's blocks. Unset: f16 on CUDA (autocast), f32 elsewhere. Half types outside
  /// CUDA are refused: there is no autocast that would make sense of them.
  std::optional<at::ScalarType> decode_type;
  RotaryRule rotary = RotaryRule::kComputeType;
  bool encoder_tiling = true, decoder_tiling = true;  // off: one tile, whatever the size
};

/// Frames that are final.
struct FrameChunk {
  at::Tensor
      frames;  // f32 [B, 3, F, H, W] in [0, 1] (unless raw), on the VAE's device, not written again
  int64_t first = 0;      // number of frames[:, :, 0] in the video
  int64_t of_frames = 0;  // the whole video's
};
using FrameSink = std::function<void(const FrameChunk&)>;

struct DecodeOptions {
  /// Tiles per forward; 0: chosen from the free memory (choose_tile_batch), agreed by all ranks.
  /// With the same number, any number of ranks gives the same bits. Numbers above 1 may differ
  /// from 1 in last bits.
  int64_t tile_batch = 0;
  /// Ranks that share the tiles of every clip; all call decode with the same latents. Null: alone.
  parallel::Group* group = nullptr;
  /// Keep this many frames, the last ones; 0: all.
  int64_t frames = 0;
  /// Frames as the decoder gives them: ImageNet-normalised and not clamped.
  bool raw = false;
};

struct EncodeOptions {
  /// Of the posterior's sample, drawn anew from this seed for every picture or video. Unset: mode.
  std::optional<uint64_t> seed = 42;
  bool round_to_half = true;  // the latent, before it is normalised
  parallel::Group* group = nullptr;
};

class VideoVae {
 public:
  /// `attention` is only needed for a decoder, and outlives the VAE. Throws kInvalidArgument for
  /// other decode types than f32, f16 and bf16, kUnsupported for half types outside CUDA.
  VideoVae(const VideoVaeConfig& config, VideoVaeWeights weights, AttentionRuntime* attention,
           const VideoVaeOptions& options = {});

  // --- Decoding. All throw kUnsupported if the VAE was made without its decoder.

  /// Normalised latents [B, C, T, h, w], any floating type and device. `sink` gets all frames in
  /// order, in chunks of at most clip_length frames (17); an empty sink decodes for the other ranks
  /// only. What `sink` throws ends the decode and is passed on (on several ranks: of this rank
  /// alone). Memory beside weights and latents: decode_memory(), whatever T is. `latents` are not
  /// changed. Runs in inference mode inside a VaeContext::Scope of step 0.
  ///
  /// Throws kInvalidArgument for other shapes, values that are not finite, T without frames
  /// (plan_decode), more frames asked for than there are, a negative tile_batch, and calls that
  /// differ among ranks.
  void decode(const at::Tensor& latents, const FrameSink& sink, const DecodeOptions& options = {});

  /// Image mode: one normalised latent [B, C, 1, h, w] -> the last of its frames, f32 [B, 3, 1, H,
  /// W] in [0, 1].
  at::Tensor decode_image(const at::Tensor& latent, const DecodeOptions& options = {});

  /// One clip of denormalised latents [B, C, t, h, w] -> f32 [B, 3, ratio t, 16 h, 16 w] as the
  /// decoder gives them (ImageNet-normalised). Undefined on ranks without `wanted`.
  at::Tensor decode_clip(const at::Tensor& z, int64_t tile_batch = 1,
                         parallel::Group* group = nullptr, bool wanted = true);

  /// What decode will need for latents of this size, and the batch it would choose.
  DecodeMemory memory_for(int64_t batch, int64_t height, int64_t width, int64_t ranks = 1) const;

  // --- Encoding, in f32 with TF32 off (a process-wide switch, restored after). All throw
  // kUnsupported if the VAE was made without its encoder.

  /// Pictures of one size, uint8 [B, H, W, 3] -> normalised latents f32 [B, C, 1, h, w] on the CPU.
  /// Sides are cut (top left) to multiples of the ratio.
  at::Tensor encode_images(const at::Tensor& rgb, const EncodeOptions& options = {});
  /// One video, uint8 [T, H, W, 3] -> normalised latents f32 [1, C, T', h, w] on the CPU. Frames
  /// are cut to 17 n + 5 (trimmed_frames). Frames may stay on the CPU: a clip at a time is moved.
  at::Tensor encode_video(const at::Tensor& rgb, const EncodeOptions& options = {});

  /// Moments [B, 2 C, T', h, w] of normalised pixels f32 [B, 3, T, H, W]: one frame alone, or clips
  /// of which the last is filled with copies of the last frame.
  at::Tensor moments(const at::Tensor& x, parallel::Group* group = nullptr);

  const VideoVaeConfig& config() const { return config_; }
  const TemporalGeometry& geometry() const { return geometry_; }
  at::Device device() const;
  const VaeContext& context() const { return context_; }
  Decoder* decoder() { return decoder_.get(); }

 private:
  Decoder& need_decoder() const;
  const Encoder& need_encoder() const;
  int64_t agreed_tile_batch(const at::Tensor& latents, const DecodeOptions& options) const;
  at::Tensor checked_latents(const at::Tensor& latents) const;
  at::Tensor clip_moments(const at::Tensor& x, parallel::Group* group);
  at::Tensor finished(const at::Tensor& moments, const EncodeOptions& options) const;

  const VideoVaeConfig config_;
  const VideoVaeOptions options_;
  const TemporalGeometry geometry_;
  VaeContext context_;
  std::unique_ptr<Encoder> encoder_;
  std::unique_ptr<Decoder> decoder_;
};

}  // namespace h3::vae_video
