// Seeded tensors and lists for the CUDA benchmark: large, so made by table and by thread.
#pragma once

#include <cstdint>
#include <vector>

#include "tessera/layout.h"
#include "tessera/plan.h"
#include "tessera/status.h"
#include "tessera/tensor_view.h"

namespace tessera::cli {

/// Elements drawn uniformly from a table of 65,536 draws of N(0, 1), as bf16 or f16 bits. Same
/// seed, same values, whatever the number of threads.
std::vector<uint16_t> normal_elements(int64_t count, Dtype dtype, uint64_t seed, int threads);

/// The `keep` best key blocks of every row by random scores, where groups of 8 neighbouring query
/// blocks have their scores in common up to 0.15 times noise: neighbours keep nearly the same
/// blocks. Ascending; unpacked layouts only.
Status neighbour_plan(const BlockLayout& layout, int64_t heads, int32_t keep, uint64_t seed,
                      Plan* out);

}  // namespace tessera::cli
