// How ranks end when one of them dies, hangs, or was started differently. They are started without
// the launcher, which would end them itself: here they must notice on their own.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "h3/parallel/launch.h"

namespace h3::parallel {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;
using Variables = std::map<std::string, std::string>;

constexpr int kRunning = -1;

int free_port() {
  int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  socklen_t length = sizeof(address);
  EXPECT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&address), length), 0);
  getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length);
  close(fd);
  return ntohs(address.sin_port);
}

class Ranks {
 public:
  /// Starts fault_rank with that mode once for each entry, which overrides the usual variables.
  Ranks(const std::string& mode, const std::vector<Variables>& entries) : output_(tmpfile()) {
    const std::string port = std::to_string(free_port());
    const std::string size = std::to_string(entries.size());
    for (size_t rank = 0; rank < entries.size(); ++rank) {
      Variables variables{{"RANK", std::to_string(rank)},
                          {"WORLD_SIZE", size},
                          {"LOCAL_RANK", std::to_string(rank)},
                          {"LOCAL_WORLD_SIZE", size},
                          {"MASTER_ADDR", "127.0.0.1"},
                          {"MASTER_PORT", port},
                          {"OMP_NUM_THREADS", "1"},
                          {"H3_START_TIMEOUT_S", "20"},
                          {"H3_COLLECTIVE_TIMEOUT_S", "20"},
                          {"H3_HEARTBEAT_TIMEOUT_S", "20"}};
      for (auto& [name, value] : entries[rank]) variables[name] = value;
      pid_t pid = fork();
      if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        for (auto& [name, value] : variables) setenv(name.c_str(), value.c_str(), 1);
        dup2(fileno(output_), 1);
        dup2(fileno(output_), 2);
        execl(H3_FAULT_RANK, H3_FAULT_RANK, mode.c_str(), nullptr);
        _exit(127);
      }
      pids_.push_back(pid);
      codes_.push_back(kRunning);
    }
  }
  ~Ranks() {
    for (size_t i = 0; i < pids_.size(); ++i)
      if (codes_[i] == kRunning) {
        kill(pids_[i], SIGKILL);
        waitpid(pids_[i], nullptr, 0);
      }
    fclose(output_);
  }

  /// Waits until at most `left` of them run, but no longer than the limit.
  const std::vector<int>& wait(std::chrono::seconds limit = 30s, int left = 0) {
    for (auto end = Clock::now() + limit; Clock::now() < end; std::this_thread::sleep_for(5ms)) {
      int running = 0;
      for (size_t i = 0; i < pids_.size(); ++i) {
        int status = 0;
        if (codes_[i] == kRunning && waitpid(pids_[i], &status, WNOHANG) == pids_[i])
          codes_[i] = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
        running += codes_[i] == kRunning;
      }
      if (running <= left) break;
    }
    return codes_;
  }
  pid_t pid(int rank) const { return pids_[rank]; }

  std::string text() const {
    std::string text(1 << 16, '\0');
    ssize_t got = pread(fileno(output_), text.data(), text.size(), 0);
    text.resize(std::max<ssize_t>(got, 0));
    return text;
  }
  /// Lines the engine printed about the failure.
  std::vector<std::string> messages() const {
    std::vector<std::string> lines;
    std::string all = text();
    for (size_t at = 0, end; (end = all.find('\n', at)) != std::string::npos; at = end + 1)
      if (all.compare(at, 4, "h3: ") == 0) lines.push_back(all.substr(at, end - at));
    return lines;
  }

 private:
  FILE* output_;
  std::vector<pid_t> pids_;
  std::vector<int> codes_;
};

void expect_one_message(const Ranks& ranks, const std::vector<std::string>& words) {
  auto lines = ranks.messages();
  ASSERT_EQ(lines.size(), 1u) << ranks.text();
  for (auto& word : words)
    EXPECT_NE(lines[0].find(word), std::string::npos) << word << " is missing in " << lines[0];
}

using Codes = std::vector<int>;
constexpr int kKilled = 128 + SIGKILL;

TEST(Faults, NoFault_EndsWell) {
  Ranks ranks("none", std::vector<Variables>(2));
  EXPECT_EQ(ranks.wait(), (Codes{0, 0}));
  EXPECT_EQ(ranks.messages().size(), 0u) << ranks.text();
}

TEST(Faults, RankKilledMidExchange_IsNamedAndEndsAll) {
  Ranks ranks("kill", std::vector<Variables>(3));
  EXPECT_EQ(ranks.wait(), (Codes{1, 1, kKilled}));
  expect_one_message(ranks,
                     {"rank 2 is dead or stopped", "all_to_all of sequence {0, 1, 2} failed"});
}

