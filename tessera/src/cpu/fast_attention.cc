// Vector attention for one head and up to four query blocks (256 rows).
//
// Per key block of the walk, K and V are converted to fp32 once. Then, per query block that listed
// it:
//   S^T[key][query] = K q^T      (queries in vector lanes, so the softmax needs no lane reductions)
//   m, l, P^T = online softmax over keys, base 2 (softmax_scale * log2 e is folded into q)
//   O = O * alpha + P V
// A ragged key tail simply has fewer rows: nothing is masked and nothing behind it is read.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

#include "tessera/src/cpu/fast_kernels.h"
#include "tessera/src/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tessera/src/cpu/fast_attention.cc"
#include "hwy/foreach_target.h"
// highway.h comes after foreach_target.h, which compiles this file once per instruction set.
#include "hwy/highway.h"
#include "tessera/src/cpu/gemm-inl.h"
#include "tessera/src/cpu/math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::cpu::HWY_NAMESPACE {

constexpr int kBlock = kBlockTokens;

/// Views into one thread's scratch. Every buffer is a multiple of 64 bytes.
struct AttendScratch {
  AttendScratch(void* memory, int head_dim)
      : q(static_cast<float*>(memory)),
        o(q + kGroupBlocks * kBlock * head_dim),
        k(o + kGroupBlocks * kBlock * head_dim),
        v(k + kBlock * head_dim),
        s(v + kBlock * head_dim),
        row_max(s + kBlock * kBlock),
        row_sum(row_max + kGroupBlocks * kBlock),
        alpha(row_sum + kGroupBlocks * kBlock) {}
  float* q;        // [group][panel][D][width], scaled
  float* o;        // [group][64][D]
  float* k;        // [64][D]
  float* v;        // [D / width][64][width]
  float* s;        // [64 keys][64 queries], also the staging rows while q is packed
  float* row_max;  // [group][64]
  float* row_sum;  // [group][64]
  float* alpha;    // [64]
};

void load_queries(const Rows& q, int query_rows, int head_dim, float scale, AttendScratch& s) {
  const FloatTag d;
  const int width = panel_width();
  const int blocks = (query_rows + kBlock - 1) / kBlock;
  for (int g = 0; g < blocks; ++g) {
    const int rows = std::min(kBlock, query_rows - g * kBlock);
    float* stage = s.k;  // free until the first key block is loaded
    for (int r = 0; r < rows; ++r) {
      float* row = stage + r * head_dim;
      load_f32(q, g * kBlock + r, head_dim, row);
      for (int c = 0; c < head_dim; c += static_cast<int>(hn::Lanes(d))) {
        hn::Store(hn::Mul(hn::Load(d, row + c), hn::Set(d, scale)), d, row + c);
      }
    }
    float* to = s.q + static_cast<int64_t>(g) * kBlock * head_dim;
    pack_transposed([&](int r) { return stage + r * head_dim; }, rows, head_dim, width, to);
    // Panels without a single real row are still multiplied: make them defined.
    const int packed = (rows + width - 1) / width * width;
    std::fill(to + static_cast<int64_t>(packed) * head_dim, to + kBlock * head_dim, 0.0f);
  }
}

/// One key block of K as contiguous fp32 rows.
void convert_keys(const Rows& k, int64_t first, int rows, int head_dim, float* to) {
  for (int r = 0; r < rows; ++r) load_f32(k, first + r, head_dim, to + r * head_dim);
}

/// One key block of V as fp32 panels [head_dim / width][64][width].
void convert_values(const Rows& v, int64_t first, int rows, int head_dim, float* to) {
  const FloatTag d;
  const int lanes = static_cast<int>(hn::Lanes(d));
  const int width = 2 * lanes;
  for (int r = 0; r < rows; ++r) {
    HWY_ALIGN float row[256];
    load_f32(v, first + r, head_dim, row);
    for (int c = 0; c < head_dim; c += lanes) {
      hn::Store(hn::Load(d, row + c), d,
                to + (static_cast<int64_t>(c / width) * kBlock + r) * width + c % width);
    }
  }
}

