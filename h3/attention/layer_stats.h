// What one layer did, including what only the device knows: the mass that plans kept, and the block
// counts of mass budgets.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>

#include <cstdint>
#include <mutex>
#include <vector>

#include "h3/attention/binding.h"
#include "h3/attention/counters.h"

namespace h3 {

/// Sums of tensors that nobody waits for. `add` enqueues one reduction on the current stream, into
/// a slot of a small buffer there; when the slots are full, one more folds them. Only `take` waits.
/// Not thread-safe.
class PendingSums {
 public:
  explicit PendingSums(at::ScalarType dtype) : dtype_(dtype) {}
  void add(const at::Tensor& values);
  /// The sum of everything added since the last call. Waits for the streams that it was added on.
  double take();

 private:
  struct Buffer {
    c10::Stream stream;
    at::Tensor slots, total;        // [kSlots] and [], on the stream's device
    std::vector<at::Tensor> views;  // of each slot: making one costs as much as the sum
    size_t used = 0;
  };
  Buffer& buffer_for(const at::Tensor& values);

  const at::ScalarType dtype_;
  std::vector<Buffer> buffers_;  // one per stream
};

/// Counters of a layer. Any thread may add and read; only reading waits for the device. Replays of
/// a captured CUDA graph do not run this code and are not counted.
class LayerStats {
 public:
  /// Pairs of blocks count every head of every batch entry.
  struct SparseCall {
    int64_t sparse_documents = 0, dense_documents = 0;
    int64_t kept = 0;   // as far as the host knows: all but the sparse rows of a mass budget
    int64_t total = 0;  // pairs of the sparse documents
  };

  void add_dense(DenseReason reason) { counters_.add_dense(reason); }
  void add_sparse(const SparseCall& call) {
    counters_.add_sparse(call.sparse_documents, call.dense_documents, call.kept, call.total);
  }
  /// Takes plan.mass, whose `dense_rows` rows hold 1, into the sums, and with `count_kept` the
  /// plan's counts, which are 0 for dense rows. Rows count every head of every batch entry.
  void add_plan(const RoutePlan& plan, int64_t sparse_rows, int64_t dense_rows, bool count_kept);

  CounterValues values();
  void reset();

 private:
  void collect();  // with mutex_ held

  LayerCounters counters_;
  std::mutex mutex_;  // guards what follows
  PendingSums mass_{at::kFloat};
  PendingSums kept_{at::kLong};
  int64_t mass_rows_ = 0, dense_rows_ = 0;
  bool kept_pending_ = false;
};

}  // namespace h3
