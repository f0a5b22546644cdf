#include "tessera/cli/common/cuda_bench_data.h"

#include <algorithm>
#include <numeric>
#include <random>
#include <thread>

namespace tessera::cli {

namespace {

constexpr int kGroup = 8;
constexpr float kNoise = 0.15f;
constexpr int64_t kChunk = 1 << 20;  // elements; a multiple of the 4 that one random word gives

// Sebastiano Vigna's splitmix64 step (public domain): any counter is a good seed.
uint64_t mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

float uniform(uint64_t counter) { return float(mix(counter) >> 40) * 0x1p-24f; }

}  // namespace

std::vector<uint16_t> normal_elements(int64_t count, Dtype dtype, uint64_t seed, int threads) {
  std::vector<uint16_t> table(65536);
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  for (uint16_t& bits : table) {
    const float value = normal(random);
    bits = dtype == Dtype::kF16 ? f32_to_f16(value) : f32_to_bf16(value);
  }
  std::vector<uint16_t> values(count);
  if (threads <= 0) threads = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  const auto fill = [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; i += 4) {
      const uint64_t word = mix(seed * 0x2545f4914f6cdd1dull + uint64_t(i));
      for (int64_t j = i; j < std::min(i + 4, end); ++j) {
        values[j] = table[(word >> (16 * (j - i))) & 0xffff];
      }
    }
  };
  const int64_t chunks = (count + kChunk - 1) / kChunk;
  std::vector<std::thread> workers;
  for (int w = 0; w < threads; ++w) {
    workers.emplace_back([&, w] {
      for (int64_t c = w; c < chunks; c += threads) {
        fill(c * kChunk, std::min(count, (c + 1) * kChunk));
      }
    });
  }
  for (std::thread& worker : workers) worker.join();
  return values;
}

Status neighbour_plan(const BlockLayout& layout, int64_t heads, int32_t keep, uint64_t seed,
                      Plan* out) {
  const int32_t blocks = layout.max_key_blocks;
  const int32_t width = std::min(keep, blocks);
  TESSERA_RETURN_IF_ERROR(
      allocate_plan({1, static_cast<int32_t>(heads), layout.query_blocks, blocks, width}, out));
  std::vector<float> common(blocks), scores(blocks);
  std::vector<int32_t> ids(blocks);
  uint64_t counter = mix(seed);
  for (int64_t row = 0; row < out->shape.rows(); ++row) {
    if (row % layout.query_blocks % kGroup == 0) {
      for (float& score : common) score = uniform(counter++);
    }
    for (int32_t j = 0; j < blocks; ++j) scores[j] = common[j] + kNoise * uniform(counter++);
    std::iota(ids.begin(), ids.end(), 0);
    std::nth_element(ids.begin(), ids.begin() + width - 1, ids.end(), [&](int32_t a, int32_t b) {
      return scores[a] != scores[b] ? scores[a] > scores[b] : a < b;
    });
    std::sort(ids.begin(), ids.begin() + width);
    std::copy_n(ids.begin(), width, out->index.begin() + row * width);
    out->count[row] = width;
  }
  return {};
}

}  // namespace tessera::cli
