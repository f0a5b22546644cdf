#include "h3/cli/progress.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>

#include "h3/cli/commands.h"

namespace h3::cli {
namespace {

constexpr double kRedrawSeconds = 0.1;

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

template <class... Values>
std::string formatted(const char* format, Values... values) {
  char text[256];
  std::snprintf(text, sizeof(text), format, values...);
  return text;
}

}  // namespace

std::string clock_text(double seconds) {
  const auto whole = static_cast<int64_t>(std::llround(std::max(0.0, seconds)));
  const auto hours = static_cast<long long>(whole / 3600);
  const auto minutes = static_cast<long long>(whole / 60 % 60);
  const auto rest = static_cast<long long>(whole % 60);
  return hours > 0 ? formatted("%lld:%02lld:%02lld", hours, minutes, rest)
                   : formatted("%02lld:%02lld", minutes, rest);
}

std::string bar_text(double share) {
  constexpr size_t kWidth = 10;
  const auto full = static_cast<size_t>(std::clamp(share, 0.0, 1.0) * kWidth);
  return "|" + std::string(full, '#') + std::string(kWidth - full, ' ') + "|";
}

Progress::Progress(bool quiet) : quiet_(quiet), terminal_(isatty(STDERR_FILENO) == 1) {}

Progress::~Progress() {
  if (drawn_) std::fputc('\n', stderr);
}

void Progress::draw(const std::string& line, bool last) {
  if (quiet_ || !terminal_) return;
  const double time = now();
  if (!last && drawn_ && time - last_ < kRedrawSeconds) return;
  last_ = time;
  drawn_ = true;
  std::fprintf(stderr, "\r%s\x1b[K", line.c_str());
  std::fflush(stderr);
}

void Progress::step(const std::string& stage, int64_t done, int64_t total, double seconds_per_step,
                    const std::string& suffix) {
  const std::string speed = seconds_per_step >= 1 || seconds_per_step <= 0
                                ? formatted("%.2f s/it", seconds_per_step)
                                : formatted("%.2f it/s", 1 / seconds_per_step);
  draw(stage + " " + std::to_string(done) + "/" + std::to_string(total) + " " +
           bar_text(static_cast<double>(done) / static_cast<double>(total)) + " " + speed +
           "  ETA " + clock_text(static_cast<double>(total - done) * seconds_per_step) +
           (suffix.empty() ? "" : "  " + suffix),
       done == total);
}

void Progress::bytes(const std::string& stage, uint64_t done, uint64_t total, double seconds) {
  const double gb = static_cast<double>(done) / 1e9, all = static_cast<double>(total) / 1e9;
  draw(stage + formatted(" %.1f/%.1f GB ", gb, all) + bar_text(all > 0 ? gb / all : 1) +
           formatted(" %.2f GB/s", seconds > 0 ? gb / seconds : 0),
       done == total);
}

void Progress::finish(const std::string& text) {
  if (quiet_) return;
  if (drawn_) {
    std::fputs("\r\x1b[K", stderr);
    drawn_ = false;
  }
  message(text);
}

}  // namespace h3::cli