void pack_impl(const PackTask& task) {
  const int64_t block_floats = int64_t{kBlock} * task.head_dim;
  for (int32_t j = task.first_block; j < task.first_block + task.blocks; ++j) {
    const int64_t first = int64_t{j} * kBlock;
    const int rows = static_cast<int>(std::min<int64_t>(kBlock, task.key_rows - first));
    convert_keys(task.k, first, rows, task.head_dim, task.packed_k + j * block_floats);
    convert_values(task.v, first, rows, task.head_dim, task.packed_v + j * block_floats);
  }
}

/// Brings the rows of the next key block into the second-level cache, one row per register tile:
/// lists jump about, so the hardware does not see it coming, and all at once would stall the loads.
class RowPrefetcher {
 public:
  RowPrefetcher(const Rows& k, const Rows& v, int64_t first, int rows, int head_dim)
      : k_(row_pointer(k, first)),
        v_(row_pointer(v, first)),
        k_step_(k.row_stride * static_cast<int64_t>(dtype_bytes(k.dtype))),
        v_step_(v.row_stride * static_cast<int64_t>(dtype_bytes(v.dtype))),
        row_bytes_(head_dim * static_cast<int>(dtype_bytes(k.dtype))),
        left_(2 * rows) {}
  RowPrefetcher() = default;

  void operator()() {
    if (left_ == 0) return;
    // K and V take turns, so that both are complete when the walk gets there.
    const char*& at = left_ % 2 == 0 ? k_ : v_;
    for (int byte = 0; byte < row_bytes_; byte += 64) __builtin_prefetch(at + byte, 0, 2);
    at += left_ % 2 == 0 ? k_step_ : v_step_;
    --left_;
  }

 private:
  static const char* row_pointer(const Rows& rows, int64_t row) {
    return static_cast<const char*>(rows.data) +
           row * rows.row_stride * static_cast<int64_t>(dtype_bytes(rows.dtype));
  }
  const char* k_ = nullptr;
  const char* v_ = nullptr;
  int64_t k_step_ = 0, v_step_ = 0;
  int row_bytes_ = 0;
  int left_ = 0;
};

/// S^T = K q^T for `keys` keys against one query block.
template <class BeforeTile>
HWY_INLINE void multiply_scores(const float* k, const float* q, int keys, int head_dim, float* s,
                                BeforeTile& before_tile) {
  const int width = panel_width();
  for (int p = 0; p < kBlock / width; ++p) {
    multiply_panel(k, head_dim, 1, q + static_cast<int64_t>(p) * width * head_dim, keys, head_dim,
                   s + p * width, kBlock, nullptr, [&] { before_tile(); });
  }
}

/// Online softmax of one query block over `keys` keys; overwrites s with P^T.
HWY_INLINE void update_softmax(int keys, float* HWY_RESTRICT s, float* HWY_RESTRICT row_max,
                               float* HWY_RESTRICT row_sum, float* HWY_RESTRICT alpha) {
  const FloatTag d;
  const int lanes = static_cast<int>(hn::Lanes(d));
  for (int c = 0; c < kBlock; c += 2 * lanes) {
    float* column = s + c;
    const FloatVec old0 = hn::Load(d, row_max + c), old1 = hn::Load(d, row_max + c + lanes);
    FloatVec max0 = old0, max1 = old1;
    for (int j = 0; j < keys; ++j) {
      max0 = hn::Max(max0, hn::Load(d, column + j * kBlock));
      max1 = hn::Max(max1, hn::Load(d, column + j * kBlock + lanes));
    }
    FloatVec sum0 = hn::Zero(d), sum1 = hn::Zero(d);
    for (int j = 0; j < keys; ++j) {
      float* at = column + j * kBlock;
      const FloatVec p0 = exp2_vec(d, hn::Sub(hn::Load(d, at), max0));
      const FloatVec p1 = exp2_vec(d, hn::Sub(hn::Load(d, at + lanes), max1));
      sum0 = hn::Add(sum0, p0);
      sum1 = hn::Add(sum1, p1);
      hn::Store(p0, d, at);
      hn::Store(p1, d, at + lanes);
    }
    // The first block has old = -inf and gets alpha = 0.
    const FloatVec a0 = exp2_vec(d, hn::Sub(old0, max0)), a1 = exp2_vec(d, hn::Sub(old1, max1));
    hn::Store(a0, d, alpha + c);
    hn::Store(a1, d, alpha + c + lanes);
    hn::Store(max0, d, row_max + c);
    hn::Store(max1, d, row_max + c + lanes);
    hn::Store(hn::MulAdd(hn::Load(d, row_sum + c), a0, sum0), d, row_sum + c);
    hn::Store(hn::MulAdd(hn::Load(d, row_sum + c + lanes), a1, sum1), d, row_sum + c + lanes);
  }
}

