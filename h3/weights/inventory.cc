// Comparison of what is there with what is needed.
#include "h3/weights/inventory.h"

#include <algorithm>
#include <set>
#include <string_view>

#include "tessera/io/text.h"

namespace h3::weights {
namespace {

using tessera::Dtype;
using tessera::io::detail::printable;
using tessera::io::detail::shape_text;

bool accepted(Dtype got, Dtype expected) {
  return got == expected || (expected == Dtype::kBf16 && got == Dtype::kF32);
}

std::string accepted_text(Dtype expected) {
  return expected == Dtype::kBf16 ? "bf16 or f32" : std::string(dtype_name(expected));
}

}  // namespace

Inventory take_inventory(const Checkpoint& checkpoint, std::span<const SourceTensor> expected,
                         std::span<const std::string> ignored) {
  Inventory inventory;
  std::set<std::string_view> known(ignored.begin(), ignored.end());
  for (const SourceTensor& e : expected) {
    known.insert(e.name);
    const CheckpointTensor* got = checkpoint.find(e.name);
    if (got == nullptr) {
      inventory.missing.push_back(e.name);
      continue;
    }
    if (got->shape != e.shape) {
      inventory.wrong_shape.push_back(e.name + " is " + shape_text(got->shape) + ", needed " +
                                      shape_text(e.shape));
    }
    if (!accepted(got->dtype, e.dtype)) {
      inventory.wrong_dtype.push_back(e.name + " is " + std::string(dtype_name(got->dtype)) +
                                      ", needed " + accepted_text(e.dtype));
    }
  }
  for (const auto& [name, tensor] : checkpoint.tensors()) {
    if (!known.contains(name)) inventory.unexpected.push_back(printable(name));
  }
  return inventory;
}

void add_faults(const Inventory& inventory, Faults& faults) {
  faults.add_list("tensors missing", inventory.missing);
  faults.add_list("tensors unexpected", inventory.unexpected);
  faults.add_list("tensors of a wrong shape", inventory.wrong_shape);
  faults.add_list("tensors of a wrong type", inventory.wrong_dtype);
}

void require_inventory(const Checkpoint& checkpoint, std::span<const SourceTensor> expected,
                       std::span<const std::string> ignored) {
  Faults faults(checkpoint.path());
  add_faults(take_inventory(checkpoint, expected, ignored), faults);
  faults.throw_if_any(
      "the files and config.json must be of one and the same model; fetch both again");
}

}  // namespace h3::weights
