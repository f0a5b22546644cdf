// Device copies of test tensors: whole allocations with their NaN guards, gaps and strides, so that
// a kernel that reads or writes a byte too far shows it. CUDA errors throw; GoogleTest reports
// them.
#pragma once

#include <cuda_runtime_api.h>

#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "tessera/plan.h"
#include "tessera/tests/support/owned_tensor.h"

namespace tessera::testing {

inline void cuda_ok(cudaError_t error, const char* call) {
  if (error == cudaSuccess) return;
  throw std::runtime_error(std::string(call) + ": " + cudaGetErrorString(error));
}

/// Device memory of `count` elements, behind which 256 more bytes hold 0xff.
template <class T>
class DeviceArray {
 public:
  static constexpr size_t kGuardBytes = 256;

  DeviceArray() = default;
  explicit DeviceArray(size_t count) : count_(count) {
    cuda_ok(cudaMalloc(reinterpret_cast<void**>(&data_), bytes() + kGuardBytes), "cudaMalloc");
    fill_bytes(0xff);
  }
  explicit DeviceArray(std::span<const T> host) : DeviceArray(host.size()) { upload(host); }
  DeviceArray(DeviceArray&& other) noexcept { *this = std::move(other); }
  DeviceArray& operator=(DeviceArray&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(count_, other.count_);
    return *this;
  }
  ~DeviceArray() { (void)cudaFree(data_); }

  T* data() const { return data_; }
  size_t size() const { return count_; }
  size_t bytes() const { return count_ * sizeof(T); }
  void fill_bytes(int byte) {
    cuda_ok(cudaMemset(data_, byte, bytes() + kGuardBytes), "cudaMemset");
    settle();
  }
  void upload(std::span<const T> host) {
    if (host.size() != count_) throw std::runtime_error("upload of another size");
    cuda_ok(cudaMemcpy(data_, host.data(), bytes(), cudaMemcpyHostToDevice), "upload");
    settle();
  }
  void download(std::span<T> host) const {
    if (host.size() != count_) throw std::runtime_error("download of another size");
    cuda_ok(cudaMemcpy(host.data(), data_, bytes(), cudaMemcpyDeviceToHost), "download");
  }
  std::vector<T> host() const {
    std::vector<T> copy(count_);
    download(copy);
    return copy;
  }
  /// True if the bytes behind the last element still hold 0xff.
  bool guard_intact() const {
    std::vector<unsigned char> tail(kGuardBytes);
    cuda_ok(cudaMemcpy(tail.data(), reinterpret_cast<const char*>(data_) + bytes(), kGuardBytes,
                       cudaMemcpyDeviceToHost),
            "download of a guard");
    return tail == std::vector<unsigned char>(kGuardBytes, 0xff);
  }

 private:
  /// Non-blocking streams do not wait for the default one, on which copies may still be under way.
  static void settle() { cuda_ok(cudaStreamSynchronize(nullptr), "cudaStreamSynchronize"); }

  T* data_ = nullptr;
  size_t count_ = 0;
};

/// The whole storage of an OwnedTensor on the device; the view has its size, strides and offset.
template <int kRank>
class DeviceTensor {
 public:
  DeviceTensor() = default;
  explicit DeviceTensor(const OwnedTensor<kRank>& host)
      : bytes_(std::span<const std::byte>(host.storage())), view_(host.view()) {
    view_.data = bytes_.data() + host.first_element_byte();
  }
  const TensorView<kRank>& view() const { return view_; }
  void upload(const OwnedTensor<kRank>& host) { bytes_.upload(host.storage()); }
  void download(OwnedTensor<kRank>* host) const { bytes_.download(host->storage()); }
  void poison() { bytes_.fill_bytes(0xff); }

 private:
  DeviceArray<std::byte> bytes_;
  TensorView<kRank> view_;
};

/// A host plan on the device; rubbish lies behind every array.
class DevicePlan {
 public:
  DevicePlan() = default;
  explicit DevicePlan(const PlanView& host) : view_(host) {
    copy(host.index, &index_, &view_.index);
    copy(host.count, &count_, &view_.count);
    copy(host.bitmap, &bitmap_, &view_.bitmap);
    copy(host.dense_rows, &dense_rows_, &view_.dense_rows);
  }
  const PlanView& view() const { return view_; }
  DeviceArray<int32_t>& index() { return index_; }
  DeviceArray<int32_t>& count() { return count_; }

 private:
  /// Contiguous views only; a view without elements keeps a pointer, as on the host.
  template <class T, int kRank>
  static void copy(const TensorView<kRank>& from, DeviceArray<T>* to, TensorView<kRank>* view) {
    if (!from.present()) return;
    const auto n = static_cast<size_t>(from.elements());
    *to = DeviceArray<T>(std::span<const T>(static_cast<const T*>(from.data), n));
    view->data = to->data();
  }

  PlanView view_;
  DeviceArray<int32_t> index_, count_;
  DeviceArray<uint32_t> bitmap_;
  DeviceArray<uint8_t> dense_rows_;
};

class Stream {
 public:
  Stream() { cuda_ok(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "stream"); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  ~Stream() { (void)cudaStreamDestroy(stream_); }
  cudaStream_t get() const { return stream_; }
  void wait() const { cuda_ok(cudaStreamSynchronize(stream_), "cudaStreamSynchronize"); }

 private:
  cudaStream_t stream_ = nullptr;
};

}  // namespace tessera::testing
