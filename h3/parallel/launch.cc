#include "h3/parallel/launch.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <string_view>
#include <thread>

#include "h3/common/error.h"

extern char** environ;

namespace h3::parallel {
namespace {

using Clock = std::chrono::steady_clock;

class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) : fd_(fd) {}
  Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Fd& operator=(Fd&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Fd() { close(); }
  void close() {
    if (fd_ >= 0) ::close(fd_);
    fd_ = -1;
  }
  int get() const { return fd_; }

 private:
  int fd_ = -1;
};

[[noreturn]] void fail(const std::string& what, int error) {
  throw Error(ErrorCode::kUnavailable, "h3 launch: " + what + ": " + std::strerror(error));
}

// A free port that stays ours: bound but not listening, so the kernel hands it to nobody else while
// rank 0, which sets SO_REUSEADDR as every server does, can still listen on it.
std::pair<Fd, int> reserve_port() {
  Fd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (socket.get() < 0) fail("no socket", errno);
  int on = 1;
  setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_ANY);
  socklen_t length = sizeof(address);
  if (bind(socket.get(), reinterpret_cast<sockaddr*>(&address), length) != 0 ||
      getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address), &length) != 0)
    fail("no free port", errno);
  return {std::move(socket), ntohs(address.sin_port)};
}

void write_all(int fd, const char* data, size_t size) {
  while (size > 0) {
    ssize_t written = ::write(fd, data, size);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return;  // nobody reads any more; the ranks matter more than their text
    data += written;
    size -= written;
  }
}

// One stream of one rank: whole lines go out with the prefix, so ranks do not tear each other's.
struct Stream {
  Fd pipe;
  int target = 1;
  std::string prefix, pending;

  void emit(std::string_view line) {
    std::string text = prefix;
    text.append(line);
    write_all(target, text.data(), text.size());
  }
  // Returns false at end of file.
  bool read_some() {
    char buffer[1 << 16];
    ssize_t got = ::read(pipe.get(), buffer, sizeof(buffer));
    if (got < 0) return errno == EINTR || errno == EAGAIN;
    pending.append(buffer, got);
    size_t from = 0;
    for (size_t end; (end = pending.find('\n', from)) != std::string::npos; from = end + 1)
      emit(std::string_view(pending).substr(from, end + 1 - from));
    pending.erase(0, from);
    if (got == 0 && !pending.empty()) {
      emit(pending + "\n");
      pending.clear();
    }
    return got > 0;
  }
};

struct Rank {
  pid_t pid = -1;
  Fd pidfd;
  bool running = false;
  int code = 0;
  Stream out, err;
};

std::vector<std::string> rank_environment(const LaunchOptions& options, int rank, int port) {
  std::vector<std::pair<std::string, std::string>> set = {
      {"RANK", std::to_string(rank)},       {"WORLD_SIZE", std::to_string(options.ranks)},
      {"LOCAL_RANK", std::to_string(rank)}, {"LOCAL_WORLD_SIZE", std::to_string(options.ranks)},
      {"MASTER_ADDR", "127.0.0.1"},         {"MASTER_PORT", std::to_string(port)}};
  if (!getenv("OMP_NUM_THREADS")) {
    int cores = static_cast<int>(std::thread::hardware_concurrency());
    set.emplace_back("OMP_NUM_THREADS", std::to_string(std::max(1, cores / options.ranks)));
  }
  set.insert(set.end(), options.environment.begin(), options.environment.end());
  // A launcher inside a torchrun rank must not pass that store on.
  std::vector<std::string> dropped = {"TORCHELASTIC_USE_AGENT_STORE"};
  for (auto& [name, value] : set) dropped.push_back(name);
  std::vector<std::string> result;
  for (char** entry = environ; *entry; ++entry) {
    std::string name(*entry, std::strcspn(*entry, "="));
    if (std::find(dropped.begin(), dropped.end(), name) == dropped.end())
      result.emplace_back(*entry);
  }
  for (auto& [name, value] : set) result.push_back(name + "=" + value);
  return result;
}

std::pair<Fd, Fd> make_pipe() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) fail("no pipe", errno);
  return {Fd(ends[0]), Fd(ends[1])};
}

