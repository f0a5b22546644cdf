// Loads the tensors of a model from a checkpoint onto a device, in parallel and without a second
// copy of the model on host or device.
//
//   auto tensors = load_tensors(checkpoint, recipes, {.device = c10::Device("cuda:0")});
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <unordered_map>

#include "h3/weights/checkpoint.h"
#include "h3/weights/recipe.h"

namespace h3::weights {

struct LoadProgress {
  uint64_t bytes_done = 0, bytes_total = 0;  // of the files; parts of tensors that others hold are
                                             // not counted
  double seconds = 0;
  double gb_per_second() const {
    return seconds > 0 ? static_cast<double>(bytes_done) / seconds / 1e9 : 0;
  }
};

struct LoadOptions {
  c10::Device device = c10::Device(c10::DeviceType::CPU);
  int threads = 0;  // 0: one per processor, at least 4 (storage wants several reads), at most 16
  /// Called by the calling thread about ten times a second and once at the end (done == total).
  /// What it throws ends the load and is passed on.
  std::function<void(const LoadProgress&)> progress;
  /// Lets go of the page cache behind the reads. Off: clean pages cost nothing to reclaim, and the
  /// next start or the next rank finds them.
  bool drop_page_cache = false;
};

/// One contiguous tensor per recipe, by name. CPU: files are read straight into the tensors. Other
/// devices: through pinned buffers (256 MiB in all, given back at the end) and asynchronous copies
/// on each thread's current stream, which is the device's default stream; all copies have ended
/// on return. Conversions (bf16 to f32, f32 to bf16) happen on the host.
///
/// Memory needed is model_bytes(recipes) on the device: compare it with what is free first. Throws
/// kInvalidArgument for what check_recipes refuses and for files that changed (both before anything
/// is allocated), kOutOfMemory for memory that cannot be had, kUnavailable for read errors.
std::unordered_map<std::string, at::Tensor> load_tensors(const Checkpoint& checkpoint,
                                                         std::span<const TensorRecipe> recipes,
                                                         const LoadOptions& options = {});

}  // namespace h3::weights
