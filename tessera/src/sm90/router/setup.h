// Tiles and workspace of a routing call. Arithmetic without CUDA, so that the tests run it
// anywhere.
#pragma once

#include <algorithm>
#include <cstdint>

#include "tessera/src/cuda/carver.h"
#include "tessera/src/router/problem.h"
#include "tessera/src/sm90/router/config.h"

namespace tessera::sm90 {

inline int tiles_for(int32_t blocks, int cells) {
  return static_cast<int>((int64_t{blocks} * cells + kRouterTile - 1) / kRouterTile);
}

/// Blocks on one side of a score matrix, which is padded to whole tiles.
inline int32_t padded_blocks(int32_t blocks, int cells) {
  return tiles_for(blocks, cells) * (kRouterTile / cells);
}

struct RouterBuffers {
  uint16_t* q_cells = nullptr;
  uint16_t* k_cells = nullptr;
  float* scores = nullptr;
};

/// Sized for the largest document; documents use the buffers one after the other.
inline size_t carve_router(const internal::RouteProblem& problem, void* base, RouterBuffers* out) {
  const RouteParams& p = *problem.params;
  int64_t q_rows = 0, k_rows = 0, scores = 0;
  for (size_t n = 0; n < problem.layout.documents.size(); ++n) {
    if (problem.dense_document[n]) continue;
    const Document& d = problem.layout.documents[n];
    q_rows = std::max<int64_t>(q_rows, tiles_for(d.query_blocks, p.config.n_q) * kRouterTile);
    k_rows = std::max<int64_t>(k_rows, tiles_for(d.key_blocks, p.config.n_k) * kRouterTile);
    scores = std::max(scores, int64_t{padded_blocks(d.query_blocks, p.config.n_q)} *
                                  padded_blocks(d.key_blocks, p.config.n_k));
  }
  const int64_t q_heads = p.q.size[0] * p.q.size[2], k_heads = p.k.size[0] * p.k.size[2];
  cuda::Carver carver(base);
  RouterBuffers buffers;
  buffers.q_cells = carver.take<uint16_t>(q_heads * q_rows * 128);
  buffers.k_cells = carver.take<uint16_t>(k_heads * k_rows * 128);
  buffers.scores = carver.take<float>(q_heads * scores);
  if (out != nullptr) *out = buffers;
  return carver.used();
}

}  // namespace tessera::sm90
