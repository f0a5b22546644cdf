// Programmatic dependent launch: a kernel may start while its predecessor in the stream still runs.
#pragma once

namespace tessera::ptx {

/// Blocks until the previous kernel has finished and its writes are visible. Does nothing when the
/// launch did not ask for the overlap.
__device__ __forceinline__ void wait_for_previous_kernel() {
  asm volatile("griddepcontrol.wait;" ::: "memory");
}

/// Lets the next kernel of the stream be launched; its own wait still covers everything written
/// here.
__device__ __forceinline__ void let_next_kernel_start() {
  asm volatile("griddepcontrol.launch_dependents;");
}

}  // namespace tessera::ptx
