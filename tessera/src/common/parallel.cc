// Threads are started per call and joined before it returns: the library keeps no state.
#include "tessera/src/common/parallel.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <new>
#include <stdexcept>
#include <thread>
#include <vector>

#include "tessera/src/common/cat.h"

namespace tessera::internal {
namespace {

// Callers keep a slot per thread: an absurd count must not become an absurd allocation.
constexpr int kMaxThreads = 4096;

Status status_of_current_exception() {
  try {
    throw;
  } catch (const std::bad_alloc&) {
    return out_of_memory("an allocation failed; use a smaller input or fewer threads");
  } catch (const std::length_error&) {
    return out_of_memory("a buffer would exceed the largest possible size; use a smaller input");
  } catch (const std::exception& e) {
    return internal_error(cat("unexpected exception: ", e.what()));
  } catch (...) {
    return internal_error("unexpected exception of unknown type");
  }
}

}  // namespace

int thread_count(const Execution& exec) {
  if (exec.threads > 0) return std::min(exec.threads, kMaxThreads);
  return std::max(1u, std::thread::hardware_concurrency());
}

Status guarded(const std::function<Status()>& body) {
  try {
    return body();
  } catch (...) {
    return status_of_current_exception();
  }
}

Status parallel_for(int threads, int64_t items, const std::function<void(int64_t, int)>& body,
                    const std::function<void(int64_t, int64_t)>& progress) {
  std::atomic<int64_t> next{0};
  std::atomic<int64_t> finished{0};
  std::atomic<bool> failed{false};
  std::mutex mutex;
  Status first_failure;

  const auto work = [&](int worker) {
    try {
      while (!failed.load(std::memory_order_relaxed)) {
        const int64_t item = next.fetch_add(1, std::memory_order_relaxed);
        if (item >= items) return;
        body(item, worker);
        const int64_t done = finished.fetch_add(1, std::memory_order_relaxed) + 1;
        if (worker == 0 && progress) progress(done, items);
      }
    } catch (...) {
      const std::lock_guard lock(mutex);
      if (!failed.exchange(true)) first_failure = status_of_current_exception();
    }
  };

  const int workers = static_cast<int>(std::clamp<int64_t>(items, 1, std::max(1, threads)));
  std::vector<std::thread> pool;
  try {
    pool.reserve(workers - 1);
    for (int w = 1; w < workers; ++w) pool.emplace_back(work, w);
  } catch (const std::exception&) {
    // No further thread, or no memory for one: those that started, and this one, do all items.
  }
  work(0);
  for (std::thread& t : pool) t.join();
  if (failed) return first_failure;
  if (progress && items > 0) progress(items, items);
  return {};
}

}  // namespace tessera::internal
