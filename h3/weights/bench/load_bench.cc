// Reads a checkpoint into tensors and prints GB/s, beside a plain parallel read of the same files
// by the same number of threads: into buffers that are used again (as dd does), and into new memory
// of the size of the files (what a load to the CPU cannot do without).
//
//   h3_load_bench DIR [--threads N] [--device cpu|cuda:0] [--f32] [--cold] [--repeat R]
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "h3/common/error.h"
#include "h3/weights/loader.h"
#include "h3/weights/recipes.h"

namespace {

using Clock = std::chrono::steady_clock;
using h3::weights::Checkpoint;

struct Arguments {
  std::string path;
  std::string device = "cpu";
  int threads = 0, repeat = 3;
  bool f32 = false, cold = false;
};

Arguments parse(int argc, char** argv) {
  Arguments a;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    const auto next = [&] { return i + 1 < argc ? std::string(argv[++i]) : std::string(); };
    if (word == "--threads") {
      a.threads = std::atoi(next().c_str());
    } else if (word == "--repeat") {
      a.repeat = std::atoi(next().c_str());
    } else if (word == "--device") {
      a.device = next();
    } else if (word == "--f32") {
      a.f32 = true;
    } else if (word == "--cold") {
      a.cold = true;
    } else {
      a.path = word;
    }
  }
  return a;
}

// Out of the page cache, as far as the kernel lets one.
void evict(const Checkpoint& checkpoint) {
  for (const auto& file : checkpoint.files()) {
    const int fd = ::open(file.path.c_str(), O_RDONLY | O_CLOEXEC);
    if (fd < 0) continue;
    ::fdatasync(fd);
    ::posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    ::close(fd);
  }
}

double plain_read_seconds(const Checkpoint& checkpoint, int threads, bool new_memory) {
  constexpr size_t kChunk = size_t{8} << 20;
  struct Chunk {
    size_t file;
    off_t offset;
    size_t target;  // in new memory
  };
  std::vector<Chunk> chunks;
  for (size_t i = 0; i < checkpoint.files().size(); ++i) {
    for (uint64_t at = 0; at < checkpoint.files()[i].bytes; at += kChunk) {
      chunks.push_back({i, static_cast<off_t>(at), chunks.size() * kChunk});
    }
  }
  std::atomic<size_t> next{0};
  const auto start = Clock::now();
  const size_t memory_bytes = new_memory ? chunks.size() * kChunk : 4096;
  char* const memory = static_cast<char*>(
      ::mmap(nullptr, memory_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  if (memory == MAP_FAILED) return 0;
  ::madvise(memory, memory_bytes, MADV_HUGEPAGE);
  std::vector<std::thread> pool;
  for (int t = 0; t < threads; ++t) {
    pool.emplace_back([&] {
      const std::unique_ptr<char[]> buffer(new char[kChunk]);
      std::vector<int> fds(checkpoint.files().size(), -1);
      for (size_t at; (at = next++) < chunks.size();) {
        int& fd = fds[chunks[at].file];
        if (fd < 0) fd = ::open(checkpoint.files()[chunks[at].file].path.c_str(), O_RDONLY);
        for (size_t done = 0; done < kChunk;) {
          char* const to = new_memory ? memory + chunks[at].target : buffer.get();
          const ssize_t n =
              ::pread(fd, to + done, kChunk - done, chunks[at].offset + static_cast<off_t>(done));
          if (n <= 0) break;
          done += static_cast<size_t>(n);
        }
      }
      for (const int fd : fds) {
        if (fd >= 0) ::close(fd);
      }
    });
  }
  for (std::thread& thread : pool) thread.join();
  const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
  ::munmap(memory, memory_bytes);
  return seconds;
}

// Every tensor as it is; with `f32`, bf16 ones are widened.
std::vector<h3::weights::TensorRecipe> whole(const Checkpoint& checkpoint, bool f32) {
  std::vector<h3::weights::TensorRecipe> recipes;
  for (const auto& [name, t] : checkpoint.tensors()) {
    const auto [rows, columns] = h3::weights::as_matrix(t.shape);
    recipes.push_back(
        {name, t.shape, f32 ? tessera::Dtype::kF32 : t.dtype, {{name, 0, rows, 0, columns, 0}}});
  }
  return recipes;
}

}  // namespace

int main(int argc, char** argv) try {
  const Arguments a = parse(argc, argv);
  const Checkpoint checkpoint = Checkpoint::open(a.path);
  const auto recipes = whole(checkpoint, a.f32);
  uint64_t file_bytes = 0;
  for (const auto& file : checkpoint.files()) file_bytes += file.bytes;
  const int plain_threads =
      a.threads > 0 ? a.threads : static_cast<int>(std::thread::hardware_concurrency());
  for (int round = 0; round < a.repeat; ++round) {
    if (a.cold) evict(checkpoint);
    const double plain = plain_read_seconds(checkpoint, plain_threads, false);
    if (a.cold) evict(checkpoint);
    const double fresh = plain_read_seconds(checkpoint, plain_threads, true);
    if (a.cold) evict(checkpoint);
    h3::weights::LoadProgress last;
    {
      const auto tensors =
          load_tensors(checkpoint, recipes,
                       {.device = c10::Device(a.device),
                        .threads = a.threads,
                        .progress = [&](const h3::weights::LoadProgress& p) { last = p; }});
      if (tensors.size() != recipes.size()) return 1;
    }
    const double gb = static_cast<double>(file_bytes) / 1e9;
    const double rate = last.gb_per_second();
    std::printf(
        "%s: plain read %.2f GB/s, into new memory %.2f GB/s, load to %s %.2f GB/s (%.0f %% and "
        "%.0f %%), %.2f GB in %.2f s\n",
        a.cold ? "cold" : "warm", gb / plain, gb / fresh, a.device.c_str(), rate,
        100 * rate * plain / gb, 100 * rate * fresh / gb, gb, last.seconds);
  }
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "error: %s\n", error.what());
  return 1;
}
