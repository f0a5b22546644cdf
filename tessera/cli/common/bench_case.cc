#include "tessera/cli/common/bench_case.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>

#include "tessera/cli/common/timing.h"

namespace tessera::cli {

namespace {

constexpr int64_t kHeadWidth = 128;
constexpr int kSharingGroup = 8;
constexpr double kCommonShare = 0.8;

void fill(std::vector<uint8_t>* bytes, const BenchShape& shape, uint64_t seed) {
  const int64_t count = shape.tokens * shape.heads * kHeadWidth;
  bytes->resize(count * dtype_bytes(shape.dtype));
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  for (int64_t i = 0; i < count; ++i) {
    const float value = normal(random);
    if (shape.dtype == Dtype::kF32) {
      std::memcpy(bytes->data() + i * 4, &value, 4);
    } else {
      const uint16_t bits = shape.dtype == Dtype::kF16 ? f32_to_f16(value) : f32_to_bf16(value);
      std::memcpy(bytes->data() + i * 2, &bits, 2);
    }
  }
}

}  // namespace

BenchTensors::BenchTensors(const BenchShape& shape) : shape_(shape) {
  fill(&q_, shape, 1);
  fill(&k_, shape, 2);
  fill(&v_, shape, 3);
  out_.resize(q_.size());
}

AttentionParams BenchTensors::attention() const {
  const std::array<int64_t, 4> size = {1, shape_.tokens, shape_.heads, kHeadWidth};
  AttentionParams params;
  params.q = contiguous_view<4>(q_.data(), size, shape_.dtype);
  params.k = contiguous_view<4>(k_.data(), size, shape_.dtype);
  params.v = contiguous_view<4>(v_.data(), size, shape_.dtype);
  params.out = contiguous_view<4>(out_.data(), size, shape_.dtype);
  return params;
}

Status shared_plan(const BlockLayout& layout, int64_t batch, int64_t heads, int32_t count,
                   uint64_t seed, Plan* out) {
  const int32_t width = std::min(count, layout.max_key_blocks);
  TESSERA_RETURN_IF_ERROR(allocate_plan({static_cast<int32_t>(batch), static_cast<int32_t>(heads),
                                         layout.query_blocks, layout.max_key_blocks, width},
                                        out));
  std::mt19937_64 random(seed);
  // Not std::shuffle: its result differs between standard libraries.
  auto shuffle_tail = [&](std::vector<int32_t>& ids, size_t from) {
    for (size_t i = ids.size(); i > from + 1; --i) {
      std::swap(ids[i - 1], ids[from + random() % (i - from)]);
    }
  };
  for (int64_t bh = 0; bh < batch * heads; ++bh) {
    for (const Document& document : layout.documents) {
      const int32_t kept = std::min(count, document.key_blocks);
      const size_t common = static_cast<size_t>(kCommonShare * kept);
      std::vector<int32_t> ids(document.key_blocks);
      for (int32_t i = 0; i < document.query_blocks; ++i) {
        if (i % kSharingGroup == 0) {
          std::iota(ids.begin(), ids.end(), 0);
          shuffle_tail(ids, 0);
        } else {
          shuffle_tail(ids, common);
        }
        const int64_t row = bh * layout.query_blocks + document.first_query_block + i;
        std::copy_n(ids.begin(), kept, out->index.begin() + row * width);
        std::sort(out->index.begin() + row * width, out->index.begin() + row * width + kept);
        out->count[row] = kept;
      }
    }
  }
  return {};
}

double attention_flops(const Plan* plan, const BenchShape& shape) {
  const double per_pair = 4.0 * kHeadWidth;  // two products, a multiply and an add each
  if (plan == nullptr) {
    return per_pair * double(shape.heads) * double(shape.tokens) * double(shape.tokens);
  }
  auto tokens_in = [&](int64_t block) {
    return double(std::min<int64_t>(kBlockTokens, shape.tokens - block * kBlockTokens));
  };
  double pairs = 0;
  for (int64_t row = 0; row < plan->shape.rows(); ++row) {
    double keys = 0;
    for (int32_t i = 0; i < plan->count[row]; ++i) {
      keys += tokens_in(plan->index[row * plan->shape.width + i]);
    }
    pairs += keys * tokens_in(row % plan->shape.query_blocks);
  }
  return per_pair * pairs;
}

Status measure(int repeat, const std::function<Status()>& work, Timing* out) {
  TESSERA_RETURN_IF_ERROR(work());
  std::vector<double> seconds;
  for (int i = 0; i < repeat; ++i) {
    const Stopwatch watch;
    TESSERA_RETURN_IF_ERROR(work());
    seconds.push_back(watch.seconds());
  }
  *out = {median(seconds), quantile(seconds, 0.1), quantile(seconds, 0.9)};
  return {};
}

}  // namespace tessera::cli
