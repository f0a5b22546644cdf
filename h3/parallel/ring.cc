#include "h3/parallel/ring.h"

#include <ATen/Functions.h>

#include <limits>
#include <utility>
#include <vector>

#include "h3/parallel/rows.h"

namespace h3::parallel {
namespace {

// exp(part - total), 0 where both are -inf, as [B, Sq, H, 1] to scale an output.
at::Tensor weight(const at::Tensor& part, const at::Tensor& total) {
  at::Tensor w = part.sub(total).exp();
  w.masked_fill_(part.isneginf(), 0);
  return w.transpose(1, 2).unsqueeze(3);
}

class Merger {
 public:
  void add(AttentionPartial partial) {
    sum_ = sum_ ? merge_partials(*sum_, partial) : std::move(partial);
  }
  at::Tensor result(const at::Tensor& like) const {
    return sum_ ? sum_->out.to(like.scalar_type()) : at::zeros(like.sizes(), like.options());
  }

 private:
  std::optional<AttentionPartial> sum_;
};

}  // namespace

AttentionPartial merge_partials(const AttentionPartial& a, const AttentionPartial& b) {
  at::Tensor lse = at::logaddexp(a.lse, b.lse);
  at::Tensor out = a.out.to(at::kFloat).mul(weight(a.lse, lse));
  out.add_(b.out.to(at::kFloat).mul(weight(b.lse, lse)));
  return {out, lse};
}

RingResult ring_attention(const RingRequest& request, AttentionImpl& impl, Group& group,
                          StagingBuffers& staging) {
  const Qkv& shard = request.shard;
  const int64_t ring = group.size(), rank = group.rank(), chunk = shard.k.size(1);
  at::Tensor q = shard.q;
  const int64_t own_rows = q.size(1);
  if (request.replicated_q.defined()) q = at::cat({request.replicated_q, q}, 1);

  Merger merger;
  if (request.replicated.k.defined() && request.replicated.k.size(1) > 0)
    merger.add(impl.forward_with_lse({q, request.replicated.k, request.replicated.v}));

  // Keys and values of a chunk travel as one buffer.
  std::vector<int64_t> shape{2};
  shape.insert(shape.end(), shard.k.sizes().begin(), shard.k.sizes().end());
  at::Tensor current = staging.get(StagingRole::kRingA, shape, shard.k.options());
  at::Tensor next = ring > 1 ? staging.get(StagingRole::kRingB, shape, shard.k.options()) : current;
  current.select(0, 0).copy_(shard.k);
  current.select(0, 1).copy_(shard.v);
  // One neighbour each way, written as an all-to-all that is empty elsewhere: the engines need no
  // pairing of sends with receives then.
  std::vector<int64_t> send(ring, 0), receive(ring, 0);
  send[(rank + 1) % ring] += current.numel();
  receive[(rank + ring - 1) % ring] += current.numel();

  for (int64_t step = 0; step < ring; ++step) {
    std::optional<Pending> travel;
    if (step + 1 < ring) travel = group.start_all_to_all(next, current, receive, send);
    const int64_t keys = real_rows(request.real, ring_source(rank, step, ring), chunk);
    if (keys > 0)
      merger.add(impl.forward_with_lse(
          {q, current.select(0, 0).narrow(1, 0, keys), current.select(0, 1).narrow(1, 0, keys)}));
    if (travel) travel->wait();
    std::swap(current, next);
  }

  at::Tensor out = merger.result(q);
  RingResult result;
  result.shard = out.narrow(1, out.size(1) - own_rows, own_rows);
  const int64_t own_real = real_rows(request.real, rank, own_rows);
  if (own_real < own_rows) result.shard.narrow(1, own_real, own_rows - own_real).zero_();
  if (request.replicated_q.defined()) {
    // Each rank merged the chunks in an order of its own; rows that all hold must not drift apart.
    result.replicated = out.narrow(1, 0, out.size(1) - own_rows).contiguous();
    if (ring > 1) group.broadcast(result.replicated, 0);
  }
  return result;
}

}  // namespace h3::parallel
