// The tensors of an audio VAE as the forward uses them: weight norm folded, filters split into the
// phases of the anti-aliased activations. All f32.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <array>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "h3/models/vae_audio/config.h"

namespace h3::vae_audio {

/// A convolution [out, in, k] (transposed: [in, out, k]) or matrix [out, in], with its bias [out].
struct Affine {
  at::Tensor weight, bias;
};

struct ResidualUnitWeights {
  at::Tensor alpha1;  // [1, C, 1]
  Affine conv1;       // kernel 7, dilated
  at::Tensor alpha2;
  Affine conv2;  // kernel 1
};

struct EncoderStageWeights {
  std::array<ResidualUnitWeights, 3> units;
  at::Tensor alpha;
  Affine down;  // kernel 2 s, stride s
};

struct EncoderWeights {
  Affine first;
  std::vector<EncoderStageWeights> stages;
  at::Tensor alpha;
  Affine last;
};

/// Causal attention that narrows `in` channels to `out`.
struct CausalAttentionWeights {
  at::Tensor qkv;       // [3 in, in]
  at::Tensor qkv_bias;  // [3 in]: q, the zero buffer of k, v
  Affine proj;          // [out, out]
};

struct ProjectionWeights {
  Affine norm1, norm2, norm3;
  CausalAttentionWeights attention;
  Affine proj;  // [out, in]
  Affine mlp_norm, w0, w1, w2;
};

/// Up by two, SnakeBeta, down by two. The doubled signal is kept as two channels, its even and its
/// odd samples: both filters become plain convolutions of 7 taps and nothing is interleaved.
struct ActivationWeights {
  at::Tensor alpha;         // [C, 1]: exp
  at::Tensor inverse_beta;  // [C, 1]: 1 / (exp(beta) + 1e-9)
  at::Tensor up;            // [2, 1, 7]: even and odd samples, the factor 2 included
  at::Tensor down;          // [1, 2, 7]
};

struct ResblockWeights {
  std::vector<Affine> convs1, convs2;
  std::vector<ActivationWeights> activations;
};

struct VocoderWeights {
  Affine pre;
  std::vector<Affine> ups;
  std::vector<ResblockWeights> resblocks;  // stage by stage
  ActivationWeights last_activation;
  at::Tensor post;  // [1, C, 7]
};

struct AudioVaeWeights {
  EncoderWeights encoder;
  ProjectionWeights projection;
  Affine mean, logs, decoder_in;
  VocoderWeights vocoder;
  int64_t bytes = 0;  // of all tensors above
};

/// g v / |v|, the norm over all axes but the first. Throws kInvalidArgument, with `name`, if a row
/// of v is all zero: the quotient has no value there.
at::Tensor folded_weight(const at::Tensor& g, const at::Tensor& v, const std::string& name);

/// The two filters [1, 1, 12] of an activation as convolutions of its phases.
at::Tensor up_phases(const at::Tensor& filter);
at::Tensor down_phases(const at::Tensor& filter);

/// Takes the tensors of model_recipes out of `tensors`. Throws kInternal for one that is missing or
/// left over or of another shape or dtype, and as folded_weight.
AudioVaeWeights take_weights(const AudioVaeConfig& config,
                             std::unordered_map<std::string, at::Tensor> tensors);

/// Random weights made on `device` that keep the signal finite through all stages. For measurements
/// at full size, where no checkpoint is.
AudioVaeWeights random_weights(const AudioVaeConfig& config, const c10::Device& device,
                               uint64_t seed);

}  // namespace h3::vae_audio
