#include "tessera/cli/common/progress.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <utility>

namespace tessera::cli {

namespace {

constexpr int kBarCells = 24;
constexpr double kShowOver_s = 2.0;    // work shorter than this stays quiet
constexpr double kTrustAfter_s = 0.5;  // before this the estimate is noise
constexpr double kRedraw_s = 0.1;

}  // namespace

ProgressBar::ProgressBar(std::string label)
    : label_(std::move(label)), terminal_(isatty(STDERR_FILENO) == 1) {}

std::function<void(int64_t, int64_t)> ProgressBar::hook() {
  if (!terminal_) return {};
  return [this](int64_t done, int64_t total) { update(done, total); };
}

void ProgressBar::update(int64_t done, int64_t total) {
  if (!terminal_ || total <= 0 || done <= 0) return;
  const Clock::time_point now = Clock::now();
  const double spent_s = std::chrono::duration<double>(now - start_).count();
  const double estimate_s = spent_s * double(total) / double(done);
  if (spent_s < kTrustAfter_s || estimate_s < kShowOver_s) return;
  if (drawn_ && std::chrono::duration<double>(now - last_draw_).count() < kRedraw_s) return;
  const double share = std::min(1.0, double(done) / double(total));
  std::string cells(kBarCells, ' ');
  std::fill_n(cells.begin(), static_cast<int>(share * kBarCells), '#');
  std::fprintf(stderr, "\r%s %3.0f %% |%s| %.1f s left ", label_.c_str(), share * 100,
               cells.c_str(), std::max(0.0, estimate_s - spent_s));
  std::fflush(stderr);
  drawn_ = true;
  last_draw_ = now;
}

void ProgressBar::finish() {
  if (!drawn_) return;
  std::fprintf(stderr, "\r\033[K");
  std::fflush(stderr);
  drawn_ = false;
}

}  // namespace tessera::cli
