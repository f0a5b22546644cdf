#include "h3/weights/inventory.h"

#include <gtest/gtest.h>

#include "h3/weights/recipes.h"
#include "h3/weights/tests/checkpoint_files.h"

namespace h3::weights {
namespace {

using tessera::Dtype;

Checkpoint open_written(const Folder& folder, const std::vector<F32Tensor>& tensors,
                        Dtype dtype = Dtype::kF32) {
  write_tensors(folder / "m.safetensors", tensors, dtype);
  return Checkpoint::open(folder.path());
}

TEST(Inventory, EverythingThere_IsOk) {
  Folder folder;
  const Checkpoint c = open_written(folder, {counted("a", {2, 2}), counted("b", {3})});
  const std::vector<SourceTensor> expected{{"a", {2, 2}, Dtype::kF32}, {"b", {3}, Dtype::kBf16}};
  EXPECT_TRUE(take_inventory(c, expected).ok());  // f32 in place of bf16 is converted
  EXPECT_NO_THROW(require_inventory(c, expected));
}

TEST(Inventory, EveryKindOfFault_IsTold) {
  Folder folder;
  const Checkpoint c = open_written(folder,
                                    {counted("shape", {2, 2}), counted("type", {3}),
                                     counted("extra", {1}), counted("maybe", {1})},
                                    Dtype::kBf16);
  const std::vector<SourceTensor> expected{{"shape", {4, 1}, Dtype::kBf16},
                                           {"type", {3}, Dtype::kF32},
                                           {"gone", {1}, Dtype::kBf16},
                                           {"gone2", {1}, Dtype::kBf16}};
  const std::vector<std::string> ignored{"maybe", "maybe not"};
  expect_parts(
      refusal([&] { require_inventory(c, expected, ignored); }),
      {"4 faults", "2 tensors missing: gone, gone2", "1 tensors unexpected: extra\n",
       "wrong shape: shape is [2, 2], needed [4, 1]", "wrong type: type is bf16, needed f32"});
  EXPECT_EQ(take_inventory(c, expected).unexpected.size(), 2u);
}

TEST(Inventory, OtherTypes_AreRefused) {
  Folder folder;
  const uint16_t half = 0;
  ASSERT_TRUE(
      tessera::io::write_safetensors(folder / "m.safetensors", {{"h", Dtype::kF16, {1}, &half}})
          .ok());
  const Checkpoint c = Checkpoint::open(folder.path());
  const std::vector<SourceTensor> expected{{"h", {1}, Dtype::kBf16}};
  expect_parts(refusal([&] { require_inventory(c, expected); }), {"h is f16, needed bf16 or f32"});
}

TensorRecipe recipe(const std::string& name, std::vector<int64_t> shape,
                    std::vector<Piece> pieces) {
  return {name, std::move(shape), Dtype::kF32, std::move(pieces)};
}

TEST(Recipes, Bytes_AreThoseInMemory) {
  const std::vector<TensorRecipe> recipes{
      {"a", {3, 5}, Dtype::kBf16, {}}, {"b", {7}, Dtype::kF32, {}}, {"c", {}, Dtype::kF32, {}}};
  EXPECT_EQ(model_bytes(recipes), 30u + 28u + 4u);
}

TEST(Recipes, Faults_AreToldAtOnce) {
  Folder folder;
  const Checkpoint c = open_written(folder, {counted("a", {4, 6}), counted("b", {3})});
  const std::vector<TensorRecipe> good{
      recipe("whole", {4, 6}, {{"a", 0, 4, 0, 6, 0}}),
      recipe("swapped", {4, 3}, {{"a", 2, 2, 3, 3, 0}, {"a", 0, 2, 0, 3, 2}}),
      recipe("vector", {3}, {{"b", 0, 3, 0, 1, 0}})};
  EXPECT_NO_THROW(check_recipes(c, good));
  const std::vector<TensorRecipe> bad{
      recipe("absent", {1, 1}, {{"x", 0, 1, 0, 1, 0}}),
      recipe("below", {2, 6}, {{"a", 3, 2, 0, 6, 0}}),
      recipe("right", {4, 6}, {{"a", 0, 4, 1, 6, 0}}),
      recipe("negative", {4, 6}, {{"a", -1, 4, 0, 6, 0}}),
      recipe("hole", {4, 6}, {{"a", 0, 3, 0, 6, 0}}),
      recipe("overlap", {4, 6}, {{"a", 0, 3, 0, 6, 0}, {"a", 2, 2, 0, 6, 2}}),
      recipe("narrow", {4, 6}, {{"a", 0, 4, 0, 5, 0}}),
      {"type", {3}, Dtype::kF16, {{"b", 0, 3, 0, 1, 0}}}};
  const std::string text = refusal([&] { check_recipes(c, bad); });
  expect_parts(text, {"absent: x is not in the checkpoint", "below: rows 3+2", "right: rows 0+4",
                      "negative: rows -1+4", "outside of a [4, 6]",
                      "3 tensors that the parts do not cover exactly once: hole, overlap, narrow",
                      "type: b is f32, which cannot become f16"});
}

}  // namespace
}  // namespace h3::weights
