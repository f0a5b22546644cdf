// Seeded random numbers that are the same on every machine. The seed is printed; the environment
// variable TESSERA_TEST_SEED replaces it.
#pragma once

#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

namespace tessera::testing {

/// TESSERA_TEST_SEED if it is set, else `fallback`; printed and recorded with the running test.
uint64_t test_seed(uint64_t fallback);

class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}

  uint64_t next() {
    uint64_t z = state_ += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  /// Uniform in [low, high].
  int64_t integer(int64_t low, int64_t high) {
    return low + static_cast<int64_t>(next() % static_cast<uint64_t>(high - low + 1));
  }
  bool chance(double p) { return uniform() < p; }
  double uniform() { return static_cast<double>(next() >> 11) * 0x1p-53; }
  /// Close to normal, variance 1: four uniforms.
  float normal() {
    const double sum = uniform() + uniform() + uniform() + uniform();
    return static_cast<float>((sum - 2.0) * 1.7320508075688772);
  }
  template <class T>
  void shuffle(std::vector<T>& values) {
    for (size_t i = values.size(); i > 1; --i) std::swap(values[i - 1], values[next() % i]);
  }
  /// `count` distinct values of [0, n), in random order.
  std::vector<int32_t> sample(int32_t n, int32_t count) {
    std::vector<int32_t> all(n);
    std::iota(all.begin(), all.end(), 0);
    shuffle(all);
    all.resize(count);
    return all;
  }

 private:
  uint64_t state_;
};

}  // namespace tessera::testing
