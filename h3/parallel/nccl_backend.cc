// The only file of the folder that needs CUDA's and NCCL's headers; see H3_NCCL in CMakeLists.txt.
#define USE_C10D_NCCL
#include <c10/cuda/CUDAFunctions.h>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include "h3/common/error.h"
#include "h3/parallel/backend.h"

namespace h3::parallel {

bool has_nccl() { return true; }

c10::intrusive_ptr<c10d::Backend> make_nccl(const c10::intrusive_ptr<c10d::Store>& store,
                                            const BackendOptions& options) {
  auto nccl = c10d::ProcessGroupNCCL::Options::create();
  nccl->timeout = options.timeout;
  nccl->group_name = options.group_name;
  return c10::make_intrusive<c10d::ProcessGroupNCCL>(store, options.rank, options.size, nccl);
}

void use_cuda_device(int index) {
  const int count = c10::cuda::device_count();
  if (index < 0 || index >= count)
    throw Error(ErrorCode::kInvalidArgument,
                "CUDA device " + std::to_string(index) + " was asked for and " +
                    std::to_string(count) + " are visible",
                "start at most one rank per GPU, or check CUDA_VISIBLE_DEVICES");
  c10::cuda::set_device(static_cast<c10::DeviceIndex>(index));
}

}  // namespace h3::parallel
