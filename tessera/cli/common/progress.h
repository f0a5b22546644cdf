// A progress bar on stderr: only on a terminal, only for work that takes over two seconds.
//
//   ProgressBar bar("attend");
//   exec.progress = bar.hook();
//   status = attend(params, exec);
//   bar.finish();
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>

namespace tessera::cli {

class ProgressBar {
 public:
  explicit ProgressBar(std::string label);
  ~ProgressBar() { finish(); }
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  /// A function for Execution::progress; empty when stderr is no terminal. Borrows this bar.
  std::function<void(int64_t done, int64_t total)> hook();

  /// Draws at most ten times a second, and not before the estimate says "over two seconds".
  void update(int64_t done, int64_t total);

  /// Erases the bar if it was drawn. Safe to call twice.
  void finish();

 private:
  using Clock = std::chrono::steady_clock;
  std::string label_;
  Clock::time_point start_ = Clock::now();
  Clock::time_point last_draw_{};
  bool terminal_ = false;
  bool drawn_ = false;
};

}  // namespace tessera::cli
