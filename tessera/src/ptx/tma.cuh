// Bulk tensor copies (TMA) from global to shared memory.
#pragma once

#include <cuda.h>

#include <cstdint>

namespace tessera::ptx {

/// Copies one box of a rank-5 tensor map; completes `bytes of the box` on the barrier. Coordinates
/// are in elements, innermost first; elements outside the tensor arrive as zeros.
__device__ __forceinline__ void tma_load_5d(uint32_t to, const CUtensorMap* map, int c0, int c1,
                                            int c2, int c3, int c4, uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%3, %4, %5, %6, %7}], [%2];" ::"r"(to),
      "l"(map), "r"(barrier), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(c4)
      : "memory");
}

}  // namespace tessera::ptx
