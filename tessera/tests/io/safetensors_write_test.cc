// The safetensors writer and atomic writes: round trips, the order of the data, and that nothing
// half-written is ever left.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "tessera/io/safetensors.h"
#include "tessera/tests/io/io_test_util.h"

namespace tessera::io {
namespace {

using testing::expect_refusal;
using testing::read_all;
using testing::TempFolder;
using testing::write_all;

constexpr Dtype kAllDtypes[] = {Dtype::kBf16, Dtype::kF16,  Dtype::kF32, Dtype::kF64, Dtype::kI8,
                                Dtype::kU8,   Dtype::kBool, Dtype::kI16, Dtype::kU16, Dtype::kI32,
                                Dtype::kU32,  Dtype::kI64,  Dtype::kU64};

TEST(SafetensorsWriter, EveryDtype_RoundTrips) {
  constexpr unsigned kSeed = 20240611;
  RecordProperty("seed", static_cast<int>(kSeed));
  std::mt19937 random(kSeed);
  const TempFolder folder;
  const std::string path = folder.file("all.safetensors");
  for (int round = 0; round < 20; ++round) {
    SCOPED_TRACE("seed " + std::to_string(kSeed) + " round " + std::to_string(round));
    std::vector<std::string> data;
    std::vector<SafetensorsItem> items;
    for (const Dtype dtype : kAllDtypes) {
      SafetensorsItem item{"t_" + std::string(dtype_name(dtype)), dtype, {}, nullptr};
      size_t bytes = dtype_bytes(dtype);
      for (size_t rank = random() % 4; rank > 0; --rank) {
        item.shape.push_back(static_cast<int64_t>(random() % 6));
        bytes *= static_cast<size_t>(item.shape.back());
      }
      std::string content(bytes, '\0');
      for (char& c : content) c = static_cast<char>(random());
      data.push_back(content);
      items.push_back(item);
    }
    for (size_t i = 0; i < items.size(); ++i) items[i].data = data[i].data();
    const std::map<std::string, std::string> metadata = {{"a \"quoted\" key", "line\nbreak \u00e9"},
                                                         {"", ""}};
    const Status written = write_safetensors(path, items, metadata);
    ASSERT_TRUE(written.ok()) << written.message();
    SafetensorsFile file;
    const Status read = SafetensorsFile::open(path, &file);
    ASSERT_TRUE(read.ok()) << read.message();
    EXPECT_EQ(file.metadata(), metadata);
    ASSERT_EQ(file.entries().size(), items.size());
    for (size_t i = 0; i < items.size(); ++i) {
      const SafetensorsEntry* entry = file.find(items[i].name);
      ASSERT_NE(entry, nullptr) << items[i].name;
      EXPECT_EQ(entry->dtype, items[i].dtype);
      EXPECT_EQ(entry->shape, items[i].shape);
      ASSERT_EQ(entry->bytes, data[i].size());
      EXPECT_EQ(std::memcmp(entry->data, data[i].data(), data[i].size()), 0) << items[i].name;
    }
  }
  EXPECT_EQ(folder.entries(), 1u);
}

TEST(SafetensorsWriter, OddTensorBetweenLargeOnes_KeepsThemOn64Bytes) {
  const TempFolder folder;
  const std::string path = folder.file("a.safetensors");
  const std::vector<int32_t> bounds = {0, 5, 9};
  const std::vector<uint16_t> values(2 * 128);
  const uint8_t flag = 1;
  const Status s = write_safetensors(path, {{"flag", Dtype::kBool, {1}, &flag},
                                            {"cu_seqlens", Dtype::kI32, {3}, bounds.data()},
                                            {"q", Dtype::kBf16, {1, 2, 128}, values.data()},
                                            {"k", Dtype::kBf16, {1, 2, 128}, values.data()}});
  ASSERT_TRUE(s.ok()) << s.message();
  SafetensorsFile file;
  ASSERT_TRUE(SafetensorsFile::open(path, &file).ok());
  EXPECT_EQ(reinterpret_cast<uintptr_t>(file.find("q")->data) % 64, 0u);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(file.find("k")->data) % 64, 0u);
  EXPECT_EQ(file.entries()[0].name, "q");
  EXPECT_EQ(file.entries()[1].name, "k");
  EXPECT_EQ(file.entries()[2].name, "cu_seqlens");
  EXPECT_EQ(file.entries()[3].name, "flag");
}

TEST(SafetensorsWriter, SmallFile_HasTheseBytes) {
  const TempFolder folder;
  const std::string path = folder.file("a.safetensors");
  const uint16_t value = 0x3f80;
  ASSERT_TRUE(write_safetensors(path, {{"x", Dtype::kBf16, {1}, &value}}).ok());
  std::string header = R"({"x":{"dtype":"BF16","shape":[1],"data_offsets":[0,2]}})";
  header.resize(56, ' ');
  EXPECT_EQ(read_all(path),
            testing::length_bytes(header.size()) + header + std::string("\x80\x3f", 2));
}

TEST(SafetensorsWriter, NoTensors_IsAFile) {
  const TempFolder folder;
  ASSERT_TRUE(write_safetensors(folder.file("a"), {}).ok());
  SafetensorsFile file;
  const Status s = SafetensorsFile::open(folder.file("a"), &file);
  EXPECT_TRUE(s.ok()) << s.message();
  EXPECT_TRUE(file.entries().empty());
}

TEST(SafetensorsWriter, BadItems_AreRefusedBeforeAnythingIsWritten) {
  const TempFolder folder;
  const std::string path = folder.file("a.safetensors");
  const float x = 1;
  const auto refused = [&](const std::vector<SafetensorsItem>& items,
                           const std::vector<std::string>& parts) {
    expect_refusal(write_safetensors(path, items), StatusCode::kInvalidArgument, parts);
  };
  refused({{"x", Dtype::kF32, {1}, &x}, {"x", Dtype::kF32, {1}, &x}}, {path, "'x'", "twice"});
  refused({{"x", Dtype::kF32, {-1}, &x}}, {"'x'", "[-1]", "negative"});
  refused({{"x", Dtype::kF32, {int64_t{1} << 61}, &x}}, {"'x'", "overflows"});
  refused({{"x", Dtype::kU8, {int64_t{1} << 62}, &x}, {"y", Dtype::kU8, {int64_t{1} << 62}, &x}},
          {"'y'", "together"});
  refused({{"x", Dtype::kF32, {1}, nullptr}}, {"'x'", "null", "4 bytes"});
  refused({{"__metadata__", Dtype::kF32, {1}, &x}}, {"'__metadata__'", "reserved"});
  refused({{"\xff", Dtype::kF32, {1}, &x}}, {"'\\xff'", "UTF-8"});
  refused({{"x", static_cast<Dtype>(99), {1}, &x}}, {"'x'", "dtype number 99"});
  refused({{"x", Dtype::kF32, std::vector<int64_t>(65, 1), &x}}, {"'x'", "more than 64"});
  expect_refusal(write_safetensors(path, {}, {{"k", "\xc0"}}), StatusCode::kInvalidArgument,
                 {"metadata 'k'", "UTF-8"});
  EXPECT_EQ(folder.entries(), 0u);
}

TEST(AtomicWrite, ExistingFile_IsReplacedAndKeepsItsMode) {
  const TempFolder folder;
  const std::string path = folder.file("a");
  write_all(path, "old content");
  ASSERT_EQ(::chmod(path.c_str(), 0640), 0);
  ASSERT_TRUE(write_file_atomic(path, "new", 3).ok());
  EXPECT_EQ(read_all(path), "new");
  struct stat info {};
  ASSERT_EQ(::stat(path.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 07777, 0640u);
  ASSERT_TRUE(write_file_atomic(path, nullptr, 0).ok());
  EXPECT_EQ(read_all(path), "");
  EXPECT_EQ(folder.entries(), 1u);
}

TEST(AtomicWrite, Link_StaysALink) {
  const TempFolder folder;
  write_all(folder.file("real"), "old");
  ASSERT_EQ(::symlink("real", folder.file("link").c_str()), 0);
  ASSERT_TRUE(write_file_atomic(folder.file("link"), "new", 3).ok());
  EXPECT_EQ(read_all(folder.file("real")), "new");
  EXPECT_TRUE(std::filesystem::is_symlink(folder.file("link")));
  ASSERT_EQ(::symlink("nowhere", folder.file("dangling").c_str()), 0);
  expect_refusal(write_file_atomic(folder.file("dangling"), "new", 3), StatusCode::kIo,
                 {"dangling", "link to nowhere"});
  EXPECT_EQ(folder.entries(), 3u);
}

TEST(AtomicWrite, RelativeName_IsWrittenToTheCurrentFolder) {
  const TempFolder folder;
  const auto before = std::filesystem::current_path();
  std::filesystem::current_path(folder.path());
  const Status s = write_file_atomic("plain", "x", 1);
  std::filesystem::current_path(before);
  EXPECT_TRUE(s.ok()) << s.message();
  EXPECT_EQ(read_all(folder.file("plain")), "x");
}

TEST(AtomicWrite, WrongTargets_AreRefusedWithPathAndReason) {
  const TempFolder folder;
  const std::string inside = folder.file("no/such/a");
  expect_refusal(write_file_atomic(inside, "x", 1), StatusCode::kIo,
                 {inside, "No such file or directory (errno 2)", "create the folder"});
  expect_refusal(write_file_atomic(folder.path(), "x", 1), StatusCode::kIo,
                 {folder.path(), "Is a directory (errno 21)"});
  expect_refusal(write_file_atomic(folder.path() + "/", "x", 1), StatusCode::kIo,
                 {"names no file"});
  expect_refusal(write_file_atomic("", "x", 1), StatusCode::kIo, {"names no file"});
  write_all(folder.file("file"), "old");
  expect_refusal(write_file_atomic(folder.file("file/below"), "x", 1), StatusCode::kIo,
                 {"Not a directory (errno 20)"});
  expect_refusal(write_file_atomic(folder.file(std::string(300, 'n')), "x", 1), StatusCode::kIo,
                 {"File name too long"});
  // A rename over a device or a FIFO would replace it (a FIFO here: the test must not risk /dev).
  const std::string fifo = folder.file("fifo");
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  expect_refusal(write_file_atomic(fifo, "x", 1), StatusCode::kIo, {fifo, "not a regular file"});
  EXPECT_TRUE(std::filesystem::is_fifo(fifo));
  expect_refusal(write_file_atomic(folder.file("a"), nullptr, 1), StatusCode::kInvalidArgument,
                 {"null"});
  EXPECT_EQ(folder.entries(), 2u);
}

TEST(AtomicWrite, FolderWithoutPermission_IsRefused) {
  if (::geteuid() == 0) GTEST_SKIP() << "root may write everywhere";
  const TempFolder folder;
  ASSERT_EQ(::chmod(folder.path().c_str(), 0500), 0);
  expect_refusal(write_file_atomic(folder.file("a"), "x", 1), StatusCode::kIo,
                 {"Permission denied (errno 13)"});
  ::chmod(folder.path().c_str(), 0700);
}

// A limit on the file size makes write() fail in the middle, as a full disk does.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    set_ = ::getrlimit(RLIMIT_FSIZE, &before_) == 0;
    rlimit limit = before_;
    limit.rlim_cur = bytes;
    set_ = set_ && ::setrlimit(RLIMIT_FSIZE, &limit) == 0;
  }
  FileSizeLimit(const FileSizeLimit&) = delete;
  FileSizeLimit& operator=(const FileSizeLimit&) = delete;
  ~FileSizeLimit() {
    if (set_) ::setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, handler_);
  }
  bool set() const { return set_; }

 private:
  void (*handler_)(int);
  rlimit before_{};
  bool set_ = false;
};

