// Reading one row of a PlanView in either form.
#pragma once

#include <cstdint>
#include <vector>

#include "tessera/plan.h"

namespace tessera::internal {

struct RowId {
  int64_t batch = 0, head = 0, query_block = 0;
};

/// The rules of a plan that need no values: forms, dtypes, shapes, strides. Any memory.
Status check_plan_shapes(const PlanView& plan, const BlockLayout& layout, int64_t batch,
                         int64_t heads);

bool is_dense_row(const PlanView& plan, const RowId& row);

/// The row's key blocks, ascending; dense rows and both forms included. The plan must be valid.
void read_row(const PlanView& plan, const BlockLayout& layout, const RowId& row,
              std::vector<int32_t>* out);

/// Number of key blocks that read_row gives.
int32_t row_size(const PlanView& plan, const BlockLayout& layout, const RowId& row);

/// Batch and head counts of whichever form is present.
int64_t plan_batch(const PlanView& plan);
int64_t plan_heads(const PlanView& plan);

}  // namespace tessera::internal
