#include "h3/parallel/usp_attention.h"

#include <ATen/Functions.h>

#include <algorithm>
#include <utility>

#include "h3/common/error.h"
#include "h3/parallel/masked.h"
#include "h3/parallel/text.h"

namespace h3::parallel {
namespace {

std::string shape_text(const at::Tensor& x) { return parallel::shape_text(x.sizes()); }

const char* describe(Replicated mode) {
  switch (mode) {
    case Replicated::kNone: return "no replicated rows";
    case Replicated::kPrefix: return "a replicated prefix";
    case Replicated::kSuffix: return "a replicated suffix";
    case Replicated::kKvPrefix: return "a replicated key/value prefix";
  }
  return "replicated rows";
}

[[noreturn]] void refuse(const std::string& what, const std::string& hint) {
  throw Error(ErrorCode::kUnsupported, what, hint);
}

// A tensor's rows taken apart into the replicated part and this rank's share.
struct Parts {
  at::Tensor replicated, share;
};
Parts split(const at::Tensor& x, int64_t rows, Replicated mode) {
  const int64_t share = x.size(1) - rows;
  if (mode == Replicated::kSuffix) return {x.narrow(1, share, rows), x.narrow(1, 0, share)};
  return {x.narrow(1, 0, rows), x.narrow(1, rows, share)};
}
at::Tensor join(const at::Tensor& replicated, const at::Tensor& share, Replicated mode) {
  return mode == Replicated::kSuffix ? at::cat({share, replicated}, 1)
                                     : at::cat({replicated, share}, 1);
}

// Masks travel as bytes and are read on the host.
at::Tensor bool_rows(int64_t batch, int64_t rows, int64_t set) {
  at::Tensor mask = at::zeros({batch, rows}, at::kBool);
  if (set > 0) mask.narrow(1, 0, std::min(set, rows)).fill_(true);
  return mask;
}

Qkv as_batch(const Qkv& packed) {
  return {packed.q.unsqueeze(0), packed.k.unsqueeze(0), packed.v.unsqueeze(0)};
}

}  // namespace

UspAttention::UspAttention(std::shared_ptr<AttentionImpl> impl, const SequenceGroups* groups,
                           std::shared_ptr<StagingBuffers> staging, UspOptions options)
    : impl_(std::move(impl)), staging_(std::move(staging)), options_(std::move(options)) {
  const LayerFacts& layer = options_.layer;
  if (layer.skip_sequence_parallel || groups == nullptr || groups->degrees.sequence == 1) {
    // Tensor parallelism still has to divide the heads.
    Degrees degrees;
    if (groups) degrees.tensor = groups->degrees.tensor;
    admit_layer(degrees, layer);
    return;
  }
  groups_ = *groups;
  const Degrees& degrees = groups_.degrees;
  admit_layer(degrees, layer);
  if (degrees.ring > 1 && options_.causal)
    refuse(layer.name + ": causal attention under ring degree " + std::to_string(degrees.ring) +
               " is not implemented",
           "use ring degree 1 with ulysses for causal layers");
  if (degrees.kv_gather && options_.causal && !degrees.kv_gather_automatic)
    throw Error(ErrorCode::kInvalidArgument,
                layer.name + ": K/V gather keeps a part of the queries and cannot be causal",
                "use the ulysses degree instead of kv-gather");
  if (degrees.kv_gather && (options_.causal || layer.sparse)) {
    Degrees ulysses = degrees;
    ulysses.kv_gather = ulysses.kv_gather_automatic = false;
    admit_layer(ulysses, layer);
    mode_ = Mode::kUlysses;
    mode_reason_ = std::string("automatic K/V gather does not serve ") +
                   (options_.causal ? "causal" : "sparse") + " layers";
  } else {
    mode_ = degrees.kv_gather ? Mode::kKvGather : degrees.ring > 1 ? Mode::kRing : Mode::kUlysses;
  }
  if (!staging_) staging_ = std::make_shared<StagingBuffers>();
  exchange_ = std::make_unique<UlyssesExchange>(*groups_.ulysses, *staging_);
}

void UspAttention::check_call(const Qkv& qkv, const UspCall& call) const {
  const at::Tensor &q = qkv.q, &k = qkv.k, &v = qkv.v;
  if (q.dim() != 4 || k.dim() != 4 || v.dim() != 4 || k.size(0) != q.size(0) ||
      v.size(0) != q.size(0) || k.size(1) != v.size(1))
    throw Error(ErrorCode::kInvalidArgument,
                "q " + shape_text(q) + ", k " + shape_text(k) + ", v " + shape_text(v) +
                    "; accepted: [B, Sq, H, D] and twice [B, Sk, Hkv, D]");
  const int64_t tensor = mode_ == Mode::kLocal ? 0 : groups_.degrees.tensor;
  if (tensor > 0 && q.size(2) * tensor != options_.layer.heads)
    throw Error(ErrorCode::kInvalidArgument,
                "q has " + std::to_string(q.size(2)) + " heads, layer " + options_.layer.name +
                    " was built for " + std::to_string(options_.layer.heads / tensor) +
                    " per tensor rank");
  const bool replicated = call.replicated != Replicated::kNone;
  if (call.replicated_rows < 0 || (!replicated && call.replicated_rows > 0) ||
      (replicated && call.replicated_rows > k.size(1)))
    throw Error(ErrorCode::kInvalidArgument,
                std::to_string(call.replicated_rows) + " replicated rows with " +
                    describe(call.replicated) + " and " + std::to_string(k.size(1)) +
                    " key rows; accepted: 0 to the key rows, and a mode to go with them");
  const int64_t extra = call.replicated == Replicated::kKvPrefix ? call.replicated_rows : 0;
  if ((mode_ != Mode::kLocal || replicated || call.key_mask.defined() || call.valid_rows >= 0) &&
      q.size(1) + extra != k.size(1))
    throw Error(ErrorCode::kInvalidArgument,
                "q has " + std::to_string(q.size(1)) + " rows, k " + std::to_string(k.size(1)) +
                    "; with " + describe(call.replicated) + " k must have " +
                    std::to_string(q.size(1) + extra),
                "cross attention with replicated keys: skip_sequence_parallel");
  if (call.key_mask.defined() &&
      (!call.key_mask.is_cpu() || call.key_mask.scalar_type() != at::kBool ||
       call.key_mask.dim() != 2 || call.key_mask.size(0) != k.size(0) ||
       call.key_mask.size(1) != k.size(1)))
    throw Error(ErrorCode::kInvalidArgument,
                "key_mask is " + std::string(c10::toString(call.key_mask.scalar_type())) + " " +
                    shape_text(call.key_mask) + " on " + call.key_mask.device().str() +
                    "; accepted: bool [" + std::to_string(k.size(0)) + ", " +
                    std::to_string(k.size(1)) + "] in host memory",
                "copy the mask to the host once per request");
  if (call.key_mask.defined() && call.valid_rows >= 0)
    throw Error(ErrorCode::kInvalidArgument,
                "key_mask and valid_rows were both given; accepted: one of them");
  if (replicated && call.valid_rows >= 0)
    refuse("valid_rows together with " + std::string(describe(call.replicated)) +
               " is not implemented",
           "pass a key_mask");
  if (call.replicated == Replicated::kKvPrefix && (call.key_mask.defined() || options_.causal))
    refuse(
        "a key_mask or a causal layer together with a replicated key/value prefix is not "
        "implemented",
        "replicate the prefix in q too (prefix mode)");
}

void UspAttention::require_agreement(const char* operation, const Qkv& qkv, const UspCall& call) {
  Signature signature(operation);
  // With seq_lens the row counts differ by design; they are in the list that all ranks share.
  const bool uneven = !call.seq_lens.empty();
  if (uneven)
    signature.add("seq_lens", call.seq_lens).add("heads", qkv.q.size(2)).add("D", qkv.q.size(-1));
  else
    signature.add("q", qkv.q.sizes()).add("k", qkv.k.sizes()).add("v", qkv.v.sizes());
  signature.add("dtype", static_cast<int64_t>(qkv.q.scalar_type()))
      .add("valid_rows", call.valid_rows)
      .add("replicated", static_cast<int64_t>(call.replicated))
      .add("replicated_rows", call.replicated_rows)
      .add("key_mask", call.key_mask.defined() ? 1 : 0);
  groups_.sequence->require_agreement(signature);
}

at::Tensor UspAttention::forward(const Qkv& qkv, const UspCall& call,
                                 const AttentionContext& context) {
  const bool local = is_local(call.skip_sequence_parallel);
  check_call(qkv, call);
  if (!call.seq_lens.empty()) {
    if (call.replicated != Replicated::kNone || call.key_mask.defined() || call.valid_rows >= 0)
      refuse("seq_lens together with replicated rows, a key_mask or valid_rows is not implemented",
             "pad the shares to equal length and pass valid_rows");
    if (mode_ == Mode::kRing && !local)
      refuse("seq_lens under ring degree " + std::to_string(groups_.degrees.ring) +
                 " is not implemented",
             "pad the shares to equal length and pass valid_rows");
    if (local && (call.seq_lens.size() != 1 || call.seq_lens[0] != qkv.q.size(1)))
      throw Error(ErrorCode::kInvalidArgument,
                  "a local call got " + std::to_string(call.seq_lens.size()) +
                      " seq_lens; accepted: one, equal to the " + std::to_string(qkv.q.size(1)) +
                      " rows",
                  "documents go through forward_packed");
  }
  if (local) return forward_local(qkv, call, context);
  require_agreement("attention", qkv, call);
  switch (mode_) {
    case Mode::kRing: return forward_ring(qkv, call);
    case Mode::kKvGather:
      if (call.seq_lens.empty()) return forward_gathered(qkv, call, context);
      if (!groups_.degrees.kv_gather_automatic)
        refuse("seq_lens under K/V gather is not implemented", "use the ulysses degree");
      return forward_ulysses(qkv, call, context);
    default: return forward_ulysses(qkv, call, context);
  }
}

at::Tensor UspAttention::forward_local(const Qkv& qkv, const UspCall& call,
                                       const AttentionContext& context) {
  if (call.key_mask.defined())
    return masked_attention(*impl_, qkv, call.key_mask, call.key_mask, context);
  const int64_t rows = qkv.q.size(1);
  if (call.valid_rows < 0 || call.valid_rows >= rows) return impl_->forward(qkv, context);
  at::Tensor out = at::zeros(qkv.q.sizes(), qkv.q.options());
  const int64_t valid = call.valid_rows;
  if (valid > 0)
    out.narrow(1, 0, valid)
        .copy_(impl_->forward(
            {qkv.q.narrow(1, 0, valid), qkv.k.narrow(1, 0, valid), qkv.v.narrow(1, 0, valid)},
            context));
  return out;
}

// This rank's [B, s, ...] of a host or device tensor to [B, S, ...] in group order.
at::Tensor UspAttention::gather_rows(const at::Tensor& x, Group& group) {
  if (group.size() == 1) return x;
  at::Tensor part = x.contiguous();
  std::vector<int64_t> shape = x.sizes().vec();
  shape.insert(shape.begin(), group.size());
  at::Tensor all = at::empty(shape, x.options());
  group.all_gather(all, part);
  return all.transpose(0, 1).flatten(1, 2);
}

at::Tensor UspAttention::forward_ulysses(const Qkv& qkv, const UspCall& call,
                                         const AttentionContext& context) {
  // All of the local path holds for the gathered rows: they are one rank's heads of everything.
  UspCall whole = call;
  whole.seq_lens.clear();
  if (call.replicated == Replicated::kNone) {
    Qkv mine = exchange_->to_heads(qkv, call.seq_lens);
    if (call.key_mask.defined()) whole.key_mask = gather_rows(call.key_mask, *groups_.ulysses);
    return exchange_->to_rows(forward_local(mine, whole, context), call.seq_lens);
  }

  const int64_t rows = call.replicated_rows;
  const bool kv_only = call.replicated == Replicated::kKvPrefix;
  Parts q = kv_only ? Parts{{}, qkv.q} : split(qkv.q, rows, call.replicated);
  Parts k = split(qkv.k, rows, call.replicated), v = split(qkv.v, rows, call.replicated);
  Qkv mine = exchange_->to_heads({q.share, k.share, v.share});
  auto with_replicated = [&](const Parts& parts, const at::Tensor& gathered) {
    return join(exchange_->own_heads(parts.replicated), gathered, call.replicated);
  };
  Qkv joined{kv_only ? mine.q : with_replicated(q, mine.q), with_replicated(k, mine.k),
             with_replicated(v, mine.v)};
  if (call.key_mask.defined()) {
    Parts mask = split(call.key_mask, rows, call.replicated);
    whole.key_mask =
        join(mask.replicated, gather_rows(mask.share, *groups_.ulysses), call.replicated);
  }
  at::Tensor out = forward_local(joined, whole, context);
  if (kv_only) return exchange_->to_rows(out);
  Parts result = split(out, rows, call.replicated);
  at::Tensor share = exchange_->to_rows(result.share);
  return join(exchange_->all_heads(result.replicated), share, call.replicated);
}

at::Tensor UspAttention::forward_ring(const Qkv& qkv, const UspCall& call) {
  if (call.key_mask.defined())
    refuse("a key_mask under ring degree " + std::to_string(groups_.degrees.ring) +
               " is not implemented",
           "padding at the end: pass valid_rows; otherwise use ring degree 1 with ulysses");
  if (call.replicated == Replicated::kSuffix)
    refuse(
        "a replicated suffix under ring is not implemented: chunks arrive in another order on "
        "every rank, which is what a suffix is there to avoid",
        "use prefix mode, or ring degree 1 with ulysses");
  const int64_t rows = call.replicated_rows;
  RingRequest request;
  Qkv shares = qkv;
  if (call.replicated != Replicated::kNone) {
    Parts k = split(qkv.k, rows, call.replicated), v = split(qkv.v, rows, call.replicated);
    shares.k = k.share;
    shares.v = v.share;
    request.replicated.k = exchange_->own_heads(k.replicated);
    request.replicated.v = exchange_->own_heads(v.replicated);
    if (call.replicated == Replicated::kPrefix) {
      Parts q = split(qkv.q, rows, call.replicated);
      shares.q = q.share;
      request.replicated_q = exchange_->own_heads(q.replicated);
    }
  }
  request.shard = exchange_->to_heads(shares);
  const int64_t whole = request.shard.k.size(1) * groups_.ring->size();
  request.real = call.valid_rows < 0 ? whole : std::min(call.valid_rows, whole);
  RingResult result = ring_attention(request, *impl_, *groups_.ring, *staging_);
  at::Tensor share = exchange_->to_rows(result.shard);
  if (!result.replicated.defined()) return share;
  return join(exchange_->all_heads(result.replicated), share, call.replicated);
}

at::Tensor UspAttention::forward_gathered(const Qkv& qkv, const UspCall& call,
                                          const AttentionContext& context) {
  Group& group = *groups_.sequence;
  const int64_t rows = call.replicated_rows;
  Qkv all{qkv.q, {}, {}};
  auto gathered = [&](const at::Tensor& x) {
    if (call.replicated == Replicated::kNone) return gather_rows(x, group);
    Parts parts = split(x, rows, call.replicated);
    return join(parts.replicated, gather_rows(parts.share, group), call.replicated);
  };
  all.k = gathered(qkv.k);
  all.v = gathered(qkv.v);
  const int64_t batch = qkv.q.size(0), share = qkv.q.size(1), whole = all.k.size(1);
  if (call.key_mask.defined()) {
    Parts mask = call.replicated == Replicated::kNone ? Parts{{}, call.key_mask}
                                                      : split(call.key_mask, rows, call.replicated);
    at::Tensor keys = gather_rows(mask.share, group);
    if (mask.replicated.defined()) keys = join(mask.replicated, keys, call.replicated);
    return masked_attention(*impl_, all, call.key_mask, keys, context);
  }
  if (call.valid_rows < 0 || call.valid_rows >= whole) return impl_->forward(all, context);
  const int64_t mine = real_rows(call.valid_rows, groups_.place.rank(), share);
  return masked_attention(*impl_, all, bool_rows(batch, share, mine),
                          bool_rows(batch, whole, call.valid_rows), context);
}

at::Tensor UspAttention::forward_packed(const Qkv& qkv, const PackedBounds& bounds,
                                        const AttentionContext& context,
                                        bool skip_sequence_parallel) {
  if (is_local(skip_sequence_parallel)) return impl_->forward_packed(qkv, bounds, context);
  if (qkv.q.dim() != 3)
    throw Error(ErrorCode::kInvalidArgument,
                "packed q is " + shape_text(qkv.q) + "; accepted: [T, H, D]");
  Qkv batch = as_batch(qkv);
  check_call(batch, {});
  const int64_t total = qkv.q.size(0) * groups_.sequence->size();
  if (bounds.cu.empty() || bounds.cu.front() != 0 || bounds.cu.back() > total ||
      !std::is_sorted(bounds.cu.begin(), bounds.cu.end()))
    throw Error(ErrorCode::kInvalidArgument,
                "packed bounds must start at 0, never fall and end at or before the " +
                    std::to_string(total) + " rows of all " +
                    std::to_string(groups_.sequence->size()) + " ranks",
                "give the bounds of the whole sequence, not of this rank's rows");
  int64_t longest = 0;
  for (size_t d = 0; d + 1 < bounds.cu.size(); ++d)
    longest = std::max<int64_t>(longest, bounds.cu[d + 1] - bounds.cu[d]);
  if (bounds.max_seqlen < 0 || (bounds.max_seqlen > 0 && bounds.max_seqlen < longest))
    throw Error(ErrorCode::kInvalidArgument,
                "max_seqlen is " + std::to_string(bounds.max_seqlen) +
                    " but the longest document has " + std::to_string(longest) + " rows",
                "give at least that, or 0 for not given");
  Signature signature("packed attention");
  signature.add("q", qkv.q.sizes()).add("k", qkv.k.sizes());
  signature.add("dtype", static_cast<int64_t>(qkv.q.scalar_type()));
  signature.add("cu", std::vector<int64_t>(bounds.cu.begin(), bounds.cu.end()));
  signature.add("max_seqlen", bounds.max_seqlen);
  groups_.sequence->require_agreement(signature);
  if (mode_ == Mode::kRing) return packed_ring(batch, bounds);
  if (mode_ == Mode::kKvGather) return packed_gathered(batch, bounds, context);
  Qkv mine = exchange_->to_heads(batch);
  at::Tensor out = impl_->forward_packed({mine.q[0], mine.k[0], mine.v[0]}, bounds, context);
  return exchange_->to_rows(out.unsqueeze(0))[0];
}

at::Tensor UspAttention::packed_ring(const Qkv& qkv, const PackedBounds& bounds) {
  const int64_t total = qkv.q.size(1) * groups_.sequence->size();
  const auto& cu = bounds.cu;
  if (cu.size() > 2) require_padding(bounds, total);
  UspCall call;
  call.valid_rows = cu.size() > 1 ? cu[1] : 0;
  return forward_ring(qkv, call)[0];
}

// A second document is padding only if everything says so: the rows of a real one would come out as
// zeros.
void UspAttention::require_padding(const PackedBounds& bounds, int64_t total) const {
  const auto& cu = bounds.cu;
  const int64_t behind = cu[2] - cu[1];
  std::string why;
  if (cu.size() > 3)
    why = std::to_string(cu.size() - 1) + " documents";
  else if (cu[1] == 0 || cu[2] != total || bounds.max_seqlen != cu[1])
    why = "a second document of " + std::to_string(behind) +
          " rows that is not marked as padding " + "(bounds 0, " + std::to_string(cu[1]) + ", " +
          std::to_string(cu[2]) + " of " + std::to_string(total) + " rows, max_seqlen " +
          std::to_string(bounds.max_seqlen) + ")";
  else if (behind >= kPackedAlignment)
    why = "a second document of " + std::to_string(behind) + " rows, which is more than the " +
          std::to_string(kPackedAlignment - 1) + " that alignment needs";
  if (why.empty()) return;
  refuse("packed attention under ring degree " + std::to_string(groups_.degrees.ring) + " got " +
             why + "; accepted: one document (0, used), or (0, used, all rows) with max_seqlen = " +
             "used and fewer than " + std::to_string(kPackedAlignment) + " rows of padding",
         "use ring degree 1 with ulysses for several documents");
}

at::Tensor UspAttention::packed_gathered(const Qkv& qkv, const PackedBounds& bounds,
                                         const AttentionContext& context) {
  at::Tensor k = gather_rows(qkv.k, *groups_.sequence), v = gather_rows(qkv.v, *groups_.sequence);
  at::Tensor out = at::zeros(qkv.q.sizes(), qkv.q.options());
  const int64_t rows = qkv.q.size(1), first = groups_.place.rank() * rows;
  for (size_t d = 0; d + 1 < bounds.cu.size(); ++d) {
    const int64_t start = bounds.cu[d], length = bounds.cu[d + 1] - start;
    const int64_t from = std::max(start, first), to = std::min(start + length, first + rows);
    if (from >= to) continue;
    out.narrow(1, from - first, to - from)
        .copy_(impl_->forward({qkv.q.narrow(1, from - first, to - from), k.narrow(1, start, length),
                               v.narrow(1, start, length)},
                              context));
  }
  return out[0];
}

}  // namespace h3::parallel
