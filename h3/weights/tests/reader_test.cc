#include "h3/weights/reader.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <limits>
#include <random>
#include <thread>

#include "h3/weights/recipes.h"
#include "h3/weights/tests/checkpoint_files.h"

namespace h3::weights {
namespace {

using tessera::Dtype;

constexpr uint32_t kSeed = 606;

// What all batches write, per recipe.
std::vector<std::vector<std::byte>> read_all(const Checkpoint& checkpoint,
                                             const std::vector<TensorRecipe>& recipes,
                                             uint64_t batch_bytes, int threads = 1) {
  check_recipes(checkpoint, recipes);
  std::vector<std::vector<std::byte>> out;
  for (const TensorRecipe& recipe : recipes) {
    out.emplace_back(model_bytes(std::span(&recipe, 1)), std::byte{0xee});
  }
  const auto batches = plan_reads(checkpoint, recipes, batch_bytes);
  std::atomic<size_t> next{0};
  std::vector<std::thread> pool;
  for (int t = 0; t < threads; ++t) {
    pool.emplace_back([&] {
      RowReader reader(checkpoint);
      for (size_t at; (at = next++) < batches.size();) {
        for (const ReadItem& item : batches[at].items) {
          reader.read(item, out[item.recipe].data() +
                                static_cast<uint64_t>(item.target_row * item.columns) *
                                    dtype_bytes(item.dtype));
        }
      }
    });
  }
  for (std::thread& thread : pool) thread.join();
  return out;
}

std::vector<float> floats(const std::vector<std::byte>& bytes) {
  std::vector<float> values(bytes.size() / 4);
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

// Rows 4-6 then 0-1, columns 2-4 of a [7, 5] matrix.
TEST(Reader, RowAndColumnBlocks_LandWhereTheRecipeSays) {
  Folder folder;
  write_tensors(folder / "m.safetensors", {counted("a", {7, 5}), counted("v", {3}, 100)});
  const Checkpoint checkpoint = Checkpoint::open(folder.path());
  const std::vector<TensorRecipe> recipes{
      {"block", {5, 3}, Dtype::kF32, {{"a", 0, 2, 2, 3, 3}, {"a", 4, 3, 2, 3, 0}}},
      {"vector", {3}, Dtype::kF32, {{"v", 2, 1, 0, 1, 0}, {"v", 0, 2, 0, 1, 1}}}};
  for (const uint64_t batch : {1u, 24u, 64u, 1u << 20}) {
    const auto out = read_all(checkpoint, recipes, batch);
    EXPECT_EQ(floats(out[0]),
              (std::vector<float>{22, 23, 24, 27, 28, 29, 32, 33, 34, 2, 3, 4, 7, 8, 9}));
    EXPECT_EQ(floats(out[1]), (std::vector<float>{102, 100, 101}));
  }
}

TEST(Reader, Conversions_AreExact) {
  SCOPED_TRACE("seed " + std::to_string(kSeed));
  std::mt19937 random(kSeed);
  F32Tensor tensor{"a", {300, 1001}, {}};  // more than the scratch holds
  for (int i = 0; i < 300 * 1001; ++i) {
    tensor.values.push_back(
        std::ldexp(static_cast<float>(random()), static_cast<int>(random() % 200) - 130));
  }
  tensor.values[0] = std::numeric_limits<float>::infinity();
  tensor.values[1] = -0.0f;
  tensor.values[2] = 1 + 0x1p-8f;  // half between two bf16: to even
  tensor.values[3] = 1 + 0x3p-8f;
  for (const Dtype from : {Dtype::kF32, Dtype::kBf16}) {
    Folder folder;
    write_tensors(folder / "m.safetensors", {tensor}, from);
    const Checkpoint checkpoint = Checkpoint::open(folder.path());
    for (const Dtype to : {Dtype::kF32, Dtype::kBf16}) {
      const std::vector<TensorRecipe> recipes{{"a", {300, 1001}, to, {{"a", 0, 300, 0, 1001, 0}}}};
      const auto out = read_all(checkpoint, recipes, 1 << 18)[0];
      for (size_t i = 0; i < tensor.values.size(); ++i) {
        const float kept =
            from == Dtype::kBf16 ? tessera::round_bf16(tensor.values[i]) : tensor.values[i];
        float got;
        if (to == Dtype::kF32) {
          std::memcpy(&got, out.data() + 4 * i, 4);
          ASSERT_EQ(got, kept) << i;
        } else {
          uint16_t bits;
          std::memcpy(&bits, out.data() + 2 * i, 2);
          ASSERT_EQ(tessera::bf16_to_f32(bits), tessera::round_bf16(kept)) << i;
        }
      }
    }
  }
}

TEST(Reader, Threads_GiveTheSameBytes) {
  Folder folder;
  std::vector<F32Tensor> tensors;
  std::vector<TensorRecipe> recipes;
  for (int i = 0; i < 12; ++i) {
    const std::string name = "t" + std::to_string(i);
    tensors.push_back(counted(name, {40 + i, 33}, static_cast<float>(1000 * i)));
    recipes.push_back({name,
                       {40 + i, 33},
                       Dtype::kF32,
                       {{name, 20, 20 + i, 0, 33, 0}, {name, 0, 20, 0, 33, 20 + i}}});
  }
  write_tensors(folder / "m.safetensors", tensors);
  const Checkpoint checkpoint = Checkpoint::open(folder.path());
  EXPECT_EQ(read_all(checkpoint, recipes, 2000, 4), read_all(checkpoint, recipes, 1 << 20));
}

TEST(Reader, Batches_AreBoundedAlignedAndInFileOrder) {
  Folder folder;
  write_tensors(folder / "m.safetensors", {counted("a", {64, 16}), counted("b", {10, 16})});
  const Checkpoint checkpoint = Checkpoint::open(folder.path());
  const std::vector<TensorRecipe> recipes{
      {"b", {10, 16}, Dtype::kBf16, {{"b", 0, 10, 0, 16, 0}}},
      {"a", {64, 16}, Dtype::kBf16, {{"a", 32, 32, 0, 16, 0}, {"a", 0, 32, 0, 16, 32}}}};
  uint64_t last = 0, file_bytes = 0;
  for (const ReadBatch& batch : plan_reads(checkpoint, recipes, 512)) {
    EXPECT_LE(batch.buffer_bytes, 512u);
    uint64_t end = 0;
    for (const ReadItem& item : batch.items) {
      EXPECT_EQ(item.batch_offset % 64, 0u);
      EXPECT_GE(item.batch_offset, end);
      end = item.batch_offset + item.memory_bytes();
      EXPECT_LE(end, batch.buffer_bytes);
      const uint64_t at = item.source->offset + static_cast<uint64_t>(item.row) * 64;
      EXPECT_GE(at, last);
      last = at;
    }
    file_bytes += batch.file_bytes;
  }
  EXPECT_EQ(file_bytes, checkpoint.tensor_bytes());
}

TEST(Reader, ChangedFiles_AreErrors) {
  Folder folder;
  write_tensors(folder / "m.safetensors", {counted("a", {2000, 16})});
  const Checkpoint checkpoint = Checkpoint::open(folder.path());
  const std::vector<TensorRecipe> recipes{
      {"a", {2000, 16}, Dtype::kF32, {{"a", 0, 2000, 0, 16, 0}}}};
  const auto batches = plan_reads(checkpoint, recipes, 1 << 20);
  std::vector<std::byte> out(2000 * 64);
  EXPECT_NO_THROW(require_unchanged(checkpoint));

  std::filesystem::resize_file(folder / "m.safetensors", 64000);
  expect_parts(refusal([&] { require_unchanged(checkpoint); }),
               {"m.safetensors' had", "has 64000 now"});
  RowReader reader(checkpoint);
  expect_parts(
      refusal([&] { reader.read(batches[0].items[0], out.data()); }, ErrorCode::kUnavailable),
      {"became shorter"});
  std::filesystem::remove(folder / "m.safetensors");
  expect_parts(refusal([&] { require_unchanged(checkpoint); }), {"No such file"});
  RowReader late(checkpoint);
  expect_parts(
      refusal([&] { late.read(batches[0].items[0], out.data()); }, ErrorCode::kUnavailable),
      {"cannot read", "m.safetensors", "No such file"});
}

}  // namespace
}  // namespace h3::weights
