// Worker threads that take batches of reads, and the two ways a batch reaches its tensors.
#include "h3/weights/loader.h"

#include <ATen/core/CachingHostAllocator.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/core/Event.h>
#include <c10/core/ScalarType.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "h3/common/error.h"
#include "h3/weights/reader.h"
#include "h3/weights/recipes.h"

namespace h3::weights {
namespace {

using Clock = std::chrono::steady_clock;
using tessera::Dtype;

constexpr uint64_t kPinnedBytes = uint64_t{256} << 20;
constexpr uint64_t kCpuBatchBytes = uint64_t{8} << 20;
constexpr int kBuffersPerThread = 2;  // one is read into while the other is copied
constexpr auto kProgressPeriod = std::chrono::milliseconds(100);

c10::ScalarType scalar_type(Dtype dtype) {
  switch (dtype) {
    case Dtype::kBf16: return c10::kBFloat16;
    case Dtype::kF16: return c10::kHalf;
    case Dtype::kF32: return c10::kFloat;
    case Dtype::kF64: return c10::kDouble;
    case Dtype::kI8: return c10::kChar;
    case Dtype::kU8: return c10::kByte;
    case Dtype::kBool: return c10::kBool;
    case Dtype::kI16: return c10::kShort;
    case Dtype::kI32: return c10::kInt;
    case Dtype::kI64: return c10::kLong;
    case Dtype::kU16: return c10::kUInt16;
    case Dtype::kU32: return c10::kUInt32;
    case Dtype::kU64: return c10::kUInt64;
  }
  throw Error(ErrorCode::kInternal, "unknown element type");
}

std::string first_line(const char* text) {
  const std::string all = text;
  return all.substr(0, all.find('\n'));
}

// Fresh memory in pages of 2 MiB: faulting in 4 KiB pages takes as long as reading the data.
void advise_huge_pages(const at::Tensor& tensor) {
  constexpr uintptr_t kHuge = uintptr_t{2} << 20;
  const auto begin = reinterpret_cast<uintptr_t>(tensor.data_ptr());
  const uintptr_t first = (begin + kHuge - 1) / kHuge * kHuge;
  const uintptr_t last = (begin + tensor.nbytes()) / kHuge * kHuge;
  if (first < last) ::madvise(reinterpret_cast<void*>(first), last - first, MADV_HUGEPAGE);
}

at::Tensor allocate(const TensorRecipe& recipe, c10::Device device) try {
  const at::Tensor tensor =
      at::empty(recipe.shape, at::TensorOptions().dtype(scalar_type(recipe.dtype)).device(device));
  if (device.is_cpu()) advise_huge_pages(tensor);
  return tensor;
} catch (const c10::Error& error) {
  throw Error(ErrorCode::kOutOfMemory,
              "no memory for " + recipe.name + " on " + device.str() + ": " +
                  first_line(error.what_without_backtrace()),
              "free memory there, or use more devices");
}

// What the threads share.
struct Job {
  const Checkpoint& checkpoint;
  const std::vector<ReadBatch>& batches;
  const std::vector<at::Tensor>& targets;  // per recipe
  bool drop_page_cache = false;

  std::atomic<size_t> next{0};
  std::atomic<uint64_t> bytes_done{0};
  std::atomic<bool> stop{false};

  std::mutex mutex;  // of what follows
  std::condition_variable changed;
  int running = 0;
  std::exception_ptr failure;

  const ReadBatch* take() {
    if (stop.load(std::memory_order_relaxed)) return nullptr;
    const size_t at = next.fetch_add(1, std::memory_order_relaxed);
    return at < batches.size() ? &batches[at] : nullptr;
  }

