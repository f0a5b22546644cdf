// Ring attention: every rank keeps its queries, keys and values travel around, and the partial
// results are merged by their log-sum-exp.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "h3/attention/impl.h"
#include "h3/parallel/group.h"
#include "h3/parallel/staging.h"

namespace h3::parallel {

/// Joins attention over two disjoint key sets, in f32 and exact up to rounding:
///   L = log(exp(La) + exp(Lb)),  O = Oa exp(La - L) + Ob exp(Lb - L).
/// lse [B, H, Sq] natural log, -inf where a query saw no key; out [B, Sq, H, D]. The result is f32.
AttentionPartial merge_partials(const AttentionPartial& a, const AttentionPartial& b);

struct RingRequest {
  Qkv shard;                // q [B, c, h, D], k and v [B, c, hkv, D]: chunk number `group.rank()`
  int64_t real = 0;         // rows of the whole sequence that are not padding
  at::Tensor replicated_q;  // optional [B, R, h, D]: queries that every rank holds
  Qkv replicated;           // optional k, v [B, R, hkv, D] (q unused): keys that every rank holds
};

struct RingResult {
  at::Tensor shard;       // [B, c, h, D] of q's dtype; padding rows are zero
  at::Tensor replicated;  // [B, R, h, D], the same bits on every rank of the ring; or undefined
};

/// Keys of padding rows are never seen: a chunk is cut to its real rows, a chunk without any is
/// passed on but not attended to. With no real key at all the result is zero. The next chunk
/// travels while the current one is attended to. `impl` must return the log-sum-exp.
RingResult ring_attention(const RingRequest& request, AttentionImpl& impl, Group& group,
                          StagingBuffers& staging);

}  // namespace h3::parallel
