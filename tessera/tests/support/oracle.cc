#include "tessera/tests/support/oracle.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <limits>

namespace tessera::testing {

uint64_t test_seed(uint64_t fallback) {
  const char* given = std::getenv("TESSERA_TEST_SEED");
  const uint64_t seed = given != nullptr ? std::strtoull(given, nullptr, 10) : fallback;
  std::printf("[   SEED   ] TESSERA_TEST_SEED=%llu\n", static_cast<unsigned long long>(seed));
  ::testing::Test::RecordProperty("seed", std::to_string(seed));
  return seed;
}

AttentionOracle attention_oracle(const Tensor4& q, const Tensor4& k, const Tensor4& v, double scale,
                                 const KeysOfRow& keys) {
  AttentionOracle result;
  result.size = q.size();
  const auto [batch, sq, heads, dim] = q.size();
  const int64_t sk = k.size()[1], kv_heads = k.size()[2];
  const std::vector<double> qs = q.values(), ks = k.values(), vs = v.values();
  result.out.assign(qs.size(), 0.0);
  result.lse.assign(batch * heads * sq, -std::numeric_limits<double>::infinity());
  if (scale == 0) scale = 1.0 / std::sqrt(static_cast<double>(dim));
  std::vector<double> logits;
  for (int64_t b = 0; b < batch; ++b) {
    for (int64_t h = 0; h < heads; ++h) {
      const int64_t kv = h / (heads / kv_heads);
      for (int64_t s = 0; s < sq; ++s) {
        const std::vector<int64_t> list = keys(b, h, s);
        if (list.empty()) continue;
        const double* query = &qs[((b * sq + s) * heads + h) * dim];
        logits.clear();
        double top = -std::numeric_limits<double>::infinity();
        for (int64_t key : list) {
          const double* other = &ks[((b * sk + key) * kv_heads + kv) * dim];
          double part[4] = {};  // independent chains: four times faster, still fp64
          for (int64_t c = 0; c < dim; c += 4) {
            for (int64_t j = 0; j < 4; ++j) part[j] += query[c + j] * other[c + j];
          }
          logits.push_back((part[0] + part[1] + part[2] + part[3]) * scale);
          top = std::max(top, logits.back());
        }
        double sum = 0;
        double* out = &result.out[((b * sq + s) * heads + h) * dim];
        for (size_t i = 0; i < list.size(); ++i) {
          const double weight = std::exp(logits[i] - top);
          sum += weight;
          const double* value = &vs[((b * sk + list[i]) * kv_heads + kv) * dim];
          for (int64_t c = 0; c < dim; ++c) out[c] += weight * value[c];
        }
        for (int64_t c = 0; c < dim; ++c) out[c] /= sum;
        result.lse[(b * heads + h) * sq + s] = top + std::log(sum);
      }
    }
  }
  return result;
}

BlockLists::BlockLists(int64_t batch, int64_t heads, int64_t sq, int64_t sk)
    : batch(batch),
      heads(heads),
      query_blocks(static_cast<int32_t>((sq + 63) / 64)),
      key_blocks(static_cast<int32_t>((sk + 63) / 64)),
      rows(batch * heads * query_blocks) {}

void BlockLists::fill_all() {
  for (auto& row : rows) {
    row.resize(key_blocks);
    std::iota(row.begin(), row.end(), 0);
  }
}

void BlockLists::fill_random(Random& random, int32_t low, int32_t high) {
  for (auto& row : rows) {
    const auto count = static_cast<int32_t>(random.integer(low, high));
    row = random.sample(key_blocks, std::min(count, key_blocks));
  }
}

Plan BlockLists::plan(int32_t width, int32_t filler) const {
  for (const auto& row : rows) width = std::max(width, static_cast<int32_t>(row.size()));
  Plan plan;
  plan.shape = {static_cast<int32_t>(batch), static_cast<int32_t>(heads), query_blocks, key_blocks,
                width};
  plan.index.assign(std::max<size_t>(1, rows.size() * width), filler);
  for (size_t r = 0; r < rows.size(); ++r) {
    std::copy(rows[r].begin(), rows[r].end(), plan.index.begin() + r * width);
    plan.count.push_back(static_cast<int32_t>(rows[r].size()));
  }
  return plan;
}

std::vector<uint32_t> BlockLists::bitmap() const {
  const int32_t words = (key_blocks + 31) / 32;
  std::vector<uint32_t> bits(rows.size() * words, 0);
  for (size_t r = 0; r < rows.size(); ++r) {
    for (int32_t j : rows[r]) bits[r * words + j / 32] |= 1u << (j % 32);
  }
  return bits;
}

PlanView BlockLists::bitmap_view(const std::vector<uint32_t>& words) const {
  PlanView view;
  view.bitmap = contiguous_view<4>(
      words.data(), {batch, heads, query_blocks, (key_blocks + 31) / 32}, Dtype::kU32);
  return view;
}

KeysOfRow BlockLists::keys(int64_t sk) const {
  return [this, sk](int64_t b, int64_t h, int64_t row) {
    std::vector<int64_t> list;
    for (int64_t key = 0; key < sk; ++key) {
      const auto& blocks = at(b, h, row / 64);
      if (std::find(blocks.begin(), blocks.end(), key / 64) != blocks.end()) list.push_back(key);
    }
    return list;
  };
}

KeysOfRow all_keys(int64_t sk) {
  return [sk](int64_t, int64_t, int64_t) {
    std::vector<int64_t> list(sk);
    std::iota(list.begin(), list.end(), 0);
    return list;
  };
}

KeysOfRow document_keys(std::vector<int32_t> cu) {
  return [cu = std::move(cu)](int64_t, int64_t, int64_t row) {
    std::vector<int64_t> list;
    for (size_t d = 0; d + 1 < cu.size(); ++d) {
      if (row < cu[d] || row >= cu[d + 1]) continue;
      for (int64_t key = cu[d]; key < cu[d + 1]; ++key) list.push_back(key);
    }
    return list;
  };
}

double round_significant(double x, int bits) {
  if (x == 0 || !std::isfinite(x)) return x;
  int exponent = 0;
  const double fraction = std::frexp(x, &exponent);  // 0.5 <= |fraction| < 1
  return std::ldexp(std::nearbyint(std::ldexp(fraction, bits)), exponent - bits);
}

std::vector<double> cell_means(const Tensor4& tensor, int64_t batch, int64_t head, int64_t start,
                               int64_t length, int cells_per_block, double scale) {
  const int64_t dim = tensor.size()[3], tokens = 64 / cells_per_block;
  const int64_t cells = (length + 63) / 64 * cells_per_block;
  std::vector<double> means(cells * dim, 0.0);
  for (int64_t cell = 0; cell < cells; ++cell) {
    for (int64_t c = 0; c < dim; ++c) {
      double sum = 0;
      int64_t count = 0;
      for (int64_t t = cell * tokens; t < (cell + 1) * tokens && t < length; ++t, ++count) {
        sum += tensor.get({batch, start + t, head, c});
      }
      if (count > 0) means[cell * dim + c] = sum / static_cast<double>(count) * scale;
    }
  }
  return means;
}

std::vector<double> score_oracle(const ScoreOracleInput& in) {
  const int64_t gq = (in.sq + 63) / 64, gk = (in.sk + 63) / 64;
  // Share of real tokens in a cell; 0 leaves it out.
  const auto share = [](int64_t cell, int n, int64_t length) {
    const int64_t tokens = 64 / n;
    const int64_t real = std::clamp<int64_t>(length - cell * tokens, 0, tokens);
    return static_cast<double>(real) / static_cast<double>(tokens);
  };
  std::vector<double> scores;
  for (int64_t i = 0; i < gq; ++i) {
    for (int64_t j = 0; j < gk; ++j) {
      std::vector<double> terms, weights;
      for (int64_t a = i * in.n_q; a < (i + 1) * in.n_q; ++a) {
        for (int64_t b = j * in.n_k; b < (j + 1) * in.n_k; ++b) {
          const double weight = share(a, in.n_q, in.sq) * share(b, in.n_k, in.sk);
          if (weight == 0) continue;
          double dot = 0;
          for (int64_t c = 0; c < in.dim; ++c) {
            dot += double{in.q_cells[a * in.dim + c]} * double{in.k_cells[b * in.dim + c]};
          }
          terms.push_back(dot * std::log(2.0));  // the q cells carry log2 e
          weights.push_back(in.weight_partial_cells ? weight : 1.0);
        }
      }
      const double top = *std::max_element(terms.begin(), terms.end());
      double sum = 0;
      for (size_t n = 0; n < terms.size(); ++n) sum += weights[n] * std::exp(terms[n] - top);
      scores.push_back(top + std::log(sum));
    }
  }
  return scores;
}

std::vector<int32_t> best_columns(std::span<const float> scores, int32_t k) {
  std::vector<int32_t> order(scores.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    if (std::isnan(scores[b])) return !std::isnan(scores[a]);
    return scores[a] > scores[b];  // false for a NaN
  });
  order.resize(std::min<size_t>(order.size(), k));
  std::sort(order.begin(), order.end());
  return order;
}

}  // namespace tessera::testing
