// The oracle: scalar kernels that are meant to be read. fp32 values in, double accumulation, no
// blocking. Everything faster is tested against these.
#pragma once

#include <cstdint>
#include <vector>

#include "tessera/src/cpu/fast_kernels.h"

namespace tessera::cpu {

/// One element of a row as double.
double element(const Rows& rows, int64_t row, int64_t column);

/// Attention of `query_rows` rows over the key blocks in `blocks` (each 64 keys, the last one
/// ragged); same task as the vector kernel with `walk` ignored.
void reference_attend(const AttendTask& task, const std::vector<int32_t>& blocks);

void reference_pool(const PoolTask& task);
void reference_scores(const ScoreTask& task);
void reference_block_mass(const BlockMassTask& task);

}  // namespace tessera::cpu
