// The register-tile product both attention products and the router scores are made of.
//
// C[row][0 .. kPanel) (+)= sum_k A(row, k) * B[k][0 .. kPanel): A elements are broadcast from
// wherever they lie (so neither K nor P is transposed), B is a panel of two vectors per k. Six rows
// keep twelve accumulators busy: enough to hide FMA latency on AVX2 and to stay under its sixteen
// registers.
#if defined(TESSERA_CPU_GEMM_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TESSERA_CPU_GEMM_INL_H_
#undef TESSERA_CPU_GEMM_INL_H_
#else
#define TESSERA_CPU_GEMM_INL_H_
#endif

#include "hwy/highway.h"
#include "tessera/src/cpu/math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::cpu::HWY_NAMESPACE {

inline constexpr int kTileRows = 6;

HWY_INLINE int panel_width() { return 2 * static_cast<int>(hn::Lanes(FloatTag())); }

/// One tile. `row_step` / `k_step`: distance of A(row, k) from A(row - 1, k) / A(row, k - 1).
/// `rescale` (nullable, one value per row): C = C * rescale[row] + product, else C = product.
template <int kRows>
HWY_INLINE void multiply_tile(const float* HWY_RESTRICT a, int64_t row_step, int64_t k_step,
                              const float* HWY_RESTRICT b, int depth, float* HWY_RESTRICT c,
                              int64_t c_step, const float* HWY_RESTRICT rescale) {
  const FloatTag d;
  const int lanes = static_cast<int>(hn::Lanes(d));
  FloatVec left[kRows], right[kRows];
  HWY_UNROLL(8) for (int r = 0; r < kRows; ++r) left[r] = right[r] = hn::Zero(d);
  for (int k = 0; k < depth; ++k) {
    const FloatVec b0 = hn::Load(d, b), b1 = hn::Load(d, b + lanes);
    b += 2 * lanes;
    HWY_UNROLL(8) for (int r = 0; r < kRows; ++r) {
      const FloatVec value = hn::Set(d, a[r * row_step]);
      left[r] = hn::MulAdd(value, b0, left[r]);
      right[r] = hn::MulAdd(value, b1, right[r]);
    }
    a += k_step;
  }
  HWY_UNROLL(8) for (int r = 0; r < kRows; ++r) {
    float* to = c + r * c_step;
    if (rescale != nullptr) {
      const FloatVec factor = hn::Set(d, rescale[r]);
      left[r] = hn::MulAdd(hn::Load(d, to), factor, left[r]);
      right[r] = hn::MulAdd(hn::Load(d, to + lanes), factor, right[r]);
    }
    hn::Store(left[r], d, to);
    hn::Store(right[r], d, to + lanes);
  }
}

/// One panel: `rows` rows in tiles of six, the remainder in one smaller tile. `before_tile()` runs
/// once per tile, for work that should be spread over the arithmetic.
template <class BeforeTile>
HWY_INLINE void multiply_panel(const float* a, int64_t row_step, int64_t k_step, const float* b,
                               int rows, int depth, float* c, int64_t c_step, const float* rescale,
                               BeforeTile before_tile) {
  int r = 0;
  for (; r + kTileRows <= rows; r += kTileRows) {
    before_tile();
    multiply_tile<kTileRows>(a + r * row_step, row_step, k_step, b, depth, c + r * c_step, c_step,
                             rescale ? rescale + r : nullptr);
  }
  const float* a_rest = a + r * row_step;
  float* c_rest = c + r * c_step;
  const float* f_rest = rescale ? rescale + r : nullptr;
  switch (rows - r) {
    case 1: multiply_tile<1>(a_rest, row_step, k_step, b, depth, c_rest, c_step, f_rest); break;
    case 2: multiply_tile<2>(a_rest, row_step, k_step, b, depth, c_rest, c_step, f_rest); break;
    case 3: multiply_tile<3>(a_rest, row_step, k_step, b, depth, c_rest, c_step, f_rest); break;
    case 4: multiply_tile<4>(a_rest, row_step, k_step, b, depth, c_rest, c_step, f_rest); break;
    case 5: multiply_tile<5>(a_rest, row_step, k_step, b, depth, c_rest, c_step, f_rest); break;
    default: break;
  }
}

/// Writes `rows` fp32 rows of width `depth` as panels [row / width][depth][width]; missing rows of
/// the last panel become 0. `from(row)` returns a pointer to a row.
template <class RowPointer>
HWY_INLINE void pack_transposed(RowPointer from, int rows, int depth, int width, float* to) {
  const int panels = (rows + width - 1) / width;
  for (int p = 0; p < panels; ++p) {
    float* panel = to + static_cast<int64_t>(p) * depth * width;
    for (int lane = 0; lane < width; ++lane) {
      const int row = p * width + lane;
      if (row < rows) {
        const float* source = from(row);
        for (int k = 0; k < depth; ++k) panel[k * width + lane] = source[k];
      } else {
        for (int k = 0; k < depth; ++k) panel[k * width + lane] = 0.0f;
      }
    }
  }
}

}  // namespace tessera::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
