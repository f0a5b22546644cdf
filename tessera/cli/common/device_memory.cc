#include "tessera/cli/common/device_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#ifdef TESSERA_WITH_CUDA
#include <cuda_runtime_api.h>
#endif

namespace tessera::cli {

DeviceBuffer::DeviceBuffer(DeviceBuffer&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

DeviceBuffer& DeviceBuffer::operator=(DeviceBuffer&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

DeviceTimer::DeviceTimer(DeviceTimer&& other) noexcept
    : begin_(std::exchange(other.begin_, nullptr)), end_(std::exchange(other.end_, nullptr)) {}

#ifdef TESSERA_WITH_CUDA

namespace {

Status check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return {};
  (void)cudaGetLastError();
  const std::string text = fmt::format("{}: CUDA error {} ({})", what, static_cast<int>(error),
                                       cudaGetErrorString(error));
  return error == cudaErrorMemoryAllocation ? out_of_memory(text) : internal_error(text);
}

}  // namespace

Status select_device(const Device& device) {
  return check(cudaSetDevice(device.index), "the device cannot be selected");
}

DeviceBuffer::~DeviceBuffer() { (void)cudaFree(data_); }

Status DeviceBuffer::reserve(size_t bytes) {
  if (data_ != nullptr && bytes <= bytes_) return {};
  (void)cudaFree(std::exchange(data_, nullptr));
  bytes_ = std::max<size_t>(bytes, 256);
  const Status status =
      check(cudaMalloc(&data_, bytes_), fmt::format("{} bytes of device memory", bytes_).c_str());
  if (!status.ok()) {
    data_ = nullptr;
    bytes_ = 0;
  }
  return status;
}

Status DeviceBuffer::upload(const void* source, size_t bytes) {
  TESSERA_RETURN_IF_ERROR(reserve(bytes));
  return check(cudaMemcpy(data_, source, bytes, cudaMemcpyHostToDevice), "copy to the device");
}

Status DeviceBuffer::download(void* target, size_t bytes) const {
  return check(cudaMemcpy(target, data_, bytes, cudaMemcpyDeviceToHost), "copy from the device");
}

DeviceStream::~DeviceStream() {
  if (handle_ != nullptr) (void)cudaStreamDestroy(static_cast<cudaStream_t>(handle_));
}

Status DeviceStream::open() {
  cudaStream_t stream = nullptr;
  TESSERA_RETURN_IF_ERROR(
      check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream creation"));
  handle_ = stream;
  return {};
}

Status DeviceStream::wait() const {
  return check(cudaStreamSynchronize(static_cast<cudaStream_t>(handle_)), "work on the device");
}

DeviceTimer::~DeviceTimer() {
  for (void* event : {begin_, end_}) {
    if (event != nullptr) (void)cudaEventDestroy(static_cast<cudaEvent_t>(event));
  }
}

Status DeviceTimer::start(const DeviceStream& stream) {
  for (void** event : {&begin_, &end_}) {
    if (*event != nullptr) continue;
    cudaEvent_t made = nullptr;
    TESSERA_RETURN_IF_ERROR(check(cudaEventCreate(&made), "event creation"));
    *event = made;
  }
  return check(
      cudaEventRecord(static_cast<cudaEvent_t>(begin_), static_cast<cudaStream_t>(stream.handle())),
      "event before the work");
}

Status DeviceTimer::stop(const DeviceStream& stream) {
  return check(
      cudaEventRecord(static_cast<cudaEvent_t>(end_), static_cast<cudaStream_t>(stream.handle())),
      "event behind the work");
}

Status DeviceTimer::seconds(double* out) const {
  TESSERA_RETURN_IF_ERROR(
      check(cudaEventSynchronize(static_cast<cudaEvent_t>(end_)), "work on the device"));
  float milliseconds = 0;
  TESSERA_RETURN_IF_ERROR(
      check(cudaEventElapsedTime(&milliseconds, static_cast<cudaEvent_t>(begin_),
                                 static_cast<cudaEvent_t>(end_)),
            "time between events"));
  *out = double(milliseconds) * 1e-3;
  return {};
}

#else

namespace {

Status no_cuda() {
  return unsupported("this build has no CUDA kernels; configure with -DTESSERA_CUDA=ON");
}

}  // namespace

// Nothing is ever owned: reserve, open and start fail first.
DeviceBuffer::~DeviceBuffer() = default;
DeviceStream::~DeviceStream() = default;
DeviceTimer::~DeviceTimer() = default;
Status select_device(const Device&) { return no_cuda(); }
Status DeviceBuffer::reserve(size_t) { return no_cuda(); }
Status DeviceBuffer::upload(const void*, size_t) { return no_cuda(); }
Status DeviceBuffer::download(void*, size_t) const { return no_cuda(); }
Status DeviceStream::open() { return no_cuda(); }
Status DeviceStream::wait() const { return no_cuda(); }
Status DeviceTimer::start(const DeviceStream&) { return no_cuda(); }
Status DeviceTimer::stop(const DeviceStream&) { return no_cuda(); }
Status DeviceTimer::seconds(double*) const { return no_cuda(); }

#endif

}  // namespace tessera::cli
