// Creation of the collective engines of libtorch. Each lives in a source file of its own because
// their headers need what the rest of the folder must not: Gloo's, and CUDA's and NCCL's.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <string>

namespace c10d {
class Backend;
class Store;
}  // namespace c10d

namespace h3::parallel {

struct BackendOptions {
  std::string group_name;
  int rank = 0, size = 1;
  std::chrono::milliseconds timeout{600000};
  std::string master_addr;  // a loopback address keeps Gloo on loopback
};

/// Gloo for host memory. Binds to H3_SOCKET_IFNAME or GLOO_SOCKET_IFNAME if set.
c10::intrusive_ptr<c10d::Backend> make_gloo(const c10::intrusive_ptr<c10d::Store>& store,
                                            const BackendOptions& options);

/// NCCL for device memory, on the current device. kUnsupported if built without it (H3_NCCL=OFF).
c10::intrusive_ptr<c10d::Backend> make_nccl(const c10::intrusive_ptr<c10d::Store>& store,
                                            const BackendOptions& options);
bool has_nccl();

/// Makes `index` the current CUDA device of this thread; kInvalidArgument names the devices there
/// are. kUnsupported if built without NCCL.
void use_cuda_device(int index);

}  // namespace h3::parallel
