// The backend `subblock_sparse_attn`: routes and runs a call that the schedule admits, and hands
// every other call to the layer's dense backend, with the same arguments.
#pragma once

#include <memory>

#include "h3/attention/binding.h"
#include "h3/attention/impl.h"
#include "h3/attention/layer_stats.h"
#include "h3/attention/options.h"
#include "h3/attention/schedule.h"

namespace h3 {

struct SubBlockOptions {
  AttentionOptions attention;
  SubBlockSettings settings;
  LayerGate gate;                       // layer_gate(layer, settings)
  bool needs_query_block_mask = false;  // refuse a sparse call without a mask
  int64_t max_pairs = kMaxPairsPerCall;
};

/// What runs when the schedule says dense.
struct DenseHalf {
  std::shared_ptr<AttentionImpl> impl;
  std::shared_ptr<AttentionImpl> f32;  // for f32 calls; null: `impl` takes them too
};

/// The library calls; tests count them.
struct SubBlockOps {
  decltype(&h3::route) route = &h3::route;
  decltype(&h3::attend) attend = &h3::attend;
};

/// Gates: the layer's (options.gate), the call's (step, dtype, key rows, causal) and, in packed
/// calls, the length of each document. A dense call gives the bits of the dense backend.
///
/// A sparse call is one route and one attend for all documents; rows of short documents, and query
/// blocks that context.query_block_mask leaves out, are dense rows of the same launch. The mask
/// speaks of the first non-empty document (of `forward`: of the sequence); documents behind it are
/// sparse throughout. A mask that admits no block of the only sparse document makes the call dense.
/// More heads than options.max_pairs allows are run in consecutive ranges, with the same bits.
///
/// Nothing waits for the device: kept blocks are computed from the budget, mass stays on the device
/// until `stats` is read. Throws h3::Error: see check_qkv, decide_packed, check_query_block_mask.
std::unique_ptr<AttentionImpl> make_subblock_impl(const SubBlockOptions& options, DenseHalf dense,
                                                  std::shared_ptr<LayerStats> stats,
                                                  const SubBlockOps& ops = {});

}  // namespace h3
