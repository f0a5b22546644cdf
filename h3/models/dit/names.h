// Tensors of the transformer: what a checkpoint holds under native and diffusers names, and how the
// model's tensors are made from them. No torch.
//
// Model tensors have the native names; `attn.qkv_proj.weight` is [q; k; v] (all heads of q first),
// `mlp.fc1.weight` is [gate; up], `rope.inv_freq` is left out (recomputed).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "h3/models/dit/config.h"
#include "h3/weights/checkpoint.h"
#include "h3/weights/recipe.h"

namespace h3::dit {

/// kComfy: native names behind the prefix model.diffusion_model., q, k and v not interleaved.
enum class NameStyle { kNative, kDiffusers, kComfy };

/// Every tensor of a checkpoint (MiniMax-H3: 535 native, 638 diffusers names). `rope.inv_freq` is
/// part of the native list.
std::vector<weights::SourceTensor> checkpoint_tensors(const DitConfig& config, NameStyle style);

/// Tensors that a checkpoint may hold or not and that nothing reads.
std::vector<std::string> optional_tensors(NameStyle style);

/// The style by the names of the tensors. Throws kInvalidArgument if they are of no or of both
/// styles.
NameStyle name_style_of(const weights::Checkpoint& checkpoint);
std::string_view name_style_text(NameStyle style);  // "native", "diffusers", "comfy"

/// Tensor parallelism: q, k, v, gate and up are split by rows each on its own, out_proj and fc2 by
/// columns, patch projections, condition_proj and AdaLN by rows; norms, time embedder and final
/// heads are whole on every rank.
struct TensorShard {
  int64_t rank = 0, size = 1;
};

/// `compute` is the type of tensors that are no fp32 island: bf16, or f32 for the CPU. Throws
/// kInvalidArgument for a size that does not divide heads, hidden, ffn and row widths.
std::vector<weights::TensorRecipe> model_recipes(const DitConfig& config, NameStyle style,
                                                 tessera::Dtype compute,
                                                 const TensorShard& shard = {});

/// Whether the tensor stays f32 in file and memory: patch projections, time embedder, output heads.
bool is_fp32_island(const std::string& native_name);

}  // namespace h3::dit
