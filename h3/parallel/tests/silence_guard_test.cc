// The guard alone; fault_test.cc shows that it ends ranks whose store is silent.
#include "h3/parallel/silence_guard.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

namespace h3::parallel {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

TEST(SilenceGuard, WithoutAnswers_CallsOnceAfterTheLimit) {
  std::atomic<int> calls{0};
  std::atomic<int64_t> silence_ms{0};
  SilenceGuard guard(300ms, [&](SilenceGuard::Duration silence) {
    silence_ms = std::chrono::duration_cast<std::chrono::milliseconds>(silence).count();
    ++calls;
  });
  for (auto end = Clock::now() + 10s; calls == 0 && Clock::now() < end;)
    std::this_thread::sleep_for(10ms);
  std::this_thread::sleep_for(400ms);
  EXPECT_EQ(calls, 1);
  EXPECT_GE(silence_ms, 300);
}

TEST(SilenceGuard, WithAnswers_StaysQuiet) {
  std::atomic<int> calls{0};
  SilenceGuard guard(2s, [&](SilenceGuard::Duration) { ++calls; });
  for (int i = 0; i < 25; ++i) {
    guard.answered();
    std::this_thread::sleep_for(100ms);
  }
  EXPECT_EQ(calls, 0);
}

TEST(SilenceGuard, Destructor_DoesNotWaitForTheLimit) {
  const auto start = Clock::now();
  std::atomic<int> calls{0};
  {
    SilenceGuard guard(1h, [&](SilenceGuard::Duration) { ++calls; });
  }
  EXPECT_LT(Clock::now() - start, 30s);
  EXPECT_EQ(calls, 0);
}

}  // namespace
}  // namespace h3::parallel
