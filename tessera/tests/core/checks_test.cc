// Every refusal of `attend`, the dispatch table and `explain`.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>

#include "tessera/device.h"
#include "tessera/tests/support/attend_case.h"

namespace tessera {
namespace {

using testing::AttendCase;
using testing::BlockLists;
using testing::contains;
using testing::expect_refusal;
using testing::is_ok;
using testing::on;
using testing::Tensor4;

constexpr StatusCode kInvalid = StatusCode::kInvalidArgument;

class Checks : public ::testing::Test {
 protected:
  Checks() : c_({.sq = 100, .sk = 130, .heads = 4, .kv_heads = 2}) {
    c_.fill_uniform();
    c_.v.fill([](const auto&) { return 1.0f; });
  }
  /// attend and explain must refuse alike.
  template <class Change>
  void refuse(Change change, StatusCode code, const std::vector<std::string>& parts) {
    AttentionParams p = c_.params();
    change(p);
    expect_refusal(attend(p, {}), code, parts);
    const Explanation e = explain(p, {});
    expect_refusal(e.status, code, parts);
    EXPECT_EQ(e.kernel, "");
  }
  AttendCase c_;
};

TEST_F(Checks, GoodCall_IsAccepted) { EXPECT_TRUE(is_ok(attend(c_.params(), {}))); }

TEST_F(Checks, MissingData_IsRefused) {
  refuse([](auto& p) { p.q.data = nullptr; }, kInvalid, {"q has no data pointer"});
  refuse([](auto& p) { p.k.data = nullptr; }, kInvalid, {"k has no data pointer"});
  refuse([](auto& p) { p.v.data = nullptr; }, kInvalid, {"v has no data pointer"});
  refuse([](auto& p) { p.out.data = nullptr; }, kInvalid, {"out has no data pointer"});
}

TEST_F(Checks, WrongDtypes_AreRefused) {
  refuse([](auto& p) { p.q.dtype = Dtype::kI32; }, kInvalid, {"q is i32", "bf16, f16 and f32"});
  refuse([](auto& p) { p.q.dtype = Dtype::kF64; }, kInvalid, {"q is f64"});
  refuse([](auto& p) { p.k.dtype = Dtype::kBf16; }, kInvalid,
         {"q is f32 but k is bf16", "one dtype"});
  refuse([](auto& p) { p.v.dtype = Dtype::kF16; }, kInvalid, {"v is f16", "of k, f32"});
  refuse([](auto& p) { p.out.dtype = Dtype::kBf16; }, kInvalid, {"out is bf16", "must be f32"});
  refuse([](auto& p) { p.lse.dtype = Dtype::kBf16; }, kInvalid, {"lse is bf16", "must be f32"});
}

TEST_F(Checks, WrongShapes_AreRefused) {
  refuse([](auto& p) { p.q.size[1] = 0; }, kInvalid, {"q has shape [1, 0, 4, 128]", "at least 1"});
  refuse([](auto& p) { p.k.size[1] = 0; }, kInvalid, {"k has shape [1, 0, 2, 128]"});
  refuse([](auto& p) { p.q.size[0] = -3; }, kInvalid, {"[-3, 100, 4, 128]"});
  refuse([](auto& p) { p.k.size[0] = 2; }, kInvalid, {"batch and head_dim must agree"});
  refuse([](auto& p) { p.k.size[3] = 64; }, kInvalid, {"batch and head_dim must agree"});
  refuse([](auto& p) { p.q.size[2] = 3; }, kInvalid,
         {"q has 3 heads and k has 2", "multiple of the key heads"});
  refuse([](auto& p) { p.v.size[1] = 129; }, kInvalid, {"v is f32 [1, 129, 2, 128]"});
  refuse([](auto& p) { p.out.size[1] = 99; }, kInvalid, {"out is f32 [1, 99, 4, 128]", "like q"});
  refuse([](auto& p) { p.lse.size[2] = 99; }, kInvalid, {"lse is f32 [1, 4, 99]", "[1, 4, 100]"});
}

TEST_F(Checks, HeadDims_OtherThan64And128AreUnsupported) {
  for (int64_t dim : {1, 32, 72, 96, 112, 127}) {
    refuse([=](auto& p) { p.q.size[3] = p.k.size[3] = p.v.size[3] = p.out.size[3] = dim; },
           StatusCode::kUnsupported, {"head_dim is " + std::to_string(dim), "64 and 128"});
  }
}

TEST_F(Checks, BadStrides_AreRefused) {
  refuse([](auto& p) { p.q.stride[3] = 2; }, kInvalid, {"q has a last stride of 2", "contiguous"});
  refuse([](auto& p) { p.v.stride[3] = -1; }, kInvalid, {"v has a last stride of -1"});
  refuse([](auto& p) { p.out.stride[3] = 0; }, kInvalid, {"out has a last stride of 0"});
  refuse([](auto& p) { p.out.stride[1] = 0; }, kInvalid,
         {"out has stride 0 in dimension 1 of size 100", "overwrite"});
  refuse([](auto& p) { p.out.stride[2] = 0; }, kInvalid, {"stride 0 in dimension 2"});
}

TEST_F(Checks, ZeroStrideInput_Broadcasts) {
  AttentionParams p = c_.params();
  p.v.stride[1] = 0;
  p.k.stride[2] = 0;
  EXPECT_TRUE(is_ok(attend(p, {})));
  EXPECT_FLOAT_EQ(c_.out.get({0, 99, 3, 7}), 1.0f);
}

TEST_F(Checks, BadScale_IsRefused) {
  for (float bad : {-1.0f, std::nanf(""), std::numeric_limits<float>::infinity()}) {
    refuse([=](auto& p) { p.softmax_scale = bad; }, kInvalid,
           {"softmax_scale is", "positive and finite"});
  }
}

TEST_F(Checks, PackedCalls_NeedOneBatchAndOneTokenAxis) {
  static const std::vector<int32_t> kBounds{0, 50};
  refuse([](auto& p) { p.cu_seqlens = kBounds; }, kInvalid,
         {"packed documents need one batch and one token axis", "[1, 100, 4, 128]"});
  AttendCase two({.batch = 2, .sq = 100, .sk = 100});
  two.fill_uniform();
  two.cu = {0, 50};
  expect_refusal(attend(two.params(), {}), kInvalid, {"one batch"});
}

TEST_F(Checks, PlanForAnotherShape_IsRefused) {
  BlockLists lists(1, 4, 100, 130);
  lists.fill_all();
  Plan plan = lists.plan();
  EXPECT_TRUE(is_ok(c_.run(plan.view(), {})));
  BlockLists longer(1, 4, 200, 130);
  longer.fill_all();
  plan = longer.plan();
  refuse([&](auto& p) { p.plan = plan.view(); }, kInvalid, {"[1, 4, 4]", "[1, 4, 2]"});
  refuse([](auto& p) { p.plan = PlanView(); }, kInvalid, {"a plan must hold"});
}

TEST_F(Checks, OutputOverAnInput_IsRefused) {
  Tensor4 buffer({1, 400, 4, 128}, Dtype::kF32);
  const auto rows = [&](int64_t first, int64_t count, int64_t heads) {
    Bshd view = buffer.view();
    view.size = {1, count, heads, 128};
    view.data = static_cast<float*>(view.data) + first * view.stride[1];
    return view;
  };
  refuse([&](auto& p) { p.q = p.out = rows(0, 100, 4); }, kInvalid,
         {"out overlaps q", "buffer of its own"});
  refuse([&](auto& p) { p.k = rows(50, 130, 2), p.out = rows(0, 100, 4); }, kInvalid,
         {"out overlaps k"});
  refuse([&](auto& p) { p.v = rows(0, 130, 2), p.out = rows(129, 100, 4); }, kInvalid,
         {"out overlaps v"});
  AttentionParams p = c_.params();
  buffer.fill([](const auto&) { return 1.0f; });
  p.v = rows(0, 130, 2);
  p.out = rows(130, 100, 4);  // adjacent is fine
  EXPECT_TRUE(is_ok(attend(p, {})));
}

TEST_F(Checks, OutputBesideInputsInAFusedBuffer_IsAccepted) {
  Tensor4 fused({2, 100, 4 * 2, 128}, Dtype::kF32);
  fused.fill([](const auto&) { return 1.0f; });
  const auto part = [&](int64_t n) {
    Bshd view = fused.view();
    view.size[2] = 2;
    view.data = static_cast<float*>(view.data) + n * 2 * 128;
    return view;
  };
  AttentionParams p{.q = part(0), .k = part(1), .v = part(2), .out = part(3)};
  EXPECT_TRUE(is_ok(attend(p, {})));
  EXPECT_EQ(fused.get({1, 99, 7, 127}), 1.0f);
  p.out = part(0);
  expect_refusal(attend(p, {}), kInvalid, {"out overlaps q"});
  p.out = part(1);
  p.out.data = static_cast<float*>(p.out.data) + 128;  // one head of k, one of v
  expect_refusal(attend(p, {}), kInvalid, {"out overlaps k"});
}

TEST_F(Checks, SequenceFirstBatchesThatOverlap_AreRefused) {
  // [S, batch slots, H, D]: out starts one batch slot after q, so q of sample 1 is out of sample 0.
  Tensor4 buffer({50, 4, 2, 128}, Dtype::kF32);
  const auto slots = [&](int64_t first) {
    Bshd view = buffer.view();
    view.size = {2, 50, 2, 128};
    view.stride = {2 * 128, 4 * 2 * 128, 128, 1};
    view.data = static_cast<float*>(view.data) + first * 2 * 128;
    return view;
  };
  Tensor4 other({2, 50, 2, 128}, Dtype::kF32);
  other.fill([](const auto&) { return 0.0f; });
  AttentionParams p{.q = slots(0), .k = other.view(), .v = other.view(), .out = slots(1)};
  expect_refusal(attend(p, {}), kInvalid, {"out overlaps q"});
  p.out = slots(2);
  EXPECT_TRUE(is_ok(attend(p, {})));
}

TEST_F(Checks, Execution_IsChecked) {
  Execution exec;
  exec.threads = -1;
  expect_refusal(attend(c_.params(), exec), kInvalid, {"threads is -1", "0 for all"});
  expect_refusal(explain(c_.params(), exec).status, kInvalid, {"threads is -1"});
  exec = {};
  exec.device = {DeviceKind::kCuda, 99};  // on no machine
  expect_refusal(attend(c_.params(), exec), StatusCode::kUnsupported, {"cuda:99"});
  if (!built_with_cuda()) {
    expect_refusal(attend(c_.params(), exec), StatusCode::kUnsupported,
                   {"no CUDA kernels", "use the cpu"});
  }
  const Explanation e = explain(c_.params(), exec);
  expect_refusal(e.status, StatusCode::kUnsupported, {"cuda:99"});
  EXPECT_EQ(e.kernel, "");
  exec = on("cpu_turbo");
  expect_refusal(attend(c_.params(), exec), kInvalid,
                 {"\"cpu_turbo\"", "known are ", "cpu_highway, cpu_reference"});
}

TEST_F(Checks, HugeThreadCount_RunsOrSaysOutOfMemory) {
  // More threads than work items: no more are started than there is work.
  for (int threads : {100000, std::numeric_limits<int>::max()}) {
    Execution exec;
    exec.threads = threads;
    EXPECT_TRUE(is_ok(attend(c_.params(), exec)));
  }
}

TEST_F(Checks, ThrowingProgress_BecomesAStatus) {
  Execution exec = on("cpu_highway", 2);
  exec.progress = [](int64_t, int64_t) { throw std::runtime_error("stop"); };
  expect_refusal(attend(c_.params(), exec), StatusCode::kInternal, {"stop"});
}

TEST_F(Checks, Explain_NamesTheKernelAndWhyOthersAreNot) {
  Explanation e = explain(c_.params(), {});
  EXPECT_TRUE(is_ok(e.status));
  EXPECT_EQ(e.kernel, "cpu_highway");
  // Every other row of the table: the CUDA kernels of such a build stand in front.
  ASSERT_EQ(e.refusals.size(), list_kernels().size() - 1);
  for (size_t i = 0; i + 1 < e.refusals.size(); ++i) {
    EXPECT_TRUE(contains(e.refusals[i].reason, "runs on cuda 9.0")) << e.refusals[i].kernel;
  }
  EXPECT_EQ(e.refusals.back().kernel, "cpu_reference");
  EXPECT_TRUE(contains(e.refusals.back().reason, "cpu_highway comes first"));
  EXPECT_FALSE(e.sparse);
  EXPECT_EQ(e.plan.rows, 8);
  EXPECT_EQ(e.plan.dense_rows, 8);
  EXPECT_EQ(e.plan.total_pairs, 4 * 2 * 3);
  EXPECT_DOUBLE_EQ(e.plan.density(), 1.0);
  e = explain(c_.params(), on("cpu_reference"));
  EXPECT_EQ(e.kernel, "cpu_reference");
  ASSERT_EQ(e.refusals.size(), list_kernels().size() - 1);
  EXPECT_TRUE(contains(e.refusals.back().reason, "asked for by name"));
}

TEST_F(Checks, Explain_RunsNothingAndCountsThePlan) {
  BlockLists lists(1, 4, 100, 130);
  for (auto& row : lists.rows) row = {2, 0};
  const Plan plan = lists.plan();
  c_.out.poison();
  const auto before = c_.out.bits();
  const Explanation e = explain(c_.params(plan.view()), {});
  EXPECT_EQ(c_.out.bits(), before);
  EXPECT_TRUE(e.sparse);
  EXPECT_EQ(e.plan.kept_pairs, 16);
  EXPECT_NEAR(e.plan.density(), 2.0 / 3, 1e-12);
}

TEST(Kernels, List_NamesBothCpuKernelsAsUsable) {
  const std::vector<KernelInfo> list = list_kernels();
  std::vector<std::string> cpu;
  for (const KernelInfo& k : list) {
    EXPECT_NE(k.description, "");
    EXPECT_EQ(k.usable, k.why_not.empty()) << k.name;
    if (k.device == "cpu") cpu.push_back(k.name);
    EXPECT_TRUE(k.usable || k.device != "cpu") << k.name;
  }
  EXPECT_EQ(cpu, (std::vector<std::string>{"cpu_highway", "cpu_reference"}));
}

TEST(Device, Info_NamesTheTargetThatRuns) {
  const CpuInfo info = cpu_info();
  EXPECT_GE(info.hardware_threads, 1);
  EXPECT_NE(
      std::find(info.compiled_targets.begin(), info.compiled_targets.end(), info.vector_target),
      info.compiled_targets.end())
      << info.vector_target;
  EXPECT_TRUE(contains(version(), "."));
}

TEST(Status, Codes_HaveDistinctMeanings) {
  std::vector<std::string_view> seen;
  for (StatusCode code : {StatusCode::kOk, StatusCode::kInvalidArgument, StatusCode::kUnsupported,
                          StatusCode::kOutOfMemory, StatusCode::kIo, StatusCode::kInternal}) {
    EXPECT_EQ(std::find(seen.begin(), seen.end(), describe(code)), seen.end());
    seen.push_back(describe(code));
  }
}

}  // namespace
}  // namespace tessera
