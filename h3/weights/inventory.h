// A checkpoint against the list of tensors that a model needs: everything that differs, at once.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "h3/weights/checkpoint.h"
#include "h3/weights/faults.h"
#include "h3/weights/recipe.h"

namespace h3::weights {

struct Inventory {
  std::vector<std::string> missing, unexpected;
  std::vector<std::string> wrong_shape, wrong_dtype;  // with what was got and what is accepted
  bool ok() const {
    return missing.empty() && unexpected.empty() && wrong_shape.empty() && wrong_dtype.empty();
  }
};

/// Compares names, shapes and types. A tensor expected as bf16 may be f32 in the file (converted on
/// loading); one expected as f32 must be f32, because rounding it would lose what it is kept for.
/// `ignored` names may be there or not.
Inventory take_inventory(const Checkpoint& checkpoint, std::span<const SourceTensor> expected,
                         std::span<const std::string> ignored = {});

/// One entry per kind; long lists are cut (kListedNames) with a count of the rest.
void add_faults(const Inventory& inventory, Faults& faults);

/// Throws kInvalidArgument with everything that differs.
void require_inventory(const Checkpoint& checkpoint, std::span<const SourceTensor> expected,
                       std::span<const std::string> ignored = {});

}  // namespace h3::weights
