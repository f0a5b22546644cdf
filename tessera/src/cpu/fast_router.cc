// Vector pooling and block scores.
//
// Scores use the same product as attention with *query blocks* in the lanes: cell a of a tile of
// query blocks forms one panel, so all n_q x n_k terms of a block pair sit in the same lane of
// different vectors and the log-sum-exp needs no shuffles.
#include <algorithm>
#include <limits>
#include <numbers>

#include "tessera/src/cpu/fast_kernels.h"
#include "tessera/src/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tessera/src/cpu/fast_router.cc"
#include "hwy/foreach_target.h"
// highway.h comes after foreach_target.h, which compiles this file once per instruction set.
#include "hwy/contrib/math/math-inl.h"
#include "hwy/highway.h"
#include "tessera/src/cpu/gemm-inl.h"
#include "tessera/src/cpu/math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::cpu::HWY_NAMESPACE {

/// Key cells multiplied at a time; a multiple of every n_k.
constexpr int kCellChunk = 48;

void pool_impl(const PoolTask& task) {
  const FloatTag d;
  const int lanes = static_cast<int>(hn::Lanes(d));
  for (int64_t c = 0; c < task.cells; ++c) {
    float* to = task.out + c * task.head_dim;
    const int64_t begin = (task.first_cell + c) * task.cell_tokens;
    const int count = static_cast<int>(std::clamp<int64_t>(task.rows - begin, 0, task.cell_tokens));
    HWY_ALIGN float sum[256] = {};
    HWY_ALIGN float row[256];
    for (int r = 0; r < count; ++r) {
      load_f32(task.source, begin + r, task.head_dim, row);
      for (int i = 0; i < task.head_dim; i += lanes) {
        hn::Store(hn::Add(hn::Load(d, sum + i), hn::Load(d, row + i)), d, sum + i);
      }
    }
    const FloatVec divisor = hn::Set(d, static_cast<float>(std::max(count, 1)));
    const FloatVec scale = hn::Set(d, task.scale);
    for (int i = 0; i < task.head_dim; i += lanes) {
      const FloatVec mean = hn::Mul(hn::Div(hn::Load(d, sum + i), divisor), scale);
      hn::StoreU(round_bf16_vec(d, mean), d, to + i);
    }
  }
}

/// log-sum-exp over the n_q x n_k terms of one key block for one vector of query blocks.
HWY_INLINE FloatVec block_score(const float* terms, const float* bias, int n_q, int n_k, int lane,
                                int width, float last_k_bias) {
  const FloatTag d;
  const int64_t a_step = int64_t{kCellChunk} * width;
  FloatVec top = hn::Set(d, -std::numeric_limits<float>::infinity());
  FloatVec sum = hn::Zero(d);
  const auto term = [&](int a, int b) {
    const FloatVec x = hn::Add(hn::Load(d, terms + a * a_step + int64_t{b} * width + lane),
                               hn::Load(d, bias + a * width + lane));
    return b == n_k - 1 ? hn::Add(x, hn::Set(d, last_k_bias)) : x;
  };
  for (int a = 0; a < n_q; ++a) {
    for (int b = 0; b < n_k; ++b) top = hn::Max(top, term(a, b));
  }
  for (int a = 0; a < n_q; ++a) {
    for (int b = 0; b < n_k; ++b) sum = hn::Add(sum, exp2_vec(d, hn::Sub(term(a, b), top)));
  }
  const FloatVec score = hn::MulAdd(top, hn::Set(d, std::numbers::ln2_v<float>), hn::Log(d, sum));
  return hn::IfThenElse(hn::IsNaN(sum), sum, score);  // hn::Log turns a NaN into a number
}

