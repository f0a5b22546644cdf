#include "h3/weights/loader.h"

#include <ATen/ops/equal.h>
#include <ATen/ops/from_blob.h>
#include <gtest/gtest.h>

#include <stdexcept>

#include "h3/weights/recipes.h"
#include "h3/weights/tests/checkpoint_files.h"

namespace h3::weights {
namespace {

using tessera::Dtype;

at::Tensor tensor_of(F32Tensor& t) { return at::from_blob(t.values.data(), t.shape, at::kFloat); }

TEST(Loader, Tensors_AreThePiecesInTheirType) {
  Folder folder;
  F32Tensor a = counted("a", {600, 50}), v = counted("v", {7}, -3);
  write_tensors(folder / "m.safetensors", {a, v}, Dtype::kBf16);
  const Checkpoint checkpoint = Checkpoint::open(folder.path());
  const at::Tensor rounded = tensor_of(a).to(at::kBFloat16);
  const std::vector<TensorRecipe> recipes{
      {"same", {600, 50}, Dtype::kBf16, {{"a", 0, 600, 0, 50, 0}}},
      {"wide", {600, 50}, Dtype::kF32, {{"a", 300, 300, 0, 50, 0}, {"a", 0, 300, 0, 50, 300}}},
      {"columns", {600, 20}, Dtype::kF32, {{"a", 0, 600, 30, 20, 0}}},
      {"v", {7}, Dtype::kF32, {{"v", 0, 7, 0, 1, 0}}}};
  for (const int threads : {0, 1, 3}) {
    const auto tensors = load_tensors(checkpoint, recipes, {.threads = threads});
    ASSERT_EQ(tensors.size(), 4u);
    EXPECT_TRUE(at::equal(tensors.at("same"), rounded));
    const at::Tensor& wide = tensors.at("wide");
    EXPECT_TRUE(at::equal(wide.slice(0, 0, 300), rounded.slice(0, 300).to(at::kFloat)));
    EXPECT_TRUE(at::equal(wide.slice(0, 300), rounded.slice(0, 0, 300).to(at::kFloat)));
    EXPECT_TRUE(at::equal(tensors.at("columns"), rounded.slice(1, 30).to(at::kFloat)));
    EXPECT_TRUE(at::equal(tensors.at("v"), tensor_of(v)));
    for (const auto& [name, t] : tensors) EXPECT_TRUE(t.is_contiguous()) << name;
  }
}

// Several batches: more than one thread has to write into one tensor.
TEST(Loader, LargeTensor_IsWhole) {
  Folder folder;
  F32Tensor a = counted("a", {5000, 1000});  // 20 MB; whole numbers below 2^24 are exact
  write_tensors(folder / "m.safetensors", {a});
  const Checkpoint checkpoint = Checkpoint::open(folder.path());
  const std::vector<TensorRecipe> recipes{
      {"a", {5000, 1000}, Dtype::kF32, {{"a", 0, 5000, 0, 1000, 0}}}};
  const auto tensors = load_tensors(checkpoint, recipes, {.threads = 4, .drop_page_cache = true});
  EXPECT_TRUE(at::equal(tensors.at("a"), tensor_of(a)));
}

TEST(Loader, Progress_EndsAtTheTotal) {
  Folder folder;
  write_tensors(folder / "m.safetensors", {counted("a", {100, 10}), counted("unused", {10})});
  const Checkpoint checkpoint = Checkpoint::open(folder.path());
  const std::vector<TensorRecipe> recipes{
      {"a", {100, 10}, Dtype::kBf16, {{"a", 0, 100, 0, 10, 0}}}};
  LoadProgress last;
  load_tensors(checkpoint, recipes, {.progress = [&](const LoadProgress& p) { last = p; }});
  EXPECT_EQ(last.bytes_done, 4000u);
  EXPECT_EQ(last.bytes_total, 4000u);
  EXPECT_GT(last.gb_per_second(), 0);
}

TEST(Loader, WhatProgressThrows_EndsTheLoad) {
  Folder folder;
  write_tensors(folder / "m.safetensors", {counted("a", {100, 10})});
  const Checkpoint checkpoint = Checkpoint::open(folder.path());
  const std::vector<TensorRecipe> recipes{{"a", {100, 10}, Dtype::kF32, {{"a", 0, 100, 0, 10, 0}}}};
  EXPECT_THROW(load_tensors(checkpoint, recipes, {.progress = [](const LoadProgress&) -> void {
                              throw std::runtime_error("cancelled");
                            }}),
               std::runtime_error);
}

// 1 TiB of zeros that take no disk. Had it been allocated first, memory would be the complaint.
TEST(Loader, CutFile_FailsBeforeAnythingIsAllocated) {
  Folder folder;
  const std::string path = folder / "m.safetensors";
  const std::string header = R"({"a": {"dtype": "F32", "shape": [1048576, 262144], )"
                             R"("data_offsets": [0, 1099511627776]}}       )";
  const uint64_t header_bytes = header.size() / 8 * 8;
  std::string begin(8, '\0');
  std::memcpy(begin.data(), &header_bytes, 8);
  write_file(path, begin + header.substr(0, header_bytes));
  const auto whole = 8 + header_bytes + (uint64_t{1} << 40);
  std::filesystem::resize_file(path, whole);
  const Checkpoint checkpoint = Checkpoint::open(path);
  const std::vector<TensorRecipe> recipes{
      {"a", {1048576, 262144}, Dtype::kF32, {{"a", 0, 1048576, 0, 262144, 0}}}};
  std::filesystem::resize_file(path, whole - 1);
  expect_parts(refusal([&] { load_tensors(checkpoint, recipes); }),
               {"m.safetensors", "has " + std::to_string(whole - 1) + " now"});
  expect_parts(refusal([&] { Checkpoint::open(path); }), {"truncated"});
}

TEST(Loader, UncoveredTensor_IsRefused) {
  Folder folder;
  write_tensors(folder / "m.safetensors", {counted("a", {100, 10})});
  const Checkpoint checkpoint = Checkpoint::open(folder.path());
  const std::vector<TensorRecipe> recipes{{"b", {101, 10}, Dtype::kF32, {{"a", 0, 100, 0, 10, 0}}}};
  expect_parts(refusal([&] { load_tensors(checkpoint, recipes); }),
               {"do not cover exactly once: b"});
}

TEST(Loader, BadThreadCount_IsRefused) {
  Folder folder;
  write_tensors(folder / "m.safetensors", {counted("a", {1})});
  const Checkpoint checkpoint = Checkpoint::open(folder.path());
  expect_parts(refusal([&] { load_tensors(checkpoint, {}, {.threads = -1}); }), {"threads are -1"});
  EXPECT_TRUE(load_tensors(checkpoint, {}).empty());
}

}  // namespace
}  // namespace h3::weights
