// The routing plan: which key blocks each query block attends to.
//
// Two equivalent forms: an index list with a per-row count, and a bitmap. The order of ids inside a
// row never changes a bit of the attention result. What lies behind a row's count is never read.
#pragma once

#include <cstdint>
#include <vector>

#include "tessera/layout.h"
#include "tessera/status.h"
#include "tessera/tensor_view.h"

namespace tessera {

/// Borrowed plan. Exactly one of `index` (with `count`) and `bitmap` has to be present as input;
/// as an output any of them may be. H is the number of *query* heads.
struct PlanView {
  TensorView<4> index;       // i32 [B, H, Gq, W], local key block ids
  TensorView<3> count;       // i32 [B, H, Gq], 0 <= count <= W
  TensorView<4> bitmap;      // u32 [B, H, Gq, ceil(Gk / 32)], bit j % 32 of word j / 32 = block j
  TensorView<2> dense_rows;  // u8 [B, Gq], optional: non-zero = the row attends to every key block
                             // of its document and its list is ignored
};

struct PlanShape {
  int32_t batch = 0, heads = 0;
  int32_t query_blocks = 0;  // Gq
  int32_t key_blocks = 0;    // Gk of the largest document
  int32_t width = 0;         // W, slots per row
  int64_t rows() const { return int64_t{batch} * heads * query_blocks; }
  int32_t words() const { return (key_blocks + 31) / 32; }
};

/// A plan that owns host memory. Copyable; `view()` borrows from it.
struct Plan {
  PlanShape shape;
  std::vector<int32_t> index;       // [B, H, Gq, W], unused slots are -1
  std::vector<int32_t> count;       // [B, H, Gq]
  std::vector<uint8_t> dense_rows;  // [B, Gq], empty when no row is dense
  std::vector<float> mass;          // [B, H, Gq] estimated kept softmax mass, empty if not computed

  PlanView view() const;
};

/// Sizes `plan` for `shape` with all counts 0 and all slots -1. kOutOfMemory if it does not fit.
Status allocate_plan(const PlanShape& shape, Plan* plan);

/// Every rule a kernel relies on: shapes against (batch, heads, layout), i32/u32/u8 dtypes, unit
/// last stride, counts in [0, W], ids in [0, Gk of the row's document), no id twice inside the
/// count, no bitmap bit past Gk. The message names the first offending place. Host memory only.
Status validate_plan(const PlanView& plan, const BlockLayout& layout, int64_t batch, int64_t heads);

/// Index lists to bitmaps. `out.bitmap` must be present with the plan's batch, heads and rows.
Status list_to_bitmap(const PlanView& in, const BlockLayout& layout, const PlanView& out);

/// Bitmaps to ascending lists. Refused if a row has more bits than `out.index` has slots.
Status bitmap_to_list(const PlanView& in, const BlockLayout& layout, const PlanView& out);

/// A plan that lists every key block of every row's document, ascending.
Status full_plan(const BlockLayout& layout, int64_t batch, int64_t heads, Plan* out);

/// `count` distinct random key blocks per row (clamped to the document's), ascending; same seed,
/// same plan on every machine.
Status random_plan(const BlockLayout& layout, int64_t batch, int64_t heads, int32_t count,
                   uint64_t seed, Plan* out);

struct PlanStats {
  int64_t rows = 0;
  int64_t dense_rows = 0;
  int64_t kept_pairs = 0;              // block pairs computed, dense rows included
  int64_t total_pairs = 0;             // block pairs of a dense run
  int32_t min_kept = 0, max_kept = 0;  // over sparse rows
  double mean_kept = 0;                // over sparse rows
  double density() const { return total_pairs ? double(kept_pairs) / double(total_pairs) : 0.0; }
};
/// Of a valid plan in host memory, as the two functions below. Allocates nothing.
PlanStats plan_stats(const PlanView& plan, const BlockLayout& layout);

/// Sharing factor of groups of `group` consecutive query blocks of a document: listed blocks /
/// blocks in the union. 1 = no overlap, `group` = identical lists. Dense rows are left out; 0 for
/// group < 1. Needs memory for the lists of two rows; throws std::bad_alloc where there is none.
double sharing_factor(const PlanView& plan, const BlockLayout& layout, int group);

/// Mean Jaccard overlap |A & B| / |A | B| of the lists of neighbouring query blocks; 0 without
/// pairs. Needs memory for the lists of three rows; throws std::bad_alloc where there is none.
double neighbour_overlap(const PlanView& plan, const BlockLayout& layout);

}  // namespace tessera
