// Long sequences and tensors beyond 2^31 elements on the device. Reference answers come from the
// CPU kernel or from the same heads alone in compact tensors.
#include <gtest/gtest.h>

#include <cmath>

#include "tessera/quality.h"
#include "tessera/tests/gpu/gpu_case.h"

namespace tessera {
namespace {

using testing::AttendCase;
using testing::cuda_ok;
using testing::DeviceArray;
using testing::DevicePlan;
using testing::gpu_kernels;
using testing::GpuCase;
using testing::is_ok;
using testing::on_gpu;
using testing::Random;

class GpuLarge : public testing::GpuTest {};

Execution with(const std::string& kernel, const DeviceArray<std::byte>& scratch) {
  Execution exec = on_gpu(kernel);
  exec.workspace = {scratch.data(), scratch.bytes()};
  return exec;
}

/// `count` bf16 numbers, uniform in about [-2, 2): cheap, for buffers of gigabytes.
std::vector<uint16_t> fast_values(size_t count, uint64_t seed) {
  Random random(seed);
  std::vector<uint16_t> values(count);
  for (size_t i = 0; i < count; i += 4) {
    const uint64_t bits = random.next();
    for (size_t j = i; j < std::min(count, i + 4); ++j) {
      const auto part = static_cast<int16_t>(bits >> (16 * (j - i)));
      values[j] = f32_to_bf16(static_cast<float>(part) * 0x1p-14f);
    }
  }
  return values;
}

/// Row-major [rows, heads * 128] host values into a device view's head `first_head` onwards.
void upload_heads(const std::vector<uint16_t>& values, const Bshd& view, int64_t first_head,
                  int64_t heads) {
  const size_t row = static_cast<size_t>(heads) * 256;
  cuda_ok(cudaMemcpy2D(static_cast<uint16_t*>(view.data) + first_head * view.stride[2],
                       static_cast<size_t>(view.stride[1]) * 2, values.data(), row, row,
                       static_cast<size_t>(view.size[1]), cudaMemcpyHostToDevice),
          "upload of heads");
}

std::vector<uint16_t> download_heads(const Bshd& view, int64_t first_head, int64_t heads) {
  const size_t row = static_cast<size_t>(heads) * 256;
  std::vector<uint16_t> values(static_cast<size_t>(view.size[1] * heads) * 128);
  cuda_ok(cudaMemcpy2D(values.data(), row,
                       static_cast<uint16_t*>(view.data) + first_head * view.stride[2],
                       static_cast<size_t>(view.stride[1]) * 2, row,
                       static_cast<size_t>(view.size[1]), cudaMemcpyDeviceToHost),
          "download of heads");
  return values;
}

/// Device outputs of one routing call, list form only.
struct RoutedLists {
  PlanShape shape;
  DeviceArray<int32_t> index, count;
  DeviceArray<uint8_t> dense_rows;

