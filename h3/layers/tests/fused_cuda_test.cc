// The fused kernels against the ATen composition on the CPU. A norm may differ from the CPU's in
// the last bit, because its sum has another order; what follows it is then checked bit for bit from
// the kernel's own norm. Skipped without a device of capability 9.0 or a build without the kernels.
#include "h3/layers/fused.h"

#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gtest/gtest.h>

#include <limits>
#include <ostream>
#include <string>
#include <vector>

#include "h3/common/error.h"
#include "h3/layers/composed.h"
#include "h3/layers/tests/fused_test_util.h"

namespace h3::layers {
namespace {

using testing::compare;
using testing::Difference;
using testing::Inputs;
using testing::inputs;
using testing::order;
using testing::Random;
using testing::rotations;

constexpr uint64_t kSeed = 20261130;
constexpr double kEps = 1e-5;
constexpr auto kBf16 = at::kBFloat16;
// Share of norms and of silu values whose last bit f32 rounding may decide otherwise.
constexpr double kUndecided = 1e-3;

Inputs on_gpu(const Inputs& in) {
  // A copy of a chunk would be dense: the tables move as the matrix they are views of.
  const auto table = [](const at::Tensor& t) {
    const at::Tensor whole =
        at::as_strided(t, {t.size(0), 6 * t.size(1)}, {6 * t.size(1), 1}, 0).cuda();
    return at::as_strided(whole, t.sizes(), {6 * t.size(1), 1}, t.storage_offset());
  };
  return {in.x.cuda(),    in.y.cuda(),     in.weight.cuda(), in.row.cuda(),
          table(in.gate), table(in.scale), table(in.shift)};
}

void expect_equal(const at::Tensor& got, const at::Tensor& want, const char* what) {
  const Difference d = compare(got, want);
  EXPECT_EQ(d.different, 0) << what << ": " << d.different << " of " << d.values
                            << " values differ, by up to " << d.last_bits << " last bits";
}

void expect_close(const at::Tensor& got, const at::Tensor& want, const char* what) {
  const Difference d = compare(got, want);
  EXPECT_LE(d.last_bits, 1) << what;
  EXPECT_LE(d.different, 1 + static_cast<int64_t>(kUndecided * d.values))
      << what << ", of " << d.values;
}

at::Tensor modulated(at::Tensor n, const Inputs& in) {
  n = n.cpu();
  n.mul_(at::index_select(in.scale + 1, 0, in.row));
  return n.add_(at::index_select(in.shift, 0, in.row));
}

class FusedCuda : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!at::hasCUDA()) GTEST_SKIP() << "no CUDA device";
    if (!fused_kernels_available())
      GTEST_SKIP() << "this build has no fused kernels (TESSERA_CUDA=OFF)";
    if (!uses_fused_kernels(at::empty({1, 8}, at::device(at::kCUDA).dtype(kBf16)))) {
      GTEST_SKIP() << "the device has not compute capability 9.0";
    }
  }
};

struct Case {
  int64_t rows, width, tables;
  bool segments;
};
// For messages of GoogleTest, which would print bytes.
void PrintTo(const Case& c, std::ostream* out) {
  *out << "[" << c.rows << ", " << c.width << "], " << c.tables << " table rows";
}
// 5376 has a kernel of its own, where a CTA walks over rows once there are more than two per SM.
const Case kCases[] = {{1, 5376, 1, false},   {3, 5376, 3, false},     {263, 5376, 9, false},
                       {1037, 5376, 9, true}, {1500, 5376, 12, false}, {1, 8, 1, false},
                       {113, 256, 6, false},  {2500, 256, 12, true},   {67, 1000, 4, false},
                       {9, 5384, 3, false}};