void scores_impl(const ScoreTask& task, void* memory) {
  const FloatTag d;
  const int lanes = static_cast<int>(hn::Lanes(d));
  const int width = panel_width();
  const int head_dim = task.head_dim;
  float* panels = static_cast<float*>(memory);                   // [n_q][head_dim][width]
  float* terms = panels + int64_t{task.n_q} * head_dim * width;  // [n_q][kCellChunk][width]
  float* bias = terms + int64_t{task.n_q} * kCellChunk * width;  // [n_q][width], log2 units

  for (int32_t tile = 0; tile < task.blocks; tile += width) {
    const int blocks = std::min<int32_t>(width, task.blocks - tile);
    const int64_t first_cell = int64_t{task.first_block + tile} * task.n_q;
    for (int a = 0; a < task.n_q; ++a) {
      pack_transposed(
          [&](int i) { return task.q_cells + (first_cell + int64_t{i} * task.n_q + a) * head_dim; },
          blocks, head_dim, width, panels + int64_t{a} * head_dim * width);
      for (int i = 0; i < width; ++i) {
        const int64_t cell = first_cell + int64_t{i} * task.n_q + a;
        bias[a * width + i] = cell >= task.q_valid       ? -std::numeric_limits<float>::infinity()
                              : cell == task.q_valid - 1 ? task.q_tail_log2
                                                         : 0.0f;
      }
    }
    const int chunk_blocks = kCellChunk / task.n_k;
    for (int32_t j0 = 0; j0 < task.key_blocks; j0 += chunk_blocks) {
      const int64_t k_first = int64_t{j0} * task.n_k;
      const int cells = static_cast<int>(std::min<int64_t>(kCellChunk, task.k_valid - k_first));
      for (int a = 0; a < task.n_q; ++a) {
        multiply_panel(task.k_cells + k_first * head_dim, head_dim, 1,
                       panels + int64_t{a} * head_dim * width, cells, head_dim,
                       terms + int64_t{a} * kCellChunk * width, width, nullptr, [] {});
      }
      const int32_t j_end = std::min(task.key_blocks, j0 + chunk_blocks);
      for (int32_t j = j0; j < j_end; ++j) {
        const int n_k =
            static_cast<int>(std::min<int64_t>(task.n_k, task.k_valid - int64_t{j} * task.n_k));
        const bool has_tail = int64_t{j} * task.n_k + n_k == task.k_valid;
        for (int lane = 0; lane < width; lane += lanes) {
          HWY_ALIGN float value[64];
          hn::Store(block_score(terms + int64_t{j - j0} * task.n_k * width, bias, task.n_q, n_k,
                                lane, width, has_tail ? task.k_tail_log2 : 0.0f),
                    d, value);
          for (int i = 0; i < lanes && lane + i < blocks; ++i) {
            task.scores[(tile + lane + i) * task.score_stride + j] = value[i];
          }
        }
      }
    }
  }
}

int score_blocks_impl() { return panel_width(); }

int64_t target_impl() { return HWY_TARGET; }

}  // namespace tessera::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::cpu {

HWY_EXPORT(pool_impl);
HWY_EXPORT(scores_impl);
HWY_EXPORT(score_blocks_impl);
HWY_EXPORT(target_impl);

int fast_score_blocks() { return HWY_DYNAMIC_DISPATCH(score_blocks_impl)(); }

void fast_pool(const PoolTask& task) { HWY_DYNAMIC_DISPATCH(pool_impl)(task); }

void fast_scores(const ScoreTask& task, void* scratch) {
  HWY_DYNAMIC_DISPATCH(scores_impl)(task, scratch);
}

const char* fast_target_name() { return hwy::TargetName(HWY_DYNAMIC_DISPATCH(target_impl)()); }

int64_t fast_compiled_targets() { return HWY_TARGETS; }

size_t fast_scratch_bytes(int head_dim) {
  const size_t block = kBlockTokens, dim = static_cast<size_t>(head_dim);
  const size_t attention = 2 * kGroupBlocks * block * dim + 2 * block * dim + block * block +
                           (2 * kGroupBlocks + 1) * block;
  constexpr size_t kMaxWidth = 32, kMaxCells = 8, kChunk = 48;
  const size_t scores = kMaxCells * kMaxWidth * (dim + kChunk + 1);
  return std::max(attention, scores) * sizeof(float);
}

}  // namespace tessera::cpu
#endif
