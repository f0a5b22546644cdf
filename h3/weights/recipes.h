// What recipes need: memory, and a checkpoint that can serve them.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "h3/weights/checkpoint.h"
#include "h3/weights/recipe.h"

namespace h3::weights {

/// Bytes in memory of all tensors of the recipes.
uint64_t model_bytes(std::span<const TensorRecipe> recipes);

/// A tensor seen as [rows, columns]: 1-D as [n, 1], n-D as [first, product of the rest].
std::array<int64_t, 2> as_matrix(const std::vector<int64_t>& shape);

/// Whether read_rows can make `to` of `from`: equal types, bf16 to f32, and f32 to bf16 (rounded to
/// nearest even).
bool convertible(tessera::Dtype from, tessera::Dtype to);

/// Throws one kInvalidArgument with all faults: sources that are not there, blocks outside of their
/// source, types that cannot be converted, targets not covered exactly once.
void check_recipes(const Checkpoint& checkpoint, std::span<const TensorRecipe> recipes);

}  // namespace h3::weights
