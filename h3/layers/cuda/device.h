// What the kernels of h3/layers share: vectors of eight bf16, their arithmetic, and the host side
// of a launch. For nvcc only.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <cstring>
#include <string>

#include "h3/layers/kernels.h"
#include "tessera/status.h"

namespace h3::layers {

// --- device --------------------------------------------------------------------------------------

inline constexpr int kVectorWidth = 8;  // bf16 in 16 bytes

/// Eight bf16. Products and sums are rounded to bf16 one by one: the _rn forms are never fused.
/// Memory holds them as uint4 only, which every access goes through.
struct alignas(16) Vector {
  __nv_bfloat162 pairs[4];

  __device__ __nv_bfloat162& pair(int i) { return pairs[i]; }
  __device__ __nv_bfloat162 pair(int i) const { return pairs[i]; }
};

__device__ inline Vector from_bits(const uint4& bits) {
  Vector v;
  memcpy(&v, &bits, sizeof(v));
  return v;
}
__device__ inline uint4 to_bits(const Vector& v) {
  uint4 bits;
  memcpy(&bits, &v, sizeof(v));
  return bits;
}

__device__ inline Vector filled(uint32_t two) { return from_bits({two, two, two, two}); }

inline constexpr uint32_t kTwoOnes = 0x3f803f80u;
inline constexpr uint32_t kTwoNans = 0x7fc07fc0u;

__device__ inline Vector operator+(const Vector& a, const Vector& b) {
  Vector r;
#pragma unroll
  for (int i = 0; i < 4; ++i) r.pair(i) = __hadd2_rn(a.pair(i), b.pair(i));
  return r;
}

__device__ inline Vector operator-(const Vector& a, const Vector& b) {
  Vector r;
#pragma unroll
  for (int i = 0; i < 4; ++i) r.pair(i) = __hsub2_rn(a.pair(i), b.pair(i));
  return r;
}

__device__ inline Vector operator*(const Vector& a, const Vector& b) {
  Vector r;
#pragma unroll
  for (int i = 0; i < 4; ++i) r.pair(i) = __hmul2_rn(a.pair(i), b.pair(i));
  return r;
}

__device__ inline float low(__nv_bfloat162 pair) { return __low2float(pair); }
__device__ inline float high(__nv_bfloat162 pair) { return __high2float(pair); }

__device__ inline float add_squares(const Vector& v, float sum) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    sum = fmaf(low(v.pair(i)), low(v.pair(i)), sum);
    sum = fmaf(high(v.pair(i)), high(v.pair(i)), sum);
  }
  return sum;
}

/// [x * factor * weight], the products in f32.
__device__ inline Vector scaled(const Vector& x, float factor, const Vector& weight) {
  Vector r;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    r.pair(i) = __floats2bfloat162_rn(low(x.pair(i)) * factor * low(weight.pair(i)),
                                      high(x.pair(i)) * factor * high(weight.pair(i)));
  }
  return r;
}

__device__ inline float norm_factor(float mean_square, float eps) {
  return rsqrtf(mean_square + eps);
}

// Streams are read and written once: they must not push tables and weights out of the caches.
__device__ inline Vector load_stream(const Vector* p) {
  return from_bits(__ldcs(reinterpret_cast<const uint4*>(p)));
}
__device__ inline void store_stream(Vector* p, const Vector& v) {
  __stcs(reinterpret_cast<uint4*>(p), to_bits(v));
}
__device__ inline Vector load_cached(const Vector* p) {
  return from_bits(__ldg(reinterpret_cast<const uint4*>(p)));
}
// Read again soon, by this kernel or the next one, for which the tail of it may still be in L2.
__device__ inline Vector load(const Vector* p) {
  return from_bits(*reinterpret_cast<const uint4*>(p));
}
__device__ inline void store(Vector* p, const Vector& v) {
  *reinterpret_cast<uint4*>(p) = to_bits(v);
}

// --- host ----------------------------------------------------------------------------------------

inline tessera::Status check_cuda(cudaError_t error, const char* call) {
  if (error == cudaSuccess) return {};
  // Leaves no sticky error behind for the caller's next, unrelated check.
  (void)cudaGetLastError();
  const std::string text = "CUDA error " + std::to_string(static_cast<int>(error)) + " (" +
                           cudaGetErrorName(error) + ": " + cudaGetErrorString(error) + ") from " +
                           call;
  return error == cudaErrorMemoryAllocation ? tessera::out_of_memory(text)
                                            : tessera::internal_error(text);
}

/// Makes a device current for the scope, then restores the caller's.
class DeviceScope {
 public:
  explicit DeviceScope(int device) : error_(cudaGetDevice(&previous_)) {
    if (error_ != cudaSuccess || previous_ == device) return;
    error_ = cudaSetDevice(device);
    changed_ = error_ == cudaSuccess;
  }
  ~DeviceScope() {
    if (changed_) (void)cudaSetDevice(previous_);
  }
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;
  tessera::Status status() const { return check_cuda(error_, "cudaSetDevice"); }

 private:
  int previous_ = 0;
  bool changed_ = false;
  cudaError_t error_;
};

/// kUnsupported unless the device has capability 9.0.
tessera::Status require_sm90(int device);

/// Launches `kernel(params)` and reports what the launch itself reports.
template <class Params>
tessera::Status launch_kernel(void (*kernel)(Params), unsigned grid, unsigned threads,
                              const Params& params, const Launch& launch) {
  TESSERA_RETURN_IF_ERROR(require_sm90(launch.device));
  const DeviceScope scope(launch.device);
  TESSERA_RETURN_IF_ERROR(scope.status());
  kernel<<<grid, threads, 0, static_cast<cudaStream_t>(launch.stream)>>>(params);
  return check_cuda(cudaGetLastError(), "kernel launch");
}

inline tessera::Status check_pointer(const void* p, const char* name) {
  if (p == nullptr) {
    return tessera::invalid_argument(std::string(name) + " is null; give its device memory");
  }
  if (reinterpret_cast<uintptr_t>(p) % 16 != 0) {
    return tessera::invalid_argument(std::string(name) + " lies " +
                                     std::to_string(reinterpret_cast<uintptr_t>(p) % 16) +
                                     " bytes behind a 16-byte boundary; align its first element");
  }
  return {};
}

inline tessera::Status check_size(int64_t value, int64_t step, int64_t most, const char* name) {
  if (value >= step && value % step == 0 && value <= most) return {};
  return tessera::invalid_argument(std::string(name) + " is " + std::to_string(value) +
                                   "; the kernel takes multiples of " + std::to_string(step) +
                                   " from " + std::to_string(step) + " to " + std::to_string(most));
}

}  // namespace h3::layers
