// Attention by plain loops in f32: every row of every head is computed alone and in the same order
// of work, whatever else is in the call. Counts its calls.
#pragma once

#include <ATen/Functions.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "h3/attention/impl.h"

namespace h3::parallel {

class PlainAttention : public AttentionImpl {
 public:
  explicit PlainAttention(bool causal = false) : causal_(causal) {}

  at::Tensor forward(const Qkv& qkv, const AttentionContext&) override {
    ++calls;
    return attend(qkv).out;
  }

  at::Tensor forward_packed(const Qkv& qkv, const PackedBounds& bounds,
                            const AttentionContext&) override {
    ++calls;
    at::Tensor out = at::zeros(qkv.q.sizes(), qkv.q.options());
    for (size_t d = 0; d + 1 < bounds.cu.size(); ++d) {
      const int64_t start = bounds.cu[d], length = bounds.cu[d + 1] - start;
      auto document = [&](const at::Tensor& x) { return x.narrow(0, start, length).unsqueeze(0); };
      if (length > 0)
        out.narrow(0, start, length)
            .copy_(attend({document(qkv.q), document(qkv.k), document(qkv.v)}).out[0]);
    }
    return out;
  }

  AttentionPartial forward_with_lse(const Qkv& qkv) override {
    ++calls;
    return attend(qkv);
  }

  int calls = 0;

 private:
  AttentionPartial attend(const Qkv& qkv) const {
    const int64_t batch = qkv.q.size(0), queries = qkv.q.size(1), heads = qkv.q.size(2);
    const int64_t width = qkv.q.size(3), keys = qkv.k.size(1), group = heads / qkv.k.size(2);
    const float scale = 1 / std::sqrt(static_cast<float>(width));
    at::Tensor out = at::empty({batch, queries, heads, width}, qkv.q.options());
    at::Tensor lse = at::empty({batch, heads, queries}, qkv.q.options());
    std::vector<float> scores(keys);
    for (int64_t b = 0; b < batch; ++b)
      for (int64_t h = 0; h < heads; ++h)
        for (int64_t i = 0; i < queries; ++i) {
          const float* q = row(qkv.q, b, i, h);
          const int64_t seen = causal_ ? std::min(keys, i + 1) : keys;
          float top = -INFINITY;
          for (int64_t j = 0; j < seen; ++j) {
            const float* k = row(qkv.k, b, j, h / group);
            float dot = 0;
            for (int64_t d = 0; d < width; ++d) dot += q[d] * k[d];
            scores[j] = dot * scale;
            top = std::max(top, scores[j]);
          }
          float sum = 0;
          std::vector<float> value(width, 0);
          for (int64_t j = 0; j < seen; ++j) {
            const float p = std::exp(scores[j] - top);
            const float* v = row(qkv.v, b, j, h / group);
            sum += p;
            for (int64_t d = 0; d < width; ++d) value[d] += p * v[d];
          }
          float* o = row(out, b, i, h);
          for (int64_t d = 0; d < width; ++d) o[d] = value[d] / sum;
          lse.data_ptr<float>()[(b * heads + h) * queries + i] = top + std::log(sum);
        }
    return {out, lse};
  }

  static float* row(const at::Tensor& x, int64_t b, int64_t i, int64_t h) {
    return x.data_ptr<float>() + b * x.stride(0) + i * x.stride(1) + h * x.stride(2);
  }

  bool causal_;
};

}  // namespace h3::parallel
