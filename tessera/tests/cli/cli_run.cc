#include "tessera/tests/cli/cli_run.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <numeric>
#include <random>
#include <sstream>

namespace tessera::cli_test {

namespace {

int64_t elements(const std::vector<int64_t>& shape) {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
}

std::vector<std::byte> encode(const Tensor& tensor) {
  const size_t width = dtype_bytes(tensor.dtype);
  std::vector<std::byte> bytes(tensor.values.size() * width);
  for (size_t i = 0; i < tensor.values.size(); ++i) {
    const float value = tensor.values[i];
    const uint16_t half = tensor.dtype == Dtype::kF16 ? f32_to_f16(value) : f32_to_bf16(value);
    const int32_t integer = tensor.dtype == Dtype::kI32 ? static_cast<int32_t>(value) : 0;
    const double wide = value;
    const uint8_t small = tensor.dtype == Dtype::kU8 ? static_cast<uint8_t>(value) : 0;
    const void* from = tensor.dtype == Dtype::kF32   ? static_cast<const void*>(&value)
                       : tensor.dtype == Dtype::kI32 ? static_cast<const void*>(&integer)
                       : tensor.dtype == Dtype::kF64 ? static_cast<const void*>(&wide)
                       : tensor.dtype == Dtype::kU8  ? static_cast<const void*>(&small)
                                                     : static_cast<const void*>(&half);
    std::memcpy(bytes.data() + i * width, from, width);
  }
  return bytes;
}

}  // namespace

TempFolder::TempFolder() {
  std::string pattern = (std::filesystem::temp_directory_path() / "tessera_cli_XXXXXX").string();
  if (mkdtemp(pattern.data()) == nullptr) {
    ADD_FAILURE() << "no temporary folder: " << std::strerror(errno);
    return;
  }
  root_ = pattern;
}

TempFolder::~TempFolder() {
  std::error_code ignored;
  if (!root_.empty()) std::filesystem::remove_all(root_, ignored);
}

std::vector<std::string> TempFolder::names() const {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(root_)) {
    names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::string tessera_binary() {
  const char* other = std::getenv("TESSERA_BINARY");
  return other != nullptr && *other != '\0' ? other : TESSERA_BINARY;
}

Outcome run_tessera(const std::vector<std::string>& args, const TempFolder& folder) {
  const std::string out_path = folder.path(".stdout"), err_path = folder.path(".stderr");
  const std::string binary = tessera_binary();
  const pid_t child = fork();
  if (child == 0) {
    if (freopen("/dev/null", "r", stdin) == nullptr ||
        freopen(out_path.c_str(), "w", stdout) == nullptr ||
        freopen(err_path.c_str(), "w", stderr) == nullptr) {
      _exit(126);
    }
    std::vector<char*> argv = {const_cast<char*>(binary.c_str())};
    for (const std::string& arg : args) argv.push_back(const_cast<char*>(arg.c_str()));
    argv.push_back(nullptr);
    execv(binary.c_str(), argv.data());
    _exit(127);
  }
  Outcome outcome;
  int status = 0;
  if (child < 0 || waitpid(child, &status, 0) != child) {
    ADD_FAILURE() << "cannot run " << binary << ": " << std::strerror(errno);
    return outcome;
  }
  outcome.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  outcome.out = read_bytes(out_path);
  outcome.err = read_bytes(err_path);
  std::filesystem::remove(out_path);
  std::filesystem::remove(err_path);
  return outcome;
}

Tensor filled(const std::string& name, std::vector<int64_t> shape, float value, Dtype dtype) {
  const int64_t count = elements(shape);
  return {name, dtype, std::move(shape), std::vector<float>(count, value)};
}

Tensor random_tensor(const std::string& name, std::vector<int64_t> shape, uint64_t seed,
                     float scale, Dtype dtype) {
  Tensor tensor = filled(name, std::move(shape), 0, dtype);
  std::mt19937_64 random(seed);
  for (float& value : tensor.values) {
    value = scale * (float(random() >> 40) * 0x1p-23f - 1.0f);
  }
  return tensor;
}

Tensor integers(const std::string& name, std::vector<int64_t> shape,
                const std::vector<int32_t>& values) {
  return {name, Dtype::kI32, std::move(shape), {values.begin(), values.end()}};
}

void write_file(const std::string& path, const std::vector<Tensor>& tensors) {
  std::vector<std::vector<std::byte>> bytes;
  std::vector<io::SafetensorsItem> items;
  for (const Tensor& tensor : tensors) {
    ASSERT_EQ(static_cast<int64_t>(tensor.values.size()), elements(tensor.shape)) << tensor.name;
    bytes.push_back(encode(tensor));
  }
  for (size_t i = 0; i < tensors.size(); ++i) {
    items.push_back({tensors[i].name, tensors[i].dtype, tensors[i].shape, bytes[i].data()});
  }
  const Status status = io::write_safetensors(path, items);
  ASSERT_TRUE(status.ok()) << status.message();
}

Tensor read_tensor(const std::string& path, const std::string& name) {
  io::SafetensorsFile file;
  const Status status = io::SafetensorsFile::open(path, &file);
  EXPECT_TRUE(status.ok()) << status.message();
  const io::SafetensorsEntry* entry = status.ok() ? file.find(name) : nullptr;
  if (entry == nullptr) {
    ADD_FAILURE() << path << " has no tensor " << name;
    return {};
  }
  Tensor tensor{name, entry->dtype, entry->shape, std::vector<float>(elements(entry->shape))};
  for (size_t i = 0; i < tensor.values.size(); ++i) {
    const std::byte* at = entry->data + i * dtype_bytes(entry->dtype);
    uint16_t half = 0;
    int32_t integer = 0;
    switch (entry->dtype) {
      case Dtype::kF32: std::memcpy(&tensor.values[i], at, 4); break;
      case Dtype::kI32:
        std::memcpy(&integer, at, 4);
        tensor.values[i] = float(integer);
        break;
      case Dtype::kU8: tensor.values[i] = float(std::to_integer<int>(*at)); break;
      case Dtype::kF16:
      case Dtype::kBf16:
        std::memcpy(&half, at, 2);
        tensor.values[i] = entry->dtype == Dtype::kF16 ? f16_to_f32(half) : bf16_to_f32(half);
        break;
      default: ADD_FAILURE() << name << " has an unexpected dtype"; return tensor;
    }
  }
  return tensor;
}

std::string read_bytes(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

void write_bytes(const std::string& path, const std::string& bytes) {
  std::ofstream out(path, std::ios::binary);
  out << bytes;
  ASSERT_TRUE(out.good()) << path;
}

}  // namespace tessera::cli_test