  explicit RoutedLists(const RouteParams& p) {
    EXPECT_TRUE(is_ok(route_shape(p, &shape)));
    index = DeviceArray<int32_t>(static_cast<size_t>(shape.rows() * shape.width));
    count = DeviceArray<int32_t>(static_cast<size_t>(shape.rows()));
    dense_rows = DeviceArray<uint8_t>(static_cast<size_t>(shape.batch * shape.query_blocks));
  }
  PlanView view() const {
    PlanView plan;
    const int64_t b = shape.batch, h = shape.heads, g = shape.query_blocks;
    plan.index = contiguous_view<4>(index.data(), {b, h, g, shape.width}, Dtype::kI32);
    plan.count = contiguous_view<3>(count.data(), {b, h, g}, Dtype::kI32);
    plan.dense_rows = contiguous_view<2>(dense_rows.data(), {b, g}, Dtype::kU8);
    return plan;
  }
  Status run(const RouteParams& p) {
    size_t bytes = 0;
    EXPECT_TRUE(is_ok(route_workspace(p, on_gpu(), &bytes)));
    const DeviceArray<std::byte> scratch(bytes);
    const Status status = route(p, with("", scratch), {.plan = view()});
    cuda_ok(cudaDeviceSynchronize(), "route");
    return status;
  }
};

RouteParams keep_eight(const Bshd& q, const Bshd& k) {
  RouteParams p;
  p.q = q;
  p.k = k;
  p.config.budget.kind = BudgetKind::kKeep;
  p.config.budget.keep = 8;
  return p;
}

Bshd device_view(uint16_t* data, int64_t tokens, int64_t heads, int64_t token_stride) {
  Bshd view = contiguous_view<4>(data, {1, tokens, heads, 128}, Dtype::kBf16);
  view.stride[0] = tokens * token_stride;
  view.stride[1] = token_stride;
  return view;
}

TEST_F(GpuLarge, PackedQkvOver4GiElements_LastHeadsLikeAlone_R11) {
  // [200000, 3, 56, 128]: 4.3e9 elements. All other heads hold NaN.
  constexpr int64_t kTokens = 200000, kHeads = 56, kRow = 3 * kHeads * 128;
  const uint64_t seed = testing::test_seed(451);
  const DeviceArray<uint16_t> fused(static_cast<size_t>(kTokens) * kRow);
  const DeviceArray<uint16_t> out_buffer(static_cast<size_t>(kTokens) * kHeads * 128 * 2);
  const DeviceArray<uint16_t> small(static_cast<size_t>(kTokens) * 2 * 128 * 4);
  Bshd large[3], alone[3];
  for (int64_t n = 0; n < 3; ++n) {
    large[n] = device_view(fused.data() + n * kHeads * 128, kTokens, kHeads, kRow);
    alone[n] = device_view(small.data() + n * kTokens * 2 * 128, kTokens, 2, 2 * 128);
    const auto values = fast_values(static_cast<size_t>(kTokens) * 2 * 128, seed + n);
    upload_heads(values, large[n], kHeads - 2, 2);
    upload_heads(values, alone[n], 0, 2);
  }
  const Bshd large_out = device_view(out_buffer.data(), kTokens, kHeads, 2 * kHeads * 128);
  const Bshd alone_out = device_view(small.data() + 3 * kTokens * 2 * 128, kTokens, 2, 2 * 128);
  const RouteParams all = keep_eight(large[0], large[1]), two = keep_eight(alone[0], alone[1]);
  RoutedLists all_plan(all), two_plan(two);
  ASSERT_TRUE(is_ok(all_plan.run(all)));
  ASSERT_TRUE(is_ok(two_plan.run(two)));
  const std::vector<int32_t> all_ids = all_plan.index.host(), two_ids = two_plan.index.host();
  ASSERT_TRUE(std::equal(two_ids.begin(), two_ids.end(),
                         all_ids.end() - static_cast<int64_t>(two_ids.size())))
      << "the lists of the last two heads";
  for (size_t n = 0; n < two_ids.size(); n += 8) {
    ASSERT_TRUE(std::is_sorted(two_ids.begin() + n, two_ids.begin() + n + 8));
    ASSERT_GE(two_ids[n], 0);
  }
  for (const std::string& kernel : gpu_kernels()) {
    SCOPED_TRACE(kernel);
    AttentionParams p{
        .q = large[0], .k = large[1], .v = large[2], .out = large_out, .plan = all_plan.view()};
    size_t bytes = 0;
    ASSERT_TRUE(is_ok(attention_workspace(p, on_gpu(), &bytes)));
    const DeviceArray<std::byte> scratch(bytes);
    ASSERT_TRUE(is_ok(attend(p, with(kernel, scratch))));
    cuda_ok(cudaDeviceSynchronize(), "attend");
    p = {.q = alone[0], .k = alone[1], .v = alone[2], .out = alone_out, .plan = two_plan.view()};
    ASSERT_TRUE(is_ok(attend(p, with(kernel, scratch))));
    cuda_ok(cudaDeviceSynchronize(), "attend");
    const auto got = download_heads(large_out, kHeads - 2, 2),
               want = download_heads(alone_out, 0, 2);
    EXPECT_TRUE(got == want) << "the same bits as alone";
    for (size_t i = 0; i < want.size(); i += 997) {
      ASSERT_TRUE(std::isfinite(bf16_to_f32(want[i]))) << "element " << i;
    }
    ASSERT_TRUE(std::isnan(bf16_to_f32(download_heads(large_out, kHeads - 3, 1)[5])));
  }
}

TEST_F(GpuLarge, RowsHeadsBatchesFarApart_EqualTheCompactTensor_R11) {
  constexpr int64_t kFar = (int64_t{1} << 31) + (int64_t{1} << 20);
  struct Row {
    std::array<int64_t, 4> size, stride;
  };
  const Row table[] = {
      {{1, 200, 2, 128}, {int64_t{200} << 24, int64_t{1} << 24, 4096, 1}},
      {{1, 200, 3, 128}, {3 * kFar, 128, kFar, 1}},
      {{2, 130, 2, 128}, {kFar, 256, 128, 1}},
  };
  Random random(testing::test_seed(452));
  for (const Row& row : table) {
    const auto& [size, stride] = row;
    AttendCase near({.batch = size[0],
                     .sq = size[1],
                     .sk = size[1],
                     .heads = size[2],
                     .kv_heads = size[2],
                     .dtype = Dtype::kBf16});
    near.fill_random(random, 2);
    int64_t elements = 1;
    for (int i = 0; i < 4; ++i) elements += (size[i] - 1) * stride[i];
    std::vector<DeviceArray<uint16_t>> buffers;
    std::vector<Bshd> views;
    for (int n = 0; n < 4; ++n) {
      buffers.emplace_back(static_cast<size_t>(elements));
      views.push_back({buffers.back().data(), size, stride, Dtype::kBf16});
    }
    const auto for_each_row = [&](auto body) {
      for (int64_t b = 0; b < size[0]; ++b) {
        for (int64_t s = 0; s < size[1]; ++s) {
          for (int64_t h = 0; h < size[2]; ++h) body(std::array<int64_t, 4>{b, s, h, 0});
        }
      }
    };
    const auto element = [](const Bshd& view, const std::array<int64_t, 4>& at) {
      return static_cast<uint16_t*>(view.data) + offset_of<4>(view, at);
    };
    const testing::Tensor4* sources[] = {&near.q, &near.k, &near.v};
    for_each_row([&](const auto& at) {
      for (int n = 0; n < 3; ++n) {
        cuda_ok(cudaMemcpyAsync(element(views[n], at), element(sources[n]->view(), at), 256,
                                cudaMemcpyHostToDevice, nullptr),
                "upload of a row");
      }
    });
    cuda_ok(cudaDeviceSynchronize(), "upload");
    GpuCase gpu(near);
    const AttentionParams compact = gpu.params();
    RouteParams far_route = keep_eight(views[0], views[1]);
    RouteParams near_route = keep_eight(compact.q, compact.k);
    far_route.config.budget.keep = near_route.config.budget.keep = 2;
    RoutedLists far_plan(far_route), near_plan(near_route);
    ASSERT_TRUE(is_ok(far_plan.run(far_route)));
    ASSERT_TRUE(is_ok(near_plan.run(near_route)));
    EXPECT_EQ(far_plan.index.host(), near_plan.index.host());
    for (const std::string& kernel : gpu_kernels()) {
      SCOPED_TRACE(kernel);
      ASSERT_TRUE(is_ok(gpu.run(near_plan.view(), on_gpu(kernel))));
      const AttentionParams p{
          .q = views[0], .k = views[1], .v = views[2], .out = views[3], .plan = far_plan.view()};
      const auto scratch = gpu.workspace(p);
      ASSERT_TRUE(is_ok(attend(p, with(kernel, scratch))));
      cuda_ok(cudaDeviceSynchronize(), "attend");
      for_each_row([&](const auto& at) {
        uint16_t got[128];
        cuda_ok(cudaMemcpy(got, element(views[3], at), 256, cudaMemcpyDeviceToHost), "a row");
        ASSERT_EQ(std::memcmp(got, element(near.out.view(), at), 256), 0)
            << "batch " << at[0] << " row " << at[1] << " head " << at[2];
      });
    }
  }
}

TEST_F(GpuLarge, RouterScoresOver2GiElements_EveryHeadLikeTheFirst_R11) {
  // 160 heads that are one tensor (stride 0): 160 * 4096^2 scores = 2.7e9.
  constexpr int64_t kTokens = 262144, kHeads = 160;
  const uint64_t seed = testing::test_seed(453);
  DeviceArray<uint16_t> q(static_cast<size_t>(kTokens) * 128);
  DeviceArray<uint16_t> k(static_cast<size_t>(kTokens) * 128);
  q.upload(fast_values(q.size(), seed));
  k.upload(fast_values(k.size(), seed + 1));
  const auto heads = [](const DeviceArray<uint16_t>& data, int64_t count) {
    Bshd view = device_view(data.data(), kTokens, count, 128);
    view.stride[2] = 0;
    return view;
  };
  const RouteParams one = keep_eight(heads(q, 1), heads(k, 1));
  const RouteParams all = keep_eight(heads(q, kHeads), heads(k, kHeads));
  RoutedLists first(one), every(all);
  ASSERT_TRUE(is_ok(first.run(one)));
  ASSERT_TRUE(is_ok(every.run(all)));
  const std::vector<int32_t> want = first.index.host(), got = every.index.host();
  ASSERT_EQ(got.size(), want.size() * kHeads);
  for (int64_t h = 0; h < kHeads; ++h) {
    ASSERT_TRUE(
        std::equal(want.begin(), want.end(), got.begin() + h * static_cast<int64_t>(want.size())))
        << "head " << h;
  }
}

TEST_F(GpuLarge, LongestSequenceOneHead_MatchesTheCpu) {
  constexpr int64_t kTokens = 262144;
  Random random(testing::test_seed(454));
  AttendCase c({.sq = kTokens, .sk = kTokens, .heads = 1, .kv_heads = 1, .dtype = Dtype::kBf16});
  testing::RouterCase routed(
      {.sq = kTokens, .sk = kTokens, .heads = 1, .kv_heads = 1, .dtype = Dtype::kBf16});
  c.fill_random(random, 1.5f);
  routed.q.copy_from(c.q);
  routed.k.copy_from(c.k);
  RouteParams p = routed.params();
  p.config.budget.kind = BudgetKind::kKeep;
  p.config.budget.keep = 8;
  testing::GpuRoute route(routed, p);
  ASSERT_TRUE(is_ok(route.run()));
  const auto oracle =
      testing::cpu_oracle(c, PlanView{route.got.plan.view().index, route.got.plan.view().count});
  GpuCase gpu(c);
  for (const std::string& kernel : gpu_kernels()) {
    SCOPED_TRACE(kernel);
    ASSERT_TRUE(is_ok(gpu.run(route.list_view(), on_gpu(kernel))));
    expect_gpu_matches(c, oracle);
    ASSERT_TRUE(is_ok(gpu.run(route.bitmap_view(), on_gpu(kernel))));
    expect_gpu_matches(c, oracle);
  }
}

TEST_F(GpuLarge, ManyChunksOfTheSchedule_MatchTheCpu) {
  // 3,200 key blocks are three chunks of the sharing kernel's schedule; rows 0 to 3,200 long.
  constexpr int64_t kKeys = 64 * 3200 - 21;
  Random random(testing::test_seed(455));
  AttendCase c({.sq = 500, .sk = kKeys, .heads = 2, .kv_heads = 1, .dtype = Dtype::kBf16});
  c.fill_random(random, 1.5f);
  testing::BlockLists lists(1, 2, 500, kKeys);
  lists.fill_random(random, 0, 3200);
  lists.at(0, 0, 0).clear();
  lists.at(0, 0, 1) = {3199};
  lists.at(0, 0, 2) = {0, 1536, 1535, 3071, 3072, 3199};
  lists.at(0, 1, 4).clear();
  const Plan plan = lists.plan();
  const auto sparse = testing::cpu_oracle(c, plan.view());
  const auto dense = testing::cpu_oracle(c, std::nullopt);
  GpuCase gpu(c);
  for (const std::string& kernel : gpu_kernels()) {
    SCOPED_TRACE(kernel);
    ASSERT_TRUE(is_ok(gpu.run_plan(plan.view(), on_gpu(kernel))));
    expect_gpu_matches(c, sparse);
    ASSERT_TRUE(is_ok(gpu.run(std::nullopt, on_gpu(kernel))));
    expect_gpu_matches(c, dense);
  }
}

TEST_F(GpuLarge, RoutingFindsTheMassRandomListsDoNot_K3) {
  constexpr int64_t kTokens = 8192, kTopics = 64;
  Random random(testing::test_seed(456));
  AttendCase c({.sq = kTokens, .sk = kTokens, .heads = 2, .kv_heads = 2, .dtype = Dtype::kBf16});
  testing::Tensor4 topics({1, kTopics, 2, 128}, Dtype::kF32), content = topics;
  topics.fill_random(random, 1.3f);
  content.fill_random(random);
  const auto topic_of_key = [](int64_t s) { return s * kTopics / kTokens; };
  const auto topic_of_query = [&](int64_t s) { return topic_of_key((s + kTokens / 2) % kTokens); };
  c.q.fill([&](const auto& at) {
    return topics.get({0, topic_of_query(at[1]), at[2], at[3]}) + 0.3f * random.normal();
  });
  c.k.fill([&](const auto& at) {
    return topics.get({0, topic_of_key(at[1]), at[2], at[3]}) + 0.3f * random.normal();
  });
  c.v.fill([&](const auto& at) {
    return content.get({0, topic_of_key(at[1]), at[2], at[3]}) + 0.1f * random.normal();
  });
  testing::RouterCase routed(
      {.sq = kTokens, .sk = kTokens, .heads = 2, .kv_heads = 2, .dtype = Dtype::kBf16});
  routed.q.copy_from(c.q);
  routed.k.copy_from(c.k);
  testing::GpuRoute route(routed, routed.params());
  ASSERT_TRUE(is_ok(route.run()));
  ASSERT_EQ(route.got.plan.count[0], 32);
  Plan chance;
  ASSERT_TRUE(
      is_ok(random_plan(single_document(kTokens, kTokens), 1, 2, 32, random.next(), &chance)));
  GpuCase gpu(c);
  for (const std::string& kernel : gpu_kernels()) {
    ASSERT_TRUE(is_ok(gpu.run(std::nullopt, on_gpu(kernel))));
    const testing::Tensor4 dense = c.out;
    ErrorStats stats;
    ASSERT_TRUE(is_ok(gpu.run(route.list_view(), on_gpu(kernel))));
    ASSERT_TRUE(is_ok(compare_outputs(c.out.view(), dense.view(), &stats)));
    EXPECT_GT(stats.cosine, 0.99) << kernel;
    EXPECT_EQ(stats.non_finite, 0) << kernel;
    ASSERT_TRUE(is_ok(gpu.run_plan(chance.view(), on_gpu(kernel))));
    ASSERT_TRUE(is_ok(compare_outputs(c.out.view(), dense.view(), &stats)));
    EXPECT_LT(stats.cosine, 0.9) << kernel << ": control";
  }
}

}  // namespace
}  // namespace tessera