class FusedRowsCuda : public FusedCuda, public ::testing::WithParamInterface<Case> {
 protected:
  void SetUp() override {
    FusedCuda::SetUp();
    if (IsSkipped()) return;
    Random random(kSeed);
    in_ = inputs(random, GetParam().rows, GetParam().width, GetParam().tables, kBf16,
                 GetParam().segments);
    gpu_ = on_gpu(in_);
    ASSERT_EQ(gpu_.scale.stride(0), 6 * GetParam().width);
  }
  Inputs in_, gpu_;
};

TEST_P(FusedRowsCuda, RmsNorm_IsWithinTheLastBit) {
  const at::Tensor before = gpu_.x.clone();
  const at::Tensor n = rms_norm(gpu_.x, gpu_.weight, kEps);
  expect_close(n, composed::rms_norm(in_.x, in_.weight, kEps), "norm");
  EXPECT_TRUE(at::equal(n, rms_norm(gpu_.x, gpu_.weight, kEps)));
  EXPECT_TRUE(at::equal(gpu_.x, before));
}

TEST_P(FusedRowsCuda, Modulate_IsExactFromItsNorm) {
  const at::Tensor before = gpu_.x.clone();
  const at::Tensor got =
      rms_norm_modulate(gpu_.x, gpu_.weight, kEps, gpu_.scale, gpu_.shift, gpu_.row);
  expect_equal(got, modulated(rms_norm(gpu_.x, gpu_.weight, kEps), in_), "modulated");
  EXPECT_TRUE(at::equal(gpu_.x, before));
}

TEST_P(FusedRowsCuda, GatedResidual_IsExactInPlace) {
  const void* const place = gpu_.x.data_ptr();
  gated_residual_(gpu_.x, gpu_.y, gpu_.gate, gpu_.row);
  composed::gated_residual_(in_.x, in_.y, in_.gate, in_.row);
  EXPECT_EQ(gpu_.x.data_ptr(), place);
  expect_equal(gpu_.x, in_.x, "x");
  expect_equal(gpu_.y, in_.y, "y");
}

TEST_P(FusedRowsCuda, GatedResidualNormModulate_IsBothSites) {
  const at::Tensor out = gated_residual_norm_modulate_(gpu_.x, gpu_.y, gpu_.gate, gpu_.weight, kEps,
                                                       gpu_.scale, gpu_.shift, gpu_.row);
  composed::gated_residual_(in_.x, in_.y, in_.gate, in_.row);
  expect_equal(gpu_.x, in_.x, "x");
  expect_equal(gpu_.y, in_.y, "y");
  expect_equal(out, modulated(rms_norm(gpu_.x, gpu_.weight, kEps), in_), "modulated");
}

INSTANTIATE_TEST_SUITE_P(Sizes, FusedRowsCuda, ::testing::ValuesIn(kCases), [](const auto& info) {
  return "S" + std::to_string(info.param.rows) + "_H" + std::to_string(info.param.width);
});

TEST_F(FusedCuda, DenseTables_EqualChunks) {
  Random random(kSeed);
  const Inputs gpu = on_gpu(inputs(random, 300, 5376, 5, kBf16));
  EXPECT_TRUE(at::equal(rms_norm_modulate(gpu.x, gpu.weight, kEps, gpu.scale, gpu.shift, gpu.row),
                        rms_norm_modulate(gpu.x, gpu.weight, kEps, gpu.scale.contiguous(),
                                          gpu.shift.contiguous(), gpu.row)));
}

TEST_F(FusedCuda, IndexOutsideTheTable_MakesItsRowNan) {
  Random random(kSeed);
  for (const int64_t width : {5376, 256}) {
    Inputs in = inputs(random, 600, width, 3, kBf16);
    in.row.zero_();
    Inputs gpu = on_gpu(in);
    gpu.row[7] = 3;
    gpu.row[599] = -1;
    const at::Tensor out = gated_residual_norm_modulate_(gpu.x, gpu.y, gpu.gate, gpu.weight, kEps,
                                                         gpu.scale, gpu.shift, gpu.row);
    for (const at::Tensor& t : {out, gpu.x}) {
      const at::Tensor bad = t.isnan().sum(1).cpu();
      for (int64_t r = 0; r < 600; ++r) {
        ASSERT_EQ(bad[r].item<int64_t>(), r == 7 || r == 599 ? width : 0) << "row " << r;
      }
    }
  }
}

