// Which instruction sets the vector kernels are compiled for. Include before hwy/foreach_target.h.
#pragma once

// Each target costs compile time. Left out, by bit because older Highway releases lack the names:
// the AVX-512 variants beyond AVX3 (bits 0-7: no gain for f32), SSSE3 (12), and SVE (24-27), whose
// sizeless vectors cannot live in the accumulator arrays of gemm-inl.h.
#define HWY_DISABLED_TARGETS (0xFFLL | (1LL << 12) | (0xFLL << 24))
