// What the score kernel needs around its inner loop: the order of tiles, where terms lie in a
// thread's registers, and the terms of edge tiles. Arithmetic only, so that the tests compile it
// for the host.
#pragma once

#include <cstdint>

#include "tessera/src/sm90/router/config.h"

namespace tessera::sm90 {

inline constexpr float kExcluded = -1e30f;  // finite: a group of only such terms must not be NaN

/// 128 pooled queries times 128 pooled keys.
struct ScoreTile {
  int flat_head, q_tile, k_tile;

  __device__ __forceinline__ int kv_head(const ScoreParams& p) const {
    return flat_head / p.heads * (p.heads / p.kv_ratio) + flat_head % p.heads / p.kv_ratio;
  }
  /// Moves on to the next tile; true if it has other queries.
  __device__ __forceinline__ bool advance(const ScoreParams& p) {
    if (++k_tile < p.k_tiles) return false;
    k_tile = 0;
    if (++q_tile == p.q_tiles) {
      q_tile = 0;
      ++flat_head;
    }
    return true;
  }
  /// Whether some query cell of a real block owns no token, or is partial; `k_edge` the same for
  /// keys. Rows and columns of padding may hold anything.
  __device__ __forceinline__ bool q_edge(const ScoreParams& p) const {
    return p.q_uneven && q_tile + 1 == p.q_tiles;
  }
  __device__ __forceinline__ bool k_edge(const ScoreParams& p) const {
    return p.k_uneven && k_tile + 1 == p.k_tiles;
  }
  __device__ __forceinline__ bool has_padding(const ScoreParams& p) const {
    return q_tile + 1 == p.q_tiles || k_tile + 1 == p.k_tiles;
  }
};

/// How the terms of a warpgroup's 64 x 128 share of a tile lie in registers: a thread holds two
/// rows (see permuted_query_row) and the columns 2c, 2c + 1 of every group of eight, c = lane % 4.
template <int kNq, int kNk>
struct ScoreLayout {
  static constexpr int kBlocks = kNq == 1 ? 2 : 1;       // query blocks of a thread
  static constexpr int kKeys = 32 / kNk;                 // key blocks of a thread
  static constexpr int kLanes = kNq <= 2 ? 1 : kNq / 2;  // threads that share a query block

  /// Query block inside the tile. `eight`: which of the thread's rows (only n_q = 1 tells them
  /// apart).
  static __device__ __forceinline__ int query(int group, int warp, int eight, int lane) {
    const int r = lane >> 2;
    if constexpr (kNq == 1) return group * 64 + warp * 16 + eight * 8 + r;
    return group * (64 / kNq) + warp * (16 / kNq) + r / kLanes;
  }
  /// Key block inside the tile of a thread's key number `key`.
  static __device__ __forceinline__ int key(int key, int lane) {
    return key_offset(key) + (kNk == 1 ? (lane & 3) * 2 : lane & 3);
  }
  /// How far key number `key` of a thread lies behind its first.
  static __device__ __forceinline__ constexpr int key_offset(int key) {
    return kNk == 1 ? key / 2 * 8 + key % 2 : key * 4;
  }
  static __device__ __forceinline__ float* row(const ScoreParams& p, const ScoreTile& at,
                                               int query) {
    const int64_t rows = int64_t{p.q_tiles} * (kRouterTile / kNq);
    const int64_t stride = int64_t{p.k_tiles} * (kRouterTile / kNk);
    return p.scores + (at.flat_head * rows + at.q_tile * (kRouterTile / kNq) + query) * stride +
           at.k_tile * (kRouterTile / kNk);
  }
  // What is added to the terms of a cell on either side: its weight (0 when unweighted), or so much
  // that the term vanishes if the cell owns no token. `column` counts the thread's 32.
  static __device__ __forceinline__ float query_bias(const ScoreParams& p, const ScoreTile& at,
                                                     int group, int warp, int eight, int lane) {
    int part = 0;
    if constexpr (kNq >= 2) part = (lane >> 2) % kLanes * 2 + eight;
    const int cell =
        (at.q_tile * (kRouterTile / kNq) + query(group, warp, eight, lane)) * kNq + part;
    return cell >= p.q_valid ? kExcluded : cell == p.q_valid - 1 ? p.q_tail_log2 : 0.0f;
  }
  static __device__ __forceinline__ float key_bias(const ScoreParams& p, const ScoreTile& at,
                                                   int column, int lane) {
    const int part = kNk > 1 ? column % kNk : 0;
    const int cell = (at.k_tile * (kRouterTile / kNk) + key(column / kNk, lane)) * kNk + part;
    return cell >= p.k_valid ? kExcluded : cell == p.k_valid - 1 ? p.k_tail_log2 : 0.0f;
  }
};

}  // namespace tessera::sm90
