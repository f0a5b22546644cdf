// Kernels over whole rows of the residual stream: norm, modulation, gated residual, and all at
// once.
//
// The width of the real model has a kernel in which a CTA stays for the whole launch: every thread
// owns the same channels of every row, so the tables and the weight live in registers until the
// table row changes, and the next row is on its way while this one is computed. Other widths run a
// plain kernel that goes over a row twice.
#include <algorithm>

#include "h3/layers/cuda/device.h"

namespace h3::layers {
namespace {

struct DeviceTable {
  const Vector* data;
  int64_t stride;  // in vectors
};

struct DeviceRows {
  int64_t rows;
  int32_t vectors;  // of a row
  int32_t table_rows;
  Vector* x;
  const Vector* y;
  Vector* out;
  const Vector* weight;
  const int32_t* row;
  DeviceTable gate, scale, shift;
  float eps;
};

__device__ Vector table_entry(const DeviceRows& p, const DeviceTable& table, int32_t row, int v) {
  // A wrong index must neither read foreign memory nor go unseen.
  if (row < 0 || row >= p.table_rows) return filled(kTwoNans);
  return load_cached(table.data + row * table.stride + v);
}

/// Sum over the CTA, the same bits in every thread. `partial`: a float per warp that no thread
/// reads any more; the caller alternates between two of them, so that one barrier is enough.
template <int kWarps>
__device__ float sum_over_cta(float value, float* partial) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(0xffffffffu, value, step);
  if constexpr (kWarps == 1) return value;
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = value;
  __syncthreads();
  float sum = partial[0];
#pragma unroll
  for (int w = 1; w < kWarps; ++w) sum += partial[w];
  return sum;
}

// What a site does. Every site is an instance of both kernels.
template <bool kGate_, bool kNorm_, bool kModulate_>
struct Site {
  static constexpr bool kGate = kGate_, kNorm = kNorm_, kModulate = kModulate_;
  static constexpr bool kIndexed = kGate || kModulate;
};

// Channels of the real model: 224 threads x 3 vectors x 8 = 5376, no lane idle.
inline constexpr int kOwnThreads = 224, kOwnVectors = 3;
inline constexpr int kOwnWidth = kOwnThreads * kOwnVectors * kVectorWidth;

/// CTAs per SM that the registers leave room for; all together are the grid.
template <class S>
inline constexpr int kOwnCtas = S::kNorm ? 2 : 3;

/// Rows under way per CTA. With the CTAs: 43 KB or more per SM, which covers 2.7 us of latency.
template <class S>
inline constexpr int kOwnAhead = S::kGate ? 1 : 2;

/// The streams of a row, as a thread owns them.
template <class S>
struct OwnRow {
  Vector x[kOwnVectors];
  Vector y[S::kGate ? kOwnVectors : 1];
  int32_t index = 0;