void start_rank(const LaunchOptions& options, int rank, int port, const sigset_t& old_mask,
                Rank* result) {
  auto [out_read, out_write] = make_pipe();
  auto [err_read, err_write] = make_pipe();
  auto [failure_read, failure_write] = make_pipe();  // carries errno if exec fails
  std::vector<std::string> environment = rank_environment(options, rank, port);
  std::vector<char*> argv, envp;
  for (const auto& word : options.command) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  for (auto& entry : environment) envp.push_back(entry.data());
  envp.push_back(nullptr);
  Fd null(open("/dev/null", O_RDONLY | O_CLOEXEC));
  const pid_t parent = getpid();

  pid_t pid = fork();
  if (pid < 0) fail("cannot start rank " + std::to_string(rank), errno);
  if (pid == 0) {
    // Only async-signal-safe calls until exec.
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(127);  // the launcher died before the line above
    dup2(null.get(), 0);
    dup2(out_write.get(), 1);
    dup2(err_write.get(), 2);
    for (int sig : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGPIPE}) signal(sig, SIG_DFL);
    sigprocmask(SIG_SETMASK, &old_mask, nullptr);
    execvpe(argv[0], argv.data(), envp.data());
    int error = errno;
    write_all(failure_write.get(), reinterpret_cast<char*>(&error), sizeof(error));
    _exit(127);
  }
  setpgid(pid, pid);  // also here: whichever comes first, the group exists before a signal is sent
  failure_write.close();
  int error = 0;
  if (read(failure_read.get(), &error, sizeof(error)) == sizeof(error)) {
    waitpid(pid, nullptr, 0);
    throw Error(ErrorCode::kInvalidArgument,
                "h3 launch: cannot run '" + options.command[0] + "': " + std::strerror(error),
                "give a program in PATH or a path to one");
  }
  result->pid = pid;
  result->pidfd = Fd(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
  if (result->pidfd.get() < 0) {
    int saved = errno;
    kill(-pid, SIGKILL);
    waitpid(pid, nullptr, 0);
    fail("pidfd_open", saved);
  }
  result->running = true;
  std::string prefix = options.prefix_output ? "[" + std::to_string(rank) + "] " : "";
  result->out = {std::move(out_read), options.out_fd, prefix, {}};
  result->err = {std::move(err_read), options.err_fd, prefix, {}};
}

class Launcher {
 public:
  explicit Launcher(const LaunchOptions& options) : options_(options), ranks_(options.ranks) {
    sigemptyset(&mask_);
    for (int sig : {SIGINT, SIGTERM, SIGHUP, SIGQUIT}) sigaddset(&mask_, sig);
    pthread_sigmask(SIG_BLOCK, &mask_, &old_mask_);
    // A reader of the output that leaves (`| head -1`) must not end the ranks. Blocked and not
    // ignored: what the rest of the process does about SIGPIPE is not ours to change.
    sigset_t pending;
    sigpending(&pending);
    pipe_was_pending_ = sigismember(&pending, SIGPIPE) == 1;
    sigemptyset(&pipe_mask_);
    sigaddset(&pipe_mask_, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &pipe_mask_, nullptr);
    signals_ = Fd(signalfd(-1, &mask_, SFD_CLOEXEC | SFD_NONBLOCK));
  }
  ~Launcher() {
    end_all(SIGKILL);
    for (auto& rank : ranks_)
      if (rank.running) waitpid(rank.pid, nullptr, 0);
    const timespec now{};
    if (!pipe_was_pending_) sigtimedwait(&pipe_mask_, nullptr, &now);
    pthread_sigmask(SIG_SETMASK, &old_mask_, nullptr);
  }

  LaunchResult run() {
    auto [reservation, port] = reserve_port();
    for (int rank = 0; rank < options_.ranks; ++rank)
      start_rank(options_, rank, port, old_mask_, &ranks_[rank]);
    while (any_running()) step();
    drain();
    LaunchResult result;
    result.exit_code = interrupted_ && first_failed_ < 0 ? 128 + interrupted_ : code_;
    result.first_failed = first_failed_;
    for (auto& rank : ranks_) result.codes.push_back(rank.code);
    return result;
  }

 private:
  bool any_running() const {
    return std::any_of(ranks_.begin(), ranks_.end(), [](auto& rank) { return rank.running; });
  }

  void end_all(int sig) {
    for (auto& rank : ranks_)
      if (rank.running) kill(-rank.pid, sig);
  }

  void say(const std::string& text) {
    std::string line = "h3 launch: " + text + "\n";
    write_all(options_.err_fd, line.data(), line.size());
  }

  void begin_end() {
    if (!deadline_) deadline_ = Clock::now() + options_.grace;
  }

