#include "h3/parallel/ulysses.h"

#include <ATen/Functions.h>
#include <c10/core/GradMode.h>

#include <numeric>

#include "h3/common/error.h"
#include "h3/parallel/plan.h"
#include "h3/parallel/text.h"

namespace h3::parallel {
namespace {

int64_t total_rows(const std::vector<int64_t>& seq_lens, int64_t equal, int64_t ranks) {
  if (seq_lens.empty()) return equal * ranks;
  return std::accumulate(seq_lens.begin(), seq_lens.end(), int64_t{0});
}

// [B, s, H, w] seen as [u, B, s, h, w]: the destination in front, without a copy.
at::Tensor by_destination(const at::Tensor& x, int64_t degree) {
  return x.unflatten(2, {degree, x.size(2) / degree}).permute({2, 0, 1, 3, 4});
}

// q, k and v as slices of one [.., H, 3 D] buffer: a single view of all three, or nothing.
at::Tensor fused_view(const Qkv& qkv) {
  const at::Tensor &q = qkv.q, &k = qkv.k, &v = qkv.v;
  const int64_t width = q.size(3);
  const bool fused =
      q.is_alias_of(k) && q.is_alias_of(v) && k.storage_offset() == q.storage_offset() + width &&
      v.storage_offset() == k.storage_offset() + width && q.strides() == k.strides() &&
      q.strides() == v.strides() && q.stride(2) >= 3 * width;
  if (!fused) return {};
  return q.as_strided({q.size(0), q.size(1), q.size(2), 3 * width}, q.strides());
}

}  // namespace

void UlyssesExchange::check(const at::Tensor& x, const std::vector<int64_t>& seq_lens) const {
  if (x.dim() != 4 || x.stride(3) != 1)
    throw Error(ErrorCode::kInvalidArgument, "the exchange got " + shape_text(x.sizes()) +
                                                 "; accepted: [B, S, H, D] with last stride 1");
  if (x.size(2) % degree() != 0)
    throw Error(ErrorCode::kInvalidArgument,
                std::to_string(x.size(2)) + " heads do not divide into " + group_.name(),
                "accepted ulysses degrees: " + legal_degrees(x.size(2)));
  if (x.requires_grad() && c10::GradMode::is_enabled())
    throw Error(ErrorCode::kUnsupported, "the exchange is for inference and keeps no gradients",
                "call it under no_grad or inference mode");
  if (seq_lens.empty()) return;
  if (static_cast<int64_t>(seq_lens.size()) != degree())
    throw Error(ErrorCode::kInvalidArgument, std::to_string(seq_lens.size()) +
                                                 " seq_lens for the " + std::to_string(degree()) +
                                                 " ranks of " + group_.name());
  if (seq_lens[group_.rank()] != x.size(1))
    throw Error(ErrorCode::kInvalidArgument,
                "seq_lens gives this rank " + std::to_string(seq_lens[group_.rank()]) +
                    " rows, the tensor has " + std::to_string(x.size(1)));
}

std::string UlyssesExchange::why_not_packed(const Qkv& qkv) {
  const at::Tensor &q = qkv.q, &k = qkv.k, &v = qkv.v;
  if (q.sizes() != k.sizes() || q.sizes() != v.sizes())
    return "q " + shape_text(q.sizes()) + ", k " + shape_text(k.sizes()) + " and v " +
           shape_text(v.sizes()) + " differ in shape";
  if (q.scalar_type() != k.scalar_type() || q.scalar_type() != v.scalar_type())
    return "q, k and v differ in dtype";
  for (const at::Tensor& x : {q, k, v}) {
    if (x.stride(3) != 1) return "the last stride is not 1";
    if (x.size(0) > 1 && x.stride(0) != x.size(1) * x.stride(1))
      return "batch entries are apart by more than their rows";
  }
  return "";
}

Qkv UlyssesExchange::to_heads(const Qkv& qkv, const std::vector<int64_t>& seq_lens) {
  if (degree() == 1) return qkv;
  if (!why_not_packed(qkv).empty()) return to_heads_unpacked(qkv, seq_lens);
  check(qkv.q, seq_lens);
  const int64_t u = degree(), batch = qkv.q.size(0), rows = qkv.q.size(1);
  const int64_t heads = qkv.q.size(2) / u, width = qkv.q.size(3);
  at::Tensor send =
      staging_.get(StagingRole::kSendHeads, {u, batch, rows, heads, 3 * width}, qkv.q.options());
  if (at::Tensor all = fused_view(qkv); all.defined()) {
    send.copy_(by_destination(all, u));
  } else {
    int64_t at = 0;
    for (const at::Tensor& x : {qkv.q, qkv.k, qkv.v}) {
      send.narrow(4, at, width).copy_(by_destination(x, u));
      at += width;
    }
  }
  at::Tensor all = exchange_packed(send, 3 * width, seq_lens, StagingRole::kReceiveHeads);
  return {all.narrow(3, 0, width), all.narrow(3, width, width), all.narrow(3, 2 * width, width)};
}

// send [u, B, s, h, w] -> [B, S, h, w]: a view of the receive buffer for B = 1, else a new tensor.
at::Tensor UlyssesExchange::exchange_packed(const at::Tensor& send, int64_t width,
                                            const std::vector<int64_t>& seq_lens,
                                            StagingRole role) {
  const int64_t u = degree(), batch = send.size(1), rows = send.size(2), heads = send.size(3);
  const int64_t total = total_rows(seq_lens, rows, u);
  const int64_t row = batch * heads * width;
  at::Tensor receive = staging_.get(role, {total * row}, send.options());
  if (seq_lens.empty()) {
    group_.all_to_all(receive, send);
  } else {
    std::vector<int64_t> out_counts, in_counts(u, rows * row);
    for (int64_t length : seq_lens) out_counts.push_back(length * row);
    group_.all_to_all(receive, send, out_counts, in_counts);
  }
  if (batch == 1) return receive.view({1, total, heads, width});
  at::Tensor result = at::empty({batch, total, heads, width}, send.options());
  int64_t at = 0;
  for (int64_t source = 0; source < u; ++source) {
    const int64_t length = seq_lens.empty() ? rows : seq_lens[source];
    result.narrow(1, at, length)
        .copy_(receive.narrow(0, at * row, length * row).view({batch, length, heads, width}));
    at += length;
  }
  return result;
}

Qkv UlyssesExchange::to_heads_unpacked(const Qkv& qkv, const std::vector<int64_t>& seq_lens) {
  if (degree() == 1) return qkv;
  // Three receives live at once, so only the last may stay in the staging buffer.
  return {to_heads(qkv.q, StagingRole::kSendHeads, StagingRole::kReceiveHeads, false, seq_lens),
          to_heads(qkv.k, StagingRole::kSendHeads, StagingRole::kReceiveHeads, false, seq_lens),
          to_heads(qkv.v, StagingRole::kSendHeads, StagingRole::kReceiveHeads, true, seq_lens)};
}

at::Tensor UlyssesExchange::to_heads(const at::Tensor& x, StagingRole send_role,
                                     StagingRole receive_role, bool keep,
                                     const std::vector<int64_t>& seq_lens) {
  check(x, seq_lens);
  const int64_t u = degree();
  at::Tensor send =
      staging_.get(send_role, {u, x.size(0), x.size(1), x.size(2) / u, x.size(3)}, x.options());
  send.copy_(by_destination(x, u));
  at::Tensor result = exchange_packed(send, x.size(3), seq_lens, receive_role);
  return keep || x.size(0) > 1 ? result : result.clone();
}

at::Tensor UlyssesExchange::to_rows(const at::Tensor& out, const std::vector<int64_t>& seq_lens) {
  if (degree() == 1) return out;
  const int64_t u = degree(), batch = out.size(0), total = out.size(1);
  const int64_t heads = out.size(2), width = out.size(3);
  if (seq_lens.empty() ? total % u != 0 : total != total_rows(seq_lens, 0, u))
    throw Error(ErrorCode::kInvalidArgument,
                std::to_string(total) + " rows do not go back to " + group_.name() + " as " +
                    (seq_lens.empty() ? "equal shares" : "seq_lens " + shape_text(seq_lens)));
  const int64_t rows = seq_lens.empty() ? total / u : seq_lens[group_.rank()];
  const int64_t row = batch * heads * width;

  at::Tensor send = out;
  if (batch > 1 || !out.is_contiguous()) {
    send = staging_.get(StagingRole::kSendRows, {total * row}, out.options());
    int64_t at = 0;
    for (int64_t target = 0; target < u; ++target) {
      const int64_t length = seq_lens.empty() ? rows : seq_lens[target];
      send.narrow(0, at * row, length * row)
          .view({batch, length, heads, width})
          .copy_(out.narrow(1, at, length));
      at += length;
    }
  }
  at::Tensor receive =
      staging_.get(StagingRole::kReceiveRows, {u, batch, rows, heads, width}, out.options());
  if (seq_lens.empty()) {
    group_.all_to_all(receive, send);
  } else {
    std::vector<int64_t> out_counts(u, rows * row), in_counts;
    for (int64_t length : seq_lens) in_counts.push_back(length * row);
    group_.all_to_all(receive, send, out_counts, in_counts);
  }
  at::Tensor result = at::empty({batch, rows, u, heads, width}, out.options());
  result.copy_(receive.permute({1, 2, 0, 3, 4}));
  return result.view({batch, rows, u * heads, width});
}

at::Tensor UlyssesExchange::own_heads(const at::Tensor& replicated) const {
  const int64_t heads = replicated.size(2) / degree();
  return replicated.narrow(2, group_.rank() * heads, heads);
}

at::Tensor UlyssesExchange::all_heads(const at::Tensor& own) {
  if (degree() == 1) return own;
  at::Tensor part = own.contiguous();
  const int64_t batch = own.size(0), rows = own.size(1), heads = own.size(2), width = own.size(3);
  at::Tensor all = at::empty({degree(), batch, rows, heads, width}, own.options());
  group_.all_gather(all, part);
  return all.permute({1, 2, 0, 3, 4}).reshape({batch, rows, degree() * heads, width});
}

}  // namespace h3::parallel
