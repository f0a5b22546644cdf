// What a layer did: sparse calls, dense calls by reason, blocks kept. This, and not the table of
// the plan, is the proof that sparse attention ran.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <optional>
#include <string>

#include "h3/attention/schedule.h"

namespace h3 {

struct CounterValues {
  int64_t sparse_calls = 0;                           // calls with at least one sparse document
  std::array<int64_t, kDenseReasons> dense_calls{};   // by DenseReason
  int64_t sparse_documents = 0, dense_documents = 0;  // inside sparse calls
  int64_t blocks_kept = 0, blocks_total = 0;  // (query block, key block) pairs of sparse documents
  double mass_sum = 0;                        // estimated softmax mass kept, summed over rows
  int64_t mass_rows = 0;

  int64_t all_dense_calls() const;
  double kept_ratio() const {
    return blocks_total ? double(blocks_kept) / double(blocks_total) : 0;
  }
  /// Absent while no mass was reported: it is known on the host only after a synchronisation.
  std::optional<double> mean_mass() const;
  CounterValues& operator+=(const CounterValues& other);
};

/// One line: "39 sparse calls (kept 0.2576), 10 dense (early_step 10)".
std::string describe(const CounterValues& values);

/// {"sparse_calls":39,...,"dense_calls":{"early_step":10}}: one JSON object.
std::string counters_json(const CounterValues& values);

/// Any thread may add and read. Relaxed atomics: a reader that overlaps a call may see some of its
/// additions; once calls are over the sums are exact.
class LayerCounters {
 public:
  void add_dense(DenseReason reason) { add(&dense_calls_[static_cast<size_t>(reason)], 1); }
  void add_sparse(int64_t sparse_documents, int64_t dense_documents, int64_t kept, int64_t total);
  /// Kept blocks of calls that are counted already: some budgets know them on the device only.
  void add_kept(int64_t kept) { add(&blocks_kept_, kept); }
  void add_mass(double sum, int64_t rows);
  CounterValues values() const;
  void reset();

 private:
  static void add(std::atomic<int64_t>* counter, int64_t n) {
    counter->fetch_add(n, std::memory_order_relaxed);
  }

  // A line of its own: layers of different threads do not slow each other down.
  alignas(64) std::atomic<int64_t> sparse_calls_{0};
  std::array<std::atomic<int64_t>, kDenseReasons> dense_calls_{};
  std::atomic<int64_t> sparse_documents_{0}, dense_documents_{0};
  std::atomic<int64_t> blocks_kept_{0}, blocks_total_{0}, mass_rows_{0};
  std::atomic<double> mass_sum_{0};
};

}  // namespace h3
