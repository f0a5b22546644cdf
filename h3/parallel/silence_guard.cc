#include "h3/parallel/silence_guard.h"

#include <algorithm>
#include <utility>

namespace h3::parallel {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr auto kInterval = 100ms;

}  // namespace

SilenceGuard::SilenceGuard(Duration limit, std::function<void(Duration)> on_silence)
    : limit_(limit), on_silence_(std::move(on_silence)), thread_([this] { run(); }) {}

SilenceGuard::~SilenceGuard() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  signal_.notify_all();
  thread_.join();
}

void SilenceGuard::answered() {
  std::lock_guard lock(mutex_);
  ++answers_;
}

void SilenceGuard::run() {
  Duration silence{};
  std::unique_lock lock(mutex_);
  for (uint64_t seen = answers_; !stopping_;) {
    const auto before = Clock::now();
    signal_.wait_for(lock, kInterval, [this] { return stopping_; });
    // A longer gap means that this process was stopped or starved, and nobody else's silence.
    silence += std::min<Duration>(Clock::now() - before, 2 * kInterval);
    if (seen != answers_) silence = {};
    seen = answers_;
    if (stopping_ || silence < limit_) continue;
    lock.unlock();
    on_silence_(silence);
    return;
  }
}

}  // namespace h3::parallel