template <class BeforeTile>
HWY_INLINE void accumulate_output(const float* s, const float* v, int keys, int queries,
                                  int head_dim, const float* alpha, float* o,
                                  BeforeTile& before_tile) {
  const int width = panel_width();
  for (int p = 0; p < head_dim / width; ++p) {
    multiply_panel(s, 1, kBlock, v + static_cast<int64_t>(p) * kBlock * width, queries, keys,
                   o + p * width, head_dim, alpha, [&] { before_tile(); });
  }
}

void write_block(const AttendTask& task, int first_row, int rows, const float* o,
                 const float* row_max, const float* row_sum) {
  const int head_dim = task.head_dim;
  const int64_t element = static_cast<int64_t>(dtype_bytes(task.out_dtype));
  for (int r = 0; r < rows; ++r) {
    HWY_ALIGN float row[256];
    const bool empty = row_sum[r] == 0.0f;  // no key block was listed
    const float inverse = empty ? 0.0f : 1.0f / row_sum[r];
    for (int c = 0; c < head_dim; ++c) row[c] = o[r * head_dim + c] * inverse;
    store_row(row, head_dim, task.out_dtype,
              static_cast<std::byte*>(task.out) + (first_row + r) * task.out_stride * element);
    if (task.lse != nullptr) {
      task.lse[(first_row + r) * task.lse_stride] =
          empty ? -std::numeric_limits<float>::infinity()
                : static_cast<float>((double{row_max[r]} + std::log2(double{row_sum[r]})) *
                                     std::numbers::ln2);
    }
  }
}

void attend_impl(const AttendTask& task, void* memory) {
  const int head_dim = task.head_dim;
  AttendScratch s(memory, head_dim);
  const int blocks = (task.query_rows + kBlock - 1) / kBlock;
  load_queries(task.q, task.query_rows, head_dim, task.scale_log2, s);
  std::fill(s.o, s.o + static_cast<int64_t>(blocks) * kBlock * head_dim, 0.0f);
  std::fill(s.row_max, s.row_max + blocks * kBlock, -std::numeric_limits<float>::infinity());
  std::fill(s.row_sum, s.row_sum + blocks * kBlock, 0.0f);

  // What the walk reads: packed blocks are contiguous rows for the prefetcher's purpose, V
  // included.
  const bool packed = task.packed_k != nullptr;
  const Rows k_rows = packed ? Rows{task.packed_k, head_dim, Dtype::kF32} : task.k;
  const Rows v_rows = packed ? Rows{task.packed_v, head_dim, Dtype::kF32} : task.v;
  for (int64_t step = 0; step < task.walk_steps; ++step) {
    const int64_t first_key = int64_t{task.walk[step].key_block} * kBlock;
    const int keys = static_cast<int>(std::min<int64_t>(kBlock, task.key_rows - first_key));
    const float* k = packed ? task.packed_k + first_key * head_dim : s.k;
    const float* v = packed ? task.packed_v + first_key * head_dim : s.v;
    if (!packed) {
      convert_keys(task.k, first_key, keys, head_dim, s.k);
      convert_values(task.v, first_key, keys, head_dim, s.v);
    }
    RowPrefetcher prefetch;
    if (step + 1 < task.walk_steps) {
      const int64_t next = int64_t{task.walk[step + 1].key_block} * kBlock;
      // A packed block is complete in memory even where the document ends.
      const int rows =
          packed ? kBlock : static_cast<int>(std::min<int64_t>(kBlock, task.key_rows - next));
      prefetch = RowPrefetcher(k_rows, v_rows, next, rows, head_dim);
    }
    for (int g = 0; g < blocks; ++g) {
      if ((task.walk[step].wanted_by >> g & 1u) == 0) continue;
      const int64_t block_offset = static_cast<int64_t>(g) * kBlock * head_dim;
      multiply_scores(k, s.q + block_offset, keys, head_dim, s.s, prefetch);
      update_softmax(keys, s.s, s.row_max + g * kBlock, s.row_sum + g * kBlock, s.alpha);
      accumulate_output(s.s, v, keys, std::min(kBlock, task.query_rows - g * kBlock), head_dim,
                        s.alpha, s.o + block_offset, prefetch);
    }
  }
  for (int g = 0; g < blocks; ++g) {
    write_block(task, g * kBlock, std::min(kBlock, task.query_rows - g * kBlock),
                s.o + static_cast<int64_t>(g) * kBlock * head_dim, s.row_max + g * kBlock,
                s.row_sum + g * kBlock);
  }
}