TEST_F(FusedCuda, OtherDtypes_RunTheComposition) {
  Random random(kSeed);
  const at::Tensor x = random.normal({5, 256}, at::kFloat), w = random.normal({256}, at::kFloat);
  EXPECT_FALSE(uses_fused_kernels(x.cuda()));
  EXPECT_TRUE(
      at::allclose(rms_norm(x.cuda(), w.cuda(), kEps).cpu(), rms_norm(x, w, kEps), 1e-5, 1e-6));
}

TEST_F(FusedCuda, WhatTheKernelsCannotRead_IsRefused) {
  const auto like = at::device(at::kCUDA).dtype(kBf16);
  const at::Tensor odd = at::zeros({2, 12}, like), weight = at::ones({12}, like);
  EXPECT_THROW(rms_norm(odd, weight, kEps), Error);
  const at::Tensor shifted = at::zeros({1 + 2 * 16}, like).slice(0, 1).view({2, 16});
  EXPECT_THROW(swiglu(shifted), Error);
}

// --- swiglu --------------------------------------------------------------------------------------

c10::BFloat16 neighbour(c10::BFloat16 v, int step) {
  const int32_t place = order(v) + step;
  const auto bits = static_cast<uint16_t>(place < 0 ? 0x8000 | -place : place);
  return c10::BFloat16(bits, c10::BFloat16::from_bits());
}

/// Every value comes from the CPU's silu or one of its neighbours, and few from a neighbour.
void expect_swiglu(const at::Tensor& got, const at::Tensor& gate_up) {
  const int64_t width = gate_up.size(1) / 2;
  const at::Tensor silu = at::silu(gate_up.narrow(1, 0, width)).contiguous();
  const at::Tensor up = gate_up.narrow(1, width, width).contiguous(), result = got.cpu();
  ASSERT_EQ(result.sizes(), silu.sizes());
  const auto *s = silu.const_data_ptr<c10::BFloat16>(), *u = up.const_data_ptr<c10::BFloat16>(),
             *r = result.const_data_ptr<c10::BFloat16>();
  int64_t different = 0;
  for (int64_t i = 0; i < silu.numel(); ++i) {
    const auto from = [&](int step) { return order(neighbour(s[i], step) * u[i]) == order(r[i]); };
    if (from(0)) continue;
    ++different;
    ASSERT_TRUE(from(1) || from(-1))
        << "value " << i << ": " << r[i] << " for " << s[i] << " * " << u[i];
  }
  EXPECT_LE(different, 1 + static_cast<int64_t>(kUndecided * silu.numel()))
      << "of " << silu.numel();
}

TEST_F(FusedCuda, Swiglu_RealAndOtherWidths) {
  Random random(kSeed);
  for (const auto& [rows, width] : {std::pair<int64_t, int64_t>{1, 14336},
                                    {133, 14336},
                                    {113, 512},
                                    {7, 8},
                                    {5, 7176},
                                    {3, 7168}}) {
    SCOPED_TRACE(std::to_string(rows) + " x " + std::to_string(width));
    const at::Tensor gate_up = random.normal({rows, 2 * width}, kBf16, 4);
    const at::Tensor device = gate_up.cuda(), got = swiglu(device);
    expect_swiglu(got, gate_up);
    EXPECT_TRUE(at::equal(got, swiglu(device)));
    EXPECT_TRUE(at::equal(device.cpu(), gate_up));
  }
}

