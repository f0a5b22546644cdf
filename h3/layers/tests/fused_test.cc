// The ATen composition of the fused sites against scalar loops in f64 that round where the contract
// says so. Where f32 arithmetic decides a rounding (norm, silu), both neighbours of the exact value
// count if it lies within 2^-20 of their middle; every other step has to agree bit for bit.
#include "h3/layers/fused.h"

#include <gtest/gtest.h>

#include <functional>
#include <ostream>
#include <string>
#include <vector>

#include "h3/common/error.h"
#include "h3/layers/tests/fused_test_util.h"

namespace h3::layers {
namespace {

using testing::Inputs;
using testing::inputs;
using testing::Random;
using testing::rotations;

constexpr uint64_t kSeed = 20261130;
constexpr double kEps = 1e-5;
constexpr double kSlack = 0x1p-20;

double bf16(double v) { return static_cast<float>(c10::BFloat16(static_cast<float>(v))); }
double keep(double v) { return v; }
using Round = double (*)(double);
Round rounding(at::ScalarType dtype) { return dtype == at::kBFloat16 ? bf16 : keep; }

/// A tensor as doubles, row by row.
struct Matrix {
  explicit Matrix(const at::Tensor& t)
      : rows(t.dim() == 2 ? t.size(0) : 1),
        width(t.size(-1)),
        tensor(t.to(at::kDouble).contiguous()) {
    data = tensor.data_ptr<double>();
  }
  double operator()(int64_t r, int64_t c) const { return data[r * width + c]; }
  int64_t rows, width;
  at::Tensor tensor;
  double* data;
};

/// Exact steps: equal bits in bf16; in f32 the error of a handful of f32 operations.
void expect_value(at::ScalarType dtype, double got, double want, double scale, int64_t r,
                  int64_t c) {
  if (dtype == at::kBFloat16) {
    ASSERT_EQ(got, want) << "row " << r << " channel " << c;
  } else {
    ASSERT_NEAR(got, want, 1e-6 * (std::abs(scale) + std::abs(want)))
        << "row " << r << " channel " << c;
  }
}

double exact_norm(const Matrix& x, const Matrix& weight, int64_t r, int64_t c, int64_t begin,
                  int64_t width) {
  double squares = 0;
  for (int64_t i = begin; i < begin + width; ++i) squares += x(r, i) * x(r, i);
  return x(r, c) / std::sqrt(squares / width + kEps) * weight(0, c - begin);
}

struct Case {
  at::ScalarType dtype;
  int64_t rows, width, tables;
};
// For messages of GoogleTest, which would print bytes.
void PrintTo(const Case& c, std::ostream* out) {
  *out << c.dtype << " [" << c.rows << ", " << c.width << "], " << c.tables << " table rows";
}
std::string name_of(const ::testing::TestParamInfo<Case>& info) {
  return std::string(info.param.dtype == at::kBFloat16 ? "Bf16" : "F32") + "_S" +
         std::to_string(info.param.rows) + "_H" + std::to_string(info.param.width);
}

class Fused : public ::testing::TestWithParam<Case> {
 protected:
  Random random_{kSeed};
  at::ScalarType dtype_ = GetParam().dtype;
  Round round_ = rounding(GetParam().dtype);
  Inputs in_ = inputs(random_, GetParam().rows, GetParam().width, GetParam().tables, dtype_);
};

TEST_P(Fused, RmsNorm_RoundsOnce) {
  const Matrix got(rms_norm(in_.x, in_.weight, kEps)), x(in_.x), weight(in_.weight);
  ASSERT_EQ(got.rows, x.rows);
  ASSERT_EQ(got.width, x.width);
  for (int64_t r = 0; r < x.rows; ++r) {
    for (int64_t c = 0; c < x.width; ++c) {
      const double n = exact_norm(x, weight, r, c, 0, x.width);
      if (dtype_ == at::kBFloat16) {
        const double a = bf16(n * (1 - kSlack)), b = bf16(n * (1 + kSlack));
        ASSERT_TRUE(got(r, c) == a || got(r, c) == b) << got(r, c) << " for " << n;
      } else {
        expect_value(dtype_, got(r, c), n, n, r, c);
      }
    }
  }
}

/// The modulation of a row that is normalised already.
void expect_modulated(at::ScalarType dtype, const at::Tensor& result, const at::Tensor& normalised,
                      const Inputs& in) {
  const Round round = rounding(dtype);
  const Matrix got(result), n(normalised), scale(in.scale), shift(in.shift), row(in.row);
  int64_t once_differs = 0;
  for (int64_t r = 0; r < n.rows; ++r) {
    const auto u = static_cast<int64_t>(row(0, r));
    for (int64_t c = 0; c < n.width; ++c) {
      const double product = round(n(r, c) * round(1 + scale(u, c)));
      expect_value(dtype, got(r, c), round(product + shift(u, c)), product, r, c);
      once_differs += got(r, c) != round(n(r, c) * (1 + scale(u, c)) + shift(u, c));
    }
  }
  // A single rounding at the end would be another result.
  if (dtype == at::kBFloat16 && n.rows * n.width > 1000) {
    EXPECT_GT(once_differs, 0);
  }
}

TEST_P(Fused, RmsNormModulate_RoundsEveryStep) {
  const at::Tensor before = in_.x.clone();
  expect_modulated(dtype_,
                   rms_norm_modulate(in_.x, in_.weight, kEps, in_.scale, in_.shift, in_.row),
                   rms_norm(in_.x, in_.weight, kEps), in_);
  EXPECT_TRUE(at::equal(in_.x, before));
}

void expect_residual(at::ScalarType dtype, const at::Tensor& result, const at::Tensor& before,
                     const Inputs& in) {
  const Round round = rounding(dtype);
  const Matrix got(result), x(before), y(in.y), gate(in.gate), row(in.row);
  for (int64_t r = 0; r < x.rows; ++r) {
    const auto u = static_cast<int64_t>(row(0, r));
    for (int64_t c = 0; c < x.width; ++c) {
      const double term = round(gate(u, c) * y(r, c));
      expect_value(dtype, got(r, c), round(x(r, c) + term), term, r, c);
    }
  }
}

TEST_P(Fused, GatedResidual_UpdatesInPlace) {
  const at::Tensor before = in_.x.clone(), y = in_.y.clone();
  const void* const place = in_.x.data_ptr();
  gated_residual_(in_.x, in_.y, in_.gate, in_.row);
  EXPECT_EQ(in_.x.data_ptr(), place);
  EXPECT_TRUE(at::equal(in_.y, y));
  expect_residual(dtype_, in_.x, before, in_);
}

TEST_P(Fused, GatedResidualNormModulate_IsBothSites) {
  const at::Tensor before = in_.x.clone();
  const at::Tensor out = gated_residual_norm_modulate_(in_.x, in_.y, in_.gate, in_.weight, kEps,
                                                       in_.scale, in_.shift, in_.row);
  expect_residual(dtype_, in_.x, before, in_);
  expect_modulated(dtype_, out, rms_norm(in_.x, in_.weight, kEps), in_);
}

TEST_P(Fused, Swiglu_GateComesFirst) {
  const at::Tensor gate_up = random_.normal({GetParam().rows, 2 * GetParam().width}, dtype_, 3);
  const Matrix got(swiglu(gate_up)), in(gate_up);
  const int64_t width = GetParam().width;
  ASSERT_EQ(got.width, width);
  for (int64_t r = 0; r < in.rows; ++r) {
    for (int64_t c = 0; c < width; ++c) {
      const double g = in(r, c), u = in(r, width + c), silu = g / (1 + std::exp(-g));
      if (dtype_ == at::kBFloat16) {
        const double a = bf16(bf16(silu * (1 - kSlack)) * u),
                     b = bf16(bf16(silu * (1 + kSlack)) * u);
        ASSERT_TRUE(got(r, c) == a || got(r, c) == b) << got(r, c) << " for " << silu << " * " << u;
      } else {
        expect_value(dtype_, got(r, c), silu * u, silu * u, r, c);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Sizes, Fused,
                         ::testing::Values(Case{at::kBFloat16, 1, 8, 1},
                                           Case{at::kBFloat16, 37, 256, 9},
                                           Case{at::kBFloat16, 5, 5376, 3},
                                           Case{at::kFloat, 37, 256, 9},
                                           Case{at::kFloat, 3, 1000, 2}),
                         name_of);

class QkNormRope : public ::testing::TestWithParam<at::ScalarType> {};

/// Norm and rotation of every head against the loops. `half` 0: no rotation.
void check_qk(at::ScalarType dtype, int64_t rows, int64_t heads, int64_t half) {
  Random random(kSeed);
  const Round round = rounding(dtype);
  at::Tensor qkv = random.normal({rows, 3 * heads * 128}, dtype, 2);
  const at::Tensor before = qkv.clone();
  const at::Tensor weights[2] = {random.normal({128}, dtype, 0.3, 2),
                                 random.normal({128}, dtype, 0.3, 2)};
  const at::Tensor cos_sin = half ? rotations(random, rows, half, dtype) : at::Tensor();
  qk_norm_rope_(qkv, heads, weights[0], weights[1], kEps, cos_sin);

  const Matrix got(qkv), was(before);
  const Matrix angles(half ? cos_sin : weights[0]);
  int64_t pairs_differ = 0;
  for (int64_t part = 0; part < 2; ++part) {
    const at::Tensor heads_in = before.view({rows, 3, heads, 128}).select(1, part).contiguous();
    const Matrix n(rms_norm(heads_in.view({rows * heads, 128}), weights[part], kEps));
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t h = 0; h < heads; ++h) {
        const auto at = [&](int64_t c) { return got(r, (part * heads + h) * 128 + c); };
        const auto norm = [&](int64_t c) { return n(r * heads + h, c); };
        for (int64_t c = 0; c < half; ++c) {
          const double cos = angles(r, c), sin = angles(r, half + c), a = norm(c),
                       b = norm(c + half);
          expect_value(dtype, at(c), round(round(a * cos) - round(b * sin)), std::hypot(a, b), r,
                       c);
          expect_value(dtype, at(c + half), round(round(b * cos) + round(a * sin)),
                       std::hypot(a, b), r, c);
          // Partners 2n and 2n + 1 would be the other convention.
          pairs_differ += at(c) != round(round(norm(2 * c) * cos) - round(norm(2 * c + 1) * sin));
        }
        for (int64_t c = 2 * half; c < 128; ++c) expect_value(dtype, at(c), norm(c), norm(c), r, c);
      }
    }
  }
  if (half > 0) {
    EXPECT_GT(pairs_differ, 0);
  }
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 2 * heads * 128; c < was.width; ++c) ASSERT_EQ(got(r, c), was(r, c));
  }
}

TEST_P(QkNormRope, HalfSplit_LeavesTailAndV) { check_qk(GetParam(), 7, 8, 48); }
TEST_P(QkNormRope, OddHeads_OtherWidth) { check_qk(GetParam(), 3, 3, 24); }
TEST_P(QkNormRope, WithoutRotation_IsNormOnly) { check_qk(GetParam(), 5, 8, 0); }

INSTANTIATE_TEST_SUITE_P(Dtypes, QkNormRope, ::testing::Values(at::kBFloat16, at::kFloat),
                         [](const auto& info) {
                           return info.param == at::kBFloat16 ? "Bf16" : "F32";
                         });

TEST(FusedEdges, NoRows_GiveNoRows) {
  Random random(kSeed);
  Inputs in = inputs(random, 0, 16, 1, at::kBFloat16);
  EXPECT_EQ(rms_norm(in.x, in.weight, kEps).sizes(), at::IntArrayRef({0, 16}));
  EXPECT_EQ(rms_norm_modulate(in.x, in.weight, kEps, in.scale, in.shift, in.row).size(0), 0);
  gated_residual_(in.x, in.y, in.gate, in.row);
  EXPECT_EQ(swiglu(in.x).sizes(), at::IntArrayRef({0, 8}));
}

TEST(FusedEdges, CpuTensors_NeverUseKernels) {
  EXPECT_FALSE(uses_fused_kernels(at::zeros({1, 8}, at::kBFloat16)));
  EXPECT_FALSE(uses_fused_kernels(at::zeros({1, 8}, at::kFloat)));
}

TEST(FusedEdges, Swiglu_FarGates_KeepTheirLimits) {
  const at::Tensor gate_up = at::tensor({-1000.f, 1000.f, 1.f, 2.f}).view({1, 4}).to(at::kBFloat16);
  const Matrix got(swiglu(gate_up));
  EXPECT_EQ(got(0, 0), 0);
  EXPECT_EQ(got(0, 1), 2000);
}

void expect_refused(const std::function<void()>& call, const std::string& begins) {
  try {
    call();
    ADD_FAILURE() << "accepted, expected: " << begins;
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::kInvalidArgument);
    EXPECT_EQ(e.message().substr(0, begins.size()), begins) << e.what();
  }
}

