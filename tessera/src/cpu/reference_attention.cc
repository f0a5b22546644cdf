// Attention and block mass by their definition: the oracle of every faster kernel.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

#include "tessera/src/common/element.h"
#include "tessera/src/cpu/reference.h"

namespace tessera::cpu {
namespace {

double scaled_score(const Rows& q, int64_t query, const Rows& k, int64_t key, int head_dim,
                    double scale) {
  double dot = 0;
  for (int c = 0; c < head_dim; ++c) dot += element(q, query, c) * element(k, key, c);
  return dot * scale;
}

}  // namespace

double element(const Rows& rows, int64_t row, int64_t column) {
  return internal::load_element(rows.data, row * rows.row_stride + column, rows.dtype);
}

void reference_attend(const AttendTask& task, const std::vector<int32_t>& blocks) {
  const double scale = double{task.scale_log2} * std::numbers::ln2;
  std::vector<int64_t> keys;
  for (int32_t block : blocks) {
    const int64_t begin = int64_t{block} * kBlockTokens;
    const int64_t end = std::min(begin + kBlockTokens, task.key_rows);
    for (int64_t key = begin; key < end; ++key) keys.push_back(key);
  }
  std::vector<double> score(keys.size()), out(task.head_dim);
  for (int64_t query = 0; query < task.query_rows; ++query) {
    double top = -std::numeric_limits<double>::infinity();
    for (size_t i = 0; i < keys.size(); ++i) {
      score[i] = scaled_score(task.q, query, task.k, keys[i], task.head_dim, scale);
      top = std::max(top, score[i]);
    }
    std::fill(out.begin(), out.end(), 0.0);
    double sum = 0;
    for (size_t i = 0; i < keys.size(); ++i) {
      const double weight = std::exp(score[i] - top);
      sum += weight;
      for (int c = 0; c < task.head_dim; ++c) out[c] += weight * element(task.v, keys[i], c);
    }
    for (int c = 0; c < task.head_dim; ++c) {
      const double value = keys.empty() ? 0.0 : out[c] / sum;
      internal::store_element(static_cast<float>(value), task.out, query * task.out_stride + c,
                              task.out_dtype);
    }
    if (task.lse != nullptr) {
      task.lse[query * task.lse_stride] = keys.empty() ? -std::numeric_limits<float>::infinity()
                                                       : static_cast<float>(top + std::log(sum));
    }
  }
}

void reference_block_mass(const BlockMassTask& task) {
  const double scale = double{task.scale_log2} * std::numbers::ln2;
  const int64_t blocks = (task.query_rows + kBlockTokens - 1) / kBlockTokens;
  for (int64_t i = 0; i < blocks; ++i) {
    const int64_t q_end = std::min<int64_t>(task.query_rows, (i + 1) * kBlockTokens);
    for (int64_t first = 0; first < task.key_rows; first += kBlockTokens) {
      double mass = 0;
      for (int64_t query = i * kBlockTokens; query < q_end; ++query) {
        for (int64_t key = first; key < std::min(task.key_rows, first + kBlockTokens); ++key) {
          mass += std::exp(scaled_score(task.q, query, task.k, key, task.head_dim, scale) -
                           double{task.lse[query * task.lse_stride]});
        }
      }
      task.mass[i * task.mass_stride + first / kBlockTokens] =
          static_cast<float>(mass / static_cast<double>(q_end - i * kBlockTokens));
    }
  }
}

}  // namespace tessera::cpu
