// How tensors of a model are put together from tensors of a checkpoint: pieces of rows and columns.
// Renaming, fused matrices, interleaved heads, swapped halves and tensor-parallel shards are all
// lists of pieces, so a loader needs to know nothing else. No torch.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tessera/types.h"

namespace h3::weights {

/// A block of a source tensor seen as [rows, columns] (1-D tensors: [rows, 1]).
struct Piece {
  std::string source;         // name in the checkpoint
  int64_t row = 0, rows = 0;  // of the source
  int64_t column = 0, columns = 0;
  int64_t target_row = 0;  // target columns start at 0
};

struct TensorRecipe {
  std::string name;                              // of the model
  std::vector<int64_t> shape;                    // of the model's tensor on this rank
  tessera::Dtype dtype = tessera::Dtype::kBf16;  // in memory
  std::vector<Piece> pieces;                     // cover the target exactly once
};

/// What the checkpoint must hold for the recipes, whole tensors.
struct SourceTensor {
  std::string name;
  std::vector<int64_t> shape;
  tessera::Dtype dtype = tessera::Dtype::kBf16;
};

}  // namespace h3::weights
