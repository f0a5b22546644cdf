// DAC encoder: strided convolutions with snake activations.
#include <ATen/TensorOperators.h>
#include <ATen/ops/sin.h>

#include "h3/models/vae_audio/modules.h"
#include "h3/models/vae_audio/ops.h"

namespace h3::vae_audio {
namespace {

constexpr int64_t kDilations[] = {1, 3, 9};  // of the units of a stage

at::Tensor residual_unit(const at::Tensor& x, const ResidualUnitWeights& w, int64_t dilation) {
  at::Tensor y = convolve(snake(x, w.alpha1), w.conv1,
                          {.padding = 3 * dilation, .dilation = dilation}, Numerics::kEncode);
  y = convolve(snake(y, w.alpha2), w.conv2, {}, Numerics::kEncode);
  return y.add_(x);
}

}  // namespace

at::Tensor snake(const at::Tensor& x, const at::Tensor& alpha) {
  at::Tensor y = at::sin(x * alpha);
  y.square_().mul_((alpha + 1e-9).reciprocal());
  return y.add_(x);
}

at::Tensor encode_waveform(const AudioVaeConfig& config, const EncoderWeights& weights,
                           const at::Tensor& waveform) {
  at::Tensor x = convolve(waveform, weights.first, {.padding = 3}, Numerics::kEncode);
  for (size_t i = 0; i < weights.stages.size(); ++i) {
    const EncoderStageWeights& stage = weights.stages[i];
    for (size_t unit = 0; unit < stage.units.size(); ++unit) {
      x = residual_unit(x, stage.units[unit], kDilations[unit]);
    }
    const int64_t rate = config.encoder_rates[i];
    x = convolve(snake(x, stage.alpha), stage.down, {.stride = rate, .padding = (rate + 1) / 2},
                 Numerics::kEncode);
  }
  return convolve(snake(x, weights.alpha), weights.last, {.padding = 1}, Numerics::kEncode);
}

}  // namespace h3::vae_audio
