// The tensors of a transformer under the names the forward uses. Shapes are those of one tensor
// rank; matrices are [out, in].
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <unordered_map>
#include <vector>

#include "h3/models/dit/config.h"
#include "h3/models/dit/names.h"

namespace h3::dit {

struct AttentionWeights {
  at::Tensor qkv;             // [3 inner, hidden]: q of all heads, then k, then v
  at::Tensor q_norm, k_norm;  // [head_dim]
  at::Tensor out;             // [hidden, inner]
};

struct BlockWeights {
  at::Tensor norm1, norm2;  // [hidden]
  AttentionWeights attention;
  at::Tensor fc1;                       // [2 ffn, hidden]: gate, then up
  at::Tensor fc2;                       // [hidden, ffn]
  at::Tensor adaln_weight, adaln_bias;  // [18 hidden, time_embed], [18 hidden]; not in the refiner
};

struct LinearWeights {
  at::Tensor weight, bias;
};

struct DitWeights {
  LinearWeights video_in, audio_in;  // f32
  LinearWeights text_in;             // condition_proj
  LinearWeights time_in, time_out;   // f32
  std::vector<BlockWeights> refiner, blocks;
  at::Tensor refiner_norm, final_norm;  // [hidden]
  LinearWeights final_adaln;            // [2 hidden, time_embed]
  LinearWeights video_out, audio_out;   // f32

  int64_t bytes() const;
};

/// Takes the tensors out of `tensors` (native names). Throws kInternal for one that is missing,
/// left over, or of a shape, dtype or device other than the recipes' and the first tensor's; in
/// particular an fp32 island that is not f32.
DitWeights take_weights(const DitConfig& config, tessera::Dtype compute, const TensorShard& shard,
                        std::unordered_map<std::string, at::Tensor> tensors);

/// Random weights made on `device`: matrices N(0, 0.02), vectors that scale N(1, 0.1), other biases
/// N(0, 0.1). For measurements at full size, where no checkpoint is.
DitWeights random_weights(const DitConfig& config, tessera::Dtype compute, const TensorShard& shard,
                          const at::Device& device, uint64_t seed);

}  // namespace h3::dit
