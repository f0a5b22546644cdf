// Convolutions with their numeric settings as arguments instead of process-wide switches, and the
// few settings for which torch has nothing but switches.
#pragma once

#include <ATen/Context.h>
#include <ATen/core/Tensor.h>

#include <cstdint>

#include "h3/models/vae_audio/weights.h"

namespace h3::vae_audio {

/// Both are deterministic and never TF32. Encoding runs without cuDNN, as the references were made.
enum class Numerics { kEncode, kDecode };

struct ConvShape {
  int64_t stride = 1, padding = 0, dilation = 1;
  bool transposed = false;
};

/// x [B, C, L] -> [B, C', L']. An undefined bias adds none.
at::Tensor convolve(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                    const ConvShape& shape, Numerics numerics);

inline at::Tensor convolve(const at::Tensor& x, const Affine& conv, const ConvShape& shape,
                           Numerics numerics) {
  return convolve(x, conv.weight, conv.bias, shape, numerics);
}

/// While it lives: no TF32 in matrix products of this thread, and torch's attention runs its math
/// kernel alone (process-wide, as torch offers nothing narrower). Restores what it found.
class EncodeScope {
 public:
  EncodeScope();
  ~EncodeScope();
  EncodeScope(const EncodeScope&) = delete;
  EncodeScope& operator=(const EncodeScope&) = delete;

 private:
  at::NoTF32Guard no_tf32_;
  const bool flash_, efficient_, math_, cudnn_;
};

}  // namespace h3::vae_audio
