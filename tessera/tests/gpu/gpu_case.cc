#include "tessera/tests/gpu/gpu_case.h"

#include <cmath>

namespace tessera::testing {

std::string gpu_missing() {
  for (const KernelInfo& kernel : list_kernels()) {
    if (kernel.name == gpu_kernels().front()) return kernel.why_not;
  }
  return "this build holds no CUDA kernels";
}

const std::vector<std::string>& gpu_kernels() {
  static const std::vector<std::string> names{"sm90_union", "sm90_union_plain", "sm90_list"};
  return names;
}

Execution on_gpu(const std::string& kernel, bool check_plan) {
  Execution exec;
  exec.device = {DeviceKind::kCuda, 0};
  exec.kernel = kernel;
  exec.check_plan = check_plan;
  return exec;
}

GpuCase::GpuCase(AttendCase& c) : case_(c), q_(c.q), k_(c.k), v_(c.v), out_(c.out), lse_(c.lse) {}

AttentionParams GpuCase::params(const std::optional<PlanView>& device_plan) const {
  AttentionParams p = case_.params(device_plan);
  p.q = q_.view();
  p.k = k_.view();
  p.v = v_.view();
  p.out = out_.view();
  p.lse = lse_.view();
  return p;
}

void GpuCase::upload() {
  q_.upload(case_.q);
  k_.upload(case_.k);
  v_.upload(case_.v);
}

DeviceArray<std::byte> GpuCase::workspace(const AttentionParams& params) const {
  size_t bytes = 0;
  EXPECT_TRUE(is_ok(attention_workspace(params, on_gpu(), &bytes)));
  return DeviceArray<std::byte>(bytes);
}

void GpuCase::poison_outputs() {
  out_.poison();
  lse_.poison();
}

void GpuCase::fetch() {
  out_.download(&case_.out);
  lse_.download(&case_.lse);
  EXPECT_TRUE(case_.out.guards_intact()) << "bytes outside the output were written";
  EXPECT_TRUE(case_.lse.guards_intact()) << "bytes outside the lse were written";
}

Status GpuCase::run(const std::optional<PlanView>& device_plan, Execution exec) {
  const AttentionParams p = params(device_plan);
  const DeviceArray<std::byte> scratch = workspace(p);
  exec.workspace = {scratch.data(), scratch.bytes()};
  poison_outputs();
  cuda_ok(cudaDeviceSynchronize(), "poisoning");
  const Status status = attend(p, exec);
  cuda_ok(cudaDeviceSynchronize(), "attend");
  cuda_ok(cudaGetLastError(), "attend left an error behind");
  EXPECT_TRUE(scratch.guard_intact()) << "bytes behind the workspace were written";
  fetch();
  return status;
}

Status GpuCase::run_plan(const PlanView& host_plan, const Execution& exec) {
  const DevicePlan plan(host_plan);
  return run(plan.view(), exec);
}

AttentionOracle cpu_oracle(const AttendCase& c, const std::optional<PlanView>& host_plan) {
  const auto [batch, sq, heads, dim] = c.q.size();
  AttendCase wide({.batch = batch,
                   .sq = sq,
                   .sk = c.k.size()[1],
                   .heads = heads,
                   .kv_heads = c.k.size()[2],
                   .dim = dim,
                   .dtype = Dtype::kF32});
  wide.q.copy_from(c.q);
  wide.k.copy_from(c.k);
  wide.v.copy_from(c.v);
  wide.cu = c.cu;
  wide.scale = c.scale;
  EXPECT_TRUE(is_ok(wide.run(host_plan, on("cpu_highway", 0))));
  AttentionOracle oracle;
  oracle.size = wide.out.size();
  oracle.out = wide.out.values();
  oracle.lse = wide.lse.values();
  return oracle;
}

void expect_gpu_matches(const AttendCase& c, const AttentionOracle& oracle) {
  const Tolerance t = tolerance_of(c.out.dtype());
  const OracleError e = oracle_error(c, oracle);
  EXPECT_LE(e.relative_l2, t.relative_l2);
  EXPECT_LE(e.max_abs, t.max_abs);
  EXPECT_LE(e.lse, 1e-3);
}

::testing::AssertionResult all_nan(const std::vector<double>& values) {
  for (size_t i = 0; i < values.size(); ++i) {
    if (!std::isnan(values[i])) {
      return ::testing::AssertionFailure() << "element " << i << " is " << values[i];
    }
  }
  return ::testing::AssertionSuccess();
}

ResultBits bits_of(const AttendCase& c) { return {c.out.bits(), c.lse.bits()}; }

GpuRoute::GpuRoute(const RouterCase& c, const RouteParams& params)
    : got(params),
      q_(c.q),
      k_(c.k),
      params_(params),
      index_(got.plan.index.size()),
      count_(got.plan.count.size()),
      bitmap_(got.bitmap.size()),
      dense_rows_(got.plan.dense_rows.size()),
      mass_(got.mass.size()),
      scores_(got.scores.size()) {
  params_.q = q_.view();
  params_.k = k_.view();
}

RouteOutputs GpuRoute::outputs() const {
  const int64_t b = got.shape.batch, h = got.shape.heads, g = got.shape.query_blocks;
  RouteOutputs out;
  out.plan.index = contiguous_view<4>(index_.data(), {b, h, g, got.shape.width}, Dtype::kI32);
  out.plan.count = contiguous_view<3>(count_.data(), {b, h, g}, Dtype::kI32);
  out.plan.dense_rows = contiguous_view<2>(dense_rows_.data(), {b, g}, Dtype::kU8);
  out.plan.bitmap = contiguous_view<4>(bitmap_.data(), {b, h, g, got.shape.words()}, Dtype::kU32);
  out.mass = contiguous_view<3>(mass_.data(), {b, h, g}, Dtype::kF32);
  out.scores = contiguous_view<4>(scores_.data(), {b, h, g, got.shape.key_blocks}, Dtype::kF32);
  return out;
}

PlanView GpuRoute::list_view() const {
  PlanView plan = outputs().plan;
  plan.bitmap = {};
  return plan;
}

PlanView GpuRoute::bitmap_view() const {
  PlanView plan = outputs().plan;
  plan.index = {};
  plan.count = {};
  return plan;
}

Status GpuRoute::run() {
  size_t bytes = 0;
  EXPECT_TRUE(is_ok(route_workspace(params_, on_gpu(), &bytes)));
  const DeviceArray<std::byte> scratch(bytes);
  for (auto* ints : {&index_, &count_}) ints->fill_bytes(0xff);
  for (auto* floats : {&mass_, &scores_}) floats->fill_bytes(0xff);
  bitmap_.fill_bytes(0xff);
  dense_rows_.fill_bytes(0xff);
  Execution exec = on_gpu();
  exec.workspace = {scratch.data(), scratch.bytes()};
  cuda_ok(cudaDeviceSynchronize(), "poisoning");
  const Status status = route(params_, exec, outputs());
  cuda_ok(cudaDeviceSynchronize(), "route");
  cuda_ok(cudaGetLastError(), "route left an error behind");
  EXPECT_TRUE(scratch.guard_intact()) << "bytes behind the workspace were written";
  for (const auto* ints : {&index_, &count_}) EXPECT_TRUE(ints->guard_intact());
  for (const auto* floats : {&mass_, &scores_}) EXPECT_TRUE(floats->guard_intact());
  EXPECT_TRUE(bitmap_.guard_intact());
  EXPECT_TRUE(dense_rows_.guard_intact());
  index_.download(got.plan.index);
  count_.download(got.plan.count);
  bitmap_.download(got.bitmap);
  dense_rows_.download(got.plan.dense_rows);
  mass_.download(got.mass);
  scores_.download(got.scores);
  return status;
}

}  // namespace tessera::testing
