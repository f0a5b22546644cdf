// The binding hands torch's memory to tessera as it lies there: strides, documents, plans, errors.
#include "h3/attention/binding.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <functional>

#include "h3/attention/tests/reference.h"
#include "h3/attention/workspace.h"
#include "h3/common/error.h"
#include "tessera/attention.h"

namespace h3 {
namespace {

using testing::document_mask;
using testing::max_error;
using testing::packed;
using testing::random_qkv;
using testing::reference_attention;

constexpr uint64_t kSeed = 20250701;
constexpr double kF32Tolerance = 2e-5;

class Binding : public ::testing::Test {
 protected:
  void SetUp() override { testing::start_test(kSeed); }
};

/// Token-level visibility of an unpacked plan, read slot by slot: [B, H, Sq, Sk].
at::Tensor plan_mask(const RoutePlan& plan, int64_t sq, int64_t sk) {
  const auto sizes = plan.index.sizes();
  at::Tensor mask = at::zeros({sizes[0], sizes[1], sq, sk}, at::kBool);
  for (int64_t b = 0; b < sizes[0]; ++b) {
    for (int64_t h = 0; h < sizes[1]; ++h) {
      for (int64_t g = 0; g < sizes[2]; ++g) {
        at::Tensor rows = mask[b][h].slice(0, 64 * g, 64 * (g + 1));
        if (plan.dense_rows.defined() && plan.dense_rows[b][g].item<uint8_t>() != 0) {
          rows.fill_(true);
          continue;
        }
        for (int64_t s = 0; s < plan.count[b][h][g].item<int32_t>(); ++s) {
          const int64_t id = plan.index[b][h][g][s].item<int32_t>();
          rows.slice(1, 64 * id, 64 * (id + 1)).fill_(true);
        }
      }
    }
  }
  return mask;
}

RouteOptions keep(int32_t blocks) {
  RouteOptions options;
  options.config.budget.kind = tessera::BudgetKind::kKeep;
  options.config.budget.keep = blocks;
  return options;
}

/// The error that `call` throws, which must mention `text`.
void expect_error(const std::function<void()>& call, ErrorCode code, const std::string& text) {
  try {
    call();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), code) << e.what();
    EXPECT_NE(std::string(e.what()).find(text), std::string::npos) << e.what();
    return;
  }
  FAIL() << "nothing was thrown; expected: " << text;
}

TEST_F(Binding, DenseWithGroupedHeadsAndLse_MatchesFloat64) {
  const Qkv qkv = random_qkv(2, 100, 150, 4, 2, 64);
  const AttentionPartial got = attend(qkv, {.softmax_scale = 0.2f, .with_lse = true});
  const AttentionPartial want = reference_attention(qkv, {}, 0.2);
  EXPECT_LT(max_error(got.out, want.out), kF32Tolerance);
  EXPECT_LT(max_error(got.lse, want.lse), kF32Tolerance);
  EXPECT_EQ(got.out.sizes(), qkv.q.sizes());
  EXPECT_FALSE(attend(qkv).lse.defined());
}

TEST_F(Binding, SparseOverARoutedPlan_MatchesMaskedFloat64) {
  const Qkv qkv = random_qkv(2, 300, 500, 4, 2, 64);
  RouteOptions options = keep(3);
  options.dense_query_blocks = {0, 1, 0, 0, 0};
  const RoutePlan plan = route(qkv.q, qkv.k, options);
  EXPECT_EQ(plan.index.sizes(), at::IntArrayRef({2, 4, 5, 3}));
  EXPECT_EQ(plan.count.sizes(), at::IntArrayRef({2, 4, 5}));
  EXPECT_EQ(plan.dense_rows.sizes(), at::IntArrayRef({2, 5}));
  EXPECT_EQ(plan.mass.sizes(), at::IntArrayRef({2, 4, 5}));
  EXPECT_EQ(plan.key_blocks, 8);
  EXPECT_TRUE(plan.from_router);
  const AttentionPartial got = attend(qkv, {.plan = &plan, .with_lse = true});
  const at::Tensor mask = plan_mask(plan, 300, 500);
  EXPECT_LT(mask.to(at::kFloat).mean().item<float>(), 0.6f) << "the plan should drop something";
  const AttentionPartial want = reference_attention(qkv, mask);
  EXPECT_LT(max_error(got.out, want.out), kF32Tolerance);
  EXPECT_LT(max_error(got.lse, want.lse), kF32Tolerance);
}