TEST_F(FusedCuda, Swiglu_FarGates_KeepTheirLimits) {
  const float inf = std::numeric_limits<float>::infinity();
  const at::Tensor gate_up = at::tensor({-1000.f, 1000.f, -89.f, 89.f, 0.f, -inf, inf, -20.f, 1.f,
                                         2.f, 1.f, 2.f, 1.f, 1.f, 1.f, 1.f})
                                 .view({1, 16})
                                 .to(kBf16);
  const at::Tensor got = swiglu(gate_up.cuda()).cpu().to(at::kFloat);
  const auto value = [&](int64_t i) { return got[0][i].item<float>(); };
  EXPECT_EQ(value(0), 0);
  EXPECT_EQ(value(1), 2000);
  EXPECT_NEAR(value(2), 0, 1e-35);
  EXPECT_EQ(value(3), 178);
  EXPECT_EQ(value(4), 0);
  EXPECT_TRUE(std::isnan(value(5)));  // -inf * 0, as in ATen
  EXPECT_EQ(value(6), inf);
  EXPECT_NEAR(value(7), -20 * std::exp(-20.0), 1e-9);
}

TEST_F(FusedCuda, Swiglu_BeyondTwoToThe31_Elements) {
  const int64_t rows = 80000, width = 14336;  // 2.3e9 inputs
  Random random(kSeed);
  const at::Tensor some = random.normal({3, 2 * width}, kBf16, 4);
  const at::Tensor gate_up = at::zeros({rows, 2 * width}, at::device(at::kCUDA).dtype(kBf16));
  const int64_t places[3] = {0, rows / 2, rows - 1};
  for (int64_t i = 0; i < 3; ++i) gate_up[places[i]].copy_(some[i]);
  const at::Tensor got = swiglu(gate_up);
  expect_swiglu(at::stack({got[places[0]], got[places[1]], got[places[2]]}), some);
}

// --- qk norm and rotation ------------------------------------------------------------------------

struct QkCase {
  int64_t rows, heads, half;
};

at::Tensor parts_of(const at::Tensor& qkv, int64_t heads, int64_t begin, int64_t count) {
  return qkv.cpu().view({qkv.size(0), 3, heads, 128}).narrow(1, begin, count);
}

TEST_F(FusedCuda, QkNormRope_IsExactFromItsNorm) {
  Random random(kSeed);
  for (const QkCase& c : {QkCase{1, 56, 48}, QkCase{301, 56, 48}, QkCase{113, 8, 48},
                          QkCase{5, 3, 48}, QkCase{5, 56, 24}, QkCase{9, 7, 64}, QkCase{9, 1, 8}}) {
    SCOPED_TRACE("S " + std::to_string(c.rows) + ", heads " + std::to_string(c.heads) + ", half " +
                 std::to_string(c.half));
    const at::Tensor qkv = random.normal({c.rows, 3 * c.heads * 128}, kBf16, 2);
    const at::Tensor q_weight = random.normal({128}, kBf16, 0.3, 2),
                     k_weight = random.normal({128}, kBf16, 0.3, 2);
    const at::Tensor angles = rotations(random, c.rows, c.half, kBf16);

    // Without rotation: the norm, within the last bit.
    at::Tensor norm = qkv.cuda(), cpu_norm = qkv.clone();
    qk_norm_rope_(norm, c.heads, q_weight.cuda(), k_weight.cuda(), kEps, {});
    composed::qk_norm_rope_(cpu_norm, c.heads, q_weight, k_weight, kEps, {});
    expect_close(norm, cpu_norm, "norm");
    expect_equal(parts_of(norm, c.heads, 2, 1), parts_of(qkv, c.heads, 2, 1), "v");

    // The same with rotations by 0, whose sums have the order of any rotation.
    at::Tensor still = qkv.cuda();
    const at::Tensor none =
        at::cat({at::ones({c.rows, c.half}), at::zeros({c.rows, c.half})}, 1).to(kBf16);
    qk_norm_rope_(still, c.heads, q_weight.cuda(), k_weight.cuda(), kEps, none.cuda());
    expect_close(still, cpu_norm, "norm with rotations by 0");

    // With rotation: that norm rotated, bit for bit.
    at::Tensor got = qkv.cuda();
    const void* const place = got.data_ptr();
    qk_norm_rope_(got, c.heads, q_weight.cuda(), k_weight.cuda(), kEps, angles.cuda());
    EXPECT_EQ(got.data_ptr(), place);
    const at::Tensor n = parts_of(still, c.heads, 0, 2);
    const at::Tensor a = n.narrow(3, 0, c.half), b = n.narrow(3, c.half, c.half);
    const at::Tensor cos = angles.narrow(1, 0, c.half).view({c.rows, 1, 1, c.half});
    const at::Tensor sin = angles.narrow(1, c.half, c.half).view({c.rows, 1, 1, c.half});
    const at::Tensor want = at::cat(
        {a * cos - b * sin, b * cos + a * sin, n.narrow(3, 2 * c.half, 128 - 2 * c.half)}, 3);
    expect_equal(parts_of(got, c.heads, 0, 2), want, "q and k");
    expect_equal(parts_of(got, c.heads, 2, 1), parts_of(qkv, c.heads, 2, 1), "v");

    at::Tensor again = qkv.cuda();
    qk_norm_rope_(again, c.heads, q_weight.cuda(), k_weight.cuda(), kEps, angles.cuda());
    EXPECT_TRUE(at::equal(got, again));
  }
}

