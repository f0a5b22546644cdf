// The vector kernels behind the `cpu_highway` entries: plain structs in, no checks, no threads.
// Callers (attention/dispatch.cc, router/route.cc) validate, split the work and own the scratch.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tessera/types.h"

namespace tessera::cpu {

/// Query blocks that one work item walks together, so that a converted K/V block serves up to four.
/// Four blocks of Q and O (256 KiB) still fit the second-level cache. Never changes a result bit.
inline constexpr int kGroupBlocks = 4;

/// Token rows of one head: row r starts at element r * row_stride; last stride 1.
struct Rows {
  const void* data = nullptr;
  int64_t row_stride = 0;
  Dtype dtype = Dtype::kF32;
};

/// One key block of the walk and the query blocks of the group (bit g = block g) that listed it.
struct WalkStep {
  int32_t key_block = 0;
  uint32_t wanted_by = 0;
};

struct AttendTask {
  int head_dim = 0;
  float scale_log2 = 0;  // softmax_scale * log2(e), applied to q
  int query_rows = 0;    // real rows, 1 .. 64 * kGroupBlocks
  int64_t key_rows = 0;  // keys of the document
  Rows q, k, v;          // at the first row of the group / of the document
  // K and V of the whole document as `fast_pack` writes them; null: converted block by block.
  const float* packed_k = nullptr;
  const float* packed_v = nullptr;
  const WalkStep* walk = nullptr;  // ascending key blocks
  int64_t walk_steps = 0;
  void* out = nullptr;  // row r at r * out_stride elements
  int64_t out_stride = 0;
  Dtype out_dtype = Dtype::kF32;
  float* lse = nullptr;  // optional, row r at r * lse_stride
  int64_t lse_stride = 0;
};

/// Converts key blocks [first_block, first_block + blocks) of a document to fp32: K rows
/// contiguous, V in panels of two vectors per block. One block takes 64 * head_dim floats on each
/// side.
struct PackTask {
  int head_dim = 0;
  int64_t key_rows = 0;
  int32_t first_block = 0, blocks = 0;
  Rows k, v;                  // at the first row of the document
  float* packed_k = nullptr;  // of the whole document
  float* packed_v = nullptr;
};

/// True mass per key block for one group; reads the dense LSE instead of computing v.
struct BlockMassTask {
  int head_dim = 0;
  float scale_log2 = 0;
  int query_rows = 0;
  int64_t key_rows = 0;
  Rows q, k;
  const float* lse = nullptr;
  int64_t lse_stride = 0;
  float* mass = nullptr;  // [query blocks of the group][mass_stride]
  int64_t mass_stride = 0;
};

/// Means of runs of `cell_tokens` rows, times `scale`, rounded to bf16 and widened again.
struct PoolTask {
  int head_dim = 0;
  int cell_tokens = 0;
  int64_t rows = 0;  // real rows from the start of the document
  int64_t first_cell = 0;
  int64_t cells = 0;  // cells to write; those without a real row become 0
  float scale = 1;
  Rows source;
  float* out = nullptr;  // [cells][head_dim]
};

/// Scores of query blocks [first_block, first_block + blocks) against every key block.
struct ScoreTask {
  int head_dim = 0;
  int n_q = 0, n_k = 0;
  const float* q_cells = nullptr;    // [query blocks * n_q][head_dim]
  const float* k_cells = nullptr;    // [key blocks * n_k][head_dim]
  int64_t q_valid = 0, k_valid = 0;  // cells that own a real row
  float q_tail_log2 =
      0;  // added to the terms of the last valid cell: log2 of its share of real rows
  float k_tail_log2 = 0;  // (0 unless partial cells are weighted)
  int32_t key_blocks = 0;
  int32_t first_block = 0, blocks = 0;
  float* scores = nullptr;  // [blocks][score_stride], natural log
  int64_t score_stride = 0;
};

/// Query blocks per score task that use the vectors fully.
int fast_score_blocks();

/// Scratch bytes of any one task (64-byte aligned).
size_t fast_scratch_bytes(int head_dim);

void fast_attend(const AttendTask& task, void* scratch);
void fast_pack(const PackTask& task);
void fast_block_mass(const BlockMassTask& task, void* scratch);
void fast_pool(const PoolTask& task);
void fast_scores(const ScoreTask& task, void* scratch);

const char* fast_target_name();
int64_t fast_compiled_targets();

/// Uninitialised memory, at least 64-byte aligned. Large pieces ask for huge pages: lists jump
/// about in them, and with 4 KiB pages every jump misses the TLB. Throws bad_alloc.
class Scratch {
 public:
  explicit Scratch(size_t bytes);
  ~Scratch();
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  void* get() const { return data_; }

 private:
  size_t alignment_;
  void* data_;
};

}  // namespace tessera::cpu
