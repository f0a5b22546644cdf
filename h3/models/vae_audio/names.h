// Tensors of the audio VAE: what a checkpoint holds, and the recipes that load it. The original
// release and diffusers use the same names; files differ in how weight-normalised convolutions are
// stored. No torch.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "h3/models/vae_audio/config.h"
#include "h3/weights/checkpoint.h"
#include "h3/weights/recipe.h"

namespace h3::vae_audio {

/// kPair: `weight_g` and `weight_v` (release, diffusers). kParametrized: the same pair as
/// `parametrizations.weight.original0` and `original1` (newer torch). kFolded: the product, as
/// `weight`.
enum class NormStyle { kPair, kParametrized, kFolded };

/// Every tensor of a checkpoint, all f32 (MiniMax-H3: 1087 with pairs).
std::vector<weights::SourceTensor> checkpoint_tensors(const AudioVaeConfig& config,
                                                      NormStyle style);

/// By the names of the first convolution. Throws kInvalidArgument if it has none or several.
NormStyle norm_style_of(const weights::Checkpoint& checkpoint);
std::string_view norm_style_text(NormStyle style);  // "weight_g", "parametrizations", "folded"

/// Every tensor as it is stored, under the names of kPair or kFolded; AudioVaeWeights folds pairs.
std::vector<weights::TensorRecipe> model_recipes(const AudioVaeConfig& config, NormStyle style);

/// An opened and checked checkpoint: header reads only.
struct AudioVaeCheckpoint {
  AudioVaeConfig config;
  NormStyle style = NormStyle::kPair;
  weights::Checkpoint checkpoint;
};

/// `folder` with config.json and the weights. Throws kInvalidArgument for everything that
/// read_audio_vae_config, Checkpoint::open, norm_style_of and require_inventory refuse.
AudioVaeCheckpoint open_audio_vae(const std::string& folder);

}  // namespace h3::vae_audio