TEST_F(FusedCuda, QkNormRope_BeyondTwoToThe31_Elements) {
  const int64_t rows = 100001, heads = 56;  // 2.15e9 elements
  Random random(kSeed);
  const at::Tensor some = random.normal({3, 3 * heads * 128}, kBf16, 2);
  const at::Tensor weight = random.normal({128}, kBf16, 0.3, 2).cuda();
  const at::Tensor angles = rotations(random, 3, 48, kBf16).cuda();
  at::Tensor qkv = at::zeros({rows, 3 * heads * 128}, at::device(at::kCUDA).dtype(kBf16));
  const at::Tensor all_angles = at::zeros({rows, 96}, qkv.options());
  const int64_t places[3] = {0, rows / 2, rows - 1};
  for (int64_t i = 0; i < 3; ++i) {
    qkv[places[i]].copy_(some[i]);
    all_angles[places[i]].copy_(angles[i]);
  }
  qk_norm_rope_(qkv, heads, weight, weight, kEps, all_angles);
  at::Tensor want = some.cuda();
  qk_norm_rope_(want, heads, weight, weight, kEps, angles);
  for (int64_t i = 0; i < 3; ++i)
    EXPECT_TRUE(at::equal(qkv[places[i]], want[i])) << "row " << places[i];
}

// --- streams -------------------------------------------------------------------------------------

TEST_F(FusedCuda, CurrentStream_OrdersTheKernels) {
  Random random(kSeed);
  const Inputs in = inputs(random, 300, 5376, 3, kBf16), gpu = on_gpu(in);
  const at::Tensor want = rms_norm_modulate(gpu.x, gpu.weight, kEps, gpu.scale, gpu.shift, gpu.row);
  const at::Tensor big = at::ones({8192, 8192}, at::device(at::kCUDA).dtype(kBf16));
  const at::Tensor late = at::zeros_like(gpu.x);
  const c10::impl::VirtualGuardImpl impl(at::kCUDA);
  impl.synchronizeDevice(gpu.x.device().index());
  at::Tensor got;
  const c10::Stream side = impl.getStreamFromGlobalPool(gpu.x.device());
  {
    const c10::StreamGuard guard(side);
    // Milliseconds of work in front of the input: a kernel of another stream would read zeros.
    at::Tensor busy = big;
    for (int i = 0; i < 20; ++i) busy = at::mm(busy, big);
    late.copy_(gpu.x);
    got = rms_norm_modulate(late, gpu.weight, kEps, gpu.scale, gpu.shift, gpu.row);
  }
  impl.synchronizeStream(side);
  EXPECT_TRUE(at::equal(got, want));
}

}  // namespace
}  // namespace h3::layers
