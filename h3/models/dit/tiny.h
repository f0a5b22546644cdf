// Random transformers small enough for tests, as checkpoints. Values depend on seed and tensor
// only, so both name styles hold the same model. No torch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "h3/models/dit/config.h"
#include "h3/models/dit/names.h"
#include "tessera/types.h"

namespace h3::dit {

struct RandomTensor {
  std::string name;
  tessera::Dtype dtype = tessera::Dtype::kF32;
  std::vector<int64_t> shape;
  std::vector<std::byte> data;
};

/// Every tensor of a checkpoint in file order: linear weights N(0, 1/sqrt(fan_in)), biases
/// N(0, 0.1), norm weights 1 + 0.1 N, q and k norm weights 2 + 0.3 N (attention far from uniform,
/// so that errors show). `dtype` f32 or bf16 (rounded); fp32 islands are always f32. Throws
/// kInvalidArgument for other types and for kComfy.
std::vector<RandomTensor> random_checkpoint(const DitConfig& config, NameStyle style,
                                            tessera::Dtype dtype, uint64_t seed);

/// Writes a transformer folder: config.json and random_checkpoint in three shards with their index.
/// The folder must exist.
void write_random_transformer(const std::string& folder, const DitConfig& config, NameStyle style,
                              tessera::Dtype dtype, uint64_t seed);

/// N(0, 1), the same on every machine: they depend on name and seed alone.
std::vector<float> random_normals(std::string_view name, size_t count, uint64_t seed);

/// Requests and encoded conditions (random) for `h3 denoise`, in an existing folder: NAME.json and
/// NAME.safetensors for t2va and fl2va, or for ref2va, small enough for a CPU. Throws as
/// write_sharded.
void write_example_requests(const std::string& folder, const DitConfig& config, bool ref2va,
                            uint64_t seed);

}  // namespace h3::dit
