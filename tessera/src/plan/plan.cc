// Plan validation, and conversion between lists and bitmaps.
#include "tessera/plan.h"

#include <algorithm>
#include <new>
#include <numeric>

#include "tessera/src/common/cat.h"
#include "tessera/src/common/parallel.h"
#include "tessera/src/plan/plan_rows.h"

namespace tessera {

using internal::cat;
using internal::RowId;
using internal::shape_text;

namespace {

const int32_t* index_row(const PlanView& plan, const RowId& r) {
  return static_cast<const int32_t*>(plan.index.data) +
         offset_of<4>(plan.index, {r.batch, r.head, r.query_block, 0});
}

int32_t count_at(const PlanView& plan, const RowId& r) {
  return static_cast<const int32_t*>(
      plan.count.data)[offset_of<3>(plan.count, {r.batch, r.head, r.query_block})];
}

const uint32_t* bitmap_row(const PlanView& plan, const RowId& r) {
  return static_cast<const uint32_t*>(plan.bitmap.data) +
         offset_of<4>(plan.bitmap, {r.batch, r.head, r.query_block, 0});
}

std::string place(const RowId& r) {
  return cat("[batch ", r.batch, ", head ", r.head, ", query block ", r.query_block, "]");
}

/// Calls body(row) for every plan row until it fails.
template <class Body>
Status for_each_row(int64_t batch, int64_t heads, int64_t query_blocks, Body body) {
  for (int64_t b = 0; b < batch; ++b) {
    for (int64_t h = 0; h < heads; ++h) {
      for (int64_t i = 0; i < query_blocks; ++i) TESSERA_RETURN_IF_ERROR(body(RowId{b, h, i}));
    }
  }
  return {};
}

Status check_list_row(const PlanView& plan, const RowId& row, int32_t key_blocks, int64_t stamp,
                      std::vector<int64_t>& seen) {
  const int64_t width = plan.index.size[3];
  const int32_t count = count_at(plan, row);
  if (count < 0 || count > width) {
    return invalid_argument(cat("block_count at ", place(row), " is ", count,
                                "; a count must lie in [0, ", width,
                                "], the width of block_index"));
  }
  const int32_t* ids = index_row(plan, row);
  for (int32_t n = 0; n < count; ++n) {
    if (ids[n] < 0 || ids[n] >= key_blocks) {
      return invalid_argument(cat("block_index at ", place(row), " slot ", n, " is ", ids[n],
                                  "; ids must lie in [0, ", key_blocks,
                                  "); was the plan built for another length?"));
    }
    if (seen[ids[n]] == stamp) {
      return invalid_argument(cat("block_index at ", place(row), " lists block ", ids[n],
                                  " twice inside its count of ", count,
                                  "; ids of a row must be distinct"));
    }
    seen[ids[n]] = stamp;
  }
  return {};
}

Status check_bitmap_row(const PlanView& plan, const RowId& row, int32_t key_blocks) {
  const uint32_t* words = bitmap_row(plan, row);
  for (int64_t bit = key_blocks; bit < plan.bitmap.size[3] * 32; ++bit) {
    if (words[bit / 32] >> (bit % 32) & 1u) {
      return invalid_argument(cat("bitmap at ", place(row), " has bit ", bit,
                                  " set; the document has ", key_blocks, " key blocks"));
    }
  }
  return {};
}

}  // namespace

namespace internal {

Status check_plan_shapes(const PlanView& plan, const BlockLayout& layout, int64_t batch,
                         int64_t heads) {
  const bool list = plan.index.present() || plan.count.present();
  if (list == plan.bitmap.present()) {
    return invalid_argument(
        "a plan must hold either block_index with block_count, or a bitmap, and not both");
  }
  const std::array<int64_t, 3> rows{batch, heads, layout.query_blocks};
  if (list) {
    if (!plan.index.present() || !plan.count.present()) {
      return invalid_argument("a list plan needs both block_index and block_count");
    }
    if (plan.index.dtype != Dtype::kI32 || plan.count.dtype != Dtype::kI32) {
      return invalid_argument(cat("block_index is ", dtype_name(plan.index.dtype),
                                  " and block_count is ", dtype_name(plan.count.dtype),
                                  "; both must be i32"));
    }
    const std::array<int64_t, 3> got{plan.index.size[0], plan.index.size[1], plan.index.size[2]};
    if (got != rows) {
      return invalid_argument(cat("the plan's block_index is for ", shape_text(got),
                                  " (batch, heads, query blocks), the tensors need ",
                                  shape_text(rows), "; route these tensors anew"));
    }
    if (plan.count.size != rows) {
      return invalid_argument(cat("the plan's block_count has shape ", shape_text(plan.count.size),
                                  ", needed is ", shape_text(rows), "; route these tensors anew"));
    }
    if (plan.index.size[3] > 1 && plan.index.stride[3] != 1) {
      return invalid_argument(
          cat("block_index has a last stride of ", plan.index.stride[3], "; it must be 1"));
    }
  } else {
    if (plan.bitmap.dtype != Dtype::kU32) {
      return invalid_argument(
          cat("the bitmap is ", dtype_name(plan.bitmap.dtype), "; it must be u32"));
    }
    const std::array<int64_t, 4> want{batch, heads, layout.query_blocks,
                                      (layout.max_key_blocks + 31) / 32};
    if (plan.bitmap.size != want || (want[3] > 1 && plan.bitmap.stride[3] != 1)) {
      return invalid_argument(cat("the bitmap has shape ", shape_text(plan.bitmap.size),
                                  " and last stride ", plan.bitmap.stride[3], ", needed is ",
                                  shape_text(want), " with last stride 1"));
    }
  }
  if (plan.dense_rows.present()) {
    const std::array<int64_t, 2> want{batch, layout.query_blocks};
    if (plan.dense_rows.size != want || plan.dense_rows.dtype != Dtype::kU8) {
      return invalid_argument(cat("dense_rows is ", dtype_name(plan.dense_rows.dtype), " ",
                                  shape_text(plan.dense_rows.size), ", needed is u8 ",
                                  shape_text(want)));
    }
  }
  return {};
}

bool is_dense_row(const PlanView& plan, const RowId& row) {
  return plan.dense_rows.present() &&
         static_cast<const uint8_t*>(
             plan.dense_rows.data)[offset_of<2>(plan.dense_rows, {row.batch, row.query_block})] !=
             0;
}

void read_row(const PlanView& plan, const BlockLayout& layout, const RowId& row,
              std::vector<int32_t>* out) {
  out->clear();
  const int32_t key_blocks = layout.owner(static_cast<int32_t>(row.query_block)).key_blocks;
  if (is_dense_row(plan, row)) {
    out->resize(key_blocks);
    std::iota(out->begin(), out->end(), 0);
  } else if (plan.bitmap.present()) {
    const uint32_t* words = bitmap_row(plan, row);
    for (int32_t j = 0; j < key_blocks; ++j) {
      if (words[j / 32] >> (j % 32) & 1u) out->push_back(j);
    }
  } else {
    const int32_t* ids = index_row(plan, row);
    out->assign(ids, ids + count_at(plan, row));
    std::sort(out->begin(), out->end());
  }
}

int32_t row_size(const PlanView& plan, const BlockLayout& layout, const RowId& row) {
  const int32_t key_blocks = layout.owner(static_cast<int32_t>(row.query_block)).key_blocks;
  if (is_dense_row(plan, row)) return key_blocks;
  if (!plan.bitmap.present()) return count_at(plan, row);
  const uint32_t* words = bitmap_row(plan, row);
  int32_t kept = 0;
  for (int32_t j = 0; j < key_blocks; ++j) kept += words[j / 32] >> (j % 32) & 1u;
  return kept;
}

int64_t plan_batch(const PlanView& plan) {
  return plan.bitmap.present() ? plan.bitmap.size[0] : plan.index.size[0];
}

int64_t plan_heads(const PlanView& plan) {
  return plan.bitmap.present() ? plan.bitmap.size[1] : plan.index.size[1];
}

}  // namespace internal

PlanView Plan::view() const {
  PlanView view;
  const int64_t b = shape.batch, h = shape.heads, g = shape.query_blocks;
  view.index = contiguous_view<4>(index.data(), {b, h, g, shape.width}, Dtype::kI32);
  view.count = contiguous_view<3>(count.data(), {b, h, g}, Dtype::kI32);
  if (!dense_rows.empty()) {
    view.dense_rows = contiguous_view<2>(dense_rows.data(), {b, g}, Dtype::kU8);
  }
  return view;
}

Status allocate_plan(const PlanShape& shape, Plan* plan) {
  return internal::guarded([&]() -> Status {
    Plan fresh;
    fresh.shape = shape;
    // At least one element, so that an all-empty plan still has a data pointer.
    fresh.index.assign(std::max<int64_t>(1, shape.rows() * shape.width), -1);
    fresh.count.assign(std::max<int64_t>(1, shape.rows()), 0);
    *plan = std::move(fresh);
    return {};
  });
}

Status validate_plan(const PlanView& plan, const BlockLayout& layout, int64_t batch,
                     int64_t heads) {
  return internal::guarded([&]() -> Status {
    TESSERA_RETURN_IF_ERROR(internal::check_plan_shapes(plan, layout, batch, heads));
    std::vector<int64_t> seen(layout.max_key_blocks, -1);
    int64_t stamp = 0;
    return for_each_row(batch, heads, layout.query_blocks, [&](const RowId& row) -> Status {
      if (internal::is_dense_row(plan, row)) return {};
      const int32_t key_blocks = layout.owner(static_cast<int32_t>(row.query_block)).key_blocks;
      if (plan.bitmap.present()) return check_bitmap_row(plan, row, key_blocks);
      return check_list_row(plan, row, key_blocks, stamp++, seen);
    });
  });
}

Status list_to_bitmap(const PlanView& in, const BlockLayout& layout, const PlanView& out) {
  const int64_t batch = internal::plan_batch(in), heads = internal::plan_heads(in);
  TESSERA_RETURN_IF_ERROR(validate_plan(in, layout, batch, heads));
  PlanView shape_only;
  shape_only.bitmap = out.bitmap;
  if (!out.bitmap.present()) return invalid_argument("the output plan holds no bitmap buffer");
  TESSERA_RETURN_IF_ERROR(internal::check_plan_shapes(shape_only, layout, batch, heads));
  return internal::guarded([&] {
    std::vector<int32_t> ids;
    return for_each_row(batch, heads, layout.query_blocks, [&](const RowId& row) -> Status {
      internal::read_row(in, layout, row, &ids);
      uint32_t* words = const_cast<uint32_t*>(bitmap_row(out, row));
      std::fill(words, words + out.bitmap.size[3], 0u);
      for (int32_t j : ids) words[j / 32] |= 1u << (j % 32);
      return {};
    });
  });
}

Status bitmap_to_list(const PlanView& in, const BlockLayout& layout, const PlanView& out) {
  const int64_t batch = internal::plan_batch(in), heads = internal::plan_heads(in);
  TESSERA_RETURN_IF_ERROR(validate_plan(in, layout, batch, heads));
  PlanView shape_only;
  shape_only.index = out.index;
  shape_only.count = out.count;
  TESSERA_RETURN_IF_ERROR(internal::check_plan_shapes(shape_only, layout, batch, heads));
  return internal::guarded([&] {
    std::vector<int32_t> ids;
    const int64_t width = out.index.size[3];
    return for_each_row(batch, heads, layout.query_blocks, [&](const RowId& row) -> Status {
      internal::read_row(in, layout, row, &ids);
      if (static_cast<int64_t>(ids.size()) > width) {
        return invalid_argument(cat("the row at ", place(row), " keeps ", ids.size(),
                                    " blocks but the list has ", width,
                                    " slots; give a wider list"));
      }
      int32_t* to = const_cast<int32_t*>(index_row(out, row));
      std::copy(ids.begin(), ids.end(), to);
      std::fill(to + ids.size(), to + width, -1);
      static_cast<int32_t*>(
          out.count.data)[offset_of<3>(out.count, {row.batch, row.head, row.query_block})] =
          static_cast<int32_t>(ids.size());
      return {};
    });
  });
}

}  // namespace tessera
