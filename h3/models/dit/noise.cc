#include "h3/models/dit/noise.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/randn.h>

#include <string>
#include <vector>

#include "h3/common/error.h"

namespace h3::dit {
namespace {

[[noreturn]] void refuse(const std::string& message) {
  throw Error(ErrorCode::kInvalidArgument, message);
}

std::string text(at::IntArrayRef sizes) {
  std::string out = "[";
  for (size_t i = 0; i < sizes.size(); ++i) {
    out += (i ? ", " : "") + std::to_string(sizes[i]);
  }
  return out + "]";
}

void check_shape(const LatentShape& s) {
  if (s.frames < 1 || s.height < 2 || s.width < 2 || s.height % 2 || s.width % 2) {
    refuse("latents have the shape " + text({s.frames, s.height, s.width}) +
           "; accepted: positive numbers, sides even");
  }
}

void check_count(const char* name, int64_t value) {
  if (value < 1) {
    refuse(std::string(name) + " is " + std::to_string(value) + "; accepted: 1 or more");
  }
}

at::Tensor draw(uint64_t seed, at::IntArrayRef sizes) {
  at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(seed);
  return at::randn(sizes, generator, at::TensorOptions().dtype(at::kFloat).device(at::kCPU));
}

// Statistics as [C, 1, ...], next to latents of `rank` dimensions whose second is the channel.
at::Tensor beside(const at::Tensor& statistic, const char* name, const at::Tensor& latents) {
  if (latents.dim() < 2 || statistic.dim() != 1 || statistic.size(0) != latents.size(1)) {
    refuse(std::string(name) + " has the shape " + text(statistic.sizes()) + " for latents " +
           text(latents.sizes()) + "; accepted: one value per channel, the second dimension");
  }
  std::vector<int64_t> sizes(size_t(latents.dim() - 1), 1);
  sizes[0] = statistic.size(0);
  return statistic.view(sizes);
}

}  // namespace

at::Tensor patchify_video(const at::Tensor& latents) {
  if (latents.dim() != 5 || latents.size(0) != 1) {
    refuse("video latents have the shape " + text(latents.sizes()) +
           "; accepted: [1, channels, frames, height, width]");
  }
  const int64_t c = latents.size(1);
  const LatentShape s{latents.size(2), latents.size(3), latents.size(4)};
  check_shape(s);
  return latents.reshape({c, s.frames, s.height / 2, 2, s.width / 2, 2})
      .permute({1, 2, 4, 0, 3, 5})
      .reshape({s.rows(), c * 4})
      .contiguous();
}

at::Tensor unpatchify_video(const at::Tensor& rows, const LatentShape& s) {
  check_shape(s);
  if (rows.dim() != 2 || rows.size(0) != s.rows() || rows.size(1) % 4 != 0 || rows.size(1) == 0) {
    refuse("video rows have the shape " + text(rows.sizes()) + "; accepted: [" +
           std::to_string(s.rows()) + ", 4 x channels]");
  }
  const int64_t c = rows.size(1) / 4;
  return rows.reshape({s.frames, s.height / 2, s.width / 2, c, 2, 2})
      .permute({3, 0, 1, 4, 2, 5})
      .reshape({1, c, s.frames, s.height, s.width})
      .contiguous();
}

at::Tensor pack_audio(const at::Tensor& latents) {
  if (latents.dim() != 3 || latents.size(0) != kStereo) {
    refuse("audio latents have the shape " + text(latents.sizes()) +
           "; accepted: [2, channels, latents]");
  }
  const int64_t c = latents.size(1), t = latents.size(2);
  return latents.transpose(1, 2).reshape({kStereo * t, c}).contiguous();
}

at::Tensor unpack_audio(const at::Tensor& rows) {
  if (rows.dim() != 2 || rows.size(0) % kStereo != 0) {
    refuse("audio rows have the shape " + text(rows.sizes()) +
           "; accepted: [2 x latents, channels]");
  }
  return rows.reshape({kStereo, rows.size(0) / kStereo, rows.size(1)}).transpose(1, 2).contiguous();
}

at::Tensor video_noise(uint64_t seed, const LatentShape& target, int64_t channels) {
  check_shape(target);
  check_count("channels", channels);
  return patchify_video(draw(seed, {1, channels, target.frames, target.height, target.width}));
}

at::Tensor audio_noise(uint64_t seed, int64_t latents, int64_t channels) {
  check_count("latents", latents);
  check_count("channels", channels);
  return draw(seed, {kStereo * latents, channels});
}

at::Tensor visual_condition_noise(uint64_t seed, const LatentShape& condition,
                                  int64_t target_frames, int64_t conditions, int64_t channels) {
  check_shape(condition);
  check_count("target_frames", target_frames);
  check_count("conditions", conditions);
  check_count("channels", channels);
  const int64_t frames = target_frames + conditions;
  if (condition.frames > frames) {
    refuse("a visual condition has " + std::to_string(condition.frames) +
           " latent frames; accepted: at most those of the target and one per visual condition, " +
           std::to_string(frames));
  }
  return patchify_video(draw(seed, {1, channels, frames, condition.height, condition.width})
                            .narrow(2, 0, condition.frames));
}

at::Tensor audio_condition_noise(uint64_t seed, int64_t latents, int64_t channels) {
  return audio_noise(seed + 1, latents, channels);
}

at::Tensor mix_condition(const at::Tensor& clean, const at::Tensor& noise, double level) {
  if (!(level >= 0 && level <= 1)) {  // NaN fails
    refuse("the condition noise level is " + std::to_string(level) + "; accepted: 0 to 1");
  }
  if (level == 1) return clean;
  if (clean.sizes() != noise.sizes()) {
    refuse("noise has the shape " + text(noise.sizes()) + "; accepted: that of the clean rows, " +
           text(clean.sizes()));
  }
  const float kept = float(level);
  const float complement = 1.0f - kept;
  return clean.mul(kept).add(noise.mul(complement));
}

at::Tensor normalize_latents(const at::Tensor& latents, const at::Tensor& mean,
                             const at::Tensor& std) {
  return latents.sub(beside(mean, "mean", latents)).div(beside(std, "std", latents));
}

at::Tensor denormalize_latents(const at::Tensor& latents, const at::Tensor& mean,
                               const at::Tensor& std) {
  return latents.mul(beside(std, "std", latents)).add(beside(mean, "mean", latents));
}

}  // namespace h3::dit
