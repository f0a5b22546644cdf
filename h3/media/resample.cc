#include "h3/media/resample.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>
#include <string>

#include "h3/common/error.h"

namespace h3::media {
namespace {

constexpr double kCrossings = 6;  // of the sinc, on either side
constexpr double kRollOff = 0.99;
constexpr int kMaxRate = 768000;

// The weights that make one output phase, over input samples first .. first + size.
struct Phase {
  int64_t first = 0;
  std::vector<float> weights;
};

std::vector<Phase> make_phases(int64_t from, int64_t to) {
  const double base = kRollOff * static_cast<double>(std::min(from, to));
  const auto reach = static_cast<int64_t>(std::ceil(kCrossings * static_cast<double>(from) / base));
  std::vector<Phase> phases(static_cast<size_t>(to));
  for (int64_t j = 0; j < to; ++j) {
    // The reference divides in single precision here; the weights depend on it.
    const double offset = static_cast<float>(static_cast<double>(j) / static_cast<double>(to));
    Phase& phase = phases[static_cast<size_t>(j)];
    for (int64_t i = -reach; i < reach + from; ++i) {
      const double t = base * (static_cast<double>(i) / static_cast<double>(from) - offset);
      if (std::abs(t) >= kCrossings) {  // the window is zero
        if (t > 0) break;
        continue;
      }
      if (phase.weights.empty()) phase.first = i;
      const double angle = t * std::numbers::pi;
      const double sinc = angle == 0 ? 1 : std::sin(angle) / angle;
      const double window = std::cos(angle / kCrossings / 2);
      phase.weights.push_back(
          static_cast<float>(sinc * window * window * base / static_cast<double>(from)));
    }
  }
  return phases;
}

}  // namespace

std::vector<float> resample_sinc(const std::vector<float>& samples, int from_rate, int to_rate) {
  if (samples.empty() || from_rate < 1 || to_rate < 1 || from_rate > kMaxRate ||
      to_rate > kMaxRate) {
    throw Error(ErrorCode::kInvalidArgument, "resampling " + std::to_string(samples.size()) +
                                                 " samples from " + std::to_string(from_rate) +
                                                 " to " + std::to_string(to_rate) +
                                                 " Hz; at least one sample and rates of 1 to " +
                                                 std::to_string(kMaxRate) + " are accepted");
  }
  if (from_rate == to_rate) return samples;
  const int64_t divisor = std::gcd(from_rate, to_rate);
  const int64_t from = from_rate / divisor, to = to_rate / divisor;
  const auto length = static_cast<int64_t>(samples.size());
  const auto phases = make_phases(from, to);
  const auto count = static_cast<int64_t>(
      std::ceil(static_cast<float>(static_cast<double>(to * length) / static_cast<double>(from))));
  std::vector<float> out(static_cast<size_t>(count));
  for (int64_t k = 0; k < count; ++k) {
    const Phase& phase = phases[static_cast<size_t>(k % to)];
    const int64_t start = k / to * from + phase.first;
    const int64_t end = std::min(start + static_cast<int64_t>(phase.weights.size()), length);
    double sum = 0;
    for (int64_t i = std::max<int64_t>(start, 0); i < end; ++i) {
      sum += static_cast<double>(phase.weights[static_cast<size_t>(i - start)]) *
             static_cast<double>(samples[static_cast<size_t>(i)]);
    }
    out[static_cast<size_t>(k)] = static_cast<float>(sum);
  }
  return out;
}

}  // namespace h3::media