TEST_F(Binding, TinySparsity_EqualsDenseBitForBit) {
  const Qkv qkv = random_qkv(1, 700, 700, 2, 2, 64);
  RouteOptions options;
  options.config.budget.sparsity = 1e-6;
  const RoutePlan plan = route(qkv.q, qkv.k, options);
  EXPECT_TRUE(at::equal(attend(qkv, {.plan = &plan}).out, attend(qkv).out));
}

TEST_F(Binding, RouteAgreesWithTesserasOwnPlan) {
  const Qkv qkv = random_qkv(2, 200, 260, 4, 2, 128);
  const RoutePlan plan = route(qkv.q, qkv.k, keep(2));
  const auto view = [](const at::Tensor& t) {
    return tessera::contiguous_view<4>(t.data_ptr(), {t.size(0), t.size(1), t.size(2), t.size(3)},
                                       tessera::Dtype::kF32);
  };
  tessera::RouteParams params{.q = view(qkv.q), .k = view(qkv.k)};
  params.config = keep(2).config;
  tessera::Plan own;
  ASSERT_TRUE(tessera::route(params, {}, &own).ok());
  const auto as_tensor = [](auto& values, at::ScalarType type, at::IntArrayRef sizes) {
    return at::from_blob(values.data(), sizes, at::dtype(type));
  };
  EXPECT_TRUE(at::equal(plan.index, as_tensor(own.index, at::kInt, plan.index.sizes())));
  EXPECT_TRUE(at::equal(plan.count, as_tensor(own.count, at::kInt, plan.count.sizes())));
  EXPECT_TRUE(at::equal(plan.mass, as_tensor(own.mass, at::kFloat, plan.mass.sizes())));
}

TEST_F(Binding, PackedQkvViews_GiveTheBitsOfContiguousCopies) {
  const at::Tensor fused = at::randn({300, 4, 3 * 128}).to(at::kBFloat16);
  const auto part = [&](int64_t i) { return fused.narrow(2, i * 128, 128); };
  const Qkv views{part(0), part(1), part(2)};
  const Qkv copies{part(0).contiguous(), part(1).contiguous(), part(2).contiguous()};
  ASSERT_EQ(views.q.stride(0), 4 * 384);
  ASSERT_EQ(views.q.stride(1), 384);
  const PackedBounds bounds{{0, 210, 210, 300}, 210};
  const RoutePlan plan = route(views.q, views.k, keep(2), &bounds);
  const RoutePlan plan_of_copies = route(copies.q, copies.k, keep(2), &bounds);
  EXPECT_TRUE(at::equal(plan.index, plan_of_copies.index));
  for (const RoutePlan* p : {static_cast<const RoutePlan*>(nullptr), &plan}) {
    const AttendOptions options{.plan = p, .bounds = &bounds, .with_lse = true};
    const AttentionPartial a = attend(views, options), b = attend(copies, options);
    EXPECT_TRUE(at::equal(a.out, b.out));
    EXPECT_TRUE(at::equal(a.lse, b.lse));
    EXPECT_TRUE(a.out.is_contiguous());
  }
}

