#include "h3/models/vae_video/tiles.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/rsub.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <utility>

#include "h3/common/error.h"

namespace h3::vae_video {

at::Tensor blended_overlap(const at::Tensor& a, const at::Tensor& b, int64_t extent, int64_t dim) {
  extent = std::min({a.size(dim), b.size(dim), extent});
  std::vector<int64_t> shape(static_cast<size_t>(b.dim()), 1);
  shape[static_cast<size_t>(dim < 0 ? dim + b.dim() : dim)] = extent;
  const at::Tensor weight_b = at::arange(extent, b.options()).div_(extent).view(shape);
  const at::Tensor weight_a = at::rsub(weight_b, 1);
  at::Tensor out = a.narrow(dim, a.size(dim) - extent, extent).mul(weight_a);
  return out.add_(b.narrow(dim, 0, extent).mul(weight_b));
}

at::Tensor blend(const at::Tensor& a, const at::Tensor& b, int64_t extent, int64_t dim) {
  const at::Tensor start = blended_overlap(a, b, extent, dim);
  const int64_t rest = b.size(dim) - start.size(dim);
  if (rest == 0) return start;
  return at::cat({start, b.narrow(dim, start.size(dim), rest)}, dim);
}

TileAssembler::TileAssembler(TileGrid grid)
    : grid_(std::move(grid)), above_(static_cast<size_t>(grid_.columns.count())) {}

void TileAssembler::add(const at::Tensor& tile) {
  const TileAxis &rows = grid_.rows, &columns = grid_.columns;
  if (next_ >= grid_.count() || tile.size(-2) != rows.size || tile.size(-1) != columns.size) {
    throw Error(ErrorCode::kInternal, "a tile does not fit its grid");
  }
  const auto i = static_cast<size_t>(next_ / columns.count());
  const auto j = static_cast<size_t>(next_ % columns.count());
  ++next_;
  if (!whole_.defined()) {
    std::vector<int64_t> sizes = tile.sizes().vec();
    sizes[sizes.size() - 2] = rows.length;
    sizes[sizes.size() - 1] = columns.length;
    whole_ = at::empty(sizes, tile.options());
  }
  at::Tensor own = tile;
  if (i > 0) own = blend(above_[j], own, rows.overlaps[i - 1], -2);
  if (j > 0) own = blend(left_, own, columns.overlaps[j - 1], -1);
  // What the next tile blends over is its to write.
  const int64_t height = rows.size - (i + 1 < rows.starts.size() ? rows.overlaps[i] : 0);
  const int64_t width = columns.size - (j + 1 < columns.starts.size() ? columns.overlaps[j] : 0);
  whole_.narrow(-2, rows.starts[i], height)
      .narrow(-1, columns.starts[j], width)
      .copy_(own.narrow(-2, 0, height).narrow(-1, 0, width));
  if (i + 1 < rows.starts.size()) {
    above_[j] = tile;
  } else {
    above_[j].reset();
  }
  left_ = j + 1 < columns.starts.size() ? tile : at::Tensor();
}

at::Tensor TileAssembler::take() {
  if (next_ != grid_.count()) throw Error(ErrorCode::kInternal, "tiles are missing");
  return std::move(whole_);
}

void run_tiles(int64_t count, int64_t batch, parallel::Group* group,
               const std::function<std::vector<at::Tensor>(std::span<const int64_t>)>& forward,
               const std::function<void(const at::Tensor&)>& consume) {
  const int64_t ranks = group ? sharing_ranks(count, group->size()) : 1;
  const std::vector<int64_t> own = owned_tiles(count, group ? group->rank() : 0, ranks);
  const auto own_count = static_cast<int64_t>(own.size());
  at::Tensor mine;  // [most tiles of a rank, tile]
  const int64_t most = (count + ranks - 1) / ranks;
  for (int64_t first = 0; first < own_count; first += batch) {
    std::vector<int64_t> numbers;
    for (int64_t k = 0; k < batch; ++k) {
      numbers.push_back(own[static_cast<size_t>(std::min(first + k, own_count - 1))]);
    }
    std::vector<at::Tensor> results = forward(numbers);
    for (int64_t k = 0; k < batch && first + k < own_count; ++k) {
      const at::Tensor& result = results[static_cast<size_t>(k)];
      if (ranks == 1) {
        if (consume) consume(result);
        continue;
      }
      if (!mine.defined()) {
        std::vector<int64_t> sizes = result.sizes().vec();
        sizes.insert(sizes.begin(), most);
        mine = at::empty(sizes, result.options());
        if (own_count < most) mine.narrow(0, own_count, most - own_count).zero_();
      }
      mine.select(0, first + k).copy_(result);
    }
  }
  if (ranks == 1) return;
  std::vector<int64_t> sizes = mine.sizes().vec();
  sizes.insert(sizes.begin(), ranks);
  const at::Tensor all = at::empty(sizes, mine.options());
  group->all_gather(all.view({-1}), mine.view({-1}));
  mine.reset();
  if (!consume) return;
  for (int64_t tile = 0; tile < count; ++tile) {
    consume(all.select(0, tile % ranks).select(0, tile / ranks));
  }
}

}  // namespace h3::vae_video
