// Reading and writing safetensors files (https://github.com/huggingface/safetensors, format 0.x).
//
//   SafetensorsFile file;
//   if (Status s = SafetensorsFile::open("in.safetensors", &file); !s.ok()) return s;
//   const SafetensorsEntry* q = file.find("q");
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/status.h"
#include "tessera/tensor_view.h"
#include "tessera/types.h"

namespace tessera::io {

/// Largest header accepted, in bytes (the limit of the reference implementation).
inline constexpr uint64_t kMaxHeaderBytes = 100'000'000;

struct SafetensorsEntry {
  std::string name;
  Dtype dtype = Dtype::kF32;
  std::vector<int64_t> shape;
  const std::byte* data = nullptr;  // row-major, inside the mapping, aligned to the element size
  size_t bytes = 0;
};

/// A memory-mapped file. Move-only; entries borrow from it.
class SafetensorsFile {
 public:
  SafetensorsFile() = default;
  SafetensorsFile(SafetensorsFile&&) = default;
  SafetensorsFile& operator=(SafetensorsFile&&) = default;

  /// Maps `path` read-only and checks the whole header before anything is used: length against the
  /// file, JSON syntax, duplicate keys, known dtypes, non-negative shapes without overflow, offsets
  /// in range that match dtype and shape, no gaps or overlaps. Tensors whose data is not aligned to
  /// their element size are refused. Errors name the file, the tensor, the value got and what is
  /// accepted: kIo for what cannot be read (missing, folder, FIFO, empty file), kUnsupported for
  /// element types of the format without a Dtype (F8_E4M3, ...), else kInvalidArgument. `out` is
  /// only changed on success. The file must not be shortened while it is open.
  static Status open(const std::string& path, SafetensorsFile* out);

  /// Parses bytes already in memory; `bytes` must outlive the file and be aligned to 8. `label`
  /// stands for the path in messages.
  static Status parse(const std::byte* bytes, size_t size, std::string_view label,
                      SafetensorsFile* out);

  /// In the order of the data in the file.
  const std::vector<SafetensorsEntry>& entries() const { return entries_; }
  const SafetensorsEntry* find(std::string_view name) const;  // nullptr if absent
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  const std::string& label() const { return label_; }

 private:
  std::shared_ptr<void> mapping_;
  std::string label_;  // path, for messages
  std::vector<SafetensorsEntry> entries_;
  std::map<std::string, std::string> metadata_;
};

struct SafetensorsItem {
  std::string name;
  Dtype dtype = Dtype::kF32;
  std::vector<int64_t> shape;
  const void* data = nullptr;  // row-major, contiguous
};

/// Writes to a temporary file beside `path`, then renames it, so that an existing file is never
/// left half-written. The data section starts on a 64-byte boundary of the file and holds no gaps
/// (the format allows none): tensors are ordered by the power of two that divides their size, so
/// that those of a multiple of 64 bytes start on a 64-byte boundary and every tensor is aligned to
/// its element size. Equal items give equal files. kIo with the reason (errno text) if the folder
/// is missing, not writable or the disk is full, or if `path` exists and is no regular file; the
/// temporary file is then removed. kInvalidArgument for names given twice or not UTF-8, negative
/// or overflowing shapes, and null data of a tensor that has elements.
Status write_safetensors(const std::string& path, const std::vector<SafetensorsItem>& items,
                         const std::map<std::string, std::string>& metadata = {});

/// The same rule for any bytes (reports, pictures).
Status write_file_atomic(const std::string& path, const void* data, size_t bytes);

}  // namespace tessera::io