TEST_F(Binding, PackedDocuments_MatchFloat64AndClearWhatLiesBehind) {
  const Qkv batch = random_qkv(1, 200, 200, 4, 2, 64);
  const PackedBounds bounds{{0, 70, 70, 170}, 0};
  const AttentionPartial got = attend(packed(batch), {.bounds = &bounds, .with_lse = true});
  const AttentionPartial want = reference_attention(batch, document_mask(bounds.cu, 200));
  EXPECT_EQ(got.out.sizes(), at::IntArrayRef({200, 4, 64}));
  EXPECT_EQ(got.lse.sizes(), at::IntArrayRef({4, 200}));
  EXPECT_LT(max_error(got.out, want.out[0]), kF32Tolerance);
  EXPECT_LT(max_error(got.lse, want.lse[0]), kF32Tolerance);
  EXPECT_EQ(got.out.narrow(0, 170, 30).abs().max().item<float>(), 0.0f);
  EXPECT_EQ(got.lse.narrow(1, 170, 30).max().item<float>(), -INFINITY);
}

TEST_F(Binding, AllDocumentsShort_GiveDenseRowsAndAPlanWithoutSlots) {
  const Qkv rows = packed(random_qkv(1, 200, 200, 2, 2, 64));
  const PackedBounds bounds{{0, 120, 200}, 0};
  RouteOptions options = keep(1);
  options.min_seq_len = 512;
  const RoutePlan plan = route(rows.q, rows.k, options, &bounds);
  EXPECT_EQ(plan.index.size(3), 0);
  EXPECT_TRUE(plan.dense_rows.all().item<bool>());
  EXPECT_TRUE(at::equal(attend(rows, {.plan = &plan, .bounds = &bounds}).out,
                        attend(rows, {.bounds = &bounds}).out));
}

TEST_F(Binding, OutAndLse_AreWrittenInPlace) {
  const Qkv qkv = random_qkv(1, 90, 90, 4, 4, 64);
  at::Tensor wide = at::full({1, 90, 6, 64}, 7.0f);
  at::Tensor lse = at::full({1, 6, 90}, 7.0f);
  const AttentionPartial got =
      attend(qkv, {.with_lse = true, .out = wide.narrow(2, 1, 4), .lse = lse.narrow(1, 1, 4)});
  const AttentionPartial want = attend(qkv, {.with_lse = true});
  EXPECT_EQ(got.out.data_ptr(), wide.narrow(2, 1, 4).data_ptr());
  EXPECT_TRUE(at::equal(wide.narrow(2, 1, 4), want.out));
  EXPECT_TRUE(at::equal(lse.narrow(1, 1, 4), want.lse));
  for (int64_t head : {0, 5}) {
    EXPECT_TRUE((wide.select(2, head) == 7.0f).all().item<bool>());
    EXPECT_TRUE((lse.select(1, head) == 7.0f).all().item<bool>());
  }
}

TEST_F(Binding, BadTensors_AreRefusedWithWhatToDo) {
  const Qkv good = random_qkv(1, 128, 128, 4, 2, 64);
  const auto with = [&](auto change) {
    Qkv bad = good;
    change(bad);
    return [bad] { attend(bad); };
  };
  const auto invalid = ErrorCode::kInvalidArgument;
  expect_error(with([](Qkv& t) {
                 t.q = at::randn({1, 128, 64, 4}).transpose(2, 3);
               }),
               invalid, "q has a last stride of 4");
  expect_error(with([](Qkv& t) { t.k = t.k.to(at::kHalf); }), invalid, "convert them to one dtype");
  expect_error(with([](Qkv& t) { t.v = t.v.narrow(1, 0, 64); }), invalid, "give v the shape of k");
  expect_error(with([](Qkv& t) { t.q = t.q.narrow(2, 0, 3); }), invalid, "multiple of the key");
  expect_error(with([](Qkv& t) { t.q = t.q[0]; }), invalid, "it must have 4 dimensions");
  expect_error(with([](Qkv& t) { t.q = t.q.narrow(1, 0, 0); }), invalid, "at least 1");
  expect_error(with([](Qkv& t) { t.q = at::Tensor(); }), invalid, "q is undefined");
  expect_error(with([](Qkv& t) { t.q = t.q.to(at::Device(at::kMeta)); }), invalid, "one device");
  expect_error(with([](Qkv& t) {
                 t = {t.q.to(at::kLong), t.k.to(at::kLong), t.v.to(at::kLong)};
               }),
               invalid, "accepted are bf16, f16 and f32");
  expect_error([] { attend(random_qkv(1, 64, 64, 1, 1, 80)); }, ErrorCode::kUnsupported,
               "head_dim is 80");
  expect_error(
      [&] {
        attend(good, {.out = at::empty({1, 128, 4, 64}, at::kHalf)});
      },
      invalid, "out is f16");
  expect_error([&] { attend(good, {.out = good.q}); }, invalid, "out overlaps q");
  expect_error([&] { attend(good, {.kernel = "warp9"}); }, invalid, "no kernel named \"warp9\"");
}

