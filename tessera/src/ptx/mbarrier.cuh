// Shared-memory barriers (mbarrier) of sm_90: one-line wrappers, nothing else holds this assembly.
#pragma once

#include <cstdint>

namespace tessera::ptx {

__device__ __forceinline__ uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

__device__ __forceinline__ void barrier_init(uint32_t barrier, uint32_t arrivals) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals));
}

/// Makes initialised barriers visible to the asynchronous proxy before the first copy uses them.
__device__ __forceinline__ void barrier_init_fence() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ __forceinline__ void barrier_arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(barrier) : "memory");
}

__device__ __forceinline__ void barrier_arrive_n(uint32_t barrier, uint32_t count) {
  asm volatile("mbarrier.arrive.shared.b64 _, [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}

__device__ __forceinline__ void barrier_arrive_expect(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}

/// Blocks until the phase with this parity has completed.
__device__ __forceinline__ void barrier_wait(uint32_t barrier, uint32_t parity) {
  asm volatile(
      "{\n.reg .pred done;\n"
      "WAIT_%=:\n"
      "mbarrier.try_wait.parity.shared.b64 done, [%0], %1;\n"
      "@!done bra WAIT_%=;\n}" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

/// A word of shared memory that threads of the CTA read and write without a barrier.
__device__ __forceinline__ void store_relaxed(uint32_t address, int value) {
  asm volatile("st.relaxed.cta.shared.s32 [%0], %1;" ::"r"(address), "r"(value) : "memory");
}

__device__ __forceinline__ int load_relaxed(uint32_t address) {
  int value;
  asm volatile("ld.relaxed.cta.shared.s32 %0, [%1];" : "=r"(value) : "r"(address) : "memory");
  return value;
}

}  // namespace tessera::ptx