void block_mass_impl(const BlockMassTask& task, void* memory) {
  const FloatTag d;
  const int lanes = static_cast<int>(hn::Lanes(d));
  const int head_dim = task.head_dim;
  AttendScratch s(memory, head_dim);
  const int blocks = (task.query_rows + kBlock - 1) / kBlock;
  load_queries(task.q, task.query_rows, head_dim, task.scale_log2, s);
  for (int r = 0; r < blocks * kBlock; ++r) {
    // +inf makes every term of a row that does not exist 2^-inf = 0.
    s.row_max[r] =
        r < task.query_rows
            ? static_cast<float>(double{task.lse[r * task.lse_stride]} * std::numbers::log2e)
            : std::numeric_limits<float>::infinity();
  }
  const auto nothing = [] {};
  for (int64_t first_key = 0; first_key < task.key_rows; first_key += kBlock) {
    const int keys = static_cast<int>(std::min<int64_t>(kBlock, task.key_rows - first_key));
    convert_keys(task.k, first_key, keys, head_dim, s.k);
    for (int g = 0; g < blocks; ++g) {
      multiply_scores(s.k, s.q + static_cast<int64_t>(g) * kBlock * head_dim, keys, head_dim, s.s,
                      nothing);
      FloatVec sum = hn::Zero(d);
      for (int c = 0; c < kBlock; c += lanes) {
        const FloatVec lse = hn::Load(d, s.row_max + g * kBlock + c);
        for (int j = 0; j < keys; ++j) {
          sum = hn::Add(sum, exp2_vec(d, hn::Sub(hn::Load(d, s.s + j * kBlock + c), lse)));
        }
      }
      const int rows = std::min(kBlock, task.query_rows - g * kBlock);
      task.mass[g * task.mass_stride + first_key / kBlock] =
          hn::GetLane(hn::SumOfLanes(d, sum)) / static_cast<float>(rows);
    }
  }
}

}  // namespace tessera::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::cpu {

HWY_EXPORT(attend_impl);
HWY_EXPORT(block_mass_impl);
HWY_EXPORT(pack_impl);

void fast_attend(const AttendTask& task, void* scratch) {
  HWY_DYNAMIC_DISPATCH(attend_impl)(task, scratch);
}

void fast_pack(const PackTask& task) { HWY_DYNAMIC_DISPATCH(pack_impl)(task); }

void fast_block_mass(const BlockMassTask& task, void* scratch) {
  HWY_DYNAMIC_DISPATCH(block_mass_impl)(task, scratch);
}

}  // namespace tessera::cpu
#endif
