// Where the time of a forward goes: attention, matrix products, the rest. On a device the spans are
// pairs of events on the current stream, so measuring waits for nothing; reading does.
//
//   { auto span = timer.measure(Phase::kAttention); ... }
//   timer.take_milliseconds();
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Event.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

namespace h3 {

enum class Phase : uint8_t {
  kEmbed,      // row projections
  kAttention,  // routing, attention, and the exchange around it
  kLinear,     // matrix products of the blocks
  kPointwise,  // norms, modulation, gates, rotary positions, SwiGLU
  kOutput,     // final layer and its gather
};
inline constexpr size_t kPhases = 5;
std::string_view to_text(Phase phase);

using PhaseTimes = std::array<double, kPhases>;  // milliseconds by phase

/// Off until `enable`. One thread.
class PhaseTimer {
 public:
  explicit PhaseTimer(c10::Device device) : device_(device) {}

  void enable(bool on) { on_ = on; }
  bool enabled() const { return on_; }

  class Span {
   public:
    Span(PhaseTimer* timer, Phase phase);
    Span(const Span&) = delete;
    Span& operator=(const Span&) = delete;
    ~Span();

   private:
    PhaseTimer* timer_;  // null: off
    size_t index_ = 0;
    std::chrono::steady_clock::time_point start_;
    Phase phase_;
  };
  [[nodiscard]] Span measure(Phase phase) { return Span(on_ ? this : nullptr, phase); }

  /// Sums since the last call. Waits for the device to finish the measured work.
  PhaseTimes take_milliseconds();

 private:
  friend class Span;
  struct Events {
    Phase phase;
    c10::Event begin, end;
  };

  c10::Device device_;
  bool on_ = false;
  PhaseTimes host_{};
  std::vector<Events> events_;  // reused; the first `used_` are of the current period
  size_t used_ = 0;
};

}  // namespace h3