  __device__ void load(const DeviceRows& p, int64_t s) {
#pragma unroll
    for (int i = 0; i < kOwnVectors; ++i) {
      const int64_t at = s * (kOwnThreads * kOwnVectors) + threadIdx.x + i * kOwnThreads;
      x[i] = load_stream(p.x + at);
      if constexpr (S::kGate) y[i] = load_stream(p.y + at);
    }
    if constexpr (S::kIndexed) index = __ldg(p.row + s);
  }
};

/// rows >= gridDim.x. Rows go to CTAs in turn, from the last to the first: the last ones that the
/// producer wrote may still be in L2, and the first ones that the consumer reads then are.
template <class S>
__global__ void __launch_bounds__(kOwnThreads, kOwnCtas<S>)
    sm90_owned_rows_kernel(const DeviceRows p) {
  constexpr int kWarps = kOwnThreads / 32, kAhead = kOwnAhead<S>;
  __shared__ float partial[2][kWarps];
  const int t = threadIdx.x;
  const int64_t step = gridDim.x;

  Vector weight[kOwnVectors], gate[kOwnVectors], factor[kOwnVectors], shift[kOwnVectors];
  OwnRow<S> ahead[kAhead];
  int32_t held = 0;
  bool holds = false;

  int64_t s = p.rows - 1 - blockIdx.x;
#pragma unroll
  for (int a = 0; a < kAhead; ++a) {
    if (s - a * step >= 0) ahead[a].load(p, s - a * step);
  }
  if constexpr (S::kNorm) {
#pragma unroll
    for (int i = 0; i < kOwnVectors; ++i) weight[i] = load_cached(p.weight + t + i * kOwnThreads);
  }

  for (int turn = 0; s >= 0; s -= step, turn ^= 1) {
    OwnRow<S> row = ahead[0];
#pragma unroll
    for (int a = 0; a + 1 < kAhead; ++a) ahead[a] = ahead[a + 1];
    if (s - kAhead * step >= 0) ahead[kAhead - 1].load(p, s - kAhead * step);

    // Tables: neighbours have the same modulation nearly always.
    if (S::kIndexed && (!holds || row.index != held)) {
#pragma unroll
      for (int i = 0; i < kOwnVectors; ++i) {
        const int v = t + i * kOwnThreads;
        if constexpr (S::kGate) gate[i] = table_entry(p, p.gate, row.index, v);
        if constexpr (S::kModulate) {
          factor[i] = filled(kTwoOnes) + table_entry(p, p.scale, row.index, v);
          shift[i] = table_entry(p, p.shift, row.index, v);
        }
      }
      held = row.index;
      holds = true;
    }

    // Residual.
    const int64_t begin = s * (kOwnThreads * kOwnVectors) + t;
    float squares = 0;
#pragma unroll
    for (int i = 0; i < kOwnVectors; ++i) {
      if constexpr (S::kGate) {
        row.x[i] = row.x[i] + gate[i] * row.y[i];
        store_stream(p.x + begin + i * kOwnThreads, row.x[i]);
      }
      if constexpr (S::kNorm) squares = add_squares(row.x[i], squares);
    }

    // Norm and modulation.
    if constexpr (S::kNorm) {
      const float sum = sum_over_cta<kWarps>(squares, partial[turn]);
      const float root = norm_factor(__fdiv_rn(sum, kOwnWidth), p.eps);
#pragma unroll
      for (int i = 0; i < kOwnVectors; ++i) {
        Vector n = scaled(row.x[i], root, weight[i]);
        if constexpr (S::kModulate) n = n * factor[i] + shift[i];
        store(p.out + begin + i * kOwnThreads, n);
      }
    }
  }
}

inline constexpr int kAnyThreads = 256;

/// Any width. The second pass reads what the same thread has read or written before.
template <class S>
__global__ void __launch_bounds__(kAnyThreads) sm90_any_rows_kernel(const DeviceRows p) {
  constexpr int kWarps = kAnyThreads / 32;
  __shared__ float partial[2][kWarps];
  int turn = 0;
  for (int64_t s = blockIdx.x; s < p.rows; s += gridDim.x, turn ^= 1) {
    Vector* const x = p.x + s * p.vectors;
    const int32_t index = S::kIndexed ? __ldg(p.row + s) : 0;
    float squares = 0;
    for (int v = threadIdx.x; v < p.vectors; v += kAnyThreads) {
      Vector value = load(x + v);
      if constexpr (S::kGate) {
        value = value + table_entry(p, p.gate, index, v) * load_stream(p.y + s * p.vectors + v);
        store(x + v, value);
      }
      if constexpr (S::kNorm) squares = add_squares(value, squares);
    }
    if constexpr (S::kNorm) {
      const float sum = sum_over_cta<kWarps>(squares, partial[turn]);
      const float root = norm_factor(__fdiv_rn(sum, p.vectors * kVectorWidth), p.eps);
      for (int v = threadIdx.x; v < p.vectors; v += kAnyThreads) {
        Vector n = scaled(load(x + v), root, load_cached(p.weight + v));
        if constexpr (S::kModulate) {
          n = n * (filled(kTwoOnes) + table_entry(p, p.scale, index, v)) +
              table_entry(p, p.shift, index, v);
        }
        store(p.out + s * p.vectors + v, n);
      }
    }
  }
}

tessera::Status check_table(const Table& table, const RowParams& params, const char* name) {
  TESSERA_RETURN_IF_ERROR(check_pointer(table.data, name));
  if (table.stride % kVectorWidth == 0 && table.stride >= params.width) return {};
  return tessera::invalid_argument(
      std::string(name) + " has a row stride of " + std::to_string(table.stride) +
      " elements; the kernel takes multiples of 8 from the width, " + std::to_string(params.width));
}

tessera::Status multiprocessors(int device, int* out) {
  return check_cuda(cudaDeviceGetAttribute(out, cudaDevAttrMultiProcessorCount, device),
                    "cudaDeviceGetAttribute");
}

template <class S>
tessera::Status launch_rows(const RowParams& params, const Launch& launch) {
  constexpr int64_t kMost = int64_t{1} << 30;
  TESSERA_RETURN_IF_ERROR(check_size(params.rows, 1, kMost, "rows"));
  TESSERA_RETURN_IF_ERROR(check_size(params.width, kVectorWidth, kMost, "width"));
  TESSERA_RETURN_IF_ERROR(check_pointer(params.x, "x"));
  if constexpr (S::kIndexed) {
    TESSERA_RETURN_IF_ERROR(check_size(params.table_rows, 1, kMost, "table_rows"));
    if (params.row == nullptr) {
      return tessera::invalid_argument("row is null; give the table row of every packed row");
    }
  }
  if constexpr (S::kGate) {
    TESSERA_RETURN_IF_ERROR(check_pointer(params.y, "y"));
    TESSERA_RETURN_IF_ERROR(check_table(params.gate, params, "gate"));
  }
  if constexpr (S::kNorm) {
    TESSERA_RETURN_IF_ERROR(check_pointer(params.out, "out"));
    TESSERA_RETURN_IF_ERROR(check_pointer(params.weight, "weight"));
  }
  if constexpr (S::kModulate) {
    TESSERA_RETURN_IF_ERROR(check_table(params.scale, params, "scale"));
    TESSERA_RETURN_IF_ERROR(check_table(params.shift, params, "shift"));
  }
  const auto table = [](const Table& t) {
    return DeviceTable{static_cast<const Vector*>(t.data), t.stride / kVectorWidth};
  };
  const DeviceRows rows{.rows = params.rows,
                        .vectors = static_cast<int32_t>(params.width / kVectorWidth),
                        .table_rows = static_cast<int32_t>(params.table_rows),
                        .x = static_cast<Vector*>(params.x),
                        .y = static_cast<const Vector*>(params.y),
                        .out = static_cast<Vector*>(params.out),
                        .weight = static_cast<const Vector*>(params.weight),
                        .row = params.row,
                        .gate = table(params.gate),
                        .scale = table(params.scale),
                        .shift = table(params.shift),
                        .eps = params.eps};
  TESSERA_RETURN_IF_ERROR(require_sm90(launch.device));
  int processors = 0;
  TESSERA_RETURN_IF_ERROR(multiprocessors(launch.device, &processors));
  const bool own = params.width == kOwnWidth;
  const int64_t ctas = int64_t{processors} * (own ? kOwnCtas<S> : 8);
  const auto grid = static_cast<unsigned>(std::min(params.rows, ctas));
  return own ? launch_kernel(sm90_owned_rows_kernel<S>, grid, kOwnThreads, rows, launch)
             : launch_kernel(sm90_any_rows_kernel<S>, grid, kAnyThreads, rows, launch);
}

}  // namespace

tessera::Status launch_rms_norm(const RowParams& params, const Launch& launch) {
  return launch_rows<Site<false, true, false>>(params, launch);
}

tessera::Status launch_rms_norm_modulate(const RowParams& params, const Launch& launch) {
  return launch_rows<Site<false, true, true>>(params, launch);
}

tessera::Status launch_gated_residual(const RowParams& params, const Launch& launch) {
  return launch_rows<Site<true, false, false>>(params, launch);
}

tessera::Status launch_gated_residual_norm_modulate(const RowParams& params, const Launch& launch) {
  return launch_rows<Site<true, true, true>>(params, launch);
}

}  // namespace h3::layers
