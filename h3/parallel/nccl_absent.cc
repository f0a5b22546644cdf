// Stands in for nccl_backend.cc where CUDA's or NCCL's headers were not there at build time.
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "h3/common/error.h"
#include "h3/parallel/backend.h"

namespace h3::parallel {
namespace {
[[noreturn]] void refuse() {
  throw Error(ErrorCode::kUnsupported, "this build has no NCCL; ranks can only use the CPU",
              "configure with -DH3_NCCL=ON and a CUDA build of PyTorch");
}
}  // namespace

bool has_nccl() { return false; }
c10::intrusive_ptr<c10d::Backend> make_nccl(const c10::intrusive_ptr<c10d::Store>&,
                                            const BackendOptions&) {
  refuse();
}
void use_cuda_device(int) { refuse(); }

}  // namespace h3::parallel
