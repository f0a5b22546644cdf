// What the parts of the transformer share inside one forward. Private to this folder.
#pragma once

#include <ATen/core/Tensor.h>

#include "h3/models/dit/model.h"

namespace h3::dit {

struct DitModel::Call {
  AttentionContext attention;
  PackedBounds bounds;  // of the whole sequence
  at::Tensor rope;      // [local rows, 6 * rope_freqs], cos | sin; undefined: no rotation
};

/// x [rows, in] . weight [out, in]^T + bias, in x's dtype with f32 sums.
at::Tensor project(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias = {});

}  // namespace h3::dit
