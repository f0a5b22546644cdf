// Shapes: published checkpoint configuration (DiT 56 heads x 128, refiner 2 blocks; Qwen3-VL-32B
// text layers 0..49; ViT3D decoder 36 blocks of 32 x 64; audio projection block 8 x 256).
#include "h3/attention/h3_layers.h"

#include <fmt/format.h>

namespace h3 {
namespace {

constexpr int kTextLayers = 50;  // hidden state 50: later layers are not run

void add_stack(const LayerDescriptor& pattern, int count, fmt::string_view name,
               ModelLayers* model) {
  for (int i = 0; i < count; ++i) {
    LayerDescriptor layer = pattern;
    layer.index = i;
    layer.name = fmt::format(fmt::runtime(name), i);
    model->layers.push_back(std::move(layer));
  }
}

void require_sdpa_outside_cuda(const Platform& platform, LayerDescriptor* layer) {
  if (platform.cuda) return;
  layer->required = BackendId::kTorchSdpa;
  layer->required_why = "outside CUDA the VAE runs torch_sdpa directly";
}

}  // namespace

ModelLayers minimax_h3_layers(const Platform& platform, const H3LayerOptions& options) {
  ModelLayers model;
  model.components = {
      {"transformer", false}, {"text_encoder", true}, {"video_vae", true}, {"audio_vae", true}};

  LayerDescriptor dit;
  dit.component = "transformer";
  dit.stack = LayerStack::kDenoise;
  dit.heads = dit.kv_heads = options.dit.heads;
  dit.dtype = options.dit.dtype;
  dit.head_dim = 128;
  dit.needs_packed = true;
  dit.sequence_parallel = true;
  dit.needs_query_block_mask = true;
  add_stack(dit, options.dit.blocks, "blocks.{}.attn", &model);
  dit.stack = LayerStack::kRefiner;
  dit.needs_query_block_mask = false;  // text only, never sparse
  dit.sequence_parallel = false;       // so few rows that every rank refines all of them
  add_stack(dit, options.dit.refiner_blocks, "token_refiner.blocks.{}.attn", &model);

  LayerDescriptor text;
  text.component = "text_encoder";
  text.heads = 64;
  text.kv_heads = 8;
  text.head_dim = 128;
  text.causal = true;
  text.supported = {BackendId::kFa, BackendId::kTorchSdpa};
  add_stack(text, kTextLayers, "model.language_model.layers.{}.self_attn", &model);

  LayerDescriptor video;
  video.component = "video_vae";
  video.heads = video.kv_heads = options.video_vae.heads;
  video.head_dim = options.video_vae.head_dim;
  video.dtype = tessera::Dtype::kF16;
  video.supported = {BackendId::kFa, BackendId::kTorchSdpa};
  video.default_backend = options.video_vae_default;
  require_sdpa_outside_cuda(platform, &video);
  add_stack(video, options.video_vae.blocks, "decoder.transformer_blocks.{}.attn", &model);

  LayerDescriptor audio;
  audio.component = "audio_vae";
  audio.heads = audio.kv_heads = 8;
  audio.head_dim = 256;
  audio.causal = true;
  audio.supported = {BackendId::kFa, BackendId::kTorchSdpa};
  audio.default_backend = BackendId::kTorchSdpa;
  require_sdpa_outside_cuda(platform, &audio);
  add_stack(audio, 1, "pre_block.attn", &model);
  return model;
}

}  // namespace h3
