// The input of route, attend, compare and explain: q, k, v (and cu_seqlens) in a safetensors file.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "tessera/io/safetensors.h"
#include "tessera/layout.h"
#include "tessera/status.h"
#include "tessera/tensor_view.h"

namespace tessera::cli {

struct InputOptions {
  std::string path;
  float softmax_scale = 0;  // 0: 1 / sqrt(D)
  int64_t max_seqlen = 0;
};

/// IN, --softmax-scale and --max-seqlen.
void add_input_options(CLI::App* sub, InputOptions& options);

/// A loaded file. The views borrow from the mapping and are [B, S, H, D] in both cases; packed
/// input [T, H, D] has B = 1.
struct Input {
  io::SafetensorsFile file;
  std::string path;
  Bshd q, k, v;  // v is absent if it was not asked for
  bool packed = false;
  std::vector<int32_t> cu_seqlens;  // empty unless packed
  BlockLayout layout;

  std::span<const int32_t> documents() const { return cu_seqlens; }
  std::vector<int64_t> out_shape() const;  // of `out`: the rank of q in the file
};

/// Opens and checks everything that does not need tensor values. kInvalidArgument for missing
/// tensors, wrong ranks, shapes that do not fit, empty tensors and bad cu_seqlens; kUnsupported for
/// element types and head widths without a kernel.
Status load_input(const InputOptions& options, bool need_v, Input* out);

/// Refuses NaN and infinity in rows that belong to a document: tensor, first position and count.
/// Rows outside all documents are not looked at. `threads` 0: all hardware threads.
Status check_finite(const Input& input, int threads);

}  // namespace tessera::cli
