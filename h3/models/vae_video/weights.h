// The tensors of a video VAE under the names the forward uses. Matrices are [out, in].
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "h3/models/vae_video/config.h"
#include "h3/models/vae_video/names.h"

namespace h3::vae_video {

struct WeightBias {
  at::Tensor weight, bias;
};

struct ResidualWeights {
  WeightBias norm1, conv1, norm2, conv2;
  WeightBias shortcut;  // undefined where the width stays
};

struct LevelWeights {
  std::vector<ResidualWeights> blocks;
  WeightBias downsample;  // undefined at levels that keep the size
};

struct EncoderWeights {
  WeightBias conv_in;
  std::vector<LevelWeights> levels;
  WeightBias norm_out, conv_out, quant;
};

struct DecoderBlockWeights {
  at::Tensor norm1, norm2, scale1, scale2;  // [dim], f32
  WeightBias qkv;                           // [3 dim, dim]: q of all heads, then k, then v
  WeightBias out;                           // [dim, dim]
  WeightBias w1;                            // [2 ffn, dim]: gate, then value
  WeightBias w2;                            // [dim, ffn]
};

struct DecoderWeights {
  WeightBias post_quant, embed;
  at::Tensor registers;  // [1, n, dim]; undefined for none
  std::vector<DecoderBlockWeights> blocks;
  WeightBias norm_out, proj_out;
};

struct VideoVaeWeights {
  std::optional<EncoderWeights> encoder;
  std::optional<DecoderWeights> decoder;
  int64_t bytes() const;
};

/// Takes the tensors of `part` out of `tensors` (names of model_recipes). Throws kInternal for one
/// that is missing, left over, not f32, or of another shape or device than its recipe says.
VideoVaeWeights take_weights(const VideoVaeConfig& config, Part part,
                             std::unordered_map<std::string, at::Tensor> tensors);

/// Random weights made on `device`, for measurements and tests where no checkpoint is: matrices
/// N(0, 1/sqrt(fan in)), norm weights N(1, 0.1), layer scales and biases N(0, 0.1).
VideoVaeWeights random_weights(const VideoVaeConfig& config, Part part, const at::Device& device,
                               uint64_t seed);

/// Keeps the four matrices (and biases) of every block in the type that autocast would round them
/// to in each call; embedding, output projection, norms and scales stay f32. Returns how many were
/// converted: 144 of the published model, 0 the second time. One f32 matrix at a time is let go, so
/// the peak is one matrix above what was there. Throws kInvalidArgument for other types.
int64_t prepare_autocast_weights(DecoderWeights& weights, at::ScalarType dtype);

}  // namespace h3::vae_video
