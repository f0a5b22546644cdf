#include "h3/layers/phase_timer.h"

#include <c10/core/impl/VirtualGuardImpl.h>

namespace h3 {
namespace {

c10::Stream current_stream(c10::Device device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device);
}

}  // namespace

std::string_view to_text(Phase phase) {
  switch (phase) {
    case Phase::kEmbed: return "embed";
    case Phase::kAttention: return "attention";
    case Phase::kLinear: return "linear";
    case Phase::kPointwise: return "pointwise";
    case Phase::kOutput: return "output";
  }
  return "?";
}

PhaseTimer::Span::Span(PhaseTimer* timer, Phase phase) : timer_(timer), phase_(phase) {
  if (!timer_) return;
  if (timer_->device_.is_cpu()) {
    start_ = std::chrono::steady_clock::now();
    return;
  }
  if (timer_->used_ == timer_->events_.size()) {
    const auto type = timer_->device_.type();
    // BACKEND_DEFAULT is the kind that keeps times.
    timer_->events_.push_back({phase, c10::Event(type, c10::EventFlag::BACKEND_DEFAULT),
                               c10::Event(type, c10::EventFlag::BACKEND_DEFAULT)});
  }
  index_ = timer_->used_++;
  timer_->events_[index_].phase = phase;
  timer_->events_[index_].begin.record(current_stream(timer_->device_));
}

PhaseTimer::Span::~Span() {
  if (!timer_) return;
  if (timer_->device_.is_cpu()) {
    const std::chrono::duration<double, std::milli> time =
        std::chrono::steady_clock::now() - start_;
    timer_->host_[static_cast<size_t>(phase_)] += time.count();
    return;
  }
  timer_->events_[index_].end.record(current_stream(timer_->device_));
}

PhaseTimes PhaseTimer::take_milliseconds() {
  PhaseTimes times = std::exchange(host_, {});
  if (used_ > 0) {
    events_[used_ - 1].end.synchronize();
    for (size_t i = 0; i < used_; ++i) {
      times[static_cast<size_t>(events_[i].phase)] += events_[i].begin.elapsedTime(events_[i].end);
    }
    used_ = 0;
  }
  return times;
}

}  // namespace h3
