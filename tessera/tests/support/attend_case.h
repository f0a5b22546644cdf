// One attention call with its tensors, and the acceptance rules against the fp64 oracle.
#pragma once

#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

#include "tessera/attention.h"
#include "tessera/tests/support/oracle.h"
#include "tessera/tests/support/owned_tensor.h"

namespace tessera::testing {

/// Both CPU kernels: every rule holds for each.
inline const std::vector<std::string>& kernels() {
  static const std::vector<std::string> names{"cpu_highway", "cpu_reference"};
  return names;
}

inline Execution on(const std::string& kernel, int threads = 2) {
  Execution exec;
  exec.kernel = kernel;
  exec.threads = threads;
  return exec;
}

struct CaseShape {
  int64_t batch = 1, sq = 200, sk = 200, heads = 2, kv_heads = 2, dim = 128;
  Dtype dtype = Dtype::kF32;
};

struct CaseLayouts {
  Layout4 q = guarded_rows(), k = guarded_rows(), v = guarded_rows(), out = guarded_rows();
  Layout3 lse = {};
};

struct AttendCase {
  Tensor4 q, k, v, out;
  Tensor3 lse;
  float scale = 0;
  std::vector<int32_t> cu;  // empty: unpacked

  explicit AttendCase(const CaseShape& s, const CaseLayouts& layouts = {});

  void fill_random(Random& random, float spread = 1) {
    q.fill_random(random, spread);
    k.fill_random(random, spread);
    v.fill_random(random);
  }
  /// q = k = 0: uniform softmax, the answer is a plain mean.
  void fill_uniform() {
    q.fill([](const auto&) { return 0.0f; });
    k.fill([](const auto&) { return 0.0f; });
  }
  AttentionParams params(const std::optional<PlanView>& plan = std::nullopt) const;
  /// Output and LSE are NaN before the run, so that a row left out shows.
  Status run(const std::optional<PlanView>& plan, const Execution& exec);
  AttentionOracle oracle(const KeysOfRow& keys) const {
    return attention_oracle(q, k, v, scale, keys);
  }
};

/// Allowed error of an output dtype against fp64: relative L2, largest error relative to max |O|.
struct Tolerance {
  double relative_l2 = 0, max_abs = 0, lse = 1e-4;  // lse: the catalogue allows 1e-3
};
Tolerance tolerance_of(Dtype dtype);

struct OracleError {
  double relative_l2 = 0;
  double max_abs = 0;  // relative to the largest |O|
  double cosine = 0;
  double lse = 0;  // largest |lse - oracle|; infinite if -inf rows disagree
};
OracleError oracle_error(const AttendCase& c, const AttentionOracle& oracle);

/// Output and LSE within the dtype's tolerance, guards of the outputs untouched.
void expect_matches(const AttendCase& c, const AttentionOracle& oracle);

::testing::AssertionResult contains(const std::string& text, const std::string& part);

/// The code, and every part in the message.
void expect_refusal(const Status& status, StatusCode code, const std::vector<std::string>& parts);

::testing::AssertionResult is_ok(const Status& status);

}  // namespace tessera::testing
