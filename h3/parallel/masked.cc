#include "h3/parallel/masked.h"

#include <ATen/Functions.h>

#include <vector>

namespace h3::parallel {
namespace {

// Row numbers of one mask row each, on the device. One copy for all, from pinned memory (which its
// allocator keeps until the copy is done), so that the host does not wait for the stream.
std::vector<at::Tensor> kept_rows(const at::Tensor& mask, const at::Device& device) {
  std::vector<at::Tensor> rows;
  std::vector<int64_t> counts;
  for (int64_t b = 0; b < mask.size(0); ++b) {
    rows.push_back(at::nonzero(mask[b]).flatten());
    counts.push_back(rows.back().numel());
  }
  if (device.is_cpu()) return rows;
  return at::cat(rows).pin_memory().to(device, /*non_blocking=*/true).split_with_sizes(counts);
}

}  // namespace

bool all_set(const at::Tensor& mask) { return mask.all().item<bool>(); }

at::Tensor masked_attention(AttentionImpl& impl, const Qkv& qkv, const at::Tensor& query_mask,
                            const at::Tensor& key_mask, const AttentionContext& context) {
  if (all_set(query_mask) && all_set(key_mask)) return impl.forward(qkv, context);
  at::Tensor out = at::zeros(qkv.q.sizes(), qkv.q.options());
  const std::vector<at::Tensor> all_queries = kept_rows(query_mask, qkv.q.device());
  const std::vector<at::Tensor> all_keys = kept_rows(key_mask, qkv.k.device());
  for (int64_t b = 0; b < qkv.q.size(0); ++b) {
    const at::Tensor &queries = all_queries[b], &keys = all_keys[b];
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