  int64_t first_element(const ReadItem& item) const { return item.target_row * item.columns; }
};

void read_into_tensors(Job& job) {
  RowReader reader(job.checkpoint, job.drop_page_cache);
  while (const ReadBatch* batch = job.take()) {
    for (const ReadItem& item : batch->items) {
      auto* const base = static_cast<std::byte*>(job.targets[item.recipe].data_ptr());
      reader.read(item,
                  base + static_cast<uint64_t>(job.first_element(item)) * dtype_bytes(item.dtype));
    }
    job.bytes_done += batch->file_bytes;
  }
}

// `buffers`: pinned bytes of this thread, each as large as the largest batch.
void read_and_copy(Job& job, c10::Device device, const std::vector<at::Tensor>& buffers) {
  const at::NoGradGuard no_grad;
  RowReader reader(job.checkpoint, job.drop_page_cache);
  const c10::Stream stream = c10::impl::VirtualGuardImpl(device.type()).getStream(device);
  std::vector<std::optional<c10::Event>> copied(buffers.size());
  // Also when a read fails: a buffer must not be freed while the device still reads it.
  struct Settle {
    std::vector<std::optional<c10::Event>>& events;
    ~Settle() {
      for (const auto& event : events) {
        try {
          if (event) event->synchronize();
        } catch (const std::exception&) {
          // The device's error was or will be told by the next call to it.
        }
      }
    }
  };
  {
    const Settle settle{copied};
    size_t turn = 0;
    while (const ReadBatch* batch = job.take()) {
      const size_t slot = turn++ % buffers.size();
      if (copied[slot]) {
        copied[slot]->synchronize();
      } else {
        copied[slot].emplace(device.type());
      }
      auto* const base = static_cast<std::byte*>(buffers[slot].data_ptr());
      for (const ReadItem& item : batch->items) {
        reader.read(item, base + item.batch_offset);
        const at::Tensor source = buffers[slot]
                                      .narrow(0, static_cast<int64_t>(item.batch_offset),
                                              static_cast<int64_t>(item.memory_bytes()))
                                      .view(scalar_type(item.dtype));
        job.targets[item.recipe]
            .view({-1})
            .narrow(0, job.first_element(item), item.rows * item.columns)
            .copy_(source, /*non_blocking=*/true);
        // Behind every copy, so that Settle also waits for a batch that was cut short.
        copied[slot]->record(stream);
      }
      job.bytes_done += batch->file_bytes;
    }
    for (const auto& event : copied) {
      if (event) event->synchronize();
    }
  }
}

template <class Work>
void run_thread(Job& job, const Work& work) {
  std::exception_ptr failure;
  try {
    work();
  } catch (...) {
    failure = std::current_exception();
    job.stop = true;
  }
  const std::lock_guard lock(job.mutex);
  if (failure && !job.failure) job.failure = failure;
  --job.running;
  job.changed.notify_all();
}

// Joins whatever happens; the threads use the job until then.
class Threads {
 public:
  explicit Threads(Job& job) : job_(job) {}
  Threads(const Threads&) = delete;
  Threads& operator=(const Threads&) = delete;
  ~Threads() {
    job_.stop = true;
    for (std::thread& thread : threads_) thread.join();
  }
  template <class Work>
  void start(Work work) {
    {
      const std::lock_guard lock(job_.mutex);
      ++job_.running;
    }
    try {
      threads_.emplace_back([this, work = std::move(work)] { run_thread(job_, work); });
    } catch (...) {
      const std::lock_guard lock(job_.mutex);
      --job_.running;
      throw;
    }
  }

