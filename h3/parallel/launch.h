// `h3 launch`: starts the ranks of one program on this host, forwards their output and signals, and
// ends them together. No torch.
#pragma once

#include <chrono>
#include <string>
#include <utility>
#include <vector>

namespace h3::parallel {

struct LaunchOptions {
  int ranks = 1;
  std::vector<std::string> command;  // program (looked up in PATH) and its arguments
  bool prefix_output = true;         // "[2] " before each line of rank 2
  // How long ranks may take to end after one failed, before they are killed.
  std::chrono::milliseconds grace{5000};
  int out_fd = 1, err_fd = 2;  // where the ranks' output goes, line by line
  std::vector<std::pair<std::string, std::string>> environment;  // added for every rank
};

struct LaunchResult {
  int exit_code = 0;       // of the first rank that failed; 128 + signal if one killed it
  int first_failed = -1;   // rank, or -1
  std::vector<int> codes;  // of every rank, same encoding
};

/// Sets RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR (loopback), MASTER_PORT (a free
/// port) and, unless set, OMP_NUM_THREADS (cores / ranks). The first rank that fails ends all
/// others: SIGTERM, after `grace` SIGKILL. SIGINT, SIGTERM, SIGHUP and SIGQUIT are forwarded to all
/// ranks. A rank runs in a process group of its own, so that what it started ends with it, has no
/// standard input, and dies with the calling thread even if that is killed (what the rank itself
/// started does not, if the launcher is killed with SIGKILL). Other children of the process are
/// left alone. Output that nobody reads any more is dropped. Blocks. Throws h3::Error for bad
/// options and for a program that cannot be started.
LaunchResult launch(const LaunchOptions& options);

}  // namespace h3::parallel
