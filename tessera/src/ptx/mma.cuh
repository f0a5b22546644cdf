// The warp-wide matrix product (mma): D[16 x 8] += A[16 x 16] B[16 x 8], bf16 in, fp32 out. A has
// the register layout of a warp's share of a wgmma operand.
#pragma once

#include <cstdint>

namespace tessera::ptx {

__device__ __forceinline__ void multiply_bf16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0,
                                              uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

}  // namespace tessera::ptx
