// Small checkpoints in a folder of their own, for the tests of this folder.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "h3/common/error.h"
#include "tessera/io/safetensors.h"

namespace h3::weights {

/// A folder that goes with the test.
class Folder {
 public:
  Folder() {
    std::string name = testing::TempDir() + "h3_weights_XXXXXX";
    EXPECT_NE(mkdtemp(name.data()), nullptr);
    path_ = name;
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

struct F32Tensor {
  std::string name;
  std::vector<int64_t> shape;
  std::vector<float> values;
};

inline F32Tensor counted(const std::string& name, std::vector<int64_t> shape, float first = 0) {
  int64_t count = 1;
  for (const int64_t size : shape) count *= size;
  F32Tensor tensor{name, std::move(shape), {}};
  for (int64_t i = 0; i < count; ++i) tensor.values.push_back(first + static_cast<float>(i));
  return tensor;
}

/// As f32, or rounded to bf16.
inline void write_tensors(const std::string& path, const std::vector<F32Tensor>& tensors,
                          tessera::Dtype dtype = tessera::Dtype::kF32) {
  std::vector<std::vector<uint16_t>> rounded;
  std::vector<tessera::io::SafetensorsItem> items;
  rounded.reserve(tensors.size());
  for (const F32Tensor& t : tensors) {
    rounded.emplace_back();
    for (const float value : t.values) rounded.back().push_back(tessera::f32_to_bf16(value));
    const bool bf16 = dtype == tessera::Dtype::kBf16;
    items.push_back({t.name, dtype, t.shape,
                     bf16 ? static_cast<const void*>(rounded.back().data()) : t.values.data()});
  }
  const tessera::Status s = tessera::io::write_safetensors(path, items);
  EXPECT_TRUE(s.ok()) << s.message();
}

inline void write_file(const std::string& path, const std::string& text) {
  std::filesystem::create_directories(std::filesystem::path(path).parent_path());
  std::ofstream(path, std::ios::binary) << text;
}

inline void expect_parts(const std::string& text, const std::vector<std::string>& parts) {
  for (const std::string& part : parts) {
    EXPECT_NE(text.find(part), std::string::npos) << "missing: " << part << "\nin: " << text;
  }
}

/// The message of the kInvalidArgument that `work` throws.
template <class Work>
std::string refusal(const Work& work, ErrorCode code = ErrorCode::kInvalidArgument) {
  try {
    work();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "nothing was refused";
  return "";
}

}  // namespace h3::weights
