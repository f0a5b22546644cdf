// Streams, graphs, workspaces and refusals of calls on the device.
#include <gtest/gtest.h>

#include <cmath>

#include "tessera/tests/gpu/gpu_case.h"

namespace tessera {
namespace {

using testing::AttendCase;
using testing::BlockLists;
using testing::cuda_ok;
using testing::DeviceArray;
using testing::DevicePlan;
using testing::expect_refusal;
using testing::gpu_kernels;
using testing::GpuCase;
using testing::GpuRoute;
using testing::is_ok;
using testing::on_gpu;
using testing::Random;
using testing::ResultBits;
using testing::RouterCase;
using testing::Stream;

class GpuExecution : public testing::GpuTest {};

constexpr StatusCode kInvalid = StatusCode::kInvalidArgument;

/// A captured graph, ready to replay.
class Graph {
 public:
  template <class Work>
  Graph(const Stream& stream, Work work) {
    cuda_ok(cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeGlobal), "begin capture");
    work();
    cudaGraph_t graph = nullptr;
    cuda_ok(cudaStreamEndCapture(stream.get(), &graph), "end capture");
    cuda_ok(cudaGraphInstantiate(&executable_, graph, 0), "cudaGraphInstantiate");
    cuda_ok(cudaGraphDestroy(graph), "cudaGraphDestroy");
  }
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;
  ~Graph() { (void)cudaGraphExecDestroy(executable_); }
  void replay(const Stream& stream) const {
    cuda_ok(cudaGraphLaunch(executable_, stream.get()), "cudaGraphLaunch");
    stream.wait();
  }

