// Plans made without a router, and figures about plans.
#include <algorithm>
#include <limits>
#include <numeric>

#include "tessera/plan.h"
#include "tessera/src/common/cat.h"
#include "tessera/src/common/parallel.h"
#include "tessera/src/plan/plan_rows.h"

namespace tessera {

using internal::RowId;

namespace {

PlanShape shape_of(const BlockLayout& layout, int64_t batch, int64_t heads, int32_t width) {
  return {static_cast<int32_t>(batch), static_cast<int32_t>(heads), layout.query_blocks,
          layout.max_key_blocks, width};
}

/// Calls body(document, rows) for every run of query blocks of one head and document.
template <class Body>
void for_each_document(const PlanView& plan, const BlockLayout& layout, Body body) {
  for (int64_t b = 0; b < internal::plan_batch(plan); ++b) {
    for (int64_t h = 0; h < internal::plan_heads(plan); ++h) {
      for (const Document& d : layout.documents) body(b, h, d);
    }
  }
}

uint64_t next_random(uint64_t& state) {  // splitmix64: the same on every machine
  uint64_t z = state += 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

}  // namespace

Status full_plan(const BlockLayout& layout, int64_t batch, int64_t heads, Plan* out) {
  return random_plan(layout, batch, heads, layout.max_key_blocks, 0, out);
}

Status random_plan(const BlockLayout& layout, int64_t batch, int64_t heads, int32_t count,
                   uint64_t seed, Plan* out) {
  if (count < 0) {
    return invalid_argument(internal::cat("count is ", count, "; it must not be negative"));
  }
  const int32_t width = std::min(count, layout.max_key_blocks);
  TESSERA_RETURN_IF_ERROR(allocate_plan(shape_of(layout, batch, heads, width), out));
  return internal::guarded([&]() -> Status {
    std::vector<int32_t> ids;
    uint64_t state = seed;
    for (int64_t row = 0; row < out->shape.rows(); ++row) {
      const int32_t block = static_cast<int32_t>(row % layout.query_blocks);
      const int32_t key_blocks = layout.owner(block).key_blocks;
      const int32_t kept = std::min(width, key_blocks);
      ids.resize(key_blocks);
      std::iota(ids.begin(), ids.end(), 0);
      for (int32_t n = 0; n < kept && kept < key_blocks; ++n) {
        std::swap(ids[n], ids[n + next_random(state) % static_cast<uint64_t>(key_blocks - n)]);
      }
      std::sort(ids.begin(), ids.begin() + kept);
      std::copy(ids.begin(), ids.begin() + kept, out->index.begin() + row * width);
      out->count[row] = kept;
    }
    return {};
  });
}

PlanStats plan_stats(const PlanView& plan, const BlockLayout& layout) {
  PlanStats stats;
  stats.min_kept = std::numeric_limits<int32_t>::max();
  int64_t sparse_kept = 0;
  for_each_document(plan, layout, [&](int64_t b, int64_t h, const Document& d) {
    for (int32_t i = 0; i < d.query_blocks; ++i) {
      const RowId row{b, h, d.first_query_block + i};
      const int32_t kept = internal::row_size(plan, layout, row);
      ++stats.rows;
      stats.kept_pairs += kept;
      stats.total_pairs += d.key_blocks;
      if (internal::is_dense_row(plan, row)) {
        ++stats.dense_rows;
        continue;
      }
      sparse_kept += kept;
      stats.min_kept = std::min(stats.min_kept, kept);
      stats.max_kept = std::max(stats.max_kept, kept);
    }
  });
  const int64_t sparse_rows = stats.rows - stats.dense_rows;
  if (sparse_rows == 0) stats.min_kept = 0;
  stats.mean_kept = sparse_rows ? double(sparse_kept) / double(sparse_rows) : 0.0;
  return stats;
}

double sharing_factor(const PlanView& plan, const BlockLayout& layout, int group) {
  if (group < 1) return 0.0;
  int64_t listed = 0, loaded = 0;
  std::vector<int32_t> ids;
  std::vector<uint8_t> used;
  for_each_document(plan, layout, [&](int64_t b, int64_t h, const Document& d) {
    for (int32_t first = 0; first < d.query_blocks; first += group) {
      used.assign(d.key_blocks, 0);
      for (int32_t i = first; i < std::min(first + group, d.query_blocks); ++i) {
        const RowId row{b, h, d.first_query_block + i};
        if (internal::is_dense_row(plan, row)) continue;
        internal::read_row(plan, layout, row, &ids);
        listed += static_cast<int64_t>(ids.size());
        for (int32_t j : ids) used[j] = 1;
      }
      loaded += std::accumulate(used.begin(), used.end(), int64_t{0});
    }
  });
  return loaded ? double(listed) / double(loaded) : 0.0;
}

double neighbour_overlap(const PlanView& plan, const BlockLayout& layout) {
  double sum = 0;
  int64_t pairs = 0;
  std::vector<int32_t> before, here, both;
  for_each_document(plan, layout, [&](int64_t b, int64_t h, const Document& d) {
    for (int32_t i = 0; i + 1 < d.query_blocks; ++i) {
      const RowId first{b, h, d.first_query_block + i}, second{b, h, d.first_query_block + i + 1};
      if (internal::is_dense_row(plan, first) || internal::is_dense_row(plan, second)) continue;
      internal::read_row(plan, layout, first, &before);
      internal::read_row(plan, layout, second, &here);
      both.clear();
      std::set_intersection(before.begin(), before.end(), here.begin(), here.end(),
                            std::back_inserter(both));
      const size_t either = before.size() + here.size() - both.size();
      if (either == 0) continue;
      sum += double(both.size()) / double(either);
      ++pairs;
    }
  });
  return pairs ? sum / double(pairs) : 0.0;
}

}  // namespace tessera
