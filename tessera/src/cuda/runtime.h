// The CUDA runtime seen from host code: error mapping, device facts, tensor maps.
#pragma once

#include <cuda.h>
#include <cuda_runtime.h>

#include <array>
#include <cstdint>
#include <string>

#include "tessera/execution.h"
#include "tessera/src/cuda/carver.h"
#include "tessera/status.h"
#include "tessera/tensor_view.h"

namespace tessera::cuda {

/// kOutOfMemory for allocation failures, kInternal for anything else; names the call and CUDA's
/// text.
Status check(cudaError_t error, const char* call);

struct DeviceFacts {
  int index = 0;
  std::string name;
  int major = 0, minor = 0;
  int multiprocessors = 0;
  size_t memory_bytes = 0;
};

/// kUnsupported if there is no such device or no driver.
Status device_facts(int index, DeviceFacts* out);

/// kUnsupported unless the device has capability 9.0, naming the one got.
Status require_sm90(int index, DeviceFacts* out);

/// A rank-5 map over a [B, S, H, 128] view of 16-bit elements in the order channel (of a half),
/// token, half, head, batch; boxes of `box_halves` halves of `box_rows` tokens x 64 channels,
/// 128-byte swizzle, zeros outside.
Status encode_tensor_map(const Bshd& tensor, int box_rows, int box_halves, const char* name,
                         CUtensorMap* out);

/// The workspace of a call: large enough and on a 256-byte boundary. `query`: the function that
/// sizes it.
Status check_workspace(const Workspace& workspace, size_t needed, const char* query);

/// Makes `device` current for the scope, then restores the caller's.
class DeviceScope {
 public:
  explicit DeviceScope(int device);
  ~DeviceScope();
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;
  const Status& status() const { return status_; }

 private:
  int previous_ = -1;
  Status status_;
};

/// Launches a kernel that may start before its predecessor in the stream has finished; the kernel
/// itself waits (ptx::wait_for_previous_kernel) before it touches what the predecessor wrote or
/// reads.
template <class... Parameters, class... Arguments>
Status launch_overlapped(void (*kernel)(Parameters...), unsigned grid, unsigned threads,
                         size_t shared_bytes, cudaStream_t stream, const Arguments&... arguments) {
  cudaLaunchAttribute overlap;
  overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  overlap.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(grid);
  config.blockDim = dim3(threads);
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = &overlap;
  config.numAttrs = 1;
  return check(cudaLaunchKernelEx(&config, kernel, Parameters(arguments)...), "cudaLaunchKernelEx");
}

}  // namespace tessera::cuda

#define TESSERA_RETURN_IF_CUDA_ERROR(call) \
  TESSERA_RETURN_IF_ERROR(::tessera::cuda::check((call), #call))
