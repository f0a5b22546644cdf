// The order of pooled cells against the registers of the score kernel, for every pair of cell
// counts. The headers under test are the kernels' own, compiled for the host; how wgmma lays out
// its accumulator is written down here a second time, from the PTX manual (wgmma D fragment,
// m64nNk16).
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "tessera/tests/support/host_warp.h"
// After the words they are written with.
#include "tessera/src/sm90/router/score_layout.h"

namespace tessera::sm90 {
namespace {

constexpr int kCells[] = {1, 2, 4, 8};

/// Row and column, inside a warpgroup's 64 x 128 product, of accumulator register `i`.
std::pair<int, int> accumulator_place(int warp, int lane, int i) {
  return {warp * 16 + i / 2 % 2 * 8 + lane / 4, i / 4 * 8 + lane % 4 * 2 + i % 2};
}

/// (block, cell) of every row of a tile.
template <class Permutation>
std::map<int, std::pair<int, int>> owners(Permutation permuted, int n) {
  std::map<int, std::pair<int, int>> found;
  for (int block = 0; block < kRouterTile / n; ++block) {
    for (int cell = 0; cell < n; ++cell) found[permuted(block, cell, n)] = {block, cell};
  }
  return found;
}

/// Calls body<n_q, n_k>() for all sixteen pairs.
template <class Body>
void for_each_pair(Body body) {
  const auto with_query = [&]<int kNq>() {
    body.template operator()<kNq, 1>();
    body.template operator()<kNq, 2>();
    body.template operator()<kNq, 4>();
    body.template operator()<kNq, 8>();
  };
  with_query.template operator()<1>();
  with_query.template operator()<2>();
  with_query.template operator()<4>();
  with_query.template operator()<8>();
}

TEST(Sm90Layout, PermutedRows_FillEveryTileOnce) {
  for (int n : kCells) {
    for (auto permuted : {permuted_query_row, permuted_key_row}) {
      for (int tile : {0, 1, 31}) {
        std::set<int> rows;
        for (int block = 0; block < kRouterTile / n; ++block) {
          for (int cell = 0; cell < n; ++cell) {
            rows.insert(permuted(tile * (kRouterTile / n) + block, cell, n) - tile * kRouterTile);
          }
        }
        EXPECT_EQ(rows.size(), size_t{kRouterTile}) << n << " cells, tile " << tile;
        EXPECT_EQ(*rows.begin(), 0) << n << " cells, tile " << tile;
        EXPECT_EQ(*rows.rbegin(), kRouterTile - 1) << n << " cells, tile " << tile;
      }
    }
  }
}

TEST(Sm90Layout, Accumulator_HoldsThePairsThatScoreLayoutNames) {
  for_each_pair([]<int kNq, int kNk>() {
    using Layout = ScoreLayout<kNq, kNk>;
    const auto queries = owners(permuted_query_row, kNq), keys = owners(permuted_key_row, kNk);
    for (int group = 0; group < 2; ++group) {
      for (int warp = 0; warp < 4; ++warp) {
        for (int lane = 0; lane < 32; ++lane) {
          for (int i = 0; i < 64; ++i) {
            const auto [row, column] = accumulator_place(warp, lane, i);
            const int eight = i / 2 % 2, own = i / 4 * 2 + i % 2;  // of the thread's 32 columns
            const auto [query, query_cell] = queries.at(group * 64 + row);
            const auto [key, key_cell] = keys.at(column);
            ASSERT_EQ(Layout::query(group, warp, eight, lane), query)
                << "n_q " << kNq << " row " << row;
            ASSERT_EQ(kNq == 1 ? 0 : lane / 4 % Layout::kLanes * 2 + eight, query_cell);
            ASSERT_EQ(Layout::key(own / kNk, lane), key) << "n_k " << kNk << " column " << column;
            ASSERT_EQ(own % kNk, key_cell);
          }
        }
      }
    }
  });
}

TEST(Sm90Layout, Stores_WriteEveryBlockPairOfATileOnce) {
  for_each_pair([]<int kNq, int kNk>() {
    using Layout = ScoreLayout<kNq, kNk>;
    constexpr int kQueries = kRouterTile / kNq, kKeys = kRouterTile / kNk;
    std::vector<int> written(kQueries * kKeys);
    for (int thread = 0; thread < 256; ++thread) {
      const int group = thread / 128, warp = thread / 32 % 4, lane = thread % 32;
      const int part = lane / 4 % Layout::kLanes;
      for (int b = 0; b < Layout::kBlocks; ++b) {
        for (int i = 0; i < Layout::kKeys / Layout::kLanes; ++i) {
          // As PairSums::store walks: the thread's first key, then fixed distances.
          const int key = Layout::key(part, lane) + Layout::key_offset(i * Layout::kLanes);
          ASSERT_EQ(key, Layout::key(i * Layout::kLanes + part, lane));
          ++written.at(Layout::query(group, warp, b, lane) * kKeys + key);
        }
      }
    }
    EXPECT_EQ(written, std::vector<int>(kQueries * kKeys, 1)) << kNq << " x " << kNk;
  });
}

TEST(Sm90Layout, EdgeTiles_ExcludeExactlyTheCellsWithoutATokenAndWeighTheLast) {
  for_each_pair([]<int kNq, int kNk>() {
    using Layout = ScoreLayout<kNq, kNk>;
    for (int valid : {1, 7, 64, 127, 128}) {  // of the second tile
      ScoreParams p;
      p.q_tiles = p.k_tiles = 2;
      p.q_valid = p.k_valid = kRouterTile + valid;
      p.q_tail_log2 = -0.5f;
      p.k_tail_log2 = -0.25f;
      const ScoreTile at{0, 1, 1};
      std::set<int> excluded_rows, excluded_columns, tail_rows, tail_columns;
      for (int thread = 0; thread < 256; ++thread) {
        const int group = thread / 128, warp = thread / 32 % 4, lane = thread % 32;
        for (int i = 0; i < 64; ++i) {
          const auto [row, column] = accumulator_place(warp, lane, i);
          const float q = Layout::query_bias(p, at, group, warp, i / 2 % 2, lane);
          const float k = Layout::key_bias(p, at, i / 4 * 2 + i % 2, lane);
          if (q == kExcluded) excluded_rows.insert(group * 64 + row);
          if (k == kExcluded) excluded_columns.insert(column);
          if (q == p.q_tail_log2) tail_rows.insert(group * 64 + row);
          if (k == p.k_tail_log2) tail_columns.insert(column);
        }
      }
      const auto expected = [&](auto permuted, int n, bool tail) {
        std::set<int> rows;
        for (int cell = tail ? valid - 1 : valid; cell < (tail ? valid : kRouterTile); ++cell) {
          rows.insert(permuted(cell / n, cell % n, n));
        }
        return rows;
      };
      EXPECT_EQ(excluded_rows, expected(permuted_query_row, kNq, false)) << valid;
      EXPECT_EQ(excluded_columns, expected(permuted_key_row, kNk, false)) << valid;
      EXPECT_EQ(tail_rows, expected(permuted_query_row, kNq, true)) << valid;
      EXPECT_EQ(tail_columns, expected(permuted_key_row, kNk, true)) << valid;
    }
  });
}

TEST(Sm90Layout, ScoreRow_Counts64Bits) {
  ScoreParams p;
  p.q_tiles = p.k_tiles = 128;  // 4,096 blocks a side at four cells
  float base = 0;
  p.scores = &base;
  const ScoreTile at{1023, 127, 127};
  const auto bytes = reinterpret_cast<uintptr_t>(ScoreLayout<4, 4>::row(p, at, 31)) -
                     reinterpret_cast<uintptr_t>(&base);
  const uint64_t floats = (uint64_t{1023} * 4096 + 4095) * 4096 + 127 * 32;
  EXPECT_GT(floats, uint64_t{1} << 33);
  EXPECT_EQ(bytes, floats * sizeof(float));
}

TEST(Sm90Layout, Tiles_AdvanceThroughHeadsInOrderAndGroupedHeadsShareKeys) {
  ScoreParams p;
  p.heads = 6;
  p.kv_ratio = 3;
  p.q_tiles = 2;
  p.k_tiles = 3;
  ScoreTile at{0, 0, 0};
  for (int i = 0; i < 2 * 6 * 2 * 3; ++i) {
    const int flat_head = i / 6, batch = flat_head / 6;
    EXPECT_EQ(at.flat_head, flat_head);
    EXPECT_EQ(at.q_tile, i / 3 % 2);
    EXPECT_EQ(at.k_tile, i % 3);
    EXPECT_EQ(at.kv_head(p), batch * 2 + flat_head % 6 / 3);
    EXPECT_EQ(at.advance(p), i % 3 == 2);
  }
}

}  // namespace
}  // namespace tessera::sm90
