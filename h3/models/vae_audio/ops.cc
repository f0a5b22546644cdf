#include "h3/models/vae_audio/ops.h"

#include <ATen/ops/_convolution.h>

#include <optional>

namespace h3::vae_audio {

at::Tensor convolve(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                    const ConvShape& shape, Numerics numerics) {
  std::optional<at::Tensor> addend;
  if (bias.defined()) addend = bias;
  return at::_convolution(x, weight, addend, {shape.stride}, {shape.padding}, {shape.dilation},
                          shape.transposed, /*output_padding=*/{0}, /*groups=*/1,
                          /*benchmark=*/false, /*deterministic=*/true,
                          /*cudnn_enabled=*/numerics == Numerics::kDecode, /*allow_tf32=*/false);
}

EncodeScope::EncodeScope()
    : flash_(at::globalContext().userEnabledFlashSDP()),
      efficient_(at::globalContext().userEnabledMemEfficientSDP()),
      math_(at::globalContext().userEnabledMathSDP()),
      cudnn_(at::globalContext().userEnabledCuDNNSDP()) {
  at::Context& context = at::globalContext();
  context.setSDPUseFlash(false);
  context.setSDPUseMemEfficient(false);
  context.setSDPUseCuDNN(false);
  context.setSDPUseMath(true);
}

EncodeScope::~EncodeScope() {
  at::Context& context = at::globalContext();
  context.setSDPUseFlash(flash_);
  context.setSDPUseMemEfficient(efficient_);
  context.setSDPUseCuDNN(cudnn_);
  context.setSDPUseMath(math_);
}

}  // namespace h3::vae_audio
