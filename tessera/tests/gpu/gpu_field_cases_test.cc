// Field cases FC-1 to FC-5 on the device: inputs that broke attention engines, answers by hand.
#include <gtest/gtest.h>

#include <climits>
#include <cmath>

#include "tessera/tests/gpu/gpu_case.h"

namespace tessera {
namespace {

using testing::AttendCase;
using testing::BlockLists;
using testing::DevicePlan;
using testing::DeviceTensor;
using testing::expect_refusal;
using testing::gpu_kernels;
using testing::GpuCase;
using testing::is_ok;
using testing::on_gpu;
using testing::Random;
using testing::Tensor4;

class GpuFieldCase : public testing::GpuTest {};

/// |out - e| <= 2^-8 |e| in every element of the rows [first, last) of head `h`, batch `b`.
void expect_rows(const Tensor4& out, int64_t b, int64_t h, int64_t first, int64_t last, double e) {
  for (int64_t s = first; s < last; ++s) {
    for (int64_t d = 0; d < out.size()[3]; ++d) {
      ASSERT_LE(std::abs(out.get({b, s, h, d}) - e), std::abs(e) * 0x1p-8)
          << "batch " << b << " row " << s << " head " << h << " channel " << d << ", want " << e;
    }
  }
}

TEST_F(GpuFieldCase, FC1_PartialLastBlock) {
  for (Dtype dtype : {Dtype::kBf16, Dtype::kF16}) {
    for (int64_t tokens : {1, 63, 64, 65, 100, 127, 128, 129, 255, 4033, 8229}) {
      AttendCase c({.sq = tokens, .sk = tokens, .dtype = dtype});
      c.fill_uniform();
      const float last = round_bf16(static_cast<float>(tokens + 1));
      c.v.fill([&](const auto& at) { return at[1] == tokens - 1 ? last : 1.0f; });
      const double e = (double(tokens - 1) + last) / double(tokens);
      Plan plan;
      ASSERT_TRUE(is_ok(full_plan(single_document(tokens, tokens), 1, 2, &plan)));
      GpuCase gpu(c);
      for (const std::string& kernel : gpu_kernels()) {
        SCOPED_TRACE(kernel + " S " + std::to_string(tokens));
        ASSERT_TRUE(is_ok(gpu.run(std::nullopt, on_gpu(kernel))));
        for (int64_t h = 0; h < 2; ++h) expect_rows(c.out, 0, h, 0, tokens, e);
        ASSERT_TRUE(is_ok(gpu.run_plan(plan.view(), on_gpu(kernel))));
        for (int64_t h = 0; h < 2; ++h) expect_rows(c.out, 0, h, 0, tokens, e);
      }
    }
  }
}

TEST_F(GpuFieldCase, FC2_ListOrderAndManyTiles) {
  constexpr int64_t kTokens = 357, kHeads = 86;
  const std::vector<std::vector<int32_t>> table{{5, 0, 3},          {1, 5}, {5},
                                                {4, 5, 2, 1, 0, 3}, {2, 1}, {0, 5, 4}};
  const double want[] = {32.0 / 3, 1312.0 / 101, 32, 1056.0 / 119, 3, 2272.0 / 165};
  AttendCase c(
      {.sq = kTokens, .sk = kTokens, .heads = kHeads, .kv_heads = kHeads, .dtype = Dtype::kBf16});
  c.fill_uniform();
  c.v.fill([](const auto& at) { return static_cast<float>(1 << (at[1] / 64)); });
  BlockLists lists(1, kHeads, kTokens, kTokens);
  for (int64_t h = 0; h < kHeads; ++h) {
    for (int64_t i = 0; i < 6; ++i) {
      lists.at(0, h, i) = table[i];
      if (h % 2) std::reverse(lists.at(0, h, i).begin(), lists.at(0, h, i).end());
    }
  }
  const Plan plan = lists.plan();
  GpuCase gpu(c);
  for (const std::string& kernel : gpu_kernels()) {
    SCOPED_TRACE(kernel);
    ASSERT_TRUE(is_ok(gpu.run_plan(plan.view(), on_gpu(kernel))));
    const testing::ResultBits first_run = bits_of(c);
    for (int64_t h = 0; h < kHeads; ++h) {
      for (int64_t i = 0; i < 6; ++i) {
        expect_rows(c.out, 0, h, i * 64, std::min(kTokens, i * 64 + 64), want[i]);
      }
    }
    testing::for_each_index<4>({1, kTokens, kHeads / 2, 128}, [&](const auto& at) {
      ASSERT_EQ(c.out.get({0, at[1], 2 * at[2], at[3]}),
                c.out.get({0, at[1], 2 * at[2] + 1, at[3]}));
    });
    ASSERT_TRUE(is_ok(gpu.run_plan(plan.view(), on_gpu(kernel))));
    EXPECT_EQ(bits_of(c), first_run);
  }
}

TEST_F(GpuFieldCase, FC3_OwnCountPerTileRubbishBehindIt) {
  AttendCase c({.sq = 256, .sk = 256, .heads = 1, .kv_heads = 1, .dtype = Dtype::kBf16});
  c.fill_uniform();
  c.v.fill([](const auto& at) { return static_cast<float>(1 << (at[1] / 64)); });
  BlockLists lists(1, 1, 256, 256);
  lists.rows = {{2}, {0, 1, 3}, {3, 1}, {0, 1, 2, 3}};
  const double want[] = {4, 11.0 / 3, 5, 3.75};
  GpuCase gpu(c);
  for (const std::string& kernel : gpu_kernels()) {
    SCOPED_TRACE(kernel);
    std::vector<uint32_t> first_bits;
    for (int32_t x : {0, -1, INT_MAX}) {
      const Plan plan = lists.plan(4, x);
      ASSERT_TRUE(is_ok(gpu.run_plan(plan.view(), on_gpu(kernel))));
      for (int64_t i = 0; i < 4; ++i) expect_rows(c.out, 0, 0, i * 64, i * 64 + 64, want[i]);
      if (first_bits.empty()) first_bits = c.out.bits();
      EXPECT_EQ(c.out.bits(), first_bits) << "X = " << x;
    }
    const auto refuse = [&](auto change, std::vector<std::string> parts) {
      Plan plan = lists.plan(4);
      change(plan);
      expect_refusal(gpu.run_plan(plan.view(), on_gpu(kernel)), StatusCode::kInvalidArgument,
                     parts);
      EXPECT_TRUE(testing::all_nan(c.out.values())) << "refused before the launch";
    };
    refuse([](Plan& p) { p.index[1 * 4 + 1] = 4; }, {"query block 1", "slot 1 is 4", "[0, 4)"});
    refuse([](Plan& p) { p.index[1 * 4 + 1] = -1; }, {"query block 1", "slot 1 is -1"});
    refuse([](Plan& p) { p.count[0] = 5; }, {"query block 0", "is 5", "[0, 4]"});
    refuse([](Plan& p) { p.index[1 * 4 + 1] = 0; }, {"query block 1", "block 0 twice"});
  }
}

/// Runs device views and the same values contiguous, dense and with [0, 3] for every block.
void check_views_equal_contiguous(const Bshd (&host)[3], const Bshd (&device)[3]) {
  const auto copy = [](const Bshd& view) {
    Tensor4 flat(view.size, view.dtype);
    flat.fill([&](const auto& at) {
      return internal::load_element(view.data, offset_of<4>(view, at), view.dtype);
    });
    return flat;
  };
  AttendCase c(
      {.batch = 2, .sq = 200, .sk = 200, .heads = 4, .kv_heads = 4, .dtype = Dtype::kBf16});
  c.q = copy(host[0]);
  c.k = copy(host[1]);
  c.v = copy(host[2]);
  BlockLists lists(2, 4, 200, 200);
  for (auto& row : lists.rows) row = {0, 3};
  const Plan plan = lists.plan();
  const DevicePlan device_plan(plan.view());
  GpuCase gpu(c);
  for (const std::string& kernel : gpu_kernels()) {
    for (bool sparse : {false, true}) {
      const auto mask = sparse ? std::optional(device_plan.view()) : std::nullopt;
      ASSERT_TRUE(is_ok(gpu.run(mask, on_gpu(kernel))));
      const testing::ResultBits want = bits_of(c);
      ASSERT_TRUE(std::isfinite(c.out.get({0, 0, 0, 0})));
      AttentionParams p = gpu.params(mask);
      p.q = device[0];
      p.k = device[1];
      p.v = device[2];
      const auto scratch = gpu.workspace(p);
      Execution exec = on_gpu(kernel);
      exec.workspace = {scratch.data(), scratch.bytes()};
      gpu.poison_outputs();
      ASSERT_TRUE(is_ok(attend(p, exec)));
      testing::cuda_ok(cudaDeviceSynchronize(), "attend");
      gpu.fetch();
      EXPECT_EQ(bits_of(c), want) << kernel << (sparse ? " sparse" : " dense");
    }
  }
}

TEST_F(GpuFieldCase, FC4_FusedViewsAndOtherLayouts) {
  Random random(testing::test_seed(404));
  // a) q, k, v interleaved in one buffer [2, 200, 3, 4, 128].
  Tensor4 fused({2, 200, 3 * 4, 128}, Dtype::kBf16);
  fused.fill_random(random);
  const DeviceTensor<4> device_fused(fused);
  const auto part = [](Bshd view, int64_t n) {
    view.size[2] = 4;
    view.data = static_cast<uint16_t*>(view.data) + n * 4 * 128;
    EXPECT_EQ(view.stride[1], 1536);
    return view;
  };
  const Bshd f = fused.view(), d = device_fused.view();
  check_views_equal_contiguous({part(f, 0), part(f, 1), part(f, 2)},
                               {part(d, 0), part(d, 1), part(d, 2)});
  // b) every second token of a buffer whose odd tokens are NaN.
  testing::Layout4 second;
  second.step[1] = 2;
  Tensor4 q({2, 200, 4, 128}, Dtype::kBf16), v({2, 200, 4, 128}, Dtype::kBf16);
  Tensor4 k({2, 200, 4, 128}, Dtype::kBf16, second);
  for (Tensor4* t : {&q, &k, &v}) t->fill_random(random);
  ASSERT_EQ(k.view().stride[1], 2 * 4 * 128);
  const DeviceTensor<4> dq(q), dk(k), dv(v);
  check_views_equal_contiguous({q.view(), k.view(), v.view()}, {dq.view(), dk.view(), dv.view()});
  // c) v stored as [B, H, S, D].
  testing::Layout4 transposed;
  transposed.order = {0, 2, 1, 3};
  Tensor4 vt({2, 200, 4, 128}, Dtype::kBf16, transposed);
  vt.fill_random(random);
  const DeviceTensor<4> dvt(vt);
  check_views_equal_contiguous({q.view(), k.view(), vt.view()}, {dq.view(), dk.view(), dvt.view()});
}

TEST_F(GpuFieldCase, FC4_BatchAndGroupedHeads) {
  AttendCase c(
      {.batch = 2, .sq = 200, .sk = 200, .heads = 4, .kv_heads = 4, .dtype = Dtype::kBf16});
  c.fill_uniform();
  c.v.fill([](const auto& at) { return static_cast<float>(10 * (at[0] + 1) + at[1] / 64); });
  BlockLists lists(2, 4, 200, 200);
  for (int64_t h = 0; h < 4; ++h) {
    for (int64_t i = 0; i < 4; ++i) {
      lists.at(0, h, i) = {0};
      lists.at(1, h, i) = {3};
    }
  }
  const Plan plan = lists.plan();
  AttendCase grouped({.sq = 200, .sk = 200, .heads = 4, .kv_heads = 2, .dtype = Dtype::kBf16});
  grouped.fill_uniform();
  grouped.v.fill([](const auto& at) { return static_cast<float>(at[2] + 1); });
  GpuCase gpu(c), gpu_grouped(grouped);
  for (const std::string& kernel : gpu_kernels()) {
    SCOPED_TRACE(kernel);
    ASSERT_TRUE(is_ok(gpu.run_plan(plan.view(), on_gpu(kernel))));
    for (int64_t h = 0; h < 4; ++h) {
      expect_rows(c.out, 0, h, 0, 200, 10);
      expect_rows(c.out, 1, h, 0, 200, 23);
    }
    ASSERT_TRUE(is_ok(gpu_grouped.run(std::nullopt, on_gpu(kernel))));
    for (int64_t h = 0; h < 4; ++h) {
      expect_rows(grouped.out, 0, h, 0, 200, static_cast<double>(h / 2 + 1));
    }
  }
  AttentionParams p = gpu.params();
  p.k.stride[3] = 2;
  expect_refusal(attend(p, on_gpu()), StatusCode::kInvalidArgument, {"k has a last stride of 2"});
}

TEST_F(GpuFieldCase, FC5_PackedDocumentsEmptyAtTheLimitAndRowsOutside) {
  constexpr int64_t kTokens = 4300;
  Random random(testing::test_seed(405));
  AttendCase c({.sq = kTokens, .sk = kTokens, .heads = 3, .kv_heads = 3, .dtype = Dtype::kBf16});
  c.cu = {0, 100, 100, 4196, 4292};
  c.fill_random(random, 3);
  const auto document = [](int64_t s) { return s < 100 ? 1 : s < 4196 ? 3 : 4; };
  c.v.fill([&](const auto& at) { return static_cast<float>(document(at[1])); });
  for (Tensor4* t : {&c.q, &c.k, &c.v}) {
    for (int64_t s = 4292; s < kTokens; ++s) {
      for (int64_t h = 0; h < 3; ++h) {
        for (int64_t d = 0; d < 128; ++d) t->set({0, s, h, d}, std::nanf(""));
      }
    }
  }
  testing::RouterCase routed(
      {.sq = kTokens, .sk = kTokens, .heads = 3, .kv_heads = 3, .dtype = Dtype::kBf16});
  routed.q.copy_from(c.q);
  routed.k.copy_from(c.k);
  routed.cu = c.cu;
  RouteParams p = routed.params();
  p.min_seq_len = 4096;
  p.config.budget.sparsity = 0.75;
  testing::GpuRoute route(routed, p);
  ASSERT_TRUE(is_ok(route.run()));
  EXPECT_EQ(route.got.shape.query_blocks, 2 + 64 + 2);
  for (int64_t row = 0; row < route.got.shape.rows(); ++row) {
    const int64_t block = row % 68;
    const bool sparse = block >= 2 && block < 66;
    ASSERT_EQ(route.got.plan.dense_rows[block], sparse ? 0 : 1) << "query block " << block;
    ASSERT_EQ(route.got.plan.count[row], sparse ? 16 : 0) << "query block " << block;
  }
  GpuCase gpu(c);
  for (const std::string& kernel : gpu_kernels()) {
    for (const PlanView& plan : {route.list_view(), route.bitmap_view()}) {
      SCOPED_TRACE(kernel);
      ASSERT_TRUE(is_ok(gpu.run(plan, on_gpu(kernel))));
      for (int64_t h = 0; h < 3; ++h) {
        expect_rows(c.out, 0, h, 0, 100, 1);
        expect_rows(c.out, 0, h, 100, 4196, 3);
        expect_rows(c.out, 0, h, 4196, 4292, 4);
        expect_rows(c.out, 0, h, 4292, kTokens, 0);
        for (int64_t s = 4292; s < kTokens; ++s) EXPECT_EQ(c.lse.get({0, h, s}), -INFINITY);
      }
    }
  }
}

TEST_F(GpuFieldCase, FC5_BadBoundsAndNoDocuments) {
  AttendCase c({.sq = 200, .sk = 200, .dtype = Dtype::kBf16});
  c.fill_uniform();
  c.v.fill([](const auto&) { return std::nanf(""); });
  GpuCase gpu(c);
  const auto refuse = [&](std::vector<int32_t> cu, int64_t max_seqlen,
                          std::vector<std::string> parts) {
    AttentionParams p = gpu.params();
    p.cu_seqlens = cu;
    p.max_seqlen = max_seqlen;
    expect_refusal(attend(p, on_gpu()), StatusCode::kInvalidArgument, parts);
  };
  refuse({0, 100, 90, 200}, 0, {"falls from 100 to 90"});
  refuse({5, 100}, 0, {"cu_seqlens[0] is 5"});
  refuse({0, 201}, 0, {"is 201", "200 tokens"});
  refuse({0, 150}, 149, {"max_seqlen is 149"});
  for (std::vector<int32_t> cu : {std::vector<int32_t>{0}, std::vector<int32_t>{0, 0}}) {
    c.cu = cu;
    for (const std::string& kernel : gpu_kernels()) {
      SCOPED_TRACE(kernel);
      ASSERT_TRUE(is_ok(gpu.run(std::nullopt, on_gpu(kernel))));
      for (int64_t h = 0; h < 2; ++h) expect_rows(c.out, 0, h, 0, 200, 0);
      EXPECT_EQ(c.lse.get({0, 1, 199}), -INFINITY);
    }
  }
}

}  // namespace
}  // namespace tessera
