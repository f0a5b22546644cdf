// How a video is cut for the VAE: spatial tiles, temporal clips, who decodes which tile, and what
// that needs in memory. Integers only, no torch. Formulas: MiniMax-H3 video VAE as published.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "h3/models/vae_video/config.h"

namespace h3::vae_video {

/// Tiles along one side, all of one size. Tile i covers [starts[i], starts[i] + size) and shares
/// overlaps[i] with the next.
struct TileAxis {
  int64_t length = 0, size = 0;
  std::vector<int64_t> starts, overlaps;
  int64_t count() const { return static_cast<int64_t>(starts.size()); }
  /// The same in units of `unit`, of which everything is a multiple.
  TileAxis divided(int64_t unit) const;
};

/// The fewest tiles of `settings` that cover `length` with at least the least overlap; what is too
/// much goes to the overlaps in steps of `unit`, from the first one round and round. A side no
/// longer than a tile is one tile. Throws kInvalidArgument for a length that is no positive
/// multiple of `unit`.
TileAxis split_tiles(int64_t length, const TileSettings& settings, int64_t unit);

/// Row-major.
struct TileGrid {
  TileAxis rows, columns;
  int64_t count() const { return rows.count() * columns.count(); }
  TileGrid divided(int64_t unit) const { return {rows.divided(unit), columns.divided(unit)}; }
};

/// One tile that is the whole.
TileGrid whole_grid(int64_t height, int64_t width);

/// What follows from clip_length, token_drop and the temporal ratio: 17, 3 and 4 give 3, 5, 2, 5.
struct TemporalGeometry {
  explicit TemporalGeometry(const VideoVaeConfig& config);
  int64_t ratio, clip_frames, token_drop;
  int64_t pre_padding;     // frames before a clip's first that its latents stand for
  int64_t clip_latents;    // of a clip
  int64_t latent_overlap;  // latents of the next clip that are decoded with a clip
  int64_t frame_overlap;   // frames that two clips share
  int64_t decode_latents() const { return clip_latents + latent_overlap; }
  int64_t decode_frames() const { return decode_latents() * ratio; }
};

/// How `latents` latent frames become frames.
struct DecodePlan {
  int64_t latents = 0;
  int64_t padding = 0;  // copies of the last latent
  int64_t clips = 0;
  int64_t dropped = 0;  // frames of the padding, cut off at the end
  int64_t frames = 0;   // that come out
};

/// Throws kInvalidArgument for latents too few to give a frame (1 and 2 of the published model).
DecodePlan plan_decode(const TemporalGeometry& geometry, int64_t latents);

/// How `frames` frames become latents: the last clip is filled with copies of the last frame, and
/// the last token_drop latents are dropped.
struct EncodePlan {
  int64_t frames = 0, clips = 0, latents = 0;
};
EncodePlan plan_encode(const TemporalGeometry& geometry, int64_t frames);

/// The longest legal video (17 n + 5 frames) in `frames`. Throws kInvalidArgument for fewer than
/// the shortest (22).
int64_t trimmed_frames(const TemporalGeometry& geometry, int64_t frames);

/// Tiles of a rank: rank, rank + ranks, rank + 2 ranks, ... With more ranks than tiles every rank
/// has all of them, because a rank without one could take no part in the exchange.
std::vector<int64_t> owned_tiles(int64_t tiles, int64_t rank, int64_t ranks);
/// Ranks that really share the tiles: `ranks`, or 1.
int64_t sharing_ranks(int64_t tiles, int64_t ranks);

/// The recipe of the release. Throws kInvalidArgument for modes that nobody has validated
/// ("spatial", "spatial_shard", "patch") and for unknown ones.
struct DecodeRecipe {
  bool decoder_tiling = true, parallel_tiling = true, decoder_parallel = false;
};
DecodeRecipe decode_recipe(std::string_view mode);  // "", "none", "auto", "tiled"

/// Upper bound in bytes of what decoding needs beside the weights, whatever the video's length.
struct DecodeMemory {
  int64_t per_tile = 0;  // one tile's way through the decoder
  int64_t waiting = 0;   // tiles that wait for their neighbours
  int64_t clip = 0;      // the clip that they become, and what it shares with the one before
  int64_t handout = 0;   // frames that are handed out, when no tile is there any more
  int64_t total(int64_t tile_batch) const;
};

/// `height`, `width` in latents; `compute_bytes` of an element inside the blocks (2 or 4).
DecodeMemory decode_memory(const VideoVaeConfig& config, int64_t batch, int64_t height,
                           int64_t width, int64_t compute_bytes, int64_t ranks = 1);

/// Larger batches gain nothing: one tile of the published model already fills a GPU.
inline constexpr int64_t kMaxTileBatch = 4;

/// Tiles that go through the decoder together: as many as `free_bytes` allows (nine tenths of it),
/// at most kMaxTileBatch, evened out over `tiles` so that few forwards are filled up. 1 if the
/// memory is unknown (0). Does not depend on the number of ranks, so that their forwards have the
/// shapes of a single rank's.
int64_t choose_tile_batch(int64_t tiles, const DecodeMemory& memory, int64_t free_bytes);

}  // namespace h3::vae_video
