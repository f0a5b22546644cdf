// Ends a process whose partner has stopped answering while a call to it blocks. A thread of its
// own, because a blocked call (the store's client waits for an answer without a limit) takes the
// thread that would have to notice along.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>

namespace h3::parallel {

class SilenceGuard {
 public:
  using Duration = std::chrono::steady_clock::duration;

  /// `on_silence` is called once, on the guard's thread, if answered() was not called for `limit`.
  /// Time in which this process itself was stopped does not count.
  SilenceGuard(Duration limit, std::function<void(Duration silence)> on_silence);
  ~SilenceGuard();

  void answered();

 private:
  void run();

  const Duration limit_;
  const std::function<void(Duration)> on_silence_;
  std::mutex mutex_;
  std::condition_variable signal_;
  uint64_t answers_ = 0;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace h3::parallel
