// Wall-clock times and their order statistics.
#pragma once

#include <algorithm>
#include <chrono>
#include <cmath>
#include <vector>

namespace tessera::cli {

class Stopwatch {
 public:
  double seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

/// The p-quantile (p in [0, 1]) of `values` with linear interpolation; NaN for an empty list.
inline double quantile(std::vector<double> values, double p) {
  if (values.empty()) return std::nan("");
  std::sort(values.begin(), values.end());
  const double at = p * double(values.size() - 1);
  const size_t low = static_cast<size_t>(at);
  const size_t high = std::min(low + 1, values.size() - 1);
  return values[low] + (values[high] - values[low]) * (at - double(low));
}

inline double median(const std::vector<double>& values) { return quantile(values, 0.5); }

}  // namespace tessera::cli
