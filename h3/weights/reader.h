// Reading parts of a checkpoint into memory of the caller, in batches that many threads share.
//
// Data is read with pread, not through the mapping: large reads need no page faults on the source,
// and a file that became shorter is an error instead of a SIGBUS.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "h3/weights/checkpoint.h"
#include "h3/weights/recipe.h"

namespace h3::weights {

/// A block of rows of one piece. Its target is contiguous.
struct ReadItem {
  const CheckpointTensor* source = nullptr;
  size_t recipe = 0;                                   // index into the recipes
  int64_t row = 0, rows = 0, column = 0, columns = 0;  // of the source as a matrix
  int64_t target_row = 0;
  tessera::Dtype dtype = tessera::Dtype::kBf16;  // in memory
  uint64_t batch_offset = 0;                     // in a buffer that holds the whole batch

  uint64_t file_bytes() const;
  uint64_t memory_bytes() const;
};

/// Items whose offsets are multiples of 64.
struct ReadBatch {
  std::vector<ReadItem> items;
  uint64_t file_bytes = 0;
  uint64_t buffer_bytes = 0;
};

/// All that the recipes need, in the order of the files, so that the disk reads forward. Batches
/// have at most `batch_bytes` of buffer unless a single row is larger. Call check_recipes first.
/// The items point into `checkpoint`.
std::vector<ReadBatch> plan_reads(const Checkpoint& checkpoint,
                                  std::span<const TensorRecipe> recipes, uint64_t batch_bytes);

/// Throws kInvalidArgument if a file of the checkpoint is gone or has another size than at opening.
void require_unchanged(const Checkpoint& checkpoint);

/// Reads items. One per thread: each has descriptors of its own, so that the kernel sees forward
/// reads. `checkpoint` must outlive it.
class RowReader {
 public:
  /// `drop_cache` lets go of the page cache behind every read.
  explicit RowReader(const Checkpoint& checkpoint, bool drop_cache = false);
  ~RowReader();
  RowReader(const RowReader&) = delete;
  RowReader& operator=(const RowReader&) = delete;

  /// Writes item.memory_bytes() to `out`, converted to item.dtype. Throws kUnavailable for read
  /// errors and for files that became shorter.
  void read(const ReadItem& item, std::byte* out);

 private:
  int descriptor(size_t file);
  void read_bytes(size_t file, uint64_t offset, uint64_t bytes, std::byte* out);
  void read_converted(const ReadItem& item, uint64_t offset, int64_t elements, std::byte* out);

  const Checkpoint& checkpoint_;
  bool drop_cache_;
  std::vector<int> descriptors_;          // per file, -1: not opened
  std::unique_ptr<std::byte[]> scratch_;  // file data that waits for its conversion
};

}  // namespace h3::weights
