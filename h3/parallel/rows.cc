#include "h3/parallel/rows.h"

#include <algorithm>

namespace h3::parallel {

int64_t row_start(const SequencePlace& place, int64_t local) {
  return place.ring_rank * (local * place.ulysses) + place.ulysses_rank * local;
}

int64_t padded_rows(int64_t rows, int64_t multiple) {
  return (rows + multiple - 1) / multiple * multiple;
}

std::vector<int64_t> even_split(int64_t rows, int64_t ranks) {
  std::vector<int64_t> shares(ranks, rows / ranks);
  for (int64_t rank = 0; rank < rows % ranks; ++rank) ++shares[rank];
  return shares;
}

int64_t real_rows(int64_t real, int64_t source, int64_t chunk) {
  return std::clamp<int64_t>(real - source * chunk, 0, chunk);
}

int64_t ring_source(int64_t ring_rank, int64_t step, int64_t ring) {
  return ((ring_rank - step) % ring + ring) % ring;
}

}  // namespace h3::parallel
