// The launcher with real processes: environment, output, exit codes, signals, no orphans.
#include "h3/parallel/launch.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <string>
#include <thread>

#include "h3/common/error.h"

namespace h3::parallel {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

struct Outcome {
  LaunchResult result;
  std::string text;  // both streams, in the order written
  double seconds;
};

std::string contents(FILE* file) {
  std::string text;
  rewind(file);
  char buffer[4096];
  while (size_t got = fread(buffer, 1, sizeof(buffer), file)) text.append(buffer, got);
  fclose(file);
  return text;
}

Outcome run_shell(int ranks, const std::string& script, std::chrono::milliseconds grace = 2s) {
  FILE* file = tmpfile();
  LaunchOptions options;
  options.ranks = ranks;
  options.command = {"sh", "-c", script};
  options.grace = grace;
  options.out_fd = options.err_fd = fileno(file);
  auto start = Clock::now();
  LaunchResult result = launch(options);
  double seconds = std::chrono::duration<double>(Clock::now() - start).count();
  return {result, contents(file), seconds};
}

// A zombie that nobody has collected yet is dead.
bool alive(pid_t pid) {
  std::ifstream stat("/proc/" + std::to_string(pid) + "/stat");
  std::string number, name, state;
  return (stat >> number >> name >> state) && state != "Z";
}

bool gone_within(pid_t pid, std::chrono::milliseconds limit) {
  for (auto end = Clock::now() + limit; Clock::now() < end; std::this_thread::sleep_for(10ms))
    if (!alive(pid)) return true;
  return false;
}

// Numbers written as "pid=123" in the output.
std::vector<pid_t> pids_in(const std::string& text) {
  std::vector<pid_t> pids;
  for (size_t at = 0; (at = text.find("pid=", at)) != std::string::npos; at += 4)
    pids.push_back(std::stoi(text.substr(at + 4)));
  return pids;
}

TEST(Launch, AllRanks_GetTheirEnvironment) {
  Outcome run = run_shell(3,
                          "echo $RANK/$WORLD_SIZE/$LOCAL_RANK/$LOCAL_WORLD_SIZE@$MASTER_ADDR; "
                          "test $MASTER_PORT -gt 0 -a $OMP_NUM_THREADS -gt 0");
  EXPECT_EQ(run.result.exit_code, 0);
  EXPECT_EQ(run.result.codes, (std::vector<int>{0, 0, 0}));
  for (auto line :
       {"[0] 0/3/0/3@127.0.0.1\n", "[1] 1/3/1/3@127.0.0.1\n", "[2] 2/3/2/3@127.0.0.1\n"})
    EXPECT_NE(run.text.find(line), std::string::npos) << run.text;
}

TEST(Launch, Output_IsKeptWholeByLine) {
  Outcome run = run_shell(4, "for i in $(seq 200); do echo line-$RANK-$i; done; printf 'no end'");
  size_t lines = 0, at = 0;
  for (size_t end; (end = run.text.find('\n', at)) != std::string::npos; at = end + 1, ++lines)
    EXPECT_TRUE(run.text.compare(at, 1, "[") == 0 && run.text.compare(at + 2, 2, "] ") == 0)
        << run.text.substr(at, end - at);
  EXPECT_EQ(lines, 4u * 201);
  EXPECT_NE(run.text.find("[3] no end\n"), std::string::npos);
}

TEST(Launch, FirstFailure_EndsAllAndGivesItsCode) {
  Outcome run = run_shell(3, "test $RANK = 1 && exit 7; exec sleep 30");
  EXPECT_EQ(run.result.exit_code, 7);
  EXPECT_EQ(run.result.first_failed, 1);
  EXPECT_EQ(run.result.codes, (std::vector<int>{128 + SIGTERM, 7, 128 + SIGTERM}));
  EXPECT_NE(run.text.find("rank 1 ended with exit code 7; ending the other ranks"),
            std::string::npos)
      << run.text;
  EXPECT_LT(run.seconds, 2.0);
}

TEST(Launch, KilledRank_IsNamedWithItsSignal) {
  Outcome run = run_shell(2, "test $RANK = 1 && kill -9 $$; exec sleep 30");
  EXPECT_EQ(run.result.exit_code, 128 + SIGKILL);
  EXPECT_NE(run.text.find("rank 1 was killed by signal 9"), std::string::npos) << run.text;
}

TEST(Launch, RankThatIgnoresTerm_IsKilledAfterGrace) {
  Outcome run = run_shell(2,
                          "trap '' TERM; test $RANK = 1 && { sleep 0.2; exit 3; }; "
                          "while :; do sleep 1; done",
                          400ms);
  EXPECT_EQ(run.result.exit_code, 3);
  EXPECT_EQ(run.result.codes[0], 128 + SIGKILL);
  EXPECT_LT(run.seconds, 3.0);
}

TEST(Launch, ProcessesOfARank_EndWithIt) {
  // Rank 1 fails late enough for rank 0 to have started its process.
  Outcome run = run_shell(2, "sleep 60 & echo pid=$!; test $RANK = 1 && sleep 1 && exit 5; wait");
  EXPECT_EQ(run.result.exit_code, 5);
  auto pids = pids_in(run.text);
  ASSERT_EQ(pids.size(), 2u) << run.text;
  for (pid_t pid : pids) EXPECT_TRUE(gone_within(pid, 2s)) << pid;
}

// The launcher in a child process, so that it can be signalled and killed.
struct Background {
  pid_t pid;
  FILE* output;
};
Background start_background(const std::string& script) {
  FILE* file = tmpfile();
  pid_t pid = fork();
  if (pid == 0) {
    LaunchOptions options;
    options.ranks = 2;
    options.command = {"sh", "-c", script};
    options.out_fd = options.err_fd = fileno(file);
    _exit(launch(options).exit_code);
  }
  return {pid, file};
}

std::vector<pid_t> wait_for_pids(FILE* file, size_t count) {
  for (auto end = Clock::now() + 5s; Clock::now() < end; std::this_thread::sleep_for(20ms)) {
    char buffer[4096];
    ssize_t got = pread(fileno(file), buffer, sizeof(buffer), 0);
    auto pids = pids_in(std::string(buffer, std::max<ssize_t>(got, 0)));
    if (pids.size() == count) return pids;
  }
  return {};
}

TEST(Launch, KilledLauncher_LeavesNoOrphans) {
  Background background = start_background("echo pid=$$; exec sleep 60");
  auto pids = wait_for_pids(background.output, 2);
  ASSERT_EQ(pids.size(), 2u);
  for (pid_t pid : pids) EXPECT_TRUE(alive(pid));
  kill(background.pid, SIGKILL);
  waitpid(background.pid, nullptr, 0);
  for (pid_t pid : pids) EXPECT_TRUE(gone_within(pid, 2s)) << pid;
  fclose(background.output);
}

TEST(Launch, Signal_IsForwardedToEveryRank) {
  Background background = start_background(
      "trap 'echo stopped; exit 0' TERM; echo pid=$$; while :; do sleep 0.05; done");
  auto pids = wait_for_pids(background.output, 2);
  ASSERT_EQ(pids.size(), 2u);
  kill(background.pid, SIGTERM);
  int status = 0;
  waitpid(background.pid, &status, 0);
  EXPECT_EQ(WEXITSTATUS(status), 128 + SIGTERM);
  std::string text = contents(background.output);
  EXPECT_NE(text.find("[0] stopped"), std::string::npos) << text;
  EXPECT_NE(text.find("[1] stopped"), std::string::npos) << text;
}

// As in `h3 launch ... | head -1`: the ranks matter more than their text.
TEST(Launch, OutputNobodyReads_DoesNotEndTheRanks) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  close(ends[0]);
  FILE* file = tmpfile();
  LaunchOptions options;
  options.ranks = 2;
  options.command = {"sh", "-c", "echo text; echo more; echo done >&2; exit 5"};
  options.out_fd = ends[1];
  options.err_fd = fileno(file);
  const LaunchResult result = launch(options);
  close(ends[1]);
  const std::string text = contents(file);
  EXPECT_EQ(result.exit_code, 5);
  EXPECT_NE(text.find("done"), std::string::npos) << text;
  sigset_t pending;
  sigpending(&pending);
  EXPECT_EQ(sigismember(&pending, SIGPIPE), 0);
}

TEST(Launch, MissingProgram_IsRefused) {
  LaunchOptions options;
  options.ranks = 2;
  options.command = {"no-such-program-h3"};
  try {
    launch(options);
    FAIL() << "started";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    EXPECT_NE(std::string(error.what()).find("no-such-program-h3"), std::string::npos);
  }
  options.ranks = 0;
  EXPECT_THROW(launch(options), Error);
}

}  // namespace
}  // namespace h3::parallel
