// Which rows of a sequence a rank owns under Ulysses x ring, and how many of a ring step's keys are
// real. Pure arithmetic, in rows.
#pragma once

#include <cstdint>
#include <vector>

namespace h3::parallel {

/// Place of a rank inside its sequence group.
struct SequencePlace {
  int64_t ulysses = 1, ring = 1;            // degrees
  int64_t ulysses_rank = 0, ring_rank = 0;  // sequence rank = ring_rank * ulysses + ulysses_rank
  int64_t degree() const { return ulysses * ring; }
  int64_t rank() const { return ring_rank * ulysses + ulysses_rank; }
};

/// First global row of a rank that holds `local` rows: ring is the outer, slower axis.
int64_t row_start(const SequencePlace& place, int64_t local);

/// Smallest multiple of `multiple` that holds `rows`. Both >= 1 (rows may be 0).
int64_t padded_rows(int64_t rows, int64_t multiple);

/// Rows of each rank when `rows` are spread as evenly as possible, larger shares first.
std::vector<int64_t> even_split(int64_t rows, int64_t ranks);

/// Real (not padding) rows of chunk `source`, every chunk being `chunk` rows long, when the first
/// `real` rows of the sequence are real: clamp(real - source * chunk, 0, chunk).
int64_t real_rows(int64_t real, int64_t source, int64_t chunk);

/// Whose chunk a rank holds at ring step `step`: (rank - step) mod ring.
int64_t ring_source(int64_t ring_rank, int64_t step, int64_t ring);

}  // namespace h3::parallel
