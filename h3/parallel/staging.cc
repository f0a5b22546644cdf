#include "h3/parallel/staging.h"

#include <ATen/ops/empty.h>

namespace h3::parallel {

at::Tensor StagingBuffers::get(StagingRole role, at::IntArrayRef shape,
                               const at::TensorOptions& options) {
  if (bypassed_ > 0) return at::empty(shape, options);
  int64_t count = 1;
  for (int64_t size : shape) count *= size;
  const at::Device device = options.device();
  at::Tensor& buffer =
      buffers_[{role, c10::typeMetaToScalarType(options.dtype()), device.type(), device.index()}];
  if (!buffer.defined() || buffer.numel() < count) {
    buffer = at::Tensor();  // freed first, or both would be held at the peak
    buffer = at::empty({count}, options);
  }
  return buffer.narrow(0, 0, count).view(shape);
}

int64_t StagingBuffers::bytes() const {
  int64_t total = 0;
  for (const auto& [key, buffer] : buffers_)
    total += buffer.numel() * static_cast<int64_t>(buffer.element_size());
  return total;
}

}  // namespace h3::parallel
