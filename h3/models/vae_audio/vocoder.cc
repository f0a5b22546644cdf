// BigVGAN: transposed convolutions up to the sample rate, each followed by parallel residual blocks
// with anti-aliased activations.
#include <ATen/TensorOperators.h>
#include <ATen/ops/replication_pad1d.h>
#include <ATen/ops/sin.h>

#include "h3/models/vae_audio/modules.h"
#include "h3/models/vae_audio/ops.h"

namespace h3::vae_audio {
namespace {

constexpr int64_t kReach = 3;  // samples on either side that a filter phase reads

// Adds the block's branches to x in place and returns it.
at::Tensor residual_block(at::Tensor x, const ResblockWeights& w,
                          const std::vector<int64_t>& dilations) {
  for (size_t n = 0; n < dilations.size(); ++n) {
    const int64_t kernel = w.convs1[n].weight.size(2), dilation = dilations[n];
    at::Tensor y =
        convolve(activate(x, w.activations[2 * n]), w.convs1[n],
                 {.padding = (kernel - 1) * dilation / 2, .dilation = dilation}, Numerics::kDecode);
    y = convolve(activate(y, w.activations[2 * n + 1]), w.convs2[n], {.padding = (kernel - 1) / 2},
                 Numerics::kDecode);
    x = n == 0 ? y.add_(x) : x.add_(y);  // the first x is shared with the other blocks
  }
  return x;
}

}  // namespace

at::Tensor activate(const at::Tensor& x, const ActivationWeights& w) {
  const int64_t batch = x.size(0), channels = x.size(1), length = x.size(2);
  // Every channel is an image of its own: [B C, 1, L] -> [B C, even | odd, L + 2 kReach].
  at::Tensor z =
      at::replication_pad1d(x.reshape({batch * channels, 1, length}), {2 * kReach, 2 * kReach});
  z = convolve(z, w.up, {}, {}, Numerics::kDecode);
  // The doubled signal ends with its first and last sample repeated.
  z.narrow(2, 0, kReach).copy_(z.narrow(1, 0, 1).narrow(2, kReach, 1));
  z.narrow(2, kReach + length, kReach).copy_(z.narrow(1, 1, 1).narrow(2, kReach + length - 1, 1));
  const at::Tensor u = z.view({batch, channels, 2 * (length + 2 * kReach)});
  at::Tensor wave = u * w.alpha;
  wave.sin_().square_();
  u.addcmul_(wave, w.inverse_beta);
  return convolve(z, w.down, {}, {}, Numerics::kDecode).view({batch, channels, length});
}

at::Tensor synthesize(const AudioVaeConfig& config, const VocoderWeights& weights,
                      const at::Tensor& input) {
  at::Tensor x = convolve(input, weights.pre, {.padding = 3}, Numerics::kDecode);
  const size_t kernels = config.resblock_kernels.size();
  for (size_t i = 0; i < weights.ups.size(); ++i) {
    const int64_t rate = config.decoder_rates[i];
    x = convolve(
        x, weights.ups[i],
        {.stride = rate, .padding = (config.decoder_kernels[i] - rate) / 2, .transposed = true},
        Numerics::kDecode);
    at::Tensor sum;
    for (size_t j = 0; j < kernels; ++j) {
      at::Tensor y =
          residual_block(x, weights.resblocks[i * kernels + j], config.resblock_dilations[j]);
      sum = j == 0 ? std::move(y) : sum.add_(y);
    }
    x = sum.div_(static_cast<double>(kernels));
  }
  x = convolve(activate(x, weights.last_activation), weights.post, {}, {.padding = 3},
               Numerics::kDecode);
  return x.clamp_(-1, 1);
}

}  // namespace h3::vae_audio
