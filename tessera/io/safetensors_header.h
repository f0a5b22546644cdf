// The JSON header of a safetensors file as data, with everything checked that needs no file size:
// syntax, nesting, duplicates, fields, types, number ranges.
//
//   {"__metadata__": {"k": "v"}, "q": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/status.h"
#include "tessera/types.h"

namespace tessera::io::detail {

/// Longest shape accepted.
inline constexpr size_t kMaxRank = 64;

/// Name of the header's entry for free text.
inline constexpr std::string_view kMetadataName = "__metadata__";

struct HeaderTensor {
  std::string name;
  Dtype dtype = Dtype::kF32;
  std::vector<int64_t> shape;  // every size >= 0, product of the non-zero sizes fits
  uint64_t begin = 0;          // bytes from the start of the data section
  uint64_t end = 0;
  uint64_t bytes = 0;  // by dtype and shape; not yet compared with begin and end
};

struct Header {
  std::vector<HeaderTensor> tensors;  // in the order of the text
  std::map<std::string, std::string> metadata;
};

/// Name in the file: "BF16", "F32", "BOOL", ...
std::string_view safetensors_dtype(Dtype dtype);

/// Bytes of a tensor. False if a size is negative, or if the product of the sizes other than 0,
/// times the element size, does not fit an int64. (Sizes beside a 0 count too: strides made from
/// them must not overflow.)
bool tensor_bytes(Dtype dtype, const std::vector<int64_t>& shape, uint64_t* bytes);

/// kInvalidArgument (kUnsupported for element types that the format knows and this library does
/// not); messages begin with `label`.
Status parse_header(std::string_view text, std::string_view label, Header* out);

}  // namespace tessera::io::detail
