// Where and how a call runs. One value type for all entry points.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

namespace tessera {

enum class DeviceKind : uint8_t { kCpu, kCuda };

struct Device {
  DeviceKind kind = DeviceKind::kCpu;
  int index = 0;  // CUDA ordinal; ignored for the CPU
};

/// Scratch memory of the caller. Empty on the CPU, which allocates its own for the time of a call
/// (see attention_workspace).
struct Workspace {
  void* data = nullptr;
  size_t bytes = 0;
};

struct Execution {
  Device device;
  // CPU: worker threads, 0 = all hardware threads; no more than 4096 are started. Never changes a
  // result bit.
  int threads = 0;
  std::string kernel;      // "" = chosen by the dispatch table; else a name from `explain`
  void* stream = nullptr;  // CUDA: the cudaStream_t to enqueue on
  Workspace workspace;     // CUDA: device scratch, sized by attention_workspace / route_workspace
  // CUDA: check the values of a plan before attention runs, which waits for the stream. Turn it off
  // for plans that `route` made and during graph capture; a bad list then gives NaN in out and lse,
  // and bitmap bits past a document are ignored.
  bool check_plan = true;
  // CPU: called on the calling thread now and then with finished and total work items. May be
  // empty.
  std::function<void(int64_t done, int64_t total)> progress;
};

}  // namespace tessera
