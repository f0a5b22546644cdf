// Which transformer a model path, a variant and a sub-folder stand for.
//
//   const ModelPaths paths = resolve_model({.path = "MiniMax-H3", .variant = "ref2va"});
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "h3/weights/model_index.h"

namespace h3::weights {

enum class ModelLayout {
  kPartition,    // native: model_index.json with _minimax_h3, transformer/
  kDiffusers,    // transformer/, transformer_ref/, scheduler/, audio_scheduler/
  kTransformer,  // a folder with config.json and safetensors files
  kFile,         // one .safetensors file or index
};

/// "native partition", "diffusers", "transformer folder", "file".
std::string_view layout_text(ModelLayout layout);

struct ModelRequest {
  std::string path;
  std::string variant;    // --model-variant: fl2va, ref2va, hybrid; empty: not given
  std::string subfolder;  // --model-subfolder; empty: not given
};

struct ModelPaths {
  ModelLayout layout = ModelLayout::kTransformer;
  std::string root;         // folder of the partition or of the diffusers components; else empty
  std::string transformer;  // folder or file, for Checkpoint::open
  std::string config;       // config.json; empty: a file without one beside it, published sizes
  /// Absent: nothing here says it (kTransformer, kFile without a variant).
  std::optional<Partition> partition;
  std::vector<std::string> tasks;            // empty if the partition is not known
  double video_shift = 12, audio_shift = 3;  // of the model; published values for bare weights
  std::vector<int64_t> dmd_denoising_steps;  // of distilled releases
  std::string pdd_fused_heads;
};

/// Native names the sub-folder FL2VA (fl2va, and no variant) or Ref2VA (ref2va). A repository that
/// has both layouts gives its native partition; one without the sub-folder gives transformer/ or
/// transformer_ref/. `hybrid` (all three tasks) needs merged weights, so only bare transformer
/// folders and files accept it. Which names the tensors have is not decided here but by the
/// tensors.
///
/// Throws kInvalidArgument for paths that are not there or no model, unknown variants, a variant
/// that contradicts the sub-folder or the partition, a sub-folder outside of the path, a bad
/// release block (parse_release_block) and missing or bad scheduler shifts.
ModelPaths resolve_model(const ModelRequest& request);

}  // namespace h3::weights
