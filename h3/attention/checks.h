// What every backend demands of its tensors, and how a message names them.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

#include "h3/attention/impl.h"

namespace h3 {

/// "bf16 [1, 37760, 56, 128] on cuda:0", for messages.
std::string describe(const at::Tensor& t);

/// Throws h3::Error (kInvalidArgument) unless q, k and v are defined strided tensors of `rank`
/// dimensions and one dtype on one device, without an empty dimension, with last stride 1, k and v
/// of one shape, one batch size, one head width, and q's heads a multiple of k's. Rank 3 is
/// [T, H, D].
void check_qkv(const Qkv& qkv, int64_t rank);

/// Throws h3::Error (kInvalidArgument) unless cu[0] is 0, cu never falls, cu ends at or before row
/// `tokens`, and max_seqlen, if given, is not below the longest document.
void check_bounds(const PackedBounds& bounds, int64_t tokens);

}  // namespace h3
