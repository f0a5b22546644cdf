#include "tessera/tests/support/attend_case.h"

#include <cmath>
#include <limits>

namespace tessera::testing {
namespace {

/// std::max that keeps a NaN once it is there.
double larger(double so_far, double next) {
  return std::isnan(so_far) || next <= so_far ? so_far : next;
}

}  // namespace

AttendCase::AttendCase(const CaseShape& s, const CaseLayouts& layouts)
    : q({s.batch, s.sq, s.heads, s.dim}, s.dtype, layouts.q),
      k({s.batch, s.sk, s.kv_heads, s.dim}, s.dtype, layouts.k),
      v({s.batch, s.sk, s.kv_heads, s.dim}, s.dtype, layouts.v),
      out({s.batch, s.sq, s.heads, s.dim}, s.dtype, layouts.out),
      lse({s.batch, s.heads, s.sq}, Dtype::kF32, layouts.lse) {}

AttentionParams AttendCase::params(const std::optional<PlanView>& plan) const {
  AttentionParams p;
  p.q = q.view();
  p.k = k.view();
  p.v = v.view();
  p.out = out.view();
  p.lse = lse.view();
  p.cu_seqlens = cu;
  p.softmax_scale = scale;
  p.plan = plan;
  return p;
}

Status AttendCase::run(const std::optional<PlanView>& plan, const Execution& exec) {
  out.poison();
  lse.poison();
  return attend(params(plan), exec);
}

Tolerance tolerance_of(Dtype dtype) {
  switch (dtype) {
    case Dtype::kBf16: return {4e-3, 2e-2};
    case Dtype::kF16: return {5e-4, 2.5e-3};
    default: return {1e-5, 2e-5};
  }
}

OracleError oracle_error(const AttendCase& c, const AttentionOracle& oracle) {
  const std::vector<double> out = c.out.values(), lse = c.lse.values();
  OracleError e;
  double difference = 0, norm = 0, own = 0, dot = 0, largest = 0;
  for (size_t i = 0; i < out.size(); ++i) {
    const double error = std::abs(out[i] - oracle.out[i]);
    difference += error * error;
    norm += oracle.out[i] * oracle.out[i];
    own += out[i] * out[i];
    dot += out[i] * oracle.out[i];
    largest = std::max(largest, std::abs(oracle.out[i]));
    e.max_abs = larger(e.max_abs, error);
  }
  e.relative_l2 = difference == 0 ? 0 : std::sqrt(difference / norm);
  e.max_abs = e.max_abs == 0 ? 0 : e.max_abs / largest;
  e.cosine = dot / std::sqrt(norm * own);
  for (size_t i = 0; i < lse.size(); ++i) {
    const bool both_empty = std::isinf(lse[i]) && lse[i] == oracle.lse[i];
    const double error = both_empty ? 0.0 : std::abs(lse[i] - oracle.lse[i]);
    e.lse = larger(e.lse, error);
  }
  return e;
}

void expect_matches(const AttendCase& c, const AttentionOracle& oracle) {
  const Tolerance t = tolerance_of(c.out.dtype());
  const OracleError e = oracle_error(c, oracle);
  EXPECT_LE(e.relative_l2, t.relative_l2);
  EXPECT_LE(e.max_abs, t.max_abs);
  EXPECT_LE(e.lse, t.lse);
  EXPECT_TRUE(c.out.guards_intact()) << "bytes outside the output were written";
  EXPECT_TRUE(c.lse.guards_intact()) << "bytes outside the lse were written";
}

::testing::AssertionResult contains(const std::string& text, const std::string& part) {
  if (text.find(part) != std::string::npos) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << "no \"" << part << "\" in: " << text;
}

void expect_refusal(const Status& status, StatusCode code, const std::vector<std::string>& parts) {
  EXPECT_EQ(describe(status.code()), describe(code)) << status.message();
  for (const std::string& part : parts) EXPECT_TRUE(contains(status.message(), part));
}

::testing::AssertionResult is_ok(const Status& status) {
  if (status.ok()) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << status.message();
}

}  // namespace tessera::testing
