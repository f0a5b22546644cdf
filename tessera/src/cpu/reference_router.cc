// Pooling and block scores by their definition: the oracle of every faster router.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <vector>

#include "tessera/src/cpu/reference.h"

namespace tessera::cpu {

void reference_pool(const PoolTask& task) {
  for (int64_t c = 0; c < task.cells; ++c) {
    const int64_t begin = (task.first_cell + c) * task.cell_tokens;
    const int64_t end = std::min(begin + task.cell_tokens, task.rows);
    const int64_t count = std::max<int64_t>(end - begin, 0);
    for (int i = 0; i < task.head_dim; ++i) {
      double sum = 0;
      for (int64_t row = begin; row < end; ++row) sum += element(task.source, row, i);
      const double mean = sum / static_cast<double>(std::max<int64_t>(count, 1));
      // One rounding, after the scale: rounding the mean first would move scores.
      task.out[c * task.head_dim + i] = round_bf16(static_cast<float>(mean * double{task.scale}));
    }
  }
}

void reference_scores(const ScoreTask& task) {
  const auto bias = [](int64_t cell, int64_t valid, float tail_log2) {
    return cell == valid - 1 ? double{tail_log2} : 0.0;
  };
  std::vector<double> terms;
  for (int32_t i = 0; i < task.blocks; ++i) {
    for (int32_t j = 0; j < task.key_blocks; ++j) {
      terms.clear();
      for (int a = 0; a < task.n_q; ++a) {
        for (int b = 0; b < task.n_k; ++b) {
          const int64_t q_cell = int64_t{task.first_block + i} * task.n_q + a;
          const int64_t k_cell = int64_t{j} * task.n_k + b;
          if (q_cell >= task.q_valid || k_cell >= task.k_valid) continue;  // owns no real row
          double dot = 0;
          for (int c = 0; c < task.head_dim; ++c) {
            dot += double{task.q_cells[q_cell * task.head_dim + c]} *
                   double{task.k_cells[k_cell * task.head_dim + c]};
          }
          terms.push_back(dot + bias(q_cell, task.q_valid, task.q_tail_log2) +
                          bias(k_cell, task.k_valid, task.k_tail_log2));
        }
      }
      double top = -std::numeric_limits<double>::infinity();
      for (double t : terms) top = std::max(top, t);
      double sum = 0;
      for (double t : terms) sum += std::exp2(t - top);
      task.scores[i * task.score_stride + j] =
          static_cast<float>((top + std::log2(sum)) * std::numbers::ln2);
    }
  }
}

}  // namespace tessera::cpu