class FusedRefusals : public ::testing::Test {
 protected:
  Random random_{kSeed};
  Inputs in_ = inputs(random_, 5, 16, 3, at::kFloat);
  void modulate() { rms_norm_modulate(in_.x, in_.weight, kEps, in_.scale, in_.shift, in_.row); }
};

TEST_F(FusedRefusals, Rows_NameTheTensor) {
  const Inputs good = in_;
  const auto with = [&](const std::function<void()>& change, const std::string& begins) {
    in_ = good;
    change();
    expect_refused([&] { modulate(); }, begins);
  };
  modulate();
  with([&] { in_.x = at::Tensor(); }, "x is undefined");
  with([&] { in_.x = in_.x.view({5, 4, 4}); }, "x is f32 [5, 4, 4] on cpu; it must be [S, H]");
  with([&] { in_.x = in_.x.to(at::kInt); }, "x is Int [5, 16] on cpu; its dtype");
  with([&] { in_.x = at::zeros({16, 5}).t(); }, "x is f32 [5, 16] on cpu with strides [1, 5]");
  with([&] { in_.weight = in_.weight.slice(0, 0, 8); }, "weight is f32 [8] on cpu; beside x");
  with([&] { in_.weight = in_.weight.to(at::kBFloat16); }, "weight is bf16 [16] on cpu and x f32");
  with([&] { in_.weight = at::zeros({32}).slice(0, 0, 32, 2); }, "weight has strides [2]");
  with([&] { in_.scale = at::zeros({16, 3}).t(); }, "scale has a last stride of 3");
  with([&] { in_.scale = at::Tensor(); }, "scale is undefined");
  with(
      [&] {
        in_.scale = in_.shift = at::zeros({0, 16});
      },
      "scale is f32 [0, 16] on cpu; it has no row");
  with([&] { in_.shift = at::zeros({4, 16}); }, "shift is f32 [4, 16] on cpu; beside x");
  with([&] { in_.row = in_.row.to(at::kLong); }, "row is Long [5] on cpu; beside x");
  with([&] { in_.row = in_.row.slice(0, 1); }, "row is Int [4] on cpu; beside x");
  with([&] { in_.row = at::Tensor(); }, "row is undefined");
}

