// A validated routing call, shared by the CPU and CUDA routers.
#pragma once

#include <cstdint>
#include <vector>

#include "tessera/layout.h"
#include "tessera/router.h"
#include "tessera/src/router/select.h"

namespace tessera::internal {

struct RouteProblem {
  const RouteParams* params = nullptr;
  BlockLayout layout;
  float scale = 0;
  std::vector<int32_t> protected_blocks;  // sorted, distinct
  std::vector<RowBudget> budgets;         // per document; unused where dense
  std::vector<uint8_t> dense_document;
  PlanShape shape;

  int64_t ratio() const { return params->q.size[2] / params->k.size[2]; }
  bool row_is_dense(size_t document, int32_t query_block) const {
    return dense_document[document] ||
           (!params->dense_query_blocks.empty() && params->dense_query_blocks[query_block] != 0);
  }
};

/// Cells of a document that own a real row.
inline int64_t valid_cells(int64_t rows, int cells_per_block) {
  const int64_t cell = kBlockTokens / cells_per_block;
  return (rows + cell - 1) / cell;
}

/// log2 of the share of real rows in the last valid cell; 0 unless partial cells are weighted.
float tail_weight_log2(const RouterConfig& config, int64_t rows, int cells_per_block);

}  // namespace tessera::internal
