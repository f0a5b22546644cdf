#include "h3/models/vae_video/tiling.h"

#include <algorithm>
#include <string>

#include "h3/common/error.h"

namespace h3::vae_video {
namespace {

constexpr int64_t kFloat = 4;

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// a % b, never negative.
int64_t modulus(int64_t a, int64_t b) { return ((a % b) + b) % b; }

}  // namespace

TileAxis TileAxis::divided(int64_t unit) const {
  TileAxis axis = *this;
  axis.length /= unit;
  axis.size /= unit;
  for (int64_t& start : axis.starts) start /= unit;
  for (int64_t& overlap : axis.overlaps) overlap /= unit;
  return axis;
}

TileAxis split_tiles(int64_t length, const TileSettings& settings, int64_t unit) {
  if (length < 1 || length % unit != 0) {
    throw Error(ErrorCode::kInvalidArgument,
                "a side of " + std::to_string(length) + " pixels; positive multiples of " +
                    std::to_string(unit) + " are accepted",
                "crop or pad the frames");
  }
  const int64_t size = settings.size, least = settings.min_overlap;
  if (size < 1 || least < 0 || least >= size || size % unit != 0 || least % unit != 0) {
    throw Error(ErrorCode::kInvalidArgument,
                "tiles of " + std::to_string(size) + " pixels with an overlap of at least " +
                    std::to_string(least) + "; multiples of " + std::to_string(unit) +
                    " with the overlap below the size are accepted",
                "256 and 64 are the published sizes");
  }
  if (size >= length) return {length, length, {0}, {}};
  // size n - least (n - 1) >= length
  const int64_t tiles = std::max(ceil_div(length, size), ceil_div(length - least, size - least));
  TileAxis axis{length, size, {0}, std::vector<int64_t>(static_cast<size_t>(tiles - 1), least)};
  const int64_t slack = size * tiles - least * (tiles - 1) - length;
  for (int64_t i = 0; i < slack / unit; ++i) {
    axis.overlaps[static_cast<size_t>(i % (tiles - 1))] += unit;
  }
  for (const int64_t overlap : axis.overlaps) {
    axis.starts.push_back(axis.starts.back() + size - overlap);
  }
  return axis;
}

TileGrid whole_grid(int64_t height, int64_t width) {
  return {{height, height, {0}, {}}, {width, width, {0}, {}}};
}

TemporalGeometry::TemporalGeometry(const VideoVaeConfig& config)
    : ratio(config.time_ratio()),
      clip_frames(config.clip_length),
      token_drop(config.token_drop),
      pre_padding(modulus(-clip_frames, ratio)),
      clip_latents(ceil_div(clip_frames, ratio)),
      latent_overlap(modulus(-token_drop, clip_latents)),
      frame_overlap(std::max<int64_t>(latent_overlap * ratio - pre_padding, 0)) {}

DecodePlan plan_decode(const TemporalGeometry& g, int64_t latents) {
  DecodePlan plan;
  plan.latents = latents;
  const int64_t tokens = latents + g.token_drop;
  plan.padding = modulus(-tokens, g.clip_latents);
  plan.clips = (tokens + plan.padding) / g.clip_latents - 1;
  const int64_t tail = g.clip_frames % g.ratio;  // frames of a clip's first latent
  for (int64_t k = 0; k < plan.padding; ++k) {
    plan.dropped += tail != 0 && (latents + k) % g.clip_latents == 0 ? tail : g.ratio;
  }
  plan.frames = plan.clips * g.clip_frames + g.frame_overlap - plan.dropped;
  if (latents < 1 || plan.clips < 1 || plan.frames < 1) {
    throw Error(ErrorCode::kInvalidArgument,
                std::to_string(latents) + " latent frames: planned non-positive output frames",
                "at least " + std::to_string(g.latent_overlap + 1) + " latent frames are needed");
  }
  return plan;
}

EncodePlan plan_encode(const TemporalGeometry& g, int64_t frames) {
  EncodePlan plan;
  plan.frames = frames;
  plan.clips = ceil_div(frames, g.clip_frames);
  plan.latents = plan.clips * g.clip_latents - g.token_drop;
  return plan;
}

int64_t trimmed_frames(const TemporalGeometry& g, int64_t frames) {
  const int64_t clips = std::max<int64_t>((frames - g.frame_overlap) / g.clip_frames, 1);
  const int64_t target = clips * g.clip_frames + g.frame_overlap;
  if (target > frames) {
    throw Error(ErrorCode::kInvalidArgument,
                "Cannot trim a video of " + std::to_string(frames) + " frames: not enough frames",
                "videos of at least " + std::to_string(target) + " frames are accepted");
  }
  return target;
}

int64_t sharing_ranks(int64_t tiles, int64_t ranks) { return ranks > tiles ? 1 : ranks; }

std::vector<int64_t> owned_tiles(int64_t tiles, int64_t rank, int64_t ranks) {
  std::vector<int64_t> own;
  const int64_t step = sharing_ranks(tiles, ranks);
  for (int64_t tile = step == 1 ? 0 : rank; tile < tiles; tile += step) own.push_back(tile);
  return own;
}

DecodeRecipe decode_recipe(std::string_view mode) {
  if (mode.empty() || mode == "none" || mode == "auto" || mode == "tiled") return {};
  const bool known = mode == "spatial" || mode == "spatial_shard" || mode == "patch";
  throw Error(ErrorCode::kInvalidArgument,
              "video VAE decode mode '" + std::string(mode) + "' is " +
                  (known ? "not validated: a tile is never split among ranks" : "unknown"),
              "use tiled (or auto)");
}

int64_t DecodeMemory::total(int64_t tile_batch) const {
  return clip + std::max(waiting + tile_batch * per_tile, handout);
}

DecodeMemory decode_memory(const VideoVaeConfig& config, int64_t batch, int64_t height,
                           int64_t width, int64_t compute_bytes, int64_t ranks) {
  const TemporalGeometry g(config);
  const int64_t unit = config.space_ratio(), h = height * unit, w = width * unit;
  const TileAxis rows = split_tiles(h, config.decode_tiles, unit);
  const TileAxis columns = split_tiles(w, config.decode_tiles, unit);
  const int64_t tiles = rows.count() * columns.count();
  const auto pixels = [&](int64_t frames, int64_t height_px, int64_t width_px) {
    return batch * VideoVaeConfig::kPixelChannels * frames * height_px * width_px * kFloat;
  };
  const int64_t tile = pixels(g.decode_frames(), rows.size, columns.size);
  const int64_t sharing = sharing_ranks(tiles, ranks);

  DecodeMemory memory;
  // A row of tiles waits for the one below; ranks exchange all tiles of a clip at once.
  const int64_t share = ceil_div(tiles, sharing);
  const int64_t waiting = sharing == 1 ? columns.count() + 1 : share * (sharing + 1);
  memory.waiting = (tiles == 1 ? 1 : waiting + 3) * tile;  // and those of a blend
  memory.clip = pixels(g.decode_frames() + g.frame_overlap, h, w);
  memory.handout = pixels(g.clip_frames + 2 * g.frame_overlap, h, w);

  const int64_t tokens = batch * (g.decode_latents() * (rows.size / unit) * (columns.size / unit) +
                                  config.registers + 1);
  const int64_t row = tokens * config.dim(), c = compute_bytes;
  const int64_t norm = row * (kFloat + (c == kFloat ? 0 : c));
  // q, k, v; q and k with norm; the rotation's two products; output twice; scaled branch.
  const int64_t rope = 2 * row * config.rope_dim() / config.head_dim;
  const int64_t attention = norm + c * (3 * row + 4 * row + 3 * rope + 3 * row) + row * kFloat;
  const int64_t mlp = norm + c * (3 * tokens * config.ffn() + row) + row * kFloat;
  const int64_t output = row * kFloat + 2 * tile + tokens * config.patch_channels() * kFloat;
  // Tiles that wait are views of the batch they came from: they keep their neighbours as well.
  memory.per_tile = 2 * row * kFloat + std::max({attention, mlp, output}) + 3 * tile;
  return memory;
}

int64_t choose_tile_batch(int64_t tiles, const DecodeMemory& memory, int64_t free_bytes) {
  if (free_bytes <= 0) return 1;
  const int64_t room = free_bytes / 10 * 9 - memory.clip - memory.waiting;
  const int64_t most = std::clamp<int64_t>(room / std::max<int64_t>(memory.per_tile, 1), 1,
                                           std::min(kMaxTileBatch, tiles));
  return ceil_div(tiles, ceil_div(tiles, most));
}

}  // namespace h3::vae_video
