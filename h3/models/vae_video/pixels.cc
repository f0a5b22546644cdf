#include "h3/models/vae_video/pixels.h"

#include <ATen/ops/tensor.h>

#include <array>
#include <string>
#include <vector>

#include "h3/common/error.h"

namespace h3::vae_video {
namespace {

// ImageNet.
constexpr std::array<double, 3> kMean{0.485, 0.456, 0.406}, kStd{0.229, 0.224, 0.225};

std::string sizes_text(const at::Tensor& t) {
  std::string text;
  for (const int64_t n : t.sizes()) text += (text.empty() ? "[" : ", ") + std::to_string(n);
  return std::string(c10::toString(t.scalar_type())) + " " + text + "]";
}

void require(bool fine, const char* what, const at::Tensor& t, const char* accepted) {
  if (fine) return;
  throw Error(ErrorCode::kInvalidArgument,
              std::string(what) + " are " + sizes_text(t) + "; " + accepted + " is accepted");
}

// Per channel along axis 1 of a tensor of `dims` axes.
at::Tensor channels(at::ArrayRef<float> values, const at::Tensor& like) {
  std::vector<int64_t> shape(static_cast<size_t>(like.dim()), 1);
  shape[1] = static_cast<int64_t>(values.size());
  return at::tensor(values, at::TensorOptions().dtype(at::kFloat))
      .to(like.device(), like.scalar_type())
      .view(shape);
}

at::Tensor rgb_channels(const std::array<double, 3>& values, const at::Tensor& like) {
  const std::array<float, 3> rounded{static_cast<float>(values[0]), static_cast<float>(values[1]),
                                     static_cast<float>(values[2])};
  return channels(rounded, like);
}

void require_latents(const VideoVaeConfig& config, const at::Tensor& z) {
  require(z.dim() >= 2 && z.size(1) == config.latent_channels && z.is_floating_point(), "latents",
          z, ("a floating [B, " + std::to_string(config.latent_channels) + ", ...]").c_str());
}

}  // namespace

at::Tensor normalised_pixels(const at::Tensor& rgb) {
  require(rgb.dim() == 4 && rgb.size(3) == 3 && rgb.scalar_type() == at::kByte && rgb.numel() > 0,
          "pictures", rgb, "uint8 [T, H, W, 3]");
  at::Tensor x = rgb.permute({3, 0, 1, 2}).unsqueeze(0).to(at::kFloat).contiguous();
  return x.div_(255).sub_(rgb_channels(kMean, x)).div_(rgb_channels(kStd, x));
}

at::Tensor shown_pixels(const at::Tensor& x) {
  // The release writes the inverse as a normalisation with mean -m / s and deviation 1 / s.
  std::array<double, 3> mean, deviation;
  for (size_t c = 0; c < 3; ++c) {
    mean[c] = -kMean[c] / kStd[c];
    deviation[c] = 1 / kStd[c];
  }
  return x.sub(rgb_channels(mean, x)).div_(rgb_channels(deviation, x)).clamp_(0, 1).contiguous();
}

at::Tensor rgb24(const at::Tensor& frames) {
  require(frames.dim() == 5 && frames.size(1) == 3 && frames.is_floating_point(), "frames", frames,
          "a floating [B, 3, T, H, W]");
  return frames.permute({0, 2, 3, 4, 1}).mul(255).clamp_(0, 255).to(at::kByte).contiguous();
}

at::Tensor cropped(const at::Tensor& frames, int64_t height, int64_t width) {
  if (frames.size(-2) < height || frames.size(-1) < width) {
    throw Error(ErrorCode::kInvalidArgument,
                "decoded frames are " + std::to_string(frames.size(-1)) + "x" +
                    std::to_string(frames.size(-2)) + ", smaller than the target of " +
                    std::to_string(width) + "x" + std::to_string(height),
                "give latents of the target's size");
  }
  return frames.narrow(-2, 0, height).narrow(-1, 0, width);
}

at::Tensor normalised_latents(const VideoVaeConfig& config, const at::Tensor& z) {
  require_latents(config, z);
  return z.sub(channels(config.latents_mean, z)).div_(channels(config.latents_std, z));
}

at::Tensor denormalised_latents(const VideoVaeConfig& config, const at::Tensor& z) {
  require_latents(config, z);
  return z.mul(channels(config.latents_std, z)).add_(channels(config.latents_mean, z));
}

}  // namespace h3::vae_video
