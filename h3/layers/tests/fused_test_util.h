// Random inputs of the fused sites and a way to compare bf16 by last bits.
#pragma once

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

namespace h3::layers::testing {

/// Inputs on the CPU. The tables are the six chunks of one [tables, 6 H] matrix, as in the model.
struct Inputs {
  at::Tensor x, y, weight, row;
  at::Tensor gate, scale, shift;
};

class Random {
 public:
  explicit Random(uint64_t seed) : generator_(at::detail::createCPUGenerator(seed)) {
    std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  }
  at::Tensor normal(at::IntArrayRef sizes, at::ScalarType dtype, double factor = 1,
                    double offset = 0) {
    return at::randn(sizes, generator_, at::kFloat).mul_(factor).add_(offset).to(dtype);
  }
  at::Tensor indices(int64_t count, int64_t below) {
    return at::randint(below, {count}, generator_, at::kInt);
  }
  /// Segments in order, as packed rows have them.
  at::Tensor segments(int64_t count, int64_t below) {
    return std::get<0>(indices(count, below).sort());
  }

 private:
  at::Generator generator_;
};

inline Inputs inputs(Random& random, int64_t rows, int64_t width, int64_t tables,
                     at::ScalarType dtype, bool segments = false) {
  Inputs in;
  in.x = random.normal({rows, width}, dtype, 2);
  in.y = random.normal({rows, width}, dtype);
  in.weight = random.normal({width}, dtype, 0.1, 1);
  in.row = segments ? random.segments(rows, tables) : random.indices(rows, tables);
  const auto chunks = random.normal({tables, 6 * width}, dtype, 0.5).chunk(6, 1);
  in.shift = chunks[0];
  in.scale = chunks[1];
  in.gate = chunks[2];
  return in;
}

/// cos | sin of random angles.
inline at::Tensor rotations(Random& random, int64_t rows, int64_t half, at::ScalarType dtype) {
  const at::Tensor angle = random.normal({rows, half}, at::kFloat, 3);
  return at::cat({angle.cos(), angle.sin()}, 1).to(dtype);
}

/// Place of a bf16 among all bf16, so that neighbours differ by 1. -0 and 0 are one.
inline int32_t order(c10::BFloat16 v) { return v.x & 0x8000 ? -(v.x & 0x7fff) : v.x; }

struct Difference {
  int64_t values = 0, different = 0;
  int32_t last_bits = 0;  // the largest difference
};

inline Difference compare(const at::Tensor& got, const at::Tensor& want) {
  Difference d;
  const at::Tensor a = got.cpu().contiguous(), b = want.cpu().contiguous();
  EXPECT_EQ(a.sizes(), b.sizes());
  const auto *p = a.const_data_ptr<c10::BFloat16>(), *q = b.const_data_ptr<c10::BFloat16>();
  d.values = a.numel();
  for (int64_t i = 0; i < d.values; ++i) {
    const int32_t bits = std::abs(order(p[i]) - order(q[i]));
    d.different += bits != 0;
    d.last_bits = std::max(d.last_bits, bits);
  }
  return d;
}

}  // namespace h3::layers::testing
