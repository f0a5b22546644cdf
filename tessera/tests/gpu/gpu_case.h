// One attention or routing call on the device, with everything poisoned before it and checked after
// it. Tests derive from GpuTest and skip, with the library's own reason, where no kernel can run.
#pragma once

#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

#include "tessera/router.h"
#include "tessera/tests/gpu/device_buffers.h"
#include "tessera/tests/support/attend_case.h"
#include "tessera/tests/support/router_case.h"

namespace tessera::testing {

/// Why the CUDA kernels cannot run on this machine; empty if they can.
std::string gpu_missing();

class GpuTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = gpu_missing(); !why.empty()) GTEST_SKIP() << why;
  }
};

/// All CUDA kernels: every rule holds for each.
const std::vector<std::string>& gpu_kernels();

Execution on_gpu(const std::string& kernel = "", bool check_plan = true);

/// An AttendCase on the device. Results come back into the case's own out and lse.
class GpuCase {
 public:
  explicit GpuCase(AttendCase& c);
  AttendCase& host() { return case_; }
  /// With device pointers.
  AttentionParams params(const std::optional<PlanView>& device_plan = std::nullopt) const;
  /// Copies q, k, v of the case to the device again.
  void upload();
  /// Poisons outputs and workspace, enqueues, waits, fetches the outputs and checks all guards.
  Status run(const std::optional<PlanView>& device_plan, Execution exec);
  /// The same with a host plan.
  Status run_plan(const PlanView& host_plan, const Execution& exec);
  void poison_outputs();
  void fetch();
  /// Sizes a workspace for `params`, all bytes 0xff.
  DeviceArray<std::byte> workspace(const AttentionParams& params) const;

 private:
  AttendCase& case_;
  DeviceTensor<4> q_, k_, v_, out_;
  DeviceTensor<3> lse_;
};

/// The answer in f32 by the vector CPU kernel, for shapes the fp64 oracle is too slow for.
AttentionOracle cpu_oracle(const AttendCase& c, const std::optional<PlanView>& host_plan);

/// expect_matches with the catalogue's LSE bound of 1e-3: the device works in fp32 throughout.
void expect_gpu_matches(const AttendCase& c, const AttentionOracle& oracle);

/// True if every element of out (and lse, if given) is NaN.
::testing::AssertionResult all_nan(const std::vector<double>& values);

/// Bits of a result: out and lse.
struct ResultBits {
  std::vector<uint32_t> out, lse;
  bool operator==(const ResultBits&) const = default;
};
ResultBits bits_of(const AttendCase& c);

/// Device tensors and outputs of one routing call; `run` fetches into `got`.
class GpuRoute {
 public:
  GpuRoute(const RouterCase& c, const RouteParams& params);
  Status run();
  /// Routes other device tensors of the same shapes from now on.
  void use_tensors(const Bshd& q, const Bshd& k) {
    params_.q = q;
    params_.k = k;
  }
  const RouteParams& params() const { return params_; }
  RouteOutputs outputs() const;  // device pointers
  PlanView list_view() const;
  PlanView bitmap_view() const;
  RouteBuffers got;  // host copies

 private:
  DeviceTensor<4> q_, k_;
  RouteParams params_;
  DeviceArray<int32_t> index_, count_;
  DeviceArray<uint32_t> bitmap_;
  DeviceArray<uint8_t> dense_rows_;
  DeviceArray<float> mass_, scores_;
};

}  // namespace tessera::testing
