// Oracle of the attention tests: softmax(q k^T * scale) v in float64, straight from the formula.
#pragma once

#include <ATen/ATen.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <vector>

#include "h3/attention/impl.h"

namespace h3::testing {

/// q, k, v [B, S, H, D] of any dtype; `mask` [B or 1, H or 1, Sq, Sk] bool, true = visible, or
/// undefined. Returns f64 out [B, Sq, H, D] and lse [B, H, Sq]; rows that see nothing are 0, -inf.
inline AttentionPartial reference_attention(const Qkv& qkv, const at::Tensor& mask = {},
                                            double scale = 0) {
  const auto heads_first = [](const at::Tensor& t) { return t.transpose(1, 2).to(at::kDouble); };
  const int64_t ratio = qkv.q.size(2) / qkv.k.size(2);
  const at::Tensor q = heads_first(qkv.q);
  const at::Tensor k = heads_first(qkv.k).repeat_interleave(ratio, 1);
  const at::Tensor v = heads_first(qkv.v).repeat_interleave(ratio, 1);
  if (scale == 0) scale = 1.0 / std::sqrt(static_cast<double>(q.size(3)));
  at::Tensor scores = at::matmul(q, k.transpose(2, 3)) * scale;
  if (mask.defined()) scores = scores.masked_fill(mask.logical_not(), -INFINITY);
  const at::Tensor lse = at::logsumexp(scores, 3);
  const at::Tensor weights = at::exp(scores - lse.unsqueeze(3)).nan_to_num(0.0);
  return {at::matmul(weights, v).transpose(1, 2), lse};
}

/// Visible pairs of packed documents: [1, 1, T, T].
inline at::Tensor document_mask(const std::vector<int32_t>& cu, int64_t tokens) {
  at::Tensor mask = at::zeros({1, 1, tokens, tokens}, at::kBool);
  for (size_t d = 0; d + 1 < cu.size(); ++d) {
    mask.slice(2, cu[d], cu[d + 1]).slice(3, cu[d], cu[d + 1]).fill_(true);
  }
  return mask;
}

/// Seeds and prints the seed; makes at::empty give NaN, so that what a backend forgets to write
/// shows.
inline void start_test(uint64_t seed) {
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  at::manual_seed(seed);
  at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/false);
  at::globalContext().setDeterministicFillUninitializedMemory(true);
}

inline double max_error(const at::Tensor& got, const at::Tensor& want) {
  const at::Tensor a = got.to(at::kDouble), b = want.to(at::kDouble);
  // Equal infinities (rows without keys) are no error.
  const at::Tensor difference = at::where(a == b, at::zeros_like(a), (a - b).abs());
  return difference.isnan().any().item<bool>() ? INFINITY : difference.max().item<double>();
}

inline Qkv random_qkv(int64_t b, int64_t sq, int64_t sk, int64_t h, int64_t hkv, int64_t d,
                      at::ScalarType dtype = at::kFloat) {
  return {at::randn({b, sq, h, d}).to(dtype), at::randn({b, sk, hkv, d}).to(dtype),
          at::randn({b, sk, hkv, d}).to(dtype)};
}

inline Qkv packed(const Qkv& qkv) { return {qkv.q.squeeze(0), qkv.k.squeeze(0), qkv.v.squeeze(0)}; }

}  // namespace h3::testing