 private:
  Job& job_;
  std::vector<std::thread> threads_;
};

LoadProgress progress_of(const Job& job, uint64_t total, Clock::time_point start) {
  return {job.bytes_done, total, std::chrono::duration<double>(Clock::now() - start).count()};
}

void wait(Job& job, uint64_t total, Clock::time_point start,
          const std::function<void(const LoadProgress&)>& progress) {
  std::unique_lock lock(job.mutex);
  while (job.running > 0) {
    job.changed.wait_for(lock, kProgressPeriod, [&] { return job.running == 0; });
    if (!progress || job.running == 0) continue;
    lock.unlock();
    progress(progress_of(job, total, start));
    lock.lock();
  }
  if (job.failure) std::rethrow_exception(job.failure);
}

int thread_count(int wanted, size_t batches) {
  const int cores = static_cast<int>(std::thread::hardware_concurrency());
  const int threads = wanted > 0 ? wanted : std::clamp(cores, 4, 16);
  return static_cast<int>(std::clamp<size_t>(batches, 1, static_cast<size_t>(threads)));
}

std::vector<at::Tensor> pinned_buffers(uint64_t bytes) {
  std::vector<at::Tensor> buffers;
  for (int i = 0; i < kBuffersPerThread; ++i) {
    buffers.push_back(at::empty({static_cast<int64_t>(bytes)},
                                at::TensorOptions().dtype(c10::kByte).pinned_memory(true)));
  }
  return buffers;
}

void run_job(Job& job, c10::Device device, int threads, uint64_t total, Clock::time_point start,
             const std::function<void(const LoadProgress&)>& progress) {
  if (device.is_cpu()) {
    Threads pool(job);
    for (int i = 0; i < threads; ++i) pool.start([&job] { read_into_tensors(job); });
    wait(job, total, start, progress);
    return;
  }
  uint64_t largest = 0;
  for (const ReadBatch& batch : job.batches) largest = std::max(largest, batch.buffer_bytes);
  {
    std::vector<std::vector<at::Tensor>> buffers;  // outlive the threads
    for (int i = 0; i < threads; ++i) buffers.push_back(pinned_buffers(largest));
    Threads pool(job);
    for (int i = 0; i < threads; ++i) {
      pool.start([&job, device, mine = buffers[i]] { read_and_copy(job, device, mine); });
    }
    wait(job, total, start, progress);
  }
  at::getHostAllocator(device.type())->empty_cache();  // or the pinned memory stays ours for good
}

}  // namespace

std::unordered_map<std::string, at::Tensor> load_tensors(const Checkpoint& checkpoint,
                                                         std::span<const TensorRecipe> recipes,
                                                         const LoadOptions& options) {
  if (options.threads < 0) {
    throw Error(ErrorCode::kInvalidArgument,
                "load threads are " + std::to_string(options.threads) + "; 0 (automatic) or more");
  }
  const Clock::time_point start = Clock::now();
  check_recipes(checkpoint, recipes);
  require_unchanged(checkpoint);
  int threads = thread_count(options.threads, SIZE_MAX);
  const uint64_t batch_bytes =
      options.device.is_cpu()
          ? kCpuBatchBytes
          : std::clamp(kPinnedBytes / static_cast<uint64_t>(kBuffersPerThread * threads),
                       uint64_t{1} << 20, uint64_t{32} << 20);
  const std::vector<ReadBatch> batches = plan_reads(checkpoint, recipes, batch_bytes);
  threads = thread_count(threads, batches.size());
  uint64_t total = 0;
  for (const ReadBatch& batch : batches) total += batch.file_bytes;

  std::vector<at::Tensor> targets;
  for (const TensorRecipe& recipe : recipes) targets.push_back(allocate(recipe, options.device));
  // "cuda" without an index means the caller's current device; the threads have one of their own.
  const c10::Device device = targets.empty() ? options.device : targets.front().device();
  Job job{checkpoint, batches, targets, options.drop_page_cache};
  try {
    run_job(job, device, threads, total, start, options.progress);
  } catch (const c10::Error& error) {
    throw Error(ErrorCode::kUnavailable,
                "loading onto " + device.str() + ": " + first_line(error.what_without_backtrace()));
  }
  if (options.progress) options.progress(progress_of(job, total, start));

  std::unordered_map<std::string, at::Tensor> tensors;
  for (size_t i = 0; i < recipes.size(); ++i) tensors.emplace(recipes[i].name, targets[i]);
  return tensors;
}

}  // namespace h3::weights
