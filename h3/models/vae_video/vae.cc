#include "h3/models/vae_video/vae.h"

#include <ATen/Context.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/tensor.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "h3/common/error.h"
#include "h3/layers/device_memory.h"
#include "h3/models/vae_video/pixels.h"
#include "h3/models/vae_video/tiles.h"

namespace h3::vae_video {
namespace {

// Larger than any picture and a multiple of every ratio.
constexpr TileSettings kWhole{int64_t{1} << 30, 0};

VideoVaeConfig effective(VideoVaeConfig config, const VideoVaeOptions& options) {
  if (!options.encoder_tiling || !config.encoder_tiling) config.encode_tiles = kWhole;
  if (!options.decoder_tiling) config.decode_tiles = kWhole;
  return config;
}

std::string sizes_text(const at::Tensor& t) {
  std::string text;
  for (const int64_t n : t.sizes()) text += (text.empty() ? "" : ", ") + std::to_string(n);
  return "[" + text + "]";
}

[[noreturn]] void refuse(const std::string& text, const std::string& hint = {}) {
  throw Error(ErrorCode::kInvalidArgument, text, hint);
}

at::ScalarType decode_type(const VideoVaeOptions& options, const at::Device& device) {
  const at::ScalarType type =
      options.decode_type.value_or(device.is_cuda() ? at::kHalf : at::kFloat);
  if (type != at::kFloat && type != at::kHalf && type != at::kBFloat16) {
    refuse(std::string("video VAE decode type ") + c10::toString(type) +
           "; f32, f16 and bf16 are accepted");
  }
  if (type != at::kFloat && !device.is_cuda()) {
    throw Error(ErrorCode::kUnsupported,
                std::string("video VAE decode type ") + c10::toString(type) + " on " +
                    device.str() + ": half types need the autocast of a CUDA device",
                "decode in f32 here");
  }
  return type;
}

// TF32 in convolutions is torch's default; conditions are a contract in f32.
class Ieee32Scope {
 public:
  explicit Ieee32Scope(const at::Device& device)
      : changed_(device.is_cuda() && at::globalContext().allowTF32CuDNN()) {
    if (changed_) at::globalContext().setAllowTF32CuDNN(false);
  }
  ~Ieee32Scope() {
    if (changed_) at::globalContext().setAllowTF32CuDNN(true);
  }
  Ieee32Scope(const Ieee32Scope&) = delete;
  Ieee32Scope& operator=(const Ieee32Scope&) = delete;