 private:
  cudaGraphExec_t executable_ = nullptr;
};

Execution on_stream(const std::string& kernel, const Stream& stream,
                    const DeviceArray<std::byte>& scratch, bool check_plan) {
  Execution exec = on_gpu(kernel, check_plan);
  exec.stream = stream.get();
  exec.workspace = {scratch.data(), scratch.bytes()};
  return exec;
}

TEST_F(GpuExecution, TwoStreamsAtOnce_DoNotDisturbEachOther) {
  Random random(testing::test_seed(431));
  AttendCase first({.sq = 3000, .sk = 3000, .heads = 8, .kv_heads = 8, .dtype = Dtype::kBf16});
  AttendCase second({.sq = 2900, .sk = 2900, .heads = 8, .kv_heads = 8, .dtype = Dtype::kBf16});
  first.fill_random(random);
  second.fill_random(random);
  BlockLists a(1, 8, 3000, 3000), b(1, 8, 2900, 2900);
  a.fill_random(random, 1, 20);
  b.fill_random(random, 1, 20);
  const Plan plan_a = a.plan(), plan_b = b.plan();
  const DevicePlan device_a(plan_a.view()), device_b(plan_b.view());
  GpuCase gpu_a(first), gpu_b(second);
  const Stream stream_a, stream_b;
  for (const std::string& kernel : gpu_kernels()) {
    SCOPED_TRACE(kernel);
    ASSERT_TRUE(is_ok(gpu_a.run(device_a.view(), on_gpu(kernel))));
    const ResultBits want_a = bits_of(first);
    ASSERT_TRUE(is_ok(gpu_b.run(device_b.view(), on_gpu(kernel))));
    const ResultBits want_b = bits_of(second);
    const AttentionParams p_a = gpu_a.params(device_a.view()), p_b = gpu_b.params(device_b.view());
    const auto scratch_a = gpu_a.workspace(p_a), scratch_b = gpu_b.workspace(p_b);
    gpu_a.poison_outputs();
    gpu_b.poison_outputs();
    cuda_ok(cudaDeviceSynchronize(), "poisoning");
    for (int round = 0; round < 10; ++round) {
      ASSERT_TRUE(is_ok(attend(p_a, on_stream(kernel, stream_a, scratch_a, false))));
      ASSERT_TRUE(is_ok(attend(p_b, on_stream(kernel, stream_b, scratch_b, false))));
    }
    stream_a.wait();
    stream_b.wait();
    gpu_a.fetch();
    gpu_b.fetch();
    EXPECT_EQ(bits_of(first), want_a);
    EXPECT_EQ(bits_of(second), want_b);
  }
}

TEST_F(GpuExecution, GraphReplay_SeesChangedDataAndPlan) {
  Random random(testing::test_seed(432));
  const std::vector<int32_t> packed{0, 300, 333, 900};
  for (const std::vector<int32_t>& cu : {std::vector<int32_t>{}, packed}) {
    for (const std::string& kernel : gpu_kernels()) {
      SCOPED_TRACE(kernel + (cu.empty() ? "" : " packed"));
      AttendCase c({.sq = 910, .sk = 910, .heads = 3, .kv_heads = 3, .dtype = Dtype::kBf16});
      c.cu = cu;
      c.fill_random(random);
      BlockLayout layout = single_document(910, 910);
      if (!cu.empty()) {
        ASSERT_TRUE(is_ok(packed_documents(cu, 910, 0, &layout)));
      }
      Plan plan, other;
      ASSERT_TRUE(is_ok(random_plan(layout, 1, 3, 4, random.next(), &plan)));
      ASSERT_TRUE(is_ok(random_plan(layout, 1, 3, 4, random.next(), &other)));
      ASSERT_NE(plan.index, other.index);
      DevicePlan device(plan.view());
      GpuCase gpu(c);
      const AttentionParams p = gpu.params(device.view());
      const auto scratch = gpu.workspace(p);
      const Stream stream;
      const Graph graph(stream, [&] {
        EXPECT_TRUE(is_ok(attend(p, on_stream(kernel, stream, scratch, false))));
      });
      const auto replay_and_compare = [&](const Plan& now) {
        gpu.poison_outputs();
        graph.replay(stream);
        gpu.fetch();
        const ResultBits replayed = bits_of(c);
        expect_gpu_matches(c, testing::cpu_oracle(c, now.view()));
        ASSERT_TRUE(is_ok(gpu.run_plan(now.view(), on_gpu(kernel))));
        EXPECT_EQ(bits_of(c), replayed);
      };
      replay_and_compare(plan);
      c.fill_random(random, 2);
      gpu.upload();
      replay_and_compare(plan);
      device.index().upload(other.index);
      device.count().upload(other.count);
      replay_and_compare(other);
      // A plan that turns bad shows as NaN, and a good one afterwards is right again.
      Plan bad = other;
      bad.index[0] = 99;
      device.index().upload(bad.index);
      gpu.poison_outputs();
      graph.replay(stream);
      gpu.fetch();
      const int64_t rows = cu.empty() ? 910 : 900;
      for (int64_t s = 0; s < rows; s += 37) EXPECT_TRUE(std::isnan(c.out.get({0, s, 1, 5})));
      device.index().upload(other.index);
      replay_and_compare(other);
    }
  }
}

TEST_F(GpuExecution, GraphOfRouterAndAttention_FollowsItsInputs) {
  Random random(testing::test_seed(433));
  RouterCase routed({.sq = 2000, .sk = 2000, .heads = 2, .kv_heads = 2, .dtype = Dtype::kBf16});
  routed.fill_random(random, 2);
  RouteParams rp = routed.params();
  rp.config.budget.kind = BudgetKind::kMass;
  rp.config.budget.mass = 0.7;
  GpuRoute route_case(routed, rp);
  AttendCase c({.sq = 2000, .sk = 2000, .heads = 2, .kv_heads = 2, .dtype = Dtype::kBf16});
  c.fill_random(random, 2);
  GpuCase gpu(c);
  // Router and attention read the same device tensors.
  AttentionParams p = gpu.params(route_case.bitmap_view());
  RouteParams shared = route_case.params();
  shared.q = p.q;
  shared.k = p.k;
  const auto scratch = gpu.workspace(p);
  size_t bytes = 0;
  ASSERT_TRUE(is_ok(route_workspace(shared, on_gpu(), &bytes)));
  const DeviceArray<std::byte> route_scratch(bytes);
  const Stream stream;
  const Graph graph(stream, [&] {
    EXPECT_TRUE(
        is_ok(route(shared, on_stream("", stream, route_scratch, false), route_case.outputs())));
    EXPECT_TRUE(is_ok(attend(p, on_stream("", stream, scratch, false))));
  });
  for (int round = 0; round < 3; ++round) {
    c.fill_random(random, 2);
    gpu.upload();
    gpu.poison_outputs();
    cuda_ok(cudaDeviceSynchronize(), "upload");
    graph.replay(stream);
    gpu.fetch();
    const ResultBits replayed = bits_of(c);
    ASSERT_TRUE(
        is_ok(route(shared, on_stream("", stream, route_scratch, false), route_case.outputs())));
    stream.wait();
    ASSERT_TRUE(is_ok(gpu.run(route_case.bitmap_view(), on_gpu())));
    EXPECT_EQ(bits_of(c), replayed);
  }
}

TEST_F(GpuExecution, CheckPlanDuringCapture_IsRefusedAndTheCaptureLives) {
  Random random(testing::test_seed(434));
  AttendCase c({.sq = 200, .sk = 200, .dtype = Dtype::kBf16});
  c.fill_random(random);
  BlockLists lists(1, 2, 200, 200);
  lists.fill_random(random, 1, 3);
  const Plan plan = lists.plan();
  const DevicePlan device(plan.view());
  GpuCase gpu(c);
  const AttentionParams p = gpu.params(device.view());
  const auto scratch = gpu.workspace(p);
  const Stream stream;
  const Graph graph(stream, [&] {
    expect_refusal(attend(p, on_stream("", stream, scratch, true)), kInvalid,
                   {"check_plan", "graph capture", "false"});
    EXPECT_TRUE(is_ok(attend(p, on_stream("", stream, scratch, false))));
  });
  gpu.poison_outputs();
  graph.replay(stream);
  gpu.fetch();
  expect_gpu_matches(c, c.oracle(lists.keys(200)));
}

TEST_F(GpuExecution, BadWorkspace_IsRefused) {
  Random random(testing::test_seed(435));
  AttendCase c({.sq = 300, .sk = 300, .dtype = Dtype::kBf16});
  c.fill_random(random);
  BlockLists lists(1, 2, 300, 300);
  lists.fill_random(random, 1, 3);
  const Plan plan = lists.plan();
  const DevicePlan device(plan.view());
  GpuCase gpu(c);
  const AttentionParams p = gpu.params(device.view());
  size_t bytes = 0;
  ASSERT_TRUE(is_ok(attention_workspace(p, on_gpu(), &bytes)));
  ASSERT_GT(bytes, 0u);
  const DeviceArray<std::byte> scratch(bytes + 256);
  for (const std::string& kernel : gpu_kernels()) {
    SCOPED_TRACE(kernel);
    Execution exec = on_gpu(kernel);
    expect_refusal(attend(p, exec), kInvalid, {"workspace has 0 bytes", std::to_string(bytes)});
    exec.workspace = {scratch.data(), bytes - 1};
    expect_refusal(attend(p, exec), kInvalid,
                   {std::to_string(bytes - 1), std::to_string(bytes), "attention_workspace"});
    exec.workspace = {nullptr, bytes};
    expect_refusal(attend(p, exec), kInvalid, {"attention_workspace"});
    exec.workspace = {scratch.data() + 16, bytes};
    expect_refusal(attend(p, exec), kInvalid, {"workspace", "256"});
  }
  RouterCase routed({.sq = 300, .sk = 300, .dtype = Dtype::kBf16});
  routed.fill_random(random, 1);
  GpuRoute route_case(routed, routed.params());
  ASSERT_TRUE(is_ok(route_workspace(route_case.params(), on_gpu(), &bytes)));
  const DeviceArray<std::byte> route_scratch(bytes + 256);
  Execution exec = on_gpu();
  const auto run = [&] { return route(route_case.params(), exec, route_case.outputs()); };
  expect_refusal(run(), kInvalid, {"workspace has 0 bytes", std::to_string(bytes)});
  exec.workspace = {route_scratch.data(), bytes - 1};
  expect_refusal(run(), kInvalid, {std::to_string(bytes - 1), "route_workspace"});
  exec.workspace = {route_scratch.data() + 16, bytes};
  expect_refusal(run(), kInvalid, {"workspace", "256"});
}

TEST_F(GpuExecution, BadTensors_AreRefusedWithValueAndRule) {
  Random random(testing::test_seed(436));
  AttendCase c({.sq = 200, .sk = 200, .dtype = Dtype::kBf16});
  c.fill_random(random);
  GpuCase gpu(c);
  DeviceArray<std::byte> scratch(1 << 20);
  const auto refuse = [&](StatusCode code, auto change, std::vector<std::string> parts) {
    for (const std::string& kernel : gpu_kernels()) {
      SCOPED_TRACE(kernel + ": " + parts[0]);
      AttentionParams p = gpu.params();
      change(p);
      Execution exec = on_gpu(kernel);
      exec.workspace = {scratch.data(), scratch.bytes()};
      expect_refusal(attend(p, exec), code, parts);
    }
  };
  const auto shift = [](Bshd& t) { t.data = static_cast<char*>(t.data) + 8; };
  constexpr StatusCode kUnsupported = StatusCode::kUnsupported;
  refuse(kUnsupported, [&](auto& p) { shift(p.q); }, {"q is not 16-byte aligned"});
  refuse(kUnsupported, [&](auto& p) { shift(p.k); }, {"k is not 16-byte aligned"});
  refuse(kUnsupported, [&](auto& p) { shift(p.v); }, {"v is not 16-byte aligned"});
  refuse(kUnsupported, [&](auto& p) { shift(p.out); }, {"out is not 16-byte aligned"});
  refuse(kUnsupported, [](auto& p) { p.k.stride[1] += 4; },
         {"k has stride 260 in dimension 1", "multiples of 8"});
  refuse(kUnsupported, [](auto& p) { p.q.stride[2] = -128; },
         {"q has stride -128 in dimension 2", "positive"});
  refuse(kUnsupported, [](auto& p) { p.v.stride[1] = 0; }, {"v has stride 0 in dimension 1"});
  refuse(kUnsupported,
         [](auto& p) {
           for (Bshd* t : {&p.q, &p.k, &p.v, &p.out}) {
             t->dtype = Dtype::kF32;
             t->size[1] = 50;  // stays inside the buffers
           }
           p.lse = {};
         },
         {"f32", "bf16 and f16"});
  refuse(kUnsupported,
         [](auto& p) {
           for (Bshd* t : {&p.q, &p.k, &p.v, &p.out}) t->size[3] = 64;
         },
         {"head_dim is 64", "128"});
  refuse(kUnsupported,
         [](auto& p) {
           for (Bshd* t : {&p.q, &p.k, &p.v, &p.out}) t->size[3] = 96;
         },
         {"head_dim is 96"});
  const DeviceArray<uint16_t> longer(262145 * 256);
  refuse(kUnsupported,
         [&](auto& p) {
           p.k = p.v = contiguous_view<4>(longer.data(), {1, 262145, 2, 128}, Dtype::kBf16);
         },
         {"4097 key blocks", "262,144"});
  refuse(kInvalid, [](auto& p) { p.q.dtype = Dtype::kI32; }, {"q is i32"});
  refuse(kInvalid, [](auto& p) { p.out.data = p.q.data; }, {"out overlaps q"});
  refuse(kInvalid, [](auto& p) { p.out.data = nullptr; }, {"out has no data pointer"});
  refuse(kInvalid, [](auto& p) { p.lse.dtype = Dtype::kF16; }, {"lse is f16", "f32"});
  refuse(kInvalid, [](auto& p) { p.softmax_scale = -1; }, {"softmax_scale is -1"});
  // Nothing of this broke the device.
  ASSERT_TRUE(is_ok(gpu.run(std::nullopt, on_gpu())));
  expect_gpu_matches(c, c.oracle(testing::all_keys(200)));
}

TEST_F(GpuExecution, BadRouterTensors_AreRefusedWithValueAndRule) {
  Random random(testing::test_seed(437));
  RouterCase c({.sq = 200, .sk = 200, .dtype = Dtype::kBf16});
  c.fill_random(random, 1);
  GpuRoute route_case(c, c.params());
  DeviceArray<std::byte> scratch(16 << 20);
  const auto refuse = [&](StatusCode code, auto change, std::vector<std::string> parts) {
    RouteParams p = route_case.params();
    change(p);
    Execution exec = on_gpu();
    exec.workspace = {scratch.data(), scratch.bytes()};
    expect_refusal(route(p, exec, route_case.outputs()), code, parts);
  };
  refuse(kInvalid, [](auto& p) { p.q.data = static_cast<char*>(p.q.data) + 2; },
         {"q is not 16-byte aligned"});
  refuse(kInvalid, [](auto& p) { p.k.stride[1] += 1; }, {"k has stride 257", "multiples of 8"});
  refuse(StatusCode::kUnsupported, [](auto& p) { p.q.dtype = p.k.dtype = Dtype::kF32; }, {"f32"});
  refuse(StatusCode::kUnsupported, [](auto& p) { p.q.size[3] = p.k.size[3] = 64; },
         {"head_dim is 64", "128"});
  refuse(kInvalid, [](auto& p) { p.config.n_q = 3; }, {"n_q is 3"});
  Plan plan;
  expect_refusal(route(route_case.params(), on_gpu(), &plan), kInvalid, {"host memory"});
  Execution exec = on_gpu("cpu_highway");
  exec.workspace = {scratch.data(), scratch.bytes()};
  expect_refusal(route(route_case.params(), exec, route_case.outputs()), kInvalid,
                 {"\"cpu_highway\" does not run on CUDA"});
}

TEST_F(GpuExecution, WrongDeviceOrKernelName_IsRefused) {
  AttendCase c({.sq = 100, .sk = 100, .dtype = Dtype::kBf16});
  c.fill_uniform();
  GpuCase gpu(c);
  const AttentionParams p = gpu.params();
  for (int index : {99, -1}) {
    Execution exec = on_gpu();
    exec.device.index = index;
    expect_refusal(attend(p, exec), StatusCode::kUnsupported,
                   {"cuda:" + std::to_string(index), "does not exist", "cuda:0"});
    size_t bytes = 0;
    expect_refusal(attention_workspace(p, exec, &bytes), StatusCode::kUnsupported,
                   {"does not exist"});
  }
  expect_refusal(attend(p, on_gpu("sm91_turbo")), kInvalid,
                 {"\"sm91_turbo\"", "sm90_union, sm90_union_plain, sm90_list"});
  expect_refusal(attend(p, on_gpu("cpu_highway")), StatusCode::kUnsupported, {"runs on cpu"});
  for (const std::string& kernel : gpu_kernels()) {
    EXPECT_EQ(explain(p, on_gpu(kernel)).kernel, kernel);
  }
  EXPECT_EQ(explain(p, on_gpu()).kernel, "sm90_union") << "the default";
  EXPECT_EQ(explain(c.params(), {}).kernel, "cpu_highway") << "the CPU stays available";
}

}  // namespace
}  // namespace tessera
