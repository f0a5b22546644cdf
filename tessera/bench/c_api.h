// Plain C face of the library for benchmarks that pair it with another engine in one process
// (tools/bench_vs_torch.py loads it through ctypes). Not installed and not stable: programs use the
// C++ interface.
#pragma once

#include <cstddef>
#include <cstdint>

extern "C" {

/// A borrowed [B, S, H, D] tensor; strides in elements.
struct TbTensor {
  const void* data;
  int64_t size[4];
  int64_t stride[4];
  int32_t dtype;  // 0 bf16, 1 f16, 2 f32
};

/// Where a refusal's text goes: truncated to `bytes`, always terminated. May be null.
struct TbMessage {
  char* text;
  size_t bytes;
};

/// What the router is asked for.
struct TbRouteConfig {
  int32_t keep;  // key blocks per query block
  int32_t n_q;
  int32_t n_k;
};

/// Wall-clock seconds of the two halves of tb_route_and_attend.
struct TbTimes {
  double route_s;
  double attend_s;
};

// Every function returns 0 or the number of the tessera::StatusCode; the message is then filled.

/// out = softmax(q k^T / sqrt(D)) v over all keys.
int tb_attend_dense(const TbTensor* q, const TbTensor* k, const TbTensor* v, const TbTensor* out,
                    int threads, TbMessage* message);

/// Routes only. `index` i32 [B, H, Gq, keep] and `count` i32 [B, H, Gq] are filled.
int tb_route_only(const TbTensor* q, const TbTensor* k, const TbRouteConfig* config, int32_t* index,
                  int32_t* count, int threads, TbMessage* message);

/// Routes, then attends. With `index` and `count` (shapes as above) the given lists are used for
/// the attention, so that list shapes can be compared while routing is still paid for; without
/// them, the router's own. `times` may be null.
int tb_route_and_attend(const TbTensor* q, const TbTensor* k, const TbTensor* v,
                        const TbTensor* out, const TbRouteConfig* config, const int32_t* index,
                        const int32_t* count, int threads, TbTimes* times, TbMessage* message);

/// Version of the library and name of the vector instruction set it runs on, "0.1.0 AVX2".
int tb_describe(TbMessage* message);

}  // extern "C"
