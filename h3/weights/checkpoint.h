// The tensors of a checkpoint on disk: one safetensors file, or shards with an index. Files are
// mapped and every header is checked on opening; no tensor data is read.
//
//   const Checkpoint checkpoint = Checkpoint::open("model/transformer");
//   const CheckpointTensor* t = checkpoint.find("blocks.0.norm1.weight");
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/types.h"

namespace h3::weights {

/// Prefix of Comfy files, stripped from the names.
inline constexpr std::string_view kComfyPrefix = "model.diffusion_model.";

struct CheckpointTensor {
  std::string name;  // without kComfyPrefix
  tessera::Dtype dtype = tessera::Dtype::kBf16;
  std::vector<int64_t> shape;
  size_t file = 0;                  // index into files()
  uint64_t offset = 0, bytes = 0;   // in the file
  const std::byte* data = nullptr;  // in the mapping, row-major; lives as long as a Checkpoint copy
};

struct CheckpointFile {
  std::string path;
  uint64_t bytes = 0;  // at opening
  std::shared_ptr<void> mapping;
};

/// Copies share the mappings.
class Checkpoint {
 public:
  /// `path`: a .safetensors file, an index file (*.safetensors.index.json), or a folder with
  /// model.safetensors.index.json, diffusion_pytorch_model.safetensors.index.json or exactly one
  /// .safetensors file. Throws one kInvalidArgument with every fault: missing, truncated or damaged
  /// shards, an index that lies (a tensor that its shard lacks, that another shard holds or that no
  /// entry lists, a total_size other than the sum), names given twice. The files must not be
  /// shortened while they are open.
  static Checkpoint open(const std::string& path);

  const std::string& path() const { return path_; }
  const std::vector<CheckpointFile>& files() const { return files_; }
  const std::map<std::string, CheckpointTensor, std::less<>>& tensors() const { return tensors_; }
  const CheckpointTensor* find(std::string_view name) const;  // nullptr if absent
  std::vector<std::string> names() const;
  uint64_t tensor_bytes() const;
  /// Whether any name had kComfyPrefix.
  bool prefixed() const { return prefixed_; }

 private:
  std::string path_;
  std::vector<CheckpointFile> files_;
  std::map<std::string, CheckpointTensor, std::less<>> tensors_;
  bool prefixed_ = false;
};

}  // namespace h3::weights
