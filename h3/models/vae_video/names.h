// Tensors of the video VAE: what a checkpoint holds under official and diffusers names, and how the
// model's tensors are made from them. No torch.
//
// Model tensors have the official names, except that decoder.transformer_blocks.<i>.attn.to_qkv
// holds [q; k; v] with all heads of q first; ff.w1 is [gate; value]; decoder.mask_token, which
// nothing reads, is left out.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "h3/models/vae_video/config.h"
#include "h3/weights/checkpoint.h"
#include "h3/weights/recipe.h"

namespace h3::vae_video {

enum class NameStyle { kOfficial, kDiffusers };

/// Which half of the model: encoding needs the encoder and quant_conv, decoding the decoder and
/// post_quant_conv.
enum class Part { kAll, kEncoder, kDecoder };

/// Every tensor that a checkpoint must hold, all f32 (published model: 559 and 703).
std::vector<weights::SourceTensor> checkpoint_tensors(const VideoVaeConfig& config,
                                                      NameStyle style);

/// Tensors that may be there and that nothing reads.
std::vector<std::string> optional_tensors(const VideoVaeConfig& config, NameStyle style);

/// The style by the names of the tensors. Throws kInvalidArgument if they are of none or of both.
NameStyle name_style_of(const weights::Checkpoint& checkpoint);
std::string_view name_style_text(NameStyle style);  // "official", "diffusers"

/// All f32. The decoder's block matrices become f16 after loading where decoding is autocast.
std::vector<weights::TensorRecipe> model_recipes(const VideoVaeConfig& config, NameStyle style,
                                                 Part part = Part::kAll);

}  // namespace h3::vae_video
