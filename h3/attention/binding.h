// tessera's router and kernels on torch tensors: pointers and strides are handed over as they are,
// nothing is copied, work goes to the current stream of the tensors' device.
//   h3::RoutePlan plan = h3::route(q, k, {});
//   at::Tensor out = h3::attend({q, k, v}, {.plan = &plan}).out;
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "h3/attention/impl.h"
#include "tessera/plan.h"
#include "tessera/router.h"

namespace h3 {

/// Everything of tessera::RouteParams that is no tensor. Host values; see tessera/router.h for the
/// meaning and the method behind it.
struct RouteOptions {
  tessera::RouterConfig config;
  float softmax_scale = 0;                  // 0: 1 / sqrt(D)
  int64_t min_seq_len = 0;                  // tokens; documents with fewer keys get dense rows
  bool estimate_mass = true;                // fill RoutePlan::mass
  std::vector<int32_t> protected_blocks;    // key blocks that every sparse row keeps
  std::vector<uint8_t> dense_query_blocks;  // [Gq], non-zero: dense; empty: none
};

/// Which 64-token key blocks each 64-token query block reads. All tensors lie on q's device.
struct RoutePlan {
  at::Tensor index;        // i32 [B, H, Gq, W], ascending key block ids, unused slots -1
  at::Tensor count;        // i32 [B, H, Gq]
  at::Tensor dense_rows;   // u8 [B, Gq], non-zero: reads every key block; may be undefined
  at::Tensor mass;         // f32 [B, H, Gq], estimated kept softmax mass; may be undefined
  int32_t key_blocks = 0;  // of the longest document
  // Only `route` sets this. Plans from elsewhere have their values checked before a CUDA kernel
  // runs, which waits for the stream; the CPU checks every plan.
  bool from_router = false;
};

/// Shape of the plan that `route` would give; reads no tensor values, so meta tensors will do.
tessera::PlanShape route_shape(const at::Tensor& q, const at::Tensor& k,
                               const RouteOptions& options, const PackedBounds* bounds = nullptr);

/// q [B, Sq, H, D] and k [B, Sk, Hkv, D], or [T, H, D] and [T, Hkv, D] with `bounds`; bf16, f16 or
/// f32 (CUDA: no f32), D 64 or 128 (CUDA: 128), last stride 1. Packed plans have B = 1.
/// CUDA: enqueued on the current stream of q's device; the host waits for nothing. As everywhere in
/// torch, a tensor that another stream made needs record_stream.
/// Throws h3::Error with tessera's text.
RoutePlan route(const at::Tensor& q, const at::Tensor& k, const RouteOptions& options,
                const PackedBounds* bounds = nullptr);

struct AttendOptions {
  const RoutePlan* plan = nullptr;       // absent: dense
  const PackedBounds* bounds = nullptr;  // required for packed tensors [T, H, D]
  float softmax_scale = 0;               // 0: 1 / sqrt(D)
  bool with_lse = false;
  at::Tensor out;  // defined: written instead of a new tensor; q's shape and dtype, last stride 1,
                   // no overlap with an input
  at::Tensor lse;  // defined (with with_lse): written instead of a new tensor
  std::string kernel;  // "": tessera's choice; else a name that tessera::explain lists
};

/// softmax(q k^T * scale) v, dense or over the blocks of `plan`; shapes, dtypes, stream rules and
/// errors as for `route`, v as k. Rows outside all documents are 0 with LSE -inf. `lse` is
/// undefined unless asked for.
AttentionPartial attend(const Qkv& qkv, const AttendOptions& options = {});

/// Throws h3::Error when `status` is not ok, with its text unchanged.
void throw_if_error(const tessera::Status& status);

}  // namespace h3
