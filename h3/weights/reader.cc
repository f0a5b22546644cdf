// Batches of reads, and the reads.
#include "h3/weights/reader.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "h3/common/error.h"
#include "h3/weights/faults.h"
#include "h3/weights/recipes.h"
#include "tessera/io/text.h"

namespace h3::weights {
namespace {

using tessera::Dtype;
using tessera::io::detail::errno_text;
using tessera::io::detail::in_quotes;

constexpr uint64_t kBatchAlignment = 64;
constexpr uint64_t kScratchBytes = uint64_t{256} << 10;  // stays in the second-level cache

uint64_t aligned(uint64_t bytes) {
  return (bytes + kBatchAlignment - 1) / kBatchAlignment * kBatchAlignment;
}

// Both buffers have `elements` elements and do not overlap. memcpy, because offsets in a file are
// aligned to the element, but scratch and target types are bytes here.
void convert(Dtype from, const std::byte* in, int64_t elements, std::byte* out) {
  if (from == Dtype::kBf16) {
    for (int64_t i = 0; i < elements; ++i) {
      uint16_t bits;
      std::memcpy(&bits, in + 2 * i, sizeof bits);
      const float value = tessera::bf16_to_f32(bits);
      std::memcpy(out + 4 * i, &value, sizeof value);
    }
    return;
  }
  for (int64_t i = 0; i < elements; ++i) {
    float value;
    std::memcpy(&value, in + 4 * i, sizeof value);
    const uint16_t bits = tessera::f32_to_bf16(value);
    std::memcpy(out + 2 * i, &bits, sizeof bits);
  }
}

[[noreturn]] void unreadable(const std::string& path, const std::string& reason) {
  throw Error(ErrorCode::kUnavailable, "cannot read " + in_quotes(path, 1024) + ": " + reason,
              "check the disk, or fetch the file again");
}

// Cuts a piece into items that fit into a batch.
void add_items(const Checkpoint& checkpoint, size_t recipe_at, const TensorRecipe& recipe,
               const Piece& piece, uint64_t batch_bytes, std::vector<ReadItem>& items) {
  const uint64_t row_bytes = static_cast<uint64_t>(piece.columns) * dtype_bytes(recipe.dtype);
  const int64_t most = std::max<int64_t>(1, static_cast<int64_t>(batch_bytes / row_bytes));
  for (int64_t done = 0; done < piece.rows; done += most) {
    ReadItem item;
    item.source = checkpoint.find(piece.source);
    item.recipe = recipe_at;
    item.row = piece.row + done;
    item.rows = std::min(most, piece.rows - done);
    item.column = piece.column;
    item.columns = piece.columns;
    item.target_row = piece.target_row + done;
    item.dtype = recipe.dtype;
    items.push_back(item);
  }
}

uint64_t first_byte(const ReadItem& item) {
  const auto [rows, columns] = as_matrix(item.source->shape);
  return item.source->offset +
         static_cast<uint64_t>(item.row * columns + item.column) * dtype_bytes(item.source->dtype);
}

}  // namespace

uint64_t ReadItem::file_bytes() const {
  return static_cast<uint64_t>(rows * columns) * dtype_bytes(source->dtype);
}

uint64_t ReadItem::memory_bytes() const {
  return static_cast<uint64_t>(rows * columns) * dtype_bytes(dtype);
}

std::vector<ReadBatch> plan_reads(const Checkpoint& checkpoint,
                                  std::span<const TensorRecipe> recipes, uint64_t batch_bytes) {
  std::vector<ReadItem> items;
  for (size_t i = 0; i < recipes.size(); ++i) {
    for (const Piece& piece : recipes[i].pieces) {
      add_items(checkpoint, i, recipes[i], piece, batch_bytes, items);
    }
  }
  std::sort(items.begin(), items.end(), [](const ReadItem& a, const ReadItem& b) {
    if (a.source->file != b.source->file) return a.source->file < b.source->file;
    return first_byte(a) < first_byte(b);
  });
  std::vector<ReadBatch> batches;
  for (ReadItem& item : items) {
    const uint64_t bytes = aligned(item.memory_bytes());
    if (batches.empty() || batches.back().buffer_bytes + bytes > aligned(batch_bytes)) {
      batches.emplace_back();
    }
    ReadBatch& batch = batches.back();
    item.batch_offset = batch.buffer_bytes;
    batch.buffer_bytes += bytes;
    batch.file_bytes += item.file_bytes();
    batch.items.push_back(item);
  }
  return batches;
}

void require_unchanged(const Checkpoint& checkpoint) {
  Faults faults(checkpoint.path());
  for (const CheckpointFile& file : checkpoint.files()) {
    struct stat info {};
    if (::stat(file.path.c_str(), &info) != 0) {
      faults.add(in_quotes(file.path, 1024) + ": " + errno_text(errno));
    } else if (static_cast<uint64_t>(info.st_size) != file.bytes) {
      faults.add(in_quotes(file.path, 1024) + " had " + std::to_string(file.bytes) +
                 " bytes when it was opened and has " + std::to_string(info.st_size) + " now");
    }
  }
  faults.throw_if_any("do not change a checkpoint while it is loaded; start again");
}

RowReader::RowReader(const Checkpoint& checkpoint, bool drop_cache)
    : checkpoint_(checkpoint),
      drop_cache_(drop_cache),
      descriptors_(checkpoint.files().size(), -1) {}

RowReader::~RowReader() {
  for (const int fd : descriptors_) {
    if (fd >= 0) ::close(fd);
  }
}

int RowReader::descriptor(size_t file) {
  if (descriptors_[file] < 0) {
    const std::string& path = checkpoint_.files()[file].path;
    const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (fd < 0) unreadable(path, errno_text(errno));
    ::posix_fadvise(fd, 0, 0, POSIX_FADV_SEQUENTIAL);  // a hint: failing costs only speed
    descriptors_[file] = fd;
  }
  return descriptors_[file];
}

void RowReader::read_bytes(size_t file, uint64_t offset, uint64_t bytes, std::byte* out) {
  const int fd = descriptor(file);
  for (uint64_t done = 0; done < bytes;) {
    const ssize_t n = ::pread(fd, out + done, bytes - done, static_cast<off_t>(offset + done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) unreadable(checkpoint_.files()[file].path, errno_text(errno));
    if (n == 0) unreadable(checkpoint_.files()[file].path, "it became shorter while it was read");
    done += static_cast<uint64_t>(n);
  }
  if (drop_cache_) {
    ::posix_fadvise(fd, static_cast<off_t>(offset), static_cast<off_t>(bytes), POSIX_FADV_DONTNEED);
  }
}

void RowReader::read_converted(const ReadItem& item, uint64_t offset, int64_t elements,
                               std::byte* out) {
  const Dtype from = item.source->dtype;
  if (from == item.dtype) {
    read_bytes(item.source->file, offset, static_cast<uint64_t>(elements) * dtype_bytes(from), out);
    return;
  }
  if (!scratch_) scratch_ = std::make_unique<std::byte[]>(kScratchBytes);
  const int64_t most = static_cast<int64_t>(kScratchBytes / dtype_bytes(from));
  for (int64_t done = 0; done < elements; done += most) {
    const int64_t count = std::min(most, elements - done);
    read_bytes(item.source->file, offset + static_cast<uint64_t>(done) * dtype_bytes(from),
               static_cast<uint64_t>(count) * dtype_bytes(from), scratch_.get());
    convert(from, scratch_.get(), count,
            out + static_cast<uint64_t>(done) * dtype_bytes(item.dtype));
  }
}

void RowReader::read(const ReadItem& item, std::byte* out) {
  const auto [source_rows, source_columns] = as_matrix(item.source->shape);
  const uint64_t offset = first_byte(item);
  if (item.columns == source_columns) {
    read_converted(item, offset, item.rows * item.columns, out);
    return;
  }
  const uint64_t file_row = static_cast<uint64_t>(source_columns) * dtype_bytes(item.source->dtype);
  const uint64_t memory_row = static_cast<uint64_t>(item.columns) * dtype_bytes(item.dtype);
  for (int64_t r = 0; r < item.rows; ++r) {
    read_converted(item, offset + static_cast<uint64_t>(r) * file_row, item.columns,
                   out + static_cast<uint64_t>(r) * memory_row);
  }
}

}  // namespace h3::weights
