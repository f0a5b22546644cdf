// Field cases FC-1 to FC-5: inputs that broke attention engines, with answers computed by hand.
#include <gtest/gtest.h>

#include <array>
#include <climits>
#include <cmath>

#include "tessera/router.h"
#include "tessera/tests/support/attend_case.h"

namespace tessera {
namespace {

using testing::AttendCase;
using testing::BlockLists;
using testing::CaseLayouts;
using testing::expect_refusal;
using testing::is_ok;
using testing::kernels;
using testing::on;
using testing::Random;
using testing::Tensor4;

/// |out - e| <= 2^-8 |e| in every element of the rows [first, last) of head `h`, batch `b`.
void expect_rows(const Tensor4& out, int64_t b, int64_t h, int64_t first, int64_t last, double e) {
  for (int64_t s = first; s < last; ++s) {
    for (int64_t d = 0; d < out.size()[3]; ++d) {
      ASSERT_LE(std::abs(out.get({b, s, h, d}) - e), std::abs(e) * 0x1p-8)
          << "batch " << b << " row " << s << " head " << h << " channel " << d << ", want " << e;
    }
  }
}

void check_partial_last_block(int64_t tokens, const std::string& kernel, Dtype dtype) {
  SCOPED_TRACE(kernel + " S " + std::to_string(tokens));
  AttendCase c({.sq = tokens, .sk = tokens, .dtype = dtype});
  c.fill_uniform();
  const float last = round_bf16(static_cast<float>(tokens + 1));
  c.v.fill([&](const auto& at) { return at[1] == tokens - 1 ? last : 1.0f; });
  const double e = (double(tokens - 1) + last) / double(tokens);
  if (tokens <= 255) {
    ASSERT_EQ(e, 2.0);
  }
  ASSERT_TRUE(is_ok(c.run(std::nullopt, on(kernel))));
  for (int64_t h = 0; h < 2; ++h) expect_rows(c.out, 0, h, 0, tokens, e);
  Plan plan;
  ASSERT_TRUE(is_ok(full_plan(single_document(tokens, tokens), 1, 2, &plan)));
  ASSERT_TRUE(is_ok(c.run(plan.view(), on(kernel))));
  for (int64_t h = 0; h < 2; ++h) expect_rows(c.out, 0, h, 0, tokens, e);
}

TEST(FieldCase, FC1_PartialLastBlock) {
  for (const std::string& kernel : kernels()) {
    for (int64_t tokens : {1, 63, 64, 65, 100, 127, 128, 129, 255}) {
      check_partial_last_block(tokens, kernel, Dtype::kBf16);
    }
    check_partial_last_block(65, kernel, Dtype::kF16);
    check_partial_last_block(65, kernel, Dtype::kF32);
  }
}

TEST(FieldCase, FC2_ListOrderAndManyTiles) {
  constexpr int64_t kTokens = 357;
  const std::vector<std::vector<int32_t>> table{{5, 0, 3},          {1, 5}, {5},
                                                {4, 5, 2, 1, 0, 3}, {2, 1}, {0, 5, 4}};
  const double want[] = {32.0 / 3, 1312.0 / 101, 32, 1056.0 / 119, 3, 2272.0 / 165};
  // 516 tiles for the vector kernel; the scalar one has no tiles to mix up and gets 8 heads.
  for (const auto& [kernel, heads] :
       {std::pair{"cpu_highway", 86}, std::pair{"cpu_reference", 8}}) {
    SCOPED_TRACE(kernel);
    AttendCase c(
        {.sq = kTokens, .sk = kTokens, .heads = heads, .kv_heads = heads, .dtype = Dtype::kBf16});
    c.fill_uniform();
    c.v.fill([](const auto& at) { return static_cast<float>(1 << (at[1] / 64)); });
    BlockLists lists(1, heads, kTokens, kTokens);
    for (int64_t h = 0; h < heads; ++h) {
      for (int64_t i = 0; i < 6; ++i) {
        lists.at(0, h, i) = table[i];
        if (h % 2) std::reverse(lists.at(0, h, i).begin(), lists.at(0, h, i).end());
      }
    }
    const Plan plan = lists.plan();
    ASSERT_TRUE(is_ok(c.run(plan.view(), on(kernel))));
    const auto first_run = c.out.bits();
    for (int64_t h = 0; h < heads; ++h) {
      for (int64_t i = 0; i < 6; ++i) {
        expect_rows(c.out, 0, h, i * 64, std::min(kTokens, i * 64 + 64), want[i]);
      }
    }
    testing::for_each_index<4>({1, kTokens, heads / 2, 128}, [&](const auto& at) {
      ASSERT_EQ(c.out.get({0, at[1], 2 * at[2], at[3]}),
                c.out.get({0, at[1], 2 * at[2] + 1, at[3]}));
    });
    ASSERT_TRUE(is_ok(c.run(plan.view(), on(kernel))));
    EXPECT_EQ(c.out.bits(), first_run);
  }
}

TEST(FieldCase, FC3_OwnCountPerTileRubbishBehindIt) {
  AttendCase c({.sq = 256, .sk = 256, .heads = 1, .kv_heads = 1, .dtype = Dtype::kBf16});
  c.fill_uniform();
  c.v.fill([](const auto& at) { return static_cast<float>(1 << (at[1] / 64)); });
  BlockLists lists(1, 1, 256, 256);
  lists.rows = {{2}, {0, 1, 3}, {3, 1}, {0, 1, 2, 3}};
  const double want[] = {4, 11.0 / 3, 5, 3.75};
  for (const std::string& kernel : kernels()) {
    std::vector<uint32_t> first_bits;
    for (int32_t x : {0, -1, INT_MAX}) {
      const Plan plan = lists.plan(4, x);
      ASSERT_TRUE(is_ok(c.run(plan.view(), on(kernel))));
      for (int64_t i = 0; i < 4; ++i) expect_rows(c.out, 0, 0, i * 64, i * 64 + 64, want[i]);
      if (first_bits.empty()) first_bits = c.out.bits();
      EXPECT_EQ(c.out.bits(), first_bits) << "X = " << x;
    }
    const auto refuse = [&](auto change, std::vector<std::string> parts) {
      Plan plan = lists.plan(4);
      change(plan);
      c.out.poison();
      const auto untouched = c.out.bits();
      expect_refusal(attend(c.params(plan.view()), on(kernel)), StatusCode::kInvalidArgument,
                     parts);
      EXPECT_EQ(c.out.bits(), untouched) << "refused before the launch";
    };
    refuse([](Plan& p) { p.index[1 * 4 + 1] = 4; }, {"query block 1", "slot 1 is 4", "[0, 4)"});
    refuse([](Plan& p) { p.index[1 * 4 + 1] = -1; }, {"query block 1", "slot 1 is -1"});
    refuse([](Plan& p) { p.count[0] = 5; }, {"query block 0", "is 5", "[0, 4]"});
    refuse([](Plan& p) { p.index[1 * 4 + 1] = 0; }, {"query block 1", "block 0 twice"});
  }
}

/// Runs views `q`, `k`, `v` and the same values contiguous, dense and with [0, 3] for every block.
void check_views_equal_contiguous(const Bshd& q, const Bshd& k, const Bshd& v) {
  const auto copy = [](const Bshd& view) {
    Tensor4 flat(view.size, view.dtype);
    flat.fill([&](const auto& at) {
      return internal::load_element(view.data, offset_of<4>(view, at), view.dtype);
    });
    return flat;
  };
  const Tensor4 flat_q = copy(q), flat_k = copy(k), flat_v = copy(v);
  BlockLists lists(q.size[0], q.size[2], q.size[1], k.size[1]);
  for (auto& row : lists.rows) row = {0, 3};
  const Plan plan = lists.plan();
  Tensor4 out(q.size, q.dtype), flat_out(q.size, q.dtype);
  for (const std::string& kernel : kernels()) {
    for (const std::optional<PlanView>& mask : {std::optional<PlanView>(), {plan.view()}}) {
      if (!mask && kernel == "cpu_reference") continue;  // slow, and both read through one path
      AttentionParams p{.q = q, .k = k, .v = v, .out = out.view(), .plan = mask};
      ASSERT_TRUE(is_ok(attend(p, on(kernel))));
      p.q = flat_q.view();
      p.k = flat_k.view();
      p.v = flat_v.view();
      p.out = flat_out.view();
      ASSERT_TRUE(is_ok(attend(p, on(kernel))));
      EXPECT_EQ(out.bits(), flat_out.bits()) << kernel << (mask ? " sparse" : " dense");
      ASSERT_TRUE(std::isfinite(out.get({0, 0, 0, 0})));
    }
  }
}

TEST(FieldCase, FC4_FusedViewsAndOtherLayouts) {
  Random random(testing::test_seed(4));
  // a) q, k, v interleaved in one buffer [2, 200, 3, 4, 128].
  Tensor4 fused({2, 200, 3 * 4, 128}, Dtype::kBf16);
  fused.fill_random(random);
  const auto part = [&](int64_t n) {
    Bshd view = fused.view();
    view.size[2] = 4;
    view.data = static_cast<uint16_t*>(view.data) + n * 4 * 128;
    EXPECT_EQ(view.stride[1], 1536);
    return view;
  };
  check_views_equal_contiguous(part(0), part(1), part(2));
  // b) every second token of a buffer whose odd tokens are NaN.
  testing::Layout4 second;
  second.step[1] = 2;
  Tensor4 q({2, 200, 4, 128}, Dtype::kBf16), v({2, 200, 4, 128}, Dtype::kBf16);
  Tensor4 k({2, 200, 4, 128}, Dtype::kBf16, second);
  q.fill_random(random);
  k.fill_random(random);
  v.fill_random(random);
  ASSERT_EQ(k.view().stride[1], 2 * 4 * 128);
  check_views_equal_contiguous(q.view(), k.view(), v.view());
  // c) v stored as [B, H, S, D].
  testing::Layout4 transposed;
  transposed.order = {0, 2, 1, 3};
  Tensor4 vt({2, 200, 4, 128}, Dtype::kBf16, transposed);
  vt.fill_random(random);
  check_views_equal_contiguous(q.view(), k.view(), vt.view());
}

TEST(FieldCase, FC4_BatchAndGroupedHeads) {
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
  for (const std::string& kernel : kernels()) {
    ASSERT_TRUE(is_ok(c.run(plan.view(), on(kernel))));
    for (int64_t h = 0; h < 4; ++h) {
      expect_rows(c.out, 0, h, 0, 200, 10);
      expect_rows(c.out, 1, h, 0, 200, 23);
    }
    ASSERT_TRUE(is_ok(grouped.run(std::nullopt, on(kernel))));
    for (int64_t h = 0; h < 4; ++h) {
      expect_rows(grouped.out, 0, h, 0, 200, static_cast<double>(h / 2 + 1));
    }
  }
  AttentionParams p = c.params();
  p.k.stride[3] = 2;
  expect_refusal(attend(p, {}), StatusCode::kInvalidArgument, {"k has a last stride of 2"});
}

TEST(FieldCase, FC5_PackedDocumentsEmptyAtTheLimitAndRowsOutside) {
  constexpr int64_t kTokens = 4300;
  Random random(testing::test_seed(5));
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
  RouteParams p;
  p.q = c.q.view();
  p.k = c.k.view();
  p.cu_seqlens = c.cu;
  p.min_seq_len = 4096;
  p.config.budget.sparsity = 0.75;
  Plan plan;
  ASSERT_TRUE(is_ok(route(p, {}, &plan)));
  const Explanation e = explain(c.params(plan.view()), {});
  ASSERT_TRUE(is_ok(e.status));
  EXPECT_TRUE(e.sparse);
  EXPECT_EQ(e.plan.rows, 3 * (2 + 64 + 2));
  EXPECT_EQ(e.plan.dense_rows, 3 * 4);
  EXPECT_EQ(e.plan.min_kept, 16);
  EXPECT_EQ(e.plan.max_kept, 16);
  EXPECT_EQ(e.plan.total_pairs, 3 * (4 + 64 * 64 + 4));
  ASSERT_TRUE(is_ok(c.run(plan.view(), on("cpu_highway"))));
  for (int64_t h = 0; h < 3; ++h) {
    expect_rows(c.out, 0, h, 0, 100, 1);
    expect_rows(c.out, 0, h, 100, 4196, 3);
    expect_rows(c.out, 0, h, 4196, 4292, 4);
    expect_rows(c.out, 0, h, 4292, kTokens, 0);
  }
}

TEST(FieldCase, FC5_BadBoundsAndNoDocuments) {
  AttendCase c({.sq = 200, .sk = 200, .dtype = Dtype::kBf16});
  c.fill_uniform();
  c.v.fill([](const auto&) { return std::nanf(""); });
  const auto refuse = [&](std::vector<int32_t> cu, int64_t max_seqlen,
                          std::vector<std::string> parts) {
    c.cu = std::move(cu);
    AttentionParams p = c.params();
    p.max_seqlen = max_seqlen;
    expect_refusal(attend(p, {}), StatusCode::kInvalidArgument, parts);
  };
  refuse({0, 100, 90, 200}, 0, {"falls from 100 to 90"});
  refuse({5, 100}, 0, {"cu_seqlens[0] is 5"});
  refuse({0, 201}, 0, {"is 201", "200 tokens"});
  refuse({0, 150}, 149, {"max_seqlen is 149"});
  for (std::vector<int32_t> cu : {std::vector<int32_t>{0}, std::vector<int32_t>{0, 0}}) {
    c.cu = cu;
    for (const std::string& kernel : kernels()) {
      ASSERT_TRUE(is_ok(c.run(std::nullopt, on(kernel))));
      for (int64_t h = 0; h < 2; ++h) expect_rows(c.out, 0, h, 0, 200, 0);
      EXPECT_TRUE(std::isinf(c.lse.get({0, 1, 199})));
    }
  }
}

}  // namespace
}  // namespace tessera
