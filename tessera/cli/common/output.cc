#include "tessera/cli/common/output.h"

#include <fmt/format.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <system_error>

#include "tessera/cli/commands.h"

namespace tessera::cli {

namespace {

std::atomic<int> write_depth{0};
std::atomic<bool> interrupted{false};
static_assert(std::atomic<int>::is_always_lock_free, "the signal handler reads it");

void on_interrupt(int) {
  if (write_depth.load() > 0) {
    interrupted.store(true);
    return;
  }
  // Leaves the shell prompt on a line of its own where a progress bar was drawn.
  if (isatty(STDERR_FILENO) == 1 && write(STDERR_FILENO, "\n", 1) < 0) _exit(kExitInterrupted);
  _exit(kExitInterrupted);
}

}  // namespace

void install_interrupt_handler() {
  struct sigaction action = {};
  action.sa_handler = on_interrupt;
  sigemptyset(&action.sa_mask);
  action.sa_flags = SA_RESTART;
  // A parent that ignores SIGINT for us (nohup, background jobs) keeps its choice.
  struct sigaction old = {};
  if (sigaction(SIGINT, nullptr, &old) == 0 && old.sa_handler == SIG_IGN) return;
  sigaction(SIGINT, &action, nullptr);
}

WriteGuard::WriteGuard() { write_depth.fetch_add(1); }

WriteGuard::~WriteGuard() {
  if (write_depth.fetch_sub(1) == 1 && interrupted.load()) _exit(kExitInterrupted);
}

Status check_output_path(const std::string& path, const std::string& input_path) {
  namespace fs = std::filesystem;
  if (path.empty()) return io_error("the output path is empty; give a file name after -o");
  std::error_code ec;
  const fs::path target(path);
  if (fs::is_directory(target, ec)) {
    return io_error(path + ": is a folder; give a file name, for example " +
                    (target / "out.safetensors").string());
  }
  if (fs::exists(target, ec) && !fs::is_regular_file(target, ec)) {
    return io_error(path + ": is no regular file; give another output name");
  }
  if (!input_path.empty() && fs::equivalent(target, input_path, ec)) {
    return io_error(path + ": is the input file; give another output name");
  }
  const fs::path folder = target.has_parent_path() ? target.parent_path() : fs::path(".");
  if (!fs::exists(folder, ec)) {
    return io_error(path + ": the folder " + folder.string() + " does not exist; create it first");
  }
  if (!fs::is_directory(folder, ec)) {
    return io_error(path + ": " + folder.string() + " is no folder");
  }
  if (access(folder.c_str(), W_OK | X_OK) != 0) {
    return io_error(path + ": the folder " + folder.string() +
                    " cannot be written: " + std::strerror(errno) + "; choose another folder");
  }
  return {};
}

Status write_tensors(const std::string& path, const std::vector<io::SafetensorsItem>& items,
                     const std::map<std::string, std::string>& metadata) {
  WriteGuard guard;
  return io::write_safetensors(path, items, metadata);
}

Status print_json(const nlohmann::ordered_json& document) {
  return print_text(document.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) +
                    "\n");
}

Status print_text(const std::string& text) {
  const bool written = std::fwrite(text.data(), 1, text.size(), stdout) == text.size();
  if (!written || std::fflush(stdout) != 0) {
    return io_error(std::string("stdout cannot be written: ") + std::strerror(errno));
  }
  return {};
}

std::string time_text(double seconds) {
  return seconds < 0.1 ? fmt::format("{:.3f} ms", seconds * 1e3) : fmt::format("{:.3f} s", seconds);
}

}  // namespace tessera::cli
