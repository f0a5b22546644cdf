// torch_sdpa, torch_cudnn_sdpa and fa against float64, through the interface that layers use.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>

#include "h3/attention/dense_impl.h"
#include "h3/attention/sdpa_impl.h"
#include "h3/attention/tests/reference.h"
#include "h3/common/error.h"

namespace h3 {
namespace {

using testing::document_mask;
using testing::max_error;
using testing::packed;
using testing::random_qkv;
using testing::reference_attention;

constexpr uint64_t kSeed = 20250702;

struct Backend {
  const char* name;
  std::unique_ptr<AttentionImpl> (*make)(const AttentionOptions&);
};

struct Case {
  Backend backend;
  int64_t b, sq, sk, h, hkv, d;
  at::ScalarType dtype;
  float scale;
  double tolerance;
};

void PrintTo(const Case& c, std::ostream* out) {
  *out << c.backend.name << " B" << c.b << " Sq" << c.sq << " Sk" << c.sk << " H" << c.h << "/"
       << c.hkv << " D" << c.d << " " << c.dtype;
}

constexpr Backend kSdpa{"torch_sdpa", make_sdpa_impl};
constexpr Backend kFa{"fa", make_dense_impl};

class DenseBackend : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    testing::start_test(kSeed);
    impl_ = GetParam().backend.make({.softmax_scale = GetParam().scale});
  }
  Qkv inputs() const {
    const Case& c = GetParam();
    return random_qkv(c.b, c.sq, c.sk, c.h, c.hkv, c.d, c.dtype);
  }
  std::unique_ptr<AttentionImpl> impl_;
};

TEST_P(DenseBackend, Forward_MatchesFloat64) {
  const Qkv qkv = inputs();
  const at::Tensor out = impl_->forward(qkv, {});
  EXPECT_EQ(out.sizes(), qkv.q.sizes());
  EXPECT_EQ(out.scalar_type(), qkv.q.scalar_type());
  EXPECT_LT(max_error(out, reference_attention(qkv, {}, GetParam().scale).out),
            GetParam().tolerance);
}

TEST_P(DenseBackend, ForwardOfStridedViews_MatchesFloat64) {
  const Case& c = GetParam();
  const at::Tensor fused = at::randn({c.b, std::max(c.sq, c.sk), c.h, 3 * c.d}).to(c.dtype);
  const auto part = [&](int64_t i, int64_t tokens, int64_t heads) {
    return fused.narrow(3, i * c.d, c.d).narrow(1, 0, tokens).narrow(2, 0, heads);
  };
  const Qkv views{part(0, c.sq, c.h), part(1, c.sk, c.hkv), part(2, c.sk, c.hkv)};
  EXPECT_LT(max_error(impl_->forward(views, {}), reference_attention(views, {}, c.scale).out),
            c.tolerance);
}

TEST_P(DenseBackend, ForwardPacked_KeepsDocumentsApartAndClearsTheRest) {
  const Case& c = GetParam();
  const Qkv batch = random_qkv(1, 150, 150, c.h, c.hkv, c.d, c.dtype);
  const PackedBounds bounds{{0, 67, 67, 140}, 73};
  const at::Tensor out = impl_->forward_packed(packed(batch), bounds, {});
  const AttentionPartial want = reference_attention(batch, document_mask(bounds.cu, 150), c.scale);
  EXPECT_LT(max_error(out, want.out[0]), c.tolerance);
  EXPECT_EQ(out.narrow(0, 140, 10).abs().max().item<double>(), 0.0);
}

