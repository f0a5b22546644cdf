// Plan files: block_index i32 [B, H, Gq, W], block_count i32 [B, H, Gq], and where they apply
// dense_rows u8 [B, Gq], estimated_mass f32 [B, H, Gq], cu_seqlens i32 [n + 1].
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "tessera/cli/common/input.h"
#include "tessera/plan.h"
#include "tessera/status.h"

namespace tessera::cli {

/// Writes `plan` made for `input`; `settings` goes into the metadata.
Status write_plan(const std::string& path, const Plan& plan, const Input& input,
                  const nlohmann::ordered_json& settings);

/// Reads a plan and checks it against `input`: tensors, dtypes, shape (naming both), documents, and
/// every value (validate_plan). kInvalidArgument, with the path in front.
Status read_plan(const std::string& path, const Input& input, Plan* out);

}  // namespace tessera::cli