TEST(AtomicWrite, NoSpaceLeft_KeepsTheOldFileAndRemovesTheNew) {
  const TempFolder folder;
  const std::string path = folder.file("a");
  write_all(path, "old content");
  const std::vector<float> big(65536, 1.0f);
  Status plain, tensors;
  {
    const FileSizeLimit limit(4096);
    if (!limit.set()) GTEST_SKIP() << "the file size limit cannot be set here";
    plain = write_file_atomic(path, big.data(), big.size() * 4);
    tensors = write_safetensors(path, {{"x", Dtype::kF32, {65536}, big.data()}});
  }
  expect_refusal(plain, StatusCode::kIo, {path, "File too large (errno 27)", "free some space"});
  expect_refusal(tensors, StatusCode::kIo, {path, "File too large (errno 27)"});
  EXPECT_EQ(read_all(path), "old content");
  EXPECT_EQ(folder.entries(), 1u);
}

TEST(AtomicWrite, ManyThreads_NeverMixFiles) {
  const TempFolder folder;
  const std::string path = folder.file("shared");
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&path, t] {
      const std::string content(10000, static_cast<char>('a' + t));
      for (int i = 0; i < 5; ++i) {
        EXPECT_TRUE(write_file_atomic(path, content.data(), content.size()).ok());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  const std::string content = read_all(path);
  ASSERT_EQ(content.size(), 10000u);
  EXPECT_EQ(content, std::string(10000, content[0]));
  EXPECT_EQ(folder.entries(), 1u);
}

}  // namespace
}  // namespace tessera::io
