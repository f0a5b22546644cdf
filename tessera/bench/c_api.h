// Plain C face of the library for benchmarks that pair it with another engine in one process
// (tools/bench_vs_torch.py and tools/bench_vs_peers.py load it through ctypes). Not installed and
// not stable: programs use the C++ interface.
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

// CUDA: the same calls on device pointers, enqueued on the caller's stream. In a build without CUDA
// they exist and answer with the code of kUnsupported.

/// Device lists i32 [B, H, Gq, width] with counts i32 [B, H, Gq], or bitmaps u32 [B, H, Gq,
/// ceil(Gk / 32)]; all contiguous. As an input exactly one form is given; tb_cuda_route fills index
/// and count, and the bitmap where it is not null.
struct TbCudaPlan {
  int32_t* index;
  int32_t* count;
  uint32_t* bitmap;
  int32_t width;  // slots of a row of `index`; 0 with bitmaps alone
};

struct TbCudaCall {
  int32_t device;   // CUDA ordinal
  void* stream;     // cudaStream_t
  void* workspace;  // device scratch of the size that the _workspace function gives; 256-byte
                    // aligned
  size_t workspace_bytes;
  const char* kernel;  // null or "": the dispatch table's choice
  int32_t check_plan;  // non-zero: check list values, which waits for the stream
};

/// `lse` (device f32 [B, H, Sq]) and `plan` may be null; without a plan the call is dense.
int tb_cuda_attend(const TbTensor* q, const TbTensor* k, const TbTensor* v, const TbTensor* out,
                   float* lse, const TbCudaPlan* plan, const TbCudaCall* call, TbMessage* message);

/// Scratch of such a call; `call`'s stream and workspace do not matter.
int tb_cuda_attend_workspace(const TbTensor* q, const TbTensor* k, const TbTensor* v,
                             const TbTensor* out, float* lse, const TbCudaPlan* plan,
                             const TbCudaCall* call, size_t* bytes, TbMessage* message);

/// Routes with config->keep blocks per row. `plan->width` must be config->keep, at most the number
/// of key blocks; `dense_rows` is device scratch u8 [B, Gq], which the router sets to 0.
int tb_cuda_route(const TbTensor* q, const TbTensor* k, const TbRouteConfig* config,
                  const TbCudaPlan* plan, uint8_t* dense_rows, const TbCudaCall* call,
                  TbMessage* message);

int tb_cuda_route_workspace(const TbTensor* q, const TbTensor* k, const TbRouteConfig* config,
                            const TbCudaCall* call, size_t* bytes, TbMessage* message);

}  // extern "C"