TEST_P(DenseBackend, ForwardWithLse_IsExactOrRefused) {
  const Case& c = GetParam();
  const Qkv qkv = inputs();
  if (c.backend.make == kSdpa.make) {
    try {
      impl_->forward_with_lse(qkv);
      FAIL() << "torch_sdpa has no log-sum-exp";
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::kUnsupported);
    }
    return;
  }
  const AttentionPartial got = impl_->forward_with_lse(qkv);
  const AttentionPartial want = reference_attention(qkv, {}, c.scale);
  EXPECT_LT(max_error(got.out, want.out), c.tolerance);
  EXPECT_LT(max_error(got.lse, want.lse), 2e-5);
  if (c.b != 1) return;
  const AttentionPartial chunk = impl_->forward_with_lse(packed(qkv));
  EXPECT_TRUE(at::equal(chunk.out, got.out[0]));
  EXPECT_TRUE(at::equal(chunk.lse, got.lse[0]));
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, DenseBackend,
    ::testing::Values(Case{kSdpa, 2, 100, 100, 4, 4, 64, at::kFloat, 0, 1e-5},
                      Case{kSdpa, 1, 90, 131, 4, 2, 64, at::kFloat, 0.3f, 1e-5},
                      Case{kSdpa, 1, 40, 40, 2, 2, 32, at::kDouble, 0, 1e-12},
                      Case{kSdpa, 1, 64, 64, 2, 1, 128, at::kBFloat16, 0, 2e-2},
                      Case{kFa, 2, 100, 100, 4, 4, 64, at::kFloat, 0, 1e-5},
                      Case{kFa, 1, 90, 131, 4, 2, 64, at::kFloat, 0.3f, 1e-5},
                      Case{kFa, 1, 64, 64, 2, 1, 128, at::kBFloat16, 0, 2e-2},
                      Case{kFa, 1, 70, 70, 2, 2, 128, at::kHalf, 0, 2e-3}));

at::Tensor bottom_right(int64_t sq, int64_t sk) {
  return at::ones({1, 1, sq, sk}, at::kBool).tril(sk - sq);
}

TEST(TorchSdpa, CausalLayers_AlignAtTheBottomRight) {
  testing::start_test(kSeed);
  const auto impl = make_sdpa_impl({.causal = true});
  for (const auto& [sq, sk] : {std::pair{60, 60}, {20, 60}, {60, 45}}) {
    for (int64_t hkv : {4, 1}) {
      const Qkv qkv = random_qkv(1, sq, sk, 4, hkv, 32);
      const at::Tensor want = reference_attention(qkv, bottom_right(sq, sk)).out;
      EXPECT_LT(max_error(impl->forward(qkv, {}), want), 1e-5) << sq << " over " << sk;
    }
  }
}

TEST(TorchSdpa, CausalPacked_IsCausalInsideEachDocument) {
  testing::start_test(kSeed);
  const Qkv batch = random_qkv(1, 80, 80, 2, 2, 32);
  const PackedBounds bounds{{0, 30, 80}, 0};
  const at::Tensor mask = document_mask(bounds.cu, 80).logical_and(bottom_right(80, 80));
  const at::Tensor out =
      make_sdpa_impl({.causal = true})->forward_packed(packed(batch), bounds, {});
  EXPECT_LT(max_error(out, reference_attention(batch, mask).out[0]), 1e-5);
}

TEST(TorchSdpa, BadBounds_AreRefused) {
  const Qkv rows = packed(random_qkv(1, 80, 80, 2, 2, 32));
  const auto impl = make_sdpa_impl({});
  for (const PackedBounds& bounds :
       {PackedBounds{{}, 0}, PackedBounds{{1, 80}, 0}, PackedBounds{{0, 50, 40}, 0},
        PackedBounds{{0, 81}, 0}, PackedBounds{{0, 80}, 79}, PackedBounds{{0, 80}, -1}}) {
    EXPECT_THROW(impl->forward_packed(rows, bounds, {}), Error);
  }
}

TEST(CudnnSdpa, OutsideCuda_IsRefusedRatherThanReplaced) {
  const auto impl = make_cudnn_sdpa_impl({});
  try {
    impl->forward(random_qkv(1, 64, 64, 2, 2, 64, at::kHalf), {});
    FAIL() << "there is no cuDNN on the CPU";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::kUnsupported);
    EXPECT_NE(std::string(e.what()).find("runs on cuda"), std::string::npos) << e.what();
  }
}

TEST(CudnnSdpa, OnCuda_MatchesFloat64) {
  if (!at::hasCUDA()) {
    GTEST_SKIP() << "no CUDA device";
  }
  testing::start_test(kSeed);
  const Qkv host = random_qkv(1, 200, 330, 4, 2, 128, at::kHalf);
  const at::Device device(at::kCUDA, 0);
  const Qkv qkv{host.q.to(device), host.k.to(device), host.v.to(device)};
  const at::Tensor out = make_cudnn_sdpa_impl({})->forward(qkv, {}).cpu();
  EXPECT_LT(max_error(out, reference_attention(host).out), 2e-3);
}

TEST(CausalLayers, OnBackendsWithoutThem_AreRefusedAtConstruction) {
  EXPECT_THROW(make_dense_impl({.causal = true}), Error);
  EXPECT_THROW(make_cudnn_sdpa_impl({.causal = true}), Error);
}

}  // namespace
}  // namespace h3
