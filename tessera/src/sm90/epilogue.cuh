// Normalises and stores one query block of output, and its log-sum-exp.
#pragma once

#include <cstdint>

#include "tessera/src/sm90/attention_params.h"
#include "tessera/src/sm90/softmax.cuh"

namespace tessera::sm90 {

/// `thread` in [0, 128) of the warpgroup; `block` counts inside the document. Rows past the
/// document are not stored. A row that saw no key gets 0 and -infinity.
template <class Wgmma>
__device__ __forceinline__ void store_block(const ForwardParams& p, const DocumentInfo& d,
                                            int batch, int head, int block, float (&o)[64],
                                            RowState row, int thread) {
  const int lane = thread & 31;
  row.sum0 += __shfl_xor_sync(~0u, row.sum0, 1);
  row.sum0 += __shfl_xor_sync(~0u, row.sum0, 2);
  row.sum1 += __shfl_xor_sync(~0u, row.sum1, 1);
  row.sum1 += __shfl_xor_sync(~0u, row.sum1, 2);
  const int local = block * kBlock + (thread >> 5) * 16 + (lane >> 2);
  // A sum that is NaN must reach the output; only the untouched 0 means "no key".
  float inverse0 = row.sum0 == 0.0f ? 0.0f : 1.0f / row.sum0;
  float inverse1 = row.sum1 == 0.0f ? 0.0f : 1.0f / row.sum1;
  // Without a check on the host, a bad plan must still never look like a result.
  const bool faulty = p.fault != nullptr && __ldg(p.fault) != 0;
  if (faulty) inverse0 = inverse1 = NAN;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int r = local + half * 8;
    if (r >= d.query_length) continue;
    const float inverse = half ? inverse1 : inverse0;
    const int64_t token = d.query_start + r;
    uint16_t* to = static_cast<uint16_t*>(p.out) + batch * p.out_batch + token * p.out_token +
                   head * p.out_head + (lane & 3) * 2;
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      *reinterpret_cast<uint32_t*>(to + 8 * i) =
          Wgmma::pack(o[4 * i + 2 * half] * inverse, o[4 * i + 2 * half + 1] * inverse);
    }
    if (p.lse != nullptr && (lane & 3) == 0) {
      const float top = half ? row.max1 : row.max0, sum = half ? row.sum1 : row.sum0;
      constexpr float kLn2 = 0.6931471805599453f;
      p.lse[batch * p.lse_batch + head * p.lse_head + token * p.lse_token] =
          faulty        ? NAN
          : sum == 0.0f ? -INFINITY
                        : (top + __log2f(sum)) * kLn2;
    }
  }
}

}  // namespace tessera::sm90