TEST_F(Binding, BadBoundsPlansAndOptions_AreRefused) {
  const Qkv batch = random_qkv(1, 128, 128, 2, 2, 64);
  const Qkv rows = packed(batch);
  const auto invalid = ErrorCode::kInvalidArgument;
  const auto bounded = [&](PackedBounds bounds) {
    return [&rows, bounds] { attend(rows, {.bounds = &bounds}); };
  };
  expect_error(bounded({{}, 0}), invalid, "cu is empty");
  expect_error(bounded({{1, 128}, 0}), invalid, "0");
  expect_error(bounded({{0, 100, 90}, 0}), invalid, "90");
  expect_error(bounded({{0, 129}, 0}), invalid, "129");
  expect_error(bounded({{0, 100}, 99}), invalid, "99");

  RoutePlan plan = route(batch.q, batch.k, keep(1));
  const auto attend_plan = [&] { attend(batch, {.plan = &plan}); };
  plan.index = plan.index.clone();
  plan.index[0][1][1][0] = 2;
  expect_error(attend_plan, invalid, "ids must lie in [0, 2)");
  plan.index = plan.index.to(at::kLong);
  expect_error(attend_plan, invalid, "i64");
  plan.index = at::Tensor();
  expect_error(attend_plan, invalid, "route()");

  RouteOptions options;
  options.config.budget.sparsity = 1.0;
  expect_error([&] { route(batch.q, batch.k, options); }, invalid, "sparsity is 1");
}

TEST(WorkspaceCache, GrowsKeepsAndReleases) {
  WorkspaceCache cache;
  const c10::Stream stream(c10::Stream::DEFAULT, at::Device(at::kCPU));
  void* first = nullptr;
  {
    const auto lease = cache.borrow(stream, 1000);
    first = lease.data();
    EXPECT_GE(lease.bytes(), 1000u);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(first) % 256, 0u);
  }
  EXPECT_EQ(cache.borrow(stream, 10).data(), first) << "a smaller need reuses the buffer";
  const size_t held = cache.bytes_held();
  EXPECT_NE(cache.borrow(stream, 5000).data(), first);
  // The outgrown buffer stays: a captured graph may still write to it.
  EXPECT_GE(cache.bytes_held(), held + 5000);
  const c10::Stream other(c10::Stream::UNSAFE, at::Device(at::kCPU), 1);
  const auto lease = cache.borrow(stream, 10);
  EXPECT_NE(cache.borrow(other, 10).data(), lease.data()) << "streams never share";
}

TEST(WorkspaceCache, Release_GivesEverythingBack) {
  WorkspaceCache cache;
  const c10::Stream stream(c10::Stream::DEFAULT, at::Device(at::kCPU));
  cache.borrow(stream, 1000);
  cache.release();
  EXPECT_EQ(cache.bytes_held(), 0u);
  EXPECT_GE(cache.borrow(stream, 1000).bytes(), 1000u);
}

}  // namespace
}  // namespace h3
