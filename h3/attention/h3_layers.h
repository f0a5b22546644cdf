// The attention layers of MiniMax-H3, known before any weight is read.
#pragma once

#include <optional>

#include "h3/attention/devices.h"
#include "h3/attention/layers.h"

namespace h3 {

/// The transformer's attention; the defaults are the published model's.
struct DitAttention {
  int blocks = 50, refiner_blocks = 2, heads = 56;
  tessera::Dtype dtype = tessera::Dtype::kBf16;  // of q, k and v
};

/// The video VAE decoder's attention; the defaults are the published model's.
struct VideoVaeBlocks {
  int blocks = 36, heads = 32, head_dim = 64;
};

struct H3LayerOptions {
  DitAttention dit;
  VideoVaeBlocks video_vae;
  // The dense set {fa, torch_sdpa} of the video VAE binds automatic and global choices either way;
  // SGLang 0.5.23 also defaults to torch_sdpa.
  std::optional<BackendId> video_vae_default;
};

/// The transformer's denoise and refiner blocks (head width 128, packed), 50 text encoder layers
/// that the conditioning needs (64 query and 8 key heads x 128, causal), 36 video VAE decoder
/// blocks (32 x 64, f16) and 1 audio VAE encoder block (8 x 256, causal). The text encoder and the
/// VAEs are auxiliary and take no part in sequence parallelism. Outside CUDA the VAEs call
/// torch_sdpa directly (their precision contract), which no request changes.
ModelLayers minimax_h3_layers(const Platform& platform, const H3LayerOptions& options = {});

}  // namespace h3
