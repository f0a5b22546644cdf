// Checks that turn a wrong recipe into a message before any tensor is allocated.
#include "h3/weights/recipes.h"

#include <algorithm>
#include <string>

#include "h3/weights/faults.h"

namespace h3::weights {
namespace {

using tessera::Dtype;

// Empty: the piece is fine.
std::string piece_fault(const Checkpoint& checkpoint, const TensorRecipe& recipe, const Piece& p) {
  const CheckpointTensor* source = checkpoint.find(p.source);
  if (source == nullptr) return p.source + " is not in the checkpoint";
  const auto [rows, columns] = as_matrix(source->shape);
  const bool inside = p.row >= 0 && p.rows > 0 && p.row <= rows - p.rows && p.column >= 0 &&
                      p.columns > 0 && p.column <= columns - p.columns;
  if (!inside) {
    return "rows " + std::to_string(p.row) + "+" + std::to_string(p.rows) + ", columns " +
           std::to_string(p.column) + "+" + std::to_string(p.columns) + " are outside of " +
           p.source + " [" + std::to_string(rows) + ", " + std::to_string(columns) + "]";
  }
  if (!convertible(source->dtype, recipe.dtype)) {
    return p.source + " is " + std::string(dtype_name(source->dtype)) + ", which cannot become " +
           std::string(dtype_name(recipe.dtype));
  }
  return "";
}

bool covered_once(const TensorRecipe& recipe) {
  const auto [rows, columns] = as_matrix(recipe.shape);
  std::vector<const Piece*> pieces;
  for (const Piece& p : recipe.pieces) pieces.push_back(&p);
  std::sort(pieces.begin(), pieces.end(),
            [](const Piece* a, const Piece* b) { return a->target_row < b->target_row; });
  int64_t at = 0;
  for (const Piece* p : pieces) {
    if (p->target_row != at || p->columns != columns) return false;
    at += p->rows;
  }
  return at == rows;
}

}  // namespace

std::array<int64_t, 2> as_matrix(const std::vector<int64_t>& shape) {
  if (shape.empty()) return {1, 1};
  int64_t columns = 1;
  for (size_t i = 1; i < shape.size(); ++i) columns *= shape[i];
  return {shape.front(), columns};
}

uint64_t model_bytes(std::span<const TensorRecipe> recipes) {
  uint64_t bytes = 0;
  for (const TensorRecipe& recipe : recipes) {
    const auto [rows, columns] = as_matrix(recipe.shape);
    bytes += static_cast<uint64_t>(rows * columns) * dtype_bytes(recipe.dtype);
  }
  return bytes;
}

bool convertible(Dtype from, Dtype to) {
  return from == to || (from == Dtype::kBf16 && to == Dtype::kF32) ||
         (from == Dtype::kF32 && to == Dtype::kBf16);
}

void check_recipes(const Checkpoint& checkpoint, std::span<const TensorRecipe> recipes) {
  std::vector<std::string> wrong, uncovered;
  for (const TensorRecipe& recipe : recipes) {
    for (const Piece& piece : recipe.pieces) {
      const std::string fault = piece_fault(checkpoint, recipe, piece);
      if (!fault.empty()) wrong.push_back(recipe.name + ": " + fault);
    }
    if (!covered_once(recipe)) uncovered.push_back(recipe.name);
  }
  Faults faults(checkpoint.path());
  faults.add_list("parts that cannot be read", wrong);
  faults.add_list("tensors that the parts do not cover exactly once", uncovered);
  faults.throw_if_any("compare the checkpoint with the model (h3 inspect)");
}

}  // namespace h3::weights