 private:
  const bool changed_;
};

int64_t free_bytes(const at::Device& device) { return device_memory(device).free; }

// uint8 [.., H, W, 3] without the pixels at right and bottom that fill no latent.
at::Tensor on_latents(const at::Tensor& rgb, int64_t unit) {
  if (rgb.dim() != 4) {
    refuse("pictures are " + sizes_text(rgb) + "; uint8 [T, H, W, 3] is accepted");
  }
  return rgb.narrow(1, 0, rgb.size(1) / unit * unit).narrow(2, 0, rgb.size(2) / unit * unit);
}

// [B, 3, T, H, W] up to `frames` with copies of the last one.
at::Tensor filled(const at::Tensor& x, int64_t frames) {
  const int64_t missing = frames - x.size(2);
  if (missing == 0) return x;
  return at::cat({x, x.narrow(2, x.size(2) - 1, 1).expand({-1, -1, missing, -1, -1})}, 2);
}

}  // namespace

VideoVae::VideoVae(const VideoVaeConfig& config, VideoVaeWeights weights,
                   AttentionRuntime* attention, const VideoVaeOptions& options)
    : config_(effective(config, options)), options_(options), geometry_(config) {
  if (weights.encoder) {
    encoder_ = std::make_unique<Encoder>(config_, std::move(*weights.encoder));
  }
  if (weights.decoder) {
    if (attention == nullptr) {
      throw Error(ErrorCode::kInternal, "the decoder of a video VAE needs its attention layers");
    }
    const DecoderOptions decoder{decode_type(options, weights.decoder->embed.weight.device()),
                                 options.rotary};
    decoder_ = std::make_unique<Decoder>(config_, std::move(*weights.decoder), *attention, context_,
                                         decoder);
  }
  if (!encoder_ && !decoder_) throw Error(ErrorCode::kInternal, "a video VAE without weights");
}

at::Device VideoVae::device() const { return decoder_ ? decoder_->device() : encoder_->device(); }

Decoder& VideoVae::need_decoder() const {
  if (decoder_) return *decoder_;
  throw Error(ErrorCode::kUnsupported, "this video VAE was loaded without its decoder",
              "load both parts");
}

const Encoder& VideoVae::need_encoder() const {
  if (encoder_) return *encoder_;
  throw Error(ErrorCode::kUnsupported, "this video VAE was loaded without its encoder",
              "load both parts");
}

DecodeMemory VideoVae::memory_for(int64_t batch, int64_t height, int64_t width,
                                  int64_t ranks) const {
  return decode_memory(config_, batch, height, width, need_decoder().compute_bytes(), ranks);
}

at::Tensor VideoVae::checked_latents(const at::Tensor& latents) const {
  if (latents.dim() != 5 || latents.size(1) != config_.latent_channels ||
      !latents.is_floating_point() || latents.numel() == 0) {
    refuse(std::string("latents are ") + c10::toString(latents.scalar_type()) + " " +
               sizes_text(latents) + "; floating [B, " + std::to_string(config_.latent_channels) +
               ", T, h, w] is accepted",
           "give the normalised video latents of a denoise run");
  }
  at::Tensor wide = latents.to(device(), at::kFloat);
  if (!at::isfinite(wide).all().item<bool>()) {
    refuse("latents " + sizes_text(latents) + " hold values that are not finite",
           "the run that made them failed; denoise again");
  }
  return wide;
}

int64_t VideoVae::agreed_tile_batch(const at::Tensor& latents, const DecodeOptions& o) const {
  if (o.tile_batch < 0) {
    refuse("a tile batch of " + std::to_string(o.tile_batch) + "; 0 (by free memory) and up");
  }
  const int64_t unit = config_.space_ratio(), h = latents.size(3), w = latents.size(4);
  const int64_t tiles = split_tiles(h * unit, config_.decode_tiles, unit).count() *
                        split_tiles(w * unit, config_.decode_tiles, unit).count();
  const int64_t ranks = o.group ? o.group->size() : 1;
  int64_t batch = std::min(o.tile_batch, tiles);
  if (o.tile_batch == 0) {
    batch =
        choose_tile_batch(tiles, memory_for(latents.size(0), h, w, ranks), free_bytes(device()));
  }
  if (ranks == 1) return batch;
  o.group->require_agreement(parallel::Signature("video VAE decode")
                                 .add("latents", latents.sizes())
                                 .add("frames", o.frames)
                                 .add("tile batch", o.tile_batch));
  if (o.tile_batch > 0) return batch;
  // Forwards of one shape on all ranks: as the one with the least memory.
  const at::Tensor mine = at::tensor({batch}, at::kLong), all = at::empty({ranks}, at::kLong);
  o.group->all_gather(all, mine);
  return all.min().item<int64_t>();
}

at::Tensor VideoVae::decode_clip(const at::Tensor& z, int64_t tile_batch, parallel::Group* group,
                                 bool wanted) {
  Decoder& decoder = need_decoder();
  const c10::InferenceMode inference;
  const VaeContext::Scope scope(context_);
  const int64_t unit = config_.space_ratio();
  const TileGrid grid{split_tiles(z.size(3) * unit, config_.decode_tiles, unit),
                      split_tiles(z.size(4) * unit, config_.decode_tiles, unit)};
  const TileGrid latent = grid.divided(unit);
  const auto tile_of = [&](int64_t number) {
    const auto i = static_cast<size_t>(number / grid.columns.count());
    const auto j = static_cast<size_t>(number % grid.columns.count());
    return z.narrow(3, latent.rows.starts[i], latent.rows.size)
        .narrow(4, latent.columns.starts[j], latent.columns.size);
  };
  TileAssembler assembler(grid);
  std::function<void(const at::Tensor&)> consume;
  if (wanted) consume = [&](const at::Tensor& tile) { assembler.add(tile); };
  run_tiles(
      grid.count(), std::min(tile_batch, grid.count()), group,
      [&](std::span<const int64_t> numbers) {
        std::vector<at::Tensor> tiles;
        for (const int64_t number : numbers) tiles.push_back(tile_of(number));
        const at::Tensor in = tiles.size() == 1 ? tiles[0].contiguous() : at::cat(tiles, 0);
        return decoder.forward(in).chunk(static_cast<int64_t>(numbers.size()), 0);
      },
      consume);
  return wanted ? assembler.take() : at::Tensor();
}

void VideoVae::decode(const at::Tensor& latents, const FrameSink& sink,
                      const DecodeOptions& options) {
  need_decoder();
  const c10::InferenceMode inference;
  const VaeContext::Scope scope(context_);
  at::Tensor z = checked_latents(latents);
  const DecodePlan plan = plan_decode(geometry_, z.size(2));
  if (options.frames < 0 || options.frames > plan.frames) {
    refuse(std::to_string(options.frames) + " frames were asked for; " +
               std::to_string(plan.latents) + " latent frames hold " + std::to_string(plan.frames),
           "ask for 1 to " + std::to_string(plan.frames) + ", or 0 for all");
  }
  const int64_t batch = agreed_tile_batch(z, options);
  z = denormalised_latents(config_, z);
  if (plan.padding > 0) {
    const at::Tensor last = z.narrow(2, z.size(2) - 1, 1);
    z = at::cat({z, last.expand({-1, -1, plan.padding, -1, -1})}, 2);
  }
  const int64_t wanted = options.frames > 0 ? options.frames : plan.frames;
  const int64_t skipped = plan.frames - wanted;
  int64_t done = 0;  // frames of the plan that are final
  const auto emit = [&](const at::Tensor& part) {
    const int64_t count = std::min(part.size(2), plan.frames - done);
    const int64_t first = std::clamp<int64_t>(skipped - done, 0, count);
    if (sink && count > first) {
      const at::Tensor frames = part.narrow(2, first, count - first);
      // A clip's buffer is used again: what is handed out is a copy either way.
      sink({options.raw ? frames.clone() : shown_pixels(frames), done + first - skipped, wanted});
    }
    done += count;
  };
  const TemporalGeometry& g = geometry_;
  at::Tensor overlap;  // of the clip before with this one
  for (int64_t clip = 0; clip < plan.clips; ++clip) {
    const at::Tensor decoded = decode_clip(z.narrow(2, clip * g.clip_latents, g.decode_latents()),
                                           batch, options.group, static_cast<bool>(sink));
    if (!sink) {
      done += clip + 1 < plan.clips ? g.clip_frames : plan.frames - done;
      continue;
    }
    const at::Tensor part = decoded.narrow(2, g.pre_padding, g.clip_frames);
    if (overlap.defined()) {
      const at::Tensor blended = blended_overlap(overlap, part, g.frame_overlap, 2);
      part.narrow(2, 0, blended.size(2)).copy_(blended);
    }
    emit(part);
    overlap = decoded.narrow(2, g.clip_latents * g.ratio + g.pre_padding, g.frame_overlap).clone();
  }
  if (sink) emit(overlap);
  if (done != plan.frames) {
    throw Error(ErrorCode::kInternal, "decoded " + std::to_string(done) + " frames of " +
                                          std::to_string(plan.frames) + " planned");
  }
}

at::Tensor VideoVae::decode_image(const at::Tensor& latent, const DecodeOptions& options) {
  need_decoder();
  const c10::InferenceMode inference;
  const at::Tensor wide = checked_latents(latent);
  if (wide.size(2) != 1 || options.frames > 1) {
    refuse("an image is one latent frame and one frame; latents are " + sizes_text(latent) +
               ", frames asked for " + std::to_string(options.frames),
           "decode videos with decode");
  }
  const int64_t batch = agreed_tile_batch(wide, options);
  const at::Tensor frames = decode_clip(denormalised_latents(config_, wide), batch, options.group);
  return shown_pixels(frames.narrow(2, frames.size(2) - 1, 1));
}

at::Tensor VideoVae::clip_moments(const at::Tensor& x, parallel::Group* group) {
  const Encoder& encoder = need_encoder();
  const int64_t unit = config_.space_ratio();
  const TileGrid grid{split_tiles(x.size(3), config_.encode_tiles, unit),
                      split_tiles(x.size(4), config_.encode_tiles, unit)};
  if (group != nullptr && group->size() > 1) {
    group->require_agreement(parallel::Signature("video VAE encode").add("frames", x.sizes()));
  }
  TileAssembler assembler(grid.divided(unit));
  run_tiles(
      grid.count(), 1, group,
      [&](std::span<const int64_t> numbers) {
        const auto i = static_cast<size_t>(numbers[0] / grid.columns.count());
        const auto j = static_cast<size_t>(numbers[0] % grid.columns.count());
        return std::vector<at::Tensor>{
            encoder.forward(x.narrow(3, grid.rows.starts[i], grid.rows.size)
                                .narrow(4, grid.columns.starts[j], grid.columns.size))};
      },
      [&](const at::Tensor& tile) { assembler.add(tile); });
  return assembler.take();
}

at::Tensor VideoVae::moments(const at::Tensor& x, parallel::Group* group) {
  need_encoder();
  const c10::InferenceMode inference;
  const Ieee32Scope ieee(device());
  if (x.dim() != 5 || x.scalar_type() != at::kFloat || x.numel() == 0) {
    refuse("frames to encode are " + sizes_text(x) + "; f32 [B, 3, T, H, W] is accepted");
  }
  const int64_t frames = x.size(2), clip = geometry_.clip_frames;
  if (frames == 1) return clip_moments(x, group);
  const EncodePlan plan = plan_encode(geometry_, frames);
  std::vector<at::Tensor> parts;
  for (int64_t first = 0; first < frames; first += clip) {
    const at::Tensor part = filled(x.narrow(2, first, std::min(clip, frames - first)), clip);
    parts.push_back(clip_moments(part, group));
  }
  return at::cat(parts, 2).narrow(2, 0, plan.latents);
}

at::Tensor VideoVae::finished(const at::Tensor& moments, const EncodeOptions& options) const {
  const Posterior posterior = posterior_of(moments);
  at::Tensor z =
      options.seed ? posterior.sample(make_cpu_generator(*options.seed)) : posterior.mode();
  if (options.round_to_half) z = z.to(at::kHalf);
  return normalised_latents(config_, z.to(at::kCPU, at::kFloat));
}

at::Tensor VideoVae::encode_images(const at::Tensor& rgb, const EncodeOptions& options) {
  need_encoder();
  const c10::InferenceMode inference;
  const at::Tensor cut = on_latents(rgb, config_.space_ratio());
  std::vector<at::Tensor> latents;
  for (int64_t image = 0; image < cut.size(0); ++image) {  // each with noise from the seed
    const at::Tensor x = normalised_pixels(cut.narrow(0, image, 1).to(device()));
    latents.push_back(finished(moments(x, options.group), options));
  }
  if (latents.empty()) refuse("no pictures to encode");
  return at::cat(latents, 0);
}

at::Tensor VideoVae::encode_video(const at::Tensor& rgb, const EncodeOptions& options) {
  need_encoder();
  const c10::InferenceMode inference;
  const at::Tensor cut = on_latents(rgb, config_.space_ratio());
  const int64_t frames = trimmed_frames(geometry_, cut.size(0));
  const int64_t clip = geometry_.clip_frames;
  const Ieee32Scope ieee(device());
  std::vector<at::Tensor> parts;
  for (int64_t first = 0; first < frames; first += clip) {
    const int64_t count = std::min(clip, frames - first);
    const at::Tensor x = normalised_pixels(cut.narrow(0, first, count).to(device()));
    parts.push_back(clip_moments(filled(x, clip), options.group));
  }
  const at::Tensor moments = at::cat(parts, 2).narrow(2, 0, plan_encode(geometry_, frames).latents);
  return finished(moments, options);
}

}  // namespace h3::vae_video
