// The `_minimax_h3` block in the model_index.json of a native partition (FL2VA, Ref2VA): what the
// weights were trained for.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace h3::weights {

enum class Partition { kFl2va, kRef2va };

/// "fl2va", "ref2va".
std::string_view partition_text(Partition partition);

/// Tasks of a partition: t2va and fl2va, or ref2va.
std::vector<std::string> partition_tasks(Partition partition);

struct ReleaseBlock {
  Partition partition = Partition::kFl2va;
  std::vector<std::string> tasks;
  double video_shift = 12, audio_shift = 3;  // of the flow
  // Of distilled releases; empty elsewhere.
  std::vector<int64_t> dmd_denoising_steps;
  std::string pdd_fused_heads;
};

/// Throws kInvalidArgument with all faults: a missing block, a schema_version other than 1, an
/// unknown partition, tasks that are empty, given twice, unknown or of the other partition, aliases
/// that are no strings or name no task, shifts that are missing, no number or not positive,
/// dmd_denoising_steps that are not strictly decreasing integers in (0, 1000], pdd_fused_heads that
/// are no relative path of a .safetensors file. `label` begins the message.
ReleaseBlock parse_release_block(std::string_view model_index, std::string_view label);

/// Whether the text is JSON with a `_minimax_h3` member. Throws for what is no JSON object.
bool has_release_block(std::string_view model_index, std::string_view label);

}  // namespace h3::weights
