// Working memory at the length the library was made for. The kernel's own record of the peak is
// used, so whatever allocates counts, threads and standard library included.
#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>
#include <functional>
#include <string>

#include "tessera/router.h"
#include "tessera/tests/support/attend_case.h"

namespace tessera {
namespace {

using testing::AttendCase;
using testing::is_ok;
using testing::on;

constexpr int64_t kTokens = 37760;
constexpr double kLimit_mib = 64;  // per thread, beyond inputs, outputs and plan

/// A value of /proc/self/status in MiB, for example "VmRSS"; negative if it is not there.
double status_mib(const std::string& key) {
  std::ifstream file("/proc/self/status");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with(key + ":")) return std::stod(line.substr(key.size() + 1)) / 1024;
  }
  return -1;
}

/// Growth of the peak resident memory while `work` runs, in MiB; negative if it cannot be measured.
double peak_growth_mib(const std::function<void()>& work) {
  {
    std::ofstream reset("/proc/self/clear_refs");  // 5: the peak starts again at today's memory
    reset << 5;
    reset.close();
    if (reset.fail()) return -1;
  }
  const double before = status_mib("VmRSS");
  if (before < 0) return -1;
  work();
  return status_mib("VmHWM") - before;
}

/// Cheap values: what they are does not matter here.
AttendCase long_case(int64_t queries) {
  AttendCase c({.sq = queries, .sk = kTokens, .dtype = Dtype::kBf16}, {.q = {}, .k = {}, .v = {}});
  uint32_t state = 1;
  const auto next = [&](const auto&) {
    state = state * 1664525u + 1013904223u;
    return static_cast<float>(state >> 8) * 0x1p-23f - 1.0f;
  };
  c.q.fill(next);
  c.k.fill(next);
  c.v.fill(next);
  return c;
}

void expect_small(double growth_mib, int threads, const std::string& what) {
  std::printf("[ MEMORY   ] %s, %d threads: %.1f MiB, %.1f MiB per thread\n", what.c_str(), threads,
              growth_mib, growth_mib / threads);
  EXPECT_LE(growth_mib, kLimit_mib * threads) << what << ", " << threads << " threads";
}

TEST(Memory, SparseAttentionOf37760Tokens_StaysUnder64MibPerThread) {
  AttendCase c = long_case(kTokens);
  Plan plan;
  ASSERT_TRUE(is_ok(random_plan(single_document(kTokens, kTokens), 1, 2, 6, 1, &plan)));
  const AttentionParams params = c.params(plan.view());
  for (int threads : {1, 2}) {
    Status status;
    const double growth =
        peak_growth_mib([&] { status = attend(params, on("cpu_highway", threads)); });
    ASSERT_TRUE(is_ok(status));
    if (growth < 0) GTEST_SKIP() << "this system does not tell the peak of a process";
    expect_small(growth, threads, "sparse, 2 heads");
    EXPECT_GE(growth, 16) << "the fp32 copies of K and V were not seen: the measurement is blind";
  }
}

TEST(Memory, DenseAttentionOver37760Keys_StaysUnder64MibPerThread) {
  AttendCase c = long_case(512);
  for (int threads : {1, 2}) {
    Status status;
    const double growth =
        peak_growth_mib([&] { status = attend(c.params(), on("cpu_highway", threads)); });
    ASSERT_TRUE(is_ok(status));
    if (growth < 0) GTEST_SKIP() << "this system does not tell the peak of a process";
    expect_small(growth, threads, "dense, 2 heads");
  }
}

TEST(Memory, RouterOf37760Tokens_StaysUnder64MibPerThread) {
  AttendCase c = long_case(kTokens);
  RouteParams params;
  params.q = c.q.view();
  params.k = c.k.view();
  params.config.n_q = params.config.n_k = 8;  // the most cells, hence the most memory
  for (int threads : {1, 2}) {
    Plan plan;
    Status status;
    const double growth = peak_growth_mib([&] { status = route(params, on("", threads), &plan); });
    ASSERT_TRUE(is_ok(status));
    if (growth < 0) GTEST_SKIP() << "this system does not tell the peak of a process";
    expect_small(growth, threads, "router with its plan, 2 heads");
  }
}

}  // namespace
}  // namespace tessera
