// Parameters of the three router kernels: pool, score, select. Plain values, copied into each
// launch.
#pragma once

#include <cstdint>

namespace tessera::sm90 {

// Pooled rows of a score tile, on either side; the pooled buffers are padded to it. A warpgroup
// forms the scores of 64 of the query rows.
inline constexpr int kRouterTile = 128;
inline constexpr int kMaxKeyBlocks = 4096;  // 262,144 keys
inline constexpr int kMaxPlanRows = 5120;   // query blocks of a call, over all documents
inline constexpr int kMaxRows = 1 << 22;    // batch * heads * query blocks: 32-bit counters suffice

/// One side of the pooling launch. Cells go to `out` in the order the score kernel wants: a
/// permuted row inside tiles of 128 (see permuted_query_row), tiles in order, heads outermost.
struct PoolSide {
  const void* data = nullptr;  // first token of the document
  int64_t batch_stride = 0, token_stride = 0, head_stride = 0;
  int32_t heads = 0;
  int32_t tokens = 0;
  int32_t blocks = 0;
  int32_t cells_per_block = 0;  // n
  float scale = 1.0f;
  void* out = nullptr;  // bf16 [batch * heads, tiles * 128, 128]
  int32_t tiles = 0;
};

struct PoolParams {
  PoolSide q, k;
  int32_t batch = 0;
  int32_t dtype = 0;  // 0 bf16, 1 f16
};

struct ScoreParams {
  int32_t heads = 0, kv_ratio = 1;  // query heads (per batch element)
  int32_t q_tiles = 0, k_tiles = 0;
  int32_t tiles = 0;  // q_tiles * k_tiles * batch * heads
  int32_t query_blocks = 0, key_blocks = 0;
  int32_t q_valid = 0, k_valid = 0;         // cells that own a token
  bool q_uneven = false, k_uneven = false;  // the last block's cells are not all alike
  float q_tail_log2 = 0, k_tail_log2 = 0;
  const uint16_t* k_cells = nullptr;  // bf16 [batch * kv heads, k_tiles * 128, 128]
  float* scores = nullptr;  // f32 [batch * heads, q_tiles * 128 / n_q, k_tiles * 128 / n_k]
};

struct SelectParams {
  const float* scores = nullptr;             // as ScoreParams
  int32_t score_rows = 0, score_stride = 0;  // of a head; of a row
  int32_t query_blocks = 0, key_blocks = 0;
  int32_t first_row = 0;  // plan row of the document's first query block
  int32_t keep = 0;       // count, or cap for a mass budget
  int32_t min_keep = 1;
  float mass = 0;  // > 0: mass budget
  int32_t protected_count = 0;
  int32_t heads = 0;         // per batch element
  int32_t* index = nullptr;  // plan outputs, strides in elements; index may be null
  int64_t index_batch = 0, index_head = 0, index_row = 0;
  int32_t width = 0;
  uint8_t* dense_rows = nullptr;  // [B, plan rows]
  int64_t dense_batch = 0, dense_row = 0;
  int32_t* count = nullptr;
  int64_t count_batch = 0, count_head = 0, count_row = 0;
  uint32_t* bitmap = nullptr;
  int64_t bitmap_batch = 0, bitmap_head = 0, bitmap_row = 0;
  int32_t bitmap_words = 0;
  float* mass_out = nullptr;
  int64_t mass_batch = 0, mass_head = 0, mass_row = 0;
  float* scores_out = nullptr;  // optional copy for the caller
  int64_t scores_batch = 0, scores_head = 0, scores_row = 0;
  uint32_t protected_bits[kMaxKeyBlocks / 32] = {};
  uint32_t dense_bits[kMaxPlanRows / 32] = {};  // rows of the plan that get no list
};

/// Where cell `cell` of block `block` lies on the query side. A thread of the score kernel holds
/// rows r and r + 8 of its warp's 16, r = lane / 4; with more than two cells a block's rows belong
/// to 2 or 4 neighbouring r.
__host__ __device__ inline int permuted_query_row(int block, int cell, int n) {
  if (n == 1) return block;
  const int lanes = n / 2;      // neighbouring r of a block
  const int per_warp = 16 / n;  // blocks
  const int r = block % per_warp * lanes + cell / 2;
  return block / per_warp * 16 + cell % 2 * 8 + r;
}

/// The same for the key side: a thread holds columns 2c and 2c + 1 of every group of eight, c =
/// lane % 4.
__host__ __device__ inline int permuted_key_row(int block, int cell, int n) {
  if (n == 1) return block;
  const int span = 4 * n;  // columns that hold four blocks
  return block / 4 * span + block % 4 * 2 + cell % 2 + cell / 2 * 8;
}

}  // namespace tessera::sm90