TEST(Faults, StoreRankKilled_EndsAll) {
  Ranks ranks("kill-first", std::vector<Variables>(3));
  EXPECT_EQ(ranks.wait(), (Codes{kKilled, 1, 1}));
  expect_one_message(ranks, {"rank 0, which serves the store", "is gone"});
}

TEST(Faults, RankKilledWhileOthersCompute_IsNoticedByItsSilence) {
  Ranks ranks("idle-kill", std::vector<Variables>(2, {{"H3_HEARTBEAT_TIMEOUT_S", "1.5"}}));
  EXPECT_EQ(ranks.wait(), (Codes{1, kKilled}));
  expect_one_message(ranks, {"rank 1 is dead or stopped"});
}

TEST(Faults, RankThatLeavesWithoutAWord_CountsAsDead) {
  Ranks ranks("leave", std::vector<Variables>(2));
  EXPECT_EQ(ranks.wait(), (Codes{1, 0}));
  expect_one_message(ranks, {"rank 1 is dead or stopped"});
}

TEST(Faults, StoppedRank_EndsOthersAndItselfOnceContinued) {
  Ranks ranks("stop", std::vector<Variables>(3, {{"H3_HEARTBEAT_TIMEOUT_S", "1.5"}}));
  EXPECT_EQ(ranks.wait(30s, 1), (Codes{1, 1, kRunning}));
  expect_one_message(ranks, {"rank 2 is dead or stopped"});
  kill(ranks.pid(2), SIGCONT);
  EXPECT_EQ(ranks.wait(), (Codes{1, 1, 1}));
  EXPECT_EQ(ranks.messages().size(), 1u) << ranks.text();
}

// The others' calls to its store block without a limit, whether in the watch or in the main thread
// that looks for who is to blame.
TEST(Faults, StoppedStoreRank_EndsOthersWhetherTheCollectiveFailsFirst) {
  for (const char* collective_timeout : {"20", "1"}) {
    Ranks ranks("stop-first",
                std::vector<Variables>(3, {{"H3_HEARTBEAT_TIMEOUT_S", "3"},
                                           {"H3_COLLECTIVE_TIMEOUT_S", collective_timeout}}));
    EXPECT_EQ(ranks.wait(15s, 1), (Codes{kRunning, 1, 1}));
    expect_one_message(ranks, {"rank 1: rank 0, which serves the store", "dead or stopped"});
    const bool failed_first = collective_timeout[0] == '1';
    EXPECT_EQ(ranks.text().find(" of sequence {0, 1, 2} failed (") != std::string::npos,
              failed_first)
        << ranks.text();
    kill(ranks.pid(0), SIGCONT);
    EXPECT_EQ(ranks.wait(), (Codes{1, 1, 1}));
  }
}

TEST(Start, StoppedStoreRank_EndsTheOthers) {
  // Rank 2 never comes, so that rank 0 is still at the start when it is stopped.
  Variables variables{{"WORLD_SIZE", "3"}, {"H3_HEARTBEAT_TIMEOUT_S", "1.5"}};
  Ranks ranks("none", {variables, variables});
  std::this_thread::sleep_for(3s);
  kill(ranks.pid(0), SIGSTOP);
  EXPECT_EQ(ranks.wait(10s, 1), (Codes{kRunning, 1}));
  expect_one_message(ranks, {"rank 1: rank 0 at 127.0.0.1:", "stopped answering during the start"});
}

TEST(Faults, RankThatDoesNotCome_IsNamedAfterTheTimeout) {
  Ranks ranks("hang", std::vector<Variables>(3, {{"H3_COLLECTIVE_TIMEOUT_S", "1.5"}}));
  EXPECT_EQ(ranks.wait(), (Codes{1, 1, 1}));
  expect_one_message(ranks, {"failed", "rank 2 left all_to_all", "is in no collective"});
}

TEST(Faults, Exception_EndsAllWithItsCode) {
  Ranks ranks("throw", std::vector<Variables>(3));
  EXPECT_EQ(ranks.wait(), (Codes{2, 2, 2}));
  expect_one_message(ranks, {"rank 2: a value nobody accepts"});
}

TEST(Faults, FailingBody_EndsAllWithItsCode) {
  Ranks ranks("exit-code", std::vector<Variables>(2));
  EXPECT_EQ(ranks.wait(), (Codes{7, 7}));
}

TEST(Faults, DifferentShapes_EndAllWithBothShapes) {
  Ranks ranks("shapes", std::vector<Variables>(2));
  EXPECT_EQ(ranks.wait(), (Codes{2, 2}));
  expect_one_message(ranks, {"rank 0 attention q [1, 4, 8, 8]", "rank 1 attention q [1, 5, 8, 8]"});
}

