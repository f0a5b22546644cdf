// Runs the built `tessera` binary on files in a private folder and reads back what it wrote.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "tessera/io/safetensors.h"

namespace tessera::cli_test {

struct Outcome {
  int exit_code = -1;
  std::string out;  // stdout
  std::string err;  // stderr
};

/// A folder that is removed with its content.
class TempFolder {
 public:
  TempFolder();
  ~TempFolder();
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;

  std::string path(const std::string& name) const { return (root_ / name).string(); }
  /// Names of all files inside, sorted.
  std::vector<std::string> names() const;

 private:
  std::filesystem::path root_;
};

/// The program under test: $TESSERA_BINARY if set (a bundle on another machine), else the built
/// one.
std::string tessera_binary();

/// Runs `tessera` with these arguments, stdin closed and stdout and stderr caught.
Outcome run_tessera(const std::vector<std::string>& args, const TempFolder& folder);

/// A tensor in memory: f32 values, stored as `dtype`.
struct Tensor {
  std::string name;
  Dtype dtype = Dtype::kF32;
  std::vector<int64_t> shape;
  std::vector<float> values;
};

/// `count(shape)` copies of `value`.
Tensor filled(const std::string& name, std::vector<int64_t> shape, float value,
              Dtype dtype = Dtype::kBf16);

/// Seeded values in [-1, 1); the seed is part of the failure text through SCOPED_TRACE by callers.
Tensor random_tensor(const std::string& name, std::vector<int64_t> shape, uint64_t seed,
                     float scale = 1.0f, Dtype dtype = Dtype::kBf16);

/// An i32 tensor from values.
Tensor integers(const std::string& name, std::vector<int64_t> shape,
                const std::vector<int32_t>& values);

/// Writes the tensors; fails the test if that does not work.
void write_file(const std::string& path, const std::vector<Tensor>& tensors);

/// Reads one tensor of a file as f32 (integers are converted); fails the test if it is not there.
Tensor read_tensor(const std::string& path, const std::string& name);

std::string read_bytes(const std::string& path);
void write_bytes(const std::string& path, const std::string& bytes);

}  // namespace tessera::cli_test
