#include "h3/parallel/masked.h"

#include <ATen/Functions.h>

namespace h3::parallel {
namespace {

at::Tensor kept_rows(const at::Tensor& mask, const at::Device& device) {
  return at::nonzero(mask).flatten().to(device);
}

}  // namespace

bool all_set(const at::Tensor& mask) { return mask.all().item<bool>(); }

at::Tensor masked_attention(AttentionImpl& impl, const Qkv& qkv, const at::Tensor& query_mask,
                            const at::Tensor& key_mask, const AttentionContext& context) {
  if (all_set(query_mask) && all_set(key_mask)) return impl.forward(qkv, context);
  at::Tensor out = at::zeros(qkv.q.sizes(), qkv.q.options());
  for (int64_t b = 0; b < qkv.q.size(0); ++b) {
    at::Tensor queries = kept_rows(query_mask[b], qkv.q.device());
    at::Tensor keys = kept_rows(key_mask[b], qkv.k.device());
    if (queries.numel() == 0 || keys.numel() == 0) continue;
    auto entry = [b](const at::Tensor& x, const at::Tensor& rows) {
      return x.narrow(0, b, 1).index_select(1, rows);
    };
    at::Tensor part =
        impl.forward({entry(qkv.q, queries), entry(qkv.k, keys), entry(qkv.v, keys)}, context);
    out[b].index_copy_(0, queries, part[0]);
  }
  return out;
}

}  // namespace h3::parallel