// As on GPUs, where signatures are compared once each.
TEST(Faults, NewShapesThatDiffer_EndAllBeforeDataMoves) {
  Ranks ranks("new-shapes", std::vector<Variables>(2));
  EXPECT_EQ(ranks.wait(), (Codes{2, 2}));
  expect_one_message(ranks, {"rank 0 attention q [1, 5, 8, 8]", "rank 1 attention q [1, 6, 8, 8]"});
}

TEST(Start, DifferentConfigurations_NameRankAndField) {
  Ranks ranks("config", std::vector<Variables>(3));
  EXPECT_EQ(ranks.wait(), (Codes{2, 2, 2}));
  expect_one_message(ranks,
                     {"field attention.backend", "rank 0 has 'fa'", "rank 1 has 'torch_sdpa'"});
}

TEST(Start, WrongWorldSize_IsNamed) {
  // Rank 1 believes in a third rank; with LOCAL_WORLD_SIZE as given both are on one host.
  Ranks ranks("none", {{}, {{"WORLD_SIZE", "3"}}});
  EXPECT_EQ(ranks.wait(), (Codes{2, 2}));
  expect_one_message(ranks, {"rank 0 has", "rank 1 has", "'3'"});
}

TEST(Start, DegreesThatDoNotFit_NeedNoOtherRank) {
  Ranks ranks("degrees", std::vector<Variables>(1));
  EXPECT_EQ(ranks.wait(), (Codes{2}));
  expect_one_message(ranks, {"the degrees make 2 ranks, WORLD_SIZE is 1"});
}

TEST(Start, SameRankTwice_IsRefused) {
  Ranks ranks("none", {{{"WORLD_SIZE", "3"}},
                       {{"WORLD_SIZE", "3"}},
                       {{"WORLD_SIZE", "3"}, {"RANK", "1"}, {"LOCAL_RANK", "1"}}});
  EXPECT_EQ(ranks.wait(), (Codes{2, 2, 2}));
  EXPECT_NE(ranks.text().find("rank 1 was started twice"), std::string::npos) << ranks.text();
}

TEST(Start, MissingRank_IsNamedAfterTheTimeout) {
  Variables variables{{"WORLD_SIZE", "3"}, {"H3_START_TIMEOUT_S", "1.5"}};
  Ranks ranks("none", {variables, variables});
  EXPECT_EQ(ranks.wait(), (Codes{1, 1}));
  expect_one_message(ranks, {"of 3 ranks these did not come", ": 2"});
}

TEST(Start, NoRankZero_IsSaidWithTheAddress) {
  Ranks ranks("none", {{{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"H3_START_TIMEOUT_S", "1"}}});
  EXPECT_EQ(ranks.wait(), (Codes{1}));
  expect_one_message(ranks, {"no answer from rank 0 at 127.0.0.1:"});
}

TEST(Start, PortTakenByAnother_IsNamed) {
  int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  ASSERT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&address), length), 0);
  ASSERT_EQ(listen(fd, 1), 0);
  getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length);
  const std::string port = std::to_string(ntohs(address.sin_port));
  Ranks ranks("none", {{{"WORLD_SIZE", "2"}, {"MASTER_PORT", port}}});
  EXPECT_EQ(ranks.wait(), (Codes{1}));
  expect_one_message(ranks, {"cannot listen on 127.0.0.1:" + port, "already in use"});
  close(fd);
}

// With the launcher, killing one rank by its id leaves none behind.
TEST(Launcher, KilledRank_LeavesNoOrphans) {
  FILE* file = tmpfile();
  LaunchOptions options;
  options.ranks = 3;
  options.command = {"sh", "-c", "echo pid=$$; exec " H3_FAULT_RANK " kill"};
  options.out_fd = options.err_fd = fileno(file);
  LaunchResult result = launch(options);
  EXPECT_EQ(result.exit_code, kKilled);
  EXPECT_EQ(result.first_failed, 2);
  std::string text(1 << 16, '\0');
  text.resize(std::max<ssize_t>(pread(fileno(file), text.data(), text.size(), 0), 0));
  fclose(file);
  int found = 0;
  for (size_t at = 0; (at = text.find("pid=", at)) != std::string::npos; at += 4, ++found)
    EXPECT_NE(kill(std::stoi(text.substr(at + 4)), 0), 0);
  EXPECT_EQ(found, 3) << text;
  EXPECT_NE(text.find("rank 2 was killed by signal 9"), std::string::npos) << text;
}

}  // namespace
}  // namespace h3::parallel
