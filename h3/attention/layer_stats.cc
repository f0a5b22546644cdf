#include "h3/attention/layer_stats.h"

#include <ATen/ops/sum.h>
#include <ATen/ops/zeros.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <optional>

namespace h3 {
namespace {

constexpr int64_t kSlots = 64;

c10::Stream stream_of(const at::Tensor& t) {
  if (t.device().is_cpu()) return c10::Stream(c10::Stream::DEFAULT, t.device());
  return c10::impl::VirtualGuardImpl(t.device().type()).getStream(t.device());
}

}  // namespace

PendingSums::Buffer& PendingSums::buffer_for(const at::Tensor& values) {
  const c10::Stream stream = stream_of(values);
  const auto found = std::find_if(buffers_.begin(), buffers_.end(),
                                  [&](const Buffer& b) { return b.stream == stream; });
  if (found != buffers_.end()) return *found;
  const auto on_device = at::device(values.device());
  const at::ScalarType wide = dtype_ == at::kFloat ? at::kDouble : dtype_;
  Buffer buffer{stream,
                at::zeros({kSlots}, on_device.dtype(dtype_)),
                at::zeros({}, on_device.dtype(wide)),
                {},
                0};
  for (int64_t i = 0; i < kSlots; ++i) buffer.views.push_back(buffer.slots.select(0, i));
  return buffers_.emplace_back(std::move(buffer));
}

void PendingSums::add(const at::Tensor& values) {
  // In one mode always: a buffer made in inference mode could not be written outside it.
  const c10::InferenceMode inference;
  Buffer& buffer = buffer_for(values);
  if (buffer.used == buffer.views.size()) {
    buffer.total.add_(at::sum(buffer.slots, buffer.total.scalar_type()));
    buffer.used = 0;
  }
  at::sum_out(buffer.views[buffer.used], values, at::OptionalIntArrayRef(), false, dtype_);
  ++buffer.used;
}

double PendingSums::take() {
  const c10::InferenceMode inference;
  double sum = 0;
  for (Buffer& b : buffers_) {
    std::optional<c10::StreamGuard> guard;  // reads in the order of the stream that wrote
    if (!b.stream.device().is_cpu()) guard.emplace(b.stream);
    const at::Tensor open = b.slots.narrow(0, 0, static_cast<int64_t>(b.used));
    sum += at::sum(open, b.total.scalar_type()).add_(b.total).to(at::kDouble).item<double>();
    b.total.zero_();
    b.used = 0;
  }
  return sum;
}

void LayerStats::add_plan(const RoutePlan& plan, int64_t sparse_rows, int64_t dense_rows,
                          bool count_kept) {
  const std::lock_guard lock(mutex_);
  mass_.add(plan.mass);
  mass_rows_ += sparse_rows;
  dense_rows_ += dense_rows;
  if (count_kept) {
    kept_.add(plan.count);
    kept_pending_ = true;
  }
}

void LayerStats::collect() {
  if (mass_rows_ > 0 || dense_rows_ > 0) {
    counters_.add_mass(mass_.take() - static_cast<double>(dense_rows_), mass_rows_);
    mass_rows_ = dense_rows_ = 0;
  }
  if (kept_pending_) {
    counters_.add_kept(static_cast<int64_t>(kept_.take()));
    kept_pending_ = false;
  }
}

CounterValues LayerStats::values() {
  const std::lock_guard lock(mutex_);
  collect();
  return counters_.values();
}

void LayerStats::reset() {
  const std::lock_guard lock(mutex_);
  collect();
  counters_.reset();
}

}  // namespace h3
