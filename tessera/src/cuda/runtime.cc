#include "tessera/src/cuda/runtime.h"

#include <map>
#include <mutex>

#include "tessera/src/common/cat.h"

namespace tessera::cuda {

using internal::cat;

Status check(cudaError_t error, const char* call) {
  if (error == cudaSuccess) return {};
  // Leaves no sticky launch error behind for the caller's next, unrelated check.
  (void)cudaGetLastError();
  const std::string text =
      cat("CUDA error ", static_cast<int>(error), " (", cudaGetErrorName(error), ": ",
          cudaGetErrorString(error), ") from ", call);
  return error == cudaErrorMemoryAllocation ? out_of_memory(text) : internal_error(text);
}

namespace {

Status query_device(int index, DeviceFacts* out) {
  int count = 0;
  if (const cudaError_t error = cudaGetDeviceCount(&count); error != cudaSuccess) {
    (void)cudaGetLastError();
    return unsupported(
        cat("device cuda:", index,
            " was asked for, but no CUDA device can be used: ", cudaGetErrorString(error),
            "; install an NVIDIA driver of release 580 or later, or use the cpu"));
  }
  if (index < 0 || index >= count) {
    return unsupported(cat("device cuda:", index, " does not exist; this machine has ", count,
                           " (cuda:0", count > 1 ? cat(" to cuda:", count - 1) : "", ")"));
  }
  cudaDeviceProp properties;
  TESSERA_RETURN_IF_CUDA_ERROR(cudaGetDeviceProperties(&properties, index));
  *out = {index,
          properties.name,
          properties.major,
          properties.minor,
          properties.multiProcessorCount,
          properties.totalGlobalMem};
  return {};
}

}  // namespace

Status device_facts(int index, DeviceFacts* out) {
  // Asking the runtime takes hundreds of microseconds, and every call of the library needs the
  // facts.
  static std::mutex mutex;
  static std::map<int, DeviceFacts> known;
  const std::lock_guard lock(mutex);
  if (const auto found = known.find(index); found != known.end()) {
    *out = found->second;
    return {};
  }
  TESSERA_RETURN_IF_ERROR(query_device(index, out));
  known[index] = *out;
  return {};
}

Status require_sm90(int index, DeviceFacts* out) {
  TESSERA_RETURN_IF_ERROR(device_facts(index, out));
  if (out->major == 9 && out->minor == 0) return {};
  return unsupported(cat("device cuda:", index, " (", out->name, ") has compute capability ",
                         out->major, ".", out->minor,
                         "; the kernels of this build accept 9.0 (H100, H200); use the cpu"));
}

namespace {

using EncodeFunction = decltype(&cuTensorMapEncodeTiled);

/// The driver function through the runtime, so that the binary links without libcuda.
Status encoder(EncodeFunction* out) {
  static void* function = nullptr;
  static const cudaError_t error = [] {
    cudaDriverEntryPointQueryResult found;
    return cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000,
                                            cudaEnableDefault, &found);
  }();
  TESSERA_RETURN_IF_ERROR(check(error, "cudaGetDriverEntryPoint(cuTensorMapEncodeTiled)"));
  if (function == nullptr) {
    return unsupported(
        "the NVIDIA driver has no cuTensorMapEncodeTiled; install release 580 or later");
  }
  *out = reinterpret_cast<EncodeFunction>(function);
  return {};
}

}  // namespace

Status encode_tensor_map(const Bshd& t, int box_rows, int box_halves, const char* name,
                         CUtensorMap* out) {
  EncodeFunction encode = nullptr;
  TESSERA_RETURN_IF_ERROR(encoder(&encode));
  constexpr int kHalf = 64;  // channels of 128 bytes, the width of the swizzle
  const int element_bytes = static_cast<int>(dtype_bytes(t.dtype));
  // A dimension of size 1 is never stepped over, and its stride may be anything in the caller's
  // view.
  const auto stride_of = [&](int dimension) {
    const bool stepped = t.size[dimension] > 1;
    const int64_t elements = stepped ? t.stride[dimension] : t.size[3] * t.size[2] * t.size[1];
    return static_cast<cuuint64_t>(elements) * element_bytes;
  };
  // Channel in a half, token, half, head, batch.
  const cuuint64_t size[5] = {
      kHalf, static_cast<cuuint64_t>(t.size[1]), static_cast<cuuint64_t>(t.size[3] / kHalf),
      static_cast<cuuint64_t>(t.size[2]), static_cast<cuuint64_t>(t.size[0])};
  const cuuint64_t stride[4] = {stride_of(1), static_cast<cuuint64_t>(kHalf * element_bytes),
                                stride_of(2), stride_of(0)};
  const cuuint32_t box[5] = {kHalf, static_cast<cuuint32_t>(box_rows),
                             static_cast<cuuint32_t>(box_halves), 1, 1};
  const cuuint32_t step[5] = {1, 1, 1, 1, 1};
  const CUresult result = encode(
      out,
      t.dtype == Dtype::kF16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
      5, t.data, size, stride, box, step, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
      CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result == CUDA_SUCCESS) return {};
  return invalid_argument(cat("the driver refused a tensor map for ", name, " (CUresult ",
                              static_cast<int>(result), "): shape ", internal::shape_text(t.size),
                              ", strides ", internal::shape_text(t.stride),
                              "; strides must be positive multiples of 8 elements below 2^39"));
}

Status check_workspace(const Workspace& workspace, size_t needed, const char* query) {
  if (needed == 0) return {};
  if (workspace.data == nullptr || workspace.bytes < needed) {
    return invalid_argument(
        cat("the workspace has ", workspace.data == nullptr ? 0 : workspace.bytes,
            " bytes; this call needs ", needed, " of device memory (", query, ")"));
  }
  if (reinterpret_cast<uintptr_t>(workspace.data) % 256 != 0) {
    return invalid_argument(cat("the workspace starts ",
                                reinterpret_cast<uintptr_t>(workspace.data) % 256,
                                " bytes behind a 256-byte boundary; align its base to 256 bytes"));
  }
  return {};
}

DeviceScope::DeviceScope(int device) {
  int current = 0;
  status_ = check(cudaGetDevice(&current), "cudaGetDevice");
  if (!status_.ok() || current == device) return;
  status_ = check(cudaSetDevice(device), "cudaSetDevice");
  if (status_.ok()) previous_ = current;
}

DeviceScope::~DeviceScope() {
  if (previous_ >= 0) (void)cudaSetDevice(previous_);
}

}  // namespace tessera::cuda
