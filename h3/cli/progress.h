// Progress on standard error: one line that is rewritten on a terminal, one line per stage
// elsewhere.
#pragma once

#include <cstdint>
#include <string>

namespace h3::cli {

class Progress {
 public:
  /// `quiet`: nothing at all.
  explicit Progress(bool quiet);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// "denoise 17/49 |####      | 0.81 s/it  ETA 00:26  suffix". Steps per second from one a second
  /// on. Drawn on terminals only, at most ten times a second and for the last step.
  void step(const std::string& stage, int64_t done, int64_t total, double seconds_per_step,
            const std::string& suffix = {});
  /// "load 12.3/66.3 GB |##        | 4.10 GB/s".
  void bytes(const std::string& stage, uint64_t done, uint64_t total, double seconds);
  /// Ends the line of a stage: "denoise: 49 steps in 39.7 s".
  void finish(const std::string& text);

 private:
  void draw(const std::string& line, bool last);

  bool quiet_, terminal_;
  bool drawn_ = false;
  double last_ = 0;  // seconds
};

/// "00:26", "1:02:03".
std::string clock_text(double seconds);
/// "|####      |".
std::string bar_text(double share);

}  // namespace h3::cli
