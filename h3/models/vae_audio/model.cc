#include "h3/models/vae_audio/model.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/tensor.h>

#include <string>
#include <utility>

#include "h3/common/error.h"
#include "h3/models/vae_audio/modules.h"
#include "h3/models/vae_audio/ops.h"

namespace h3::vae_audio {
namespace {

std::string text_of(const at::Tensor& t) {
  std::string text = std::string(c10::toString(t.scalar_type())) + " [";
  for (int64_t i = 0; i < t.dim(); ++i) {
    text += (i > 0 ? ", " : "") + std::to_string(t.size(i));
  }
  return text + "] on " + t.device().str();
}

[[noreturn]] void refuse(const std::string& what, const at::Tensor& got,
                         const std::string& accepted) {
  throw Error(ErrorCode::kInvalidArgument,
              what + " is " + text_of(got) + "; " + accepted + " is accepted");
}

at::Tensor column(const std::vector<float>& values, const at::Device& device) {
  if (values.empty()) return {};
  return at::tensor(at::ArrayRef<float>(values), at::kFloat).unsqueeze(1).to(device);
}

}  // namespace

AudioVae::AudioVae(const AudioVaeConfig& config, AudioVaeWeights weights,
                   AttentionRuntime& attention)
    : config_(config), weights_(std::move(weights)) {
  const auto layer = attention.layer("audio_vae", "pre_block.attn");
  const LayerDescriptor& d = layer->descriptor();
  if (d.heads != config_.heads || d.head_dim != config_.head_dim()) {
    throw Error(ErrorCode::kInternal, "attention layer audio_vae.pre_block.attn was resolved for " +
                                          std::to_string(d.heads) + " heads of " +
                                          std::to_string(d.head_dim) + "; the model has " +
                                          std::to_string(config_.heads) + " of " +
                                          std::to_string(config_.head_dim()));
  }
  attention_ = std::make_unique<AudioVaeAttention>(vae_layer(layer), context_);
  mean_ = column(config_.latents_mean, device());
  std_ = column(config_.latents_std, device());
}

void AudioVae::check(const at::Tensor& x, const char* what, int64_t channels) const {
  if (x.dim() != 3 || x.size(0) < 1 || x.size(1) != channels || x.size(2) < 1 ||
      x.scalar_type() != at::kFloat || x.device() != device()) {
    refuse(what, x,
           "Float [batch, " + std::to_string(channels) + ", length >= 1] on " + device().str());
  }
  if (!x.isfinite().all().item<bool>()) {
    throw Error(ErrorCode::kInvalidArgument,
                std::string(what) + " " + text_of(x) + " has values that are not finite",
                "check what made it: NaN in latents usually comes from the denoise steps");
  }
}

at::Tensor AudioVae::trunk(const at::Tensor& waveform) {
  check(waveform, "waveform", 1);
  const int64_t samples = waveform.size(2);
  const int64_t pad = config_.latents(samples) * config_.hop() - samples;
  const EncodeScope numerics;
  const VaeContext::Scope scope(context_);
  const at::Tensor x = encode_waveform(
      config_, weights_.encoder, pad > 0 ? at::constant_pad_nd(waveform, {0, pad}, 0) : waveform);
  return project(x.transpose(1, 2), weights_.projection, config_.heads, *attention_)
      .transpose(1, 2);
}

at::Tensor AudioVae::encode(const at::Tensor& waveform) {
  return convolve(trunk(waveform), weights_.mean, {}, Numerics::kEncode);
}

AudioPosterior AudioVae::posterior(const at::Tensor& waveform) {
  const at::Tensor x = trunk(waveform);
  return {convolve(x, weights_.mean, {}, Numerics::kEncode),
          convolve(x, weights_.logs, {}, Numerics::kEncode)};
}

at::Tensor AudioVae::decode(const at::Tensor& latents) {
  check(latents, "audio latents", config_.latent_channels);
  const at::Tensor x = convolve(latents, weights_.decoder_in, {}, Numerics::kDecode);
  return synthesize(config_, weights_.vocoder, x);
}

void AudioVae::check_statistics(const at::Tensor& latents) const {
  if (!mean_.defined()) {
    throw Error(ErrorCode::kInvalidArgument,
                "the config.json of the audio VAE has no latents_mean and latents_std, without "
                "which latents cannot be normalised",
                "use the config.json that came with the checkpoint");
  }
  if (latents.dim() < 2 || latents.size(-2) != config_.latent_channels) {
    refuse("audio latents", latents,
           "[batch, " + std::to_string(config_.latent_channels) + ", length]");
  }
}

at::Tensor AudioVae::normalize(const at::Tensor& latents) const {
  check_statistics(latents);
  return (latents - mean_).div_(std_);
}

at::Tensor AudioVae::denormalize(const at::Tensor& latents) const {
  check_statistics(latents);
  return (latents * std_).add_(mean_);
}

at::Tensor stereo_batch(const at::Tensor& channels) {
  if (channels.dim() != 2 || channels.size(0) != 2) refuse("stereo", channels, "[2, samples]");
  return channels.unsqueeze(1);
}

at::Tensor stereo_channels(const at::Tensor& batch) {
  if (batch.dim() != 3 || batch.size(0) != 2 || batch.size(1) != 1) {
    refuse("stereo", batch, "[2, 1, samples]");
  }
  return batch.squeeze(1).contiguous();
}

at::Tensor stereo_rows(const at::Tensor& latents) {
  if (latents.dim() != 3 || latents.size(0) != 2) refuse("stereo latents", latents, "[2, C, T]");
  return latents.transpose(1, 2).reshape({-1, latents.size(1)});
}

at::Tensor stereo_latents(const at::Tensor& rows) {
  if (rows.dim() != 2 || rows.size(0) % 2 != 0 || rows.size(0) == 0) {
    refuse("stereo rows", rows, "[2 T, C]");
  }
  return rows.view({2, rows.size(0) / 2, rows.size(1)}).transpose(1, 2).contiguous();
}

}  // namespace h3::vae_audio