TEST_F(FusedRefusals, IndexOutsideTheTable_ThrowsOnTheCpu) {
  in_.row[2] = 3;
  EXPECT_ANY_THROW(modulate());
}

TEST_F(FusedRefusals, ResidualAndSwiglu_NameTheTensor) {
  expect_refused([&] { gated_residual_(in_.x, in_.weight, in_.gate, in_.row); },
                 "y is f32 [16] on cpu");
  expect_refused([&] { gated_residual_(in_.x, in_.y, in_.y.slice(1, 0, 8), in_.row); },
                 "gate is f32 [5, 8]");
  expect_refused(
      [&] {
        swiglu(at::zeros({2, 5}));
      },
      "gate_up is f32 [2, 5] on cpu; its width must be even");
  expect_refused([&] { swiglu(at::zeros({8})); }, "gate_up is f32 [8] on cpu; it must be [S, 2 F]");
}

TEST_F(FusedRefusals, Qk_NamesTheTensor) {
  at::Tensor qkv = at::zeros({2, 768});
  const at::Tensor weight = at::ones({128}), angles = at::zeros({2, 96});
  qk_norm_rope_(qkv, 2, weight, weight, kEps, angles);
  const auto refused = [&](int64_t heads, const at::Tensor& q, const at::Tensor& k,
                           const at::Tensor& cos_sin, const std::string& begins) {
    expect_refused([&] { qk_norm_rope_(qkv, heads, q, k, kEps, cos_sin); }, begins);
  };
  refused(3, weight, weight, angles, "qkv is f32 [2, 768] on cpu for 3 heads");
  refused(0, weight, weight, angles, "qkv is f32 [2, 768] on cpu for 0 heads");
  refused(2, at::ones({64}), weight, angles, "q_weight is f32 [64]");
  refused(2, weight, weight.to(at::kBFloat16), angles, "k_weight is bf16 [128]");
  refused(2, weight, weight, at::zeros({3, 96}), "cos_sin is f32 [3, 96] on cpu; beside qkv");
  refused(2, weight, weight, at::zeros({2, 90}),
          "cos_sin is f32 [2, 90] on cpu; it must be [S, 2 R]");
  refused(2, weight, weight, at::zeros({2, 96}).to(at::kBFloat16), "cos_sin is bf16 [2, 96]");
}

}  // namespace
}  // namespace h3::layers
