// Putting tiles together: the blend of two neighbours, the assembly of a grid, and the exchange of
// tiles among ranks.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "h3/models/vae_video/tiling.h"
#include "h3/parallel/group.h"

namespace h3::vae_video {

/// Of `extent` (at most both sizes) entries along `dim`, number k is the matching entry of a's end
/// times (1 - k / extent) plus b's times k / extent; weights and products in b's type. Only those
/// entries are returned.
at::Tensor blended_overlap(const at::Tensor& a, const at::Tensor& b, int64_t extent, int64_t dim);

/// b with its first `extent` entries along `dim` blended with a's last; a and b stay.
at::Tensor blend(const at::Tensor& a, const at::Tensor& b, int64_t extent, int64_t dim);

/// Takes the tiles [..., tile height, tile width] of a grid in row-major order, blended with the
/// raw tile above first and then with the raw tile to the left. Keeps one row of tiles and one
/// more.
class TileAssembler {
 public:
  explicit TileAssembler(TileGrid grid);
  /// Throws kInternal for a tile of another size or one too many.
  void add(const at::Tensor& tile);
  /// The whole [..., H, W], after the last tile.
  at::Tensor take();

 private:
  const TileGrid grid_;
  int64_t next_ = 0;
  at::Tensor whole_, left_;
  std::vector<at::Tensor> above_;  // by column
};

/// Forwards `count` tiles in batches and hands every one to `consume` in order. `forward` gets tile
/// numbers, always `batch` of them (the last tile again to fill a short batch, so that every call
/// has one shape), and returns their results in that order. With a group of several ranks each
/// forwards its own tiles (owned_tiles), and one all-gather of equal pieces brings all tiles to all
/// ranks, bit for bit. Without `consume` the results are only exchanged.
void run_tiles(int64_t count, int64_t batch, parallel::Group* group,
               const std::function<std::vector<at::Tensor>(std::span<const int64_t>)>& forward,
               const std::function<void(const at::Tensor&)>& consume);

}  // namespace h3::vae_video