  void step() {
    std::vector<pollfd> polled = {{signals_.get(), POLLIN, 0}};
    for (auto& rank : ranks_) {
      polled.push_back({rank.running ? rank.pidfd.get() : -1, POLLIN, 0});
      polled.push_back({rank.out.pipe.get(), POLLIN, 0});
      polled.push_back({rank.err.pipe.get(), POLLIN, 0});
    }
    int timeout = -1;
    if (deadline_) {
      auto left = std::chrono::ceil<std::chrono::milliseconds>(*deadline_ - Clock::now());
      timeout = static_cast<int>(std::max<int64_t>(0, left.count()));
    }
    int ready = poll(polled.data(), polled.size(), timeout);
    if (ready < 0 && errno != EINTR) fail("poll", errno);
    if (ready > 0 && polled[0].revents) forward_signals();
    for (size_t i = 0; ready > 0 && i < ranks_.size(); ++i) {
      if (polled[2 + 3 * i].revents && !ranks_[i].out.read_some()) ranks_[i].out.pipe.close();
      if (polled[3 + 3 * i].revents && !ranks_[i].err.read_some()) ranks_[i].err.pipe.close();
    }
    if (ready > 0) reap_ended();
    if (deadline_ && Clock::now() >= *deadline_) {
      end_all(SIGKILL);
      deadline_ = Clock::now() + options_.grace;
    }
  }

  void forward_signals() {
    signalfd_siginfo info;
    while (read(signals_.get(), &info, sizeof(info)) == sizeof(info)) {
      int sig = static_cast<int>(info.ssi_signo);
      // A second request to stop does not wait.
      const bool again = interrupted_ != 0 && sig != SIGHUP;
      interrupted_ = sig;
      end_all(again ? SIGKILL : sig);
      begin_end();
    }
  }

  // Ranks that ended since the last look. One killed by a signal comes first: if several ended
  // together, it is the cause and the others are the consequence.
  void reap_ended() {
    std::vector<int> ended;
    for (int i = 0; i < options_.ranks; ++i) {
      siginfo_t info{};
      if (!ranks_[i].running ||
          waitid(P_PID, ranks_[i].pid, &info, WEXITED | WNOHANG | WNOWAIT) != 0 || !info.si_pid)
        continue;
      ended.insert(info.si_code == CLD_EXITED ? ended.end() : ended.begin(), i);
    }
    for (int index : ended) reap(index);
  }

  void reap(int index) {
    Rank& rank = ranks_[index];
    kill(-rank.pid, SIGKILL);  // what the rank started and left behind; its id is still ours
    int status = 0;
    waitpid(rank.pid, &status, 0);
    rank.running = false;
    const int sig = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
    rank.code = sig ? 128 + sig : WEXITSTATUS(status);
    if (rank.code == 0 || first_failed_ >= 0 || interrupted_) return;
    first_failed_ = index;
    code_ = rank.code;
    std::string how =
        sig ? "was killed by signal " + std::to_string(sig) + " (" + strsignal(sig) + ")"
            : "ended with exit code " + std::to_string(rank.code);
    say("rank " + std::to_string(index) + " " + how +
        (any_running() ? "; ending the other ranks" : ""));
    end_all(SIGTERM);
    begin_end();
  }

  // What is still in the pipes. A grandchild that left its group may hold one open: not waited for.
  void drain() {
    for (auto& rank : ranks_)
      for (Stream* stream : {&rank.out, &rank.err}) {
        if (stream->pipe.get() < 0) continue;
        fcntl(stream->pipe.get(), F_SETFL, O_NONBLOCK);
        pollfd polled{stream->pipe.get(), POLLIN, 0};
        while (poll(&polled, 1, 0) > 0 && stream->read_some()) {
        }
      }
  }

  const LaunchOptions& options_;
  std::vector<Rank> ranks_;
  sigset_t mask_{}, old_mask_{}, pipe_mask_{};
  bool pipe_was_pending_ = false;
  Fd signals_;
  std::optional<Clock::time_point> deadline_;
  int interrupted_ = 0, first_failed_ = -1, code_ = 0;
};

}  // namespace

LaunchResult launch(const LaunchOptions& options) {
  if (options.ranks < 1 || options.ranks > 1024)
    throw Error(ErrorCode::kInvalidArgument,
                "h3 launch: " + std::to_string(options.ranks) + " ranks; accepted: 1 to 1024");
  if (options.command.empty())
    throw Error(ErrorCode::kInvalidArgument, "h3 launch: no program given",
                "h3 launch -n 2 -- program arguments");
  return Launcher(options).run();
}

}  // namespace h3::parallel
