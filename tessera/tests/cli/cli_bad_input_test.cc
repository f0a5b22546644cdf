// Damaged or unfit input: the exit code, what the message names, and that nothing is written.
#include <gtest/gtest.h>
#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <ostream>
#include <thread>

#include "tessera/tests/cli/cli_run.h"

namespace tessera::cli_test {
namespace {

const std::vector<int64_t> kShape = {1, 130, 2, 128};

std::vector<Tensor> good_tensors(std::vector<int64_t> shape = kShape) {
  return {random_tensor("q", shape, 1), random_tensor("k", shape, 2), random_tensor("v", shape, 3)};
}

// Every part of `parts` must be in the one line on stderr.
void expect_refused(const Outcome& run, int exit_code, const std::vector<std::string>& parts) {
  EXPECT_EQ(run.exit_code, exit_code) << run.err << run.out;
  EXPECT_EQ(run.out, "");
  EXPECT_EQ(run.err.rfind("tessera: error: ", 0), 0u) << run.err;
  EXPECT_EQ(std::count(run.err.begin(), run.err.end(), '\n'), 1) << run.err;
  for (const std::string& part : parts) {
    EXPECT_NE(run.err.find(part), std::string::npos) << "no \"" << part << "\" in: " << run.err;
  }
}

struct BadTensors {
  const char* name;
  std::function<std::vector<Tensor>()> tensors;
  int exit_code;
  std::vector<std::string> parts;
};

void PrintTo(const BadTensors& bad, std::ostream* out) { *out << bad.name; }

std::vector<Tensor> packed(const std::vector<int32_t>& bounds) {
  std::vector<Tensor> tensors = good_tensors({130, 2, 128});
  tensors.push_back(integers("cu_seqlens", {static_cast<int64_t>(bounds.size())}, bounds));
  return tensors;
}

std::vector<Tensor> with(size_t at, Tensor tensor) {
  std::vector<Tensor> tensors = good_tensors();
  tensors[at] = std::move(tensor);
  return tensors;
}

std::vector<Tensor> poisoned(size_t at, int64_t element, float value) {
  std::vector<Tensor> tensors = good_tensors();
  tensors[at].values[element] = value;
  tensors[at].values.back() = value;
  return tensors;
}

const BadTensors kBadTensors[] = {
    {"MissingV",
     [] {
       return std::vector<Tensor>{good_tensors()[0], good_tensors()[1]};
     },
     2,
     {"tensor v is missing", "q"}},
    {"RankTwo",
     [] {
       return with(0, filled("q", {130, 128}, 0));
     },
     2,
     {"tensor q", "rank 2"}},
    {"MixedRanks",
     [] {
       return with(1, filled("k", {130, 2, 128}, 0));
     },
     2,
     {"one rank"}},
    {"NoTokens",
     [] {
       return good_tensors({1, 0, 2, 128});
     },
     2,
     {"tensor q", "0 tokens"}},
    {"PackedNoTokens",
     [] {
       std::vector<Tensor> tensors = good_tensors({0, 2, 128});
       tensors.push_back(integers("cu_seqlens", {1}, {0}));
       return tensors;
     },
     2,
     {"tensor q", "0 tokens"}},
    {"F64", [] { return with(0, filled("q", kShape, 0, Dtype::kF64)); }, 3, {"tensor q is f64"}},
    {"MixedDtypes",
     [] { return with(2, filled("v", kShape, 0, Dtype::kF32)); },
     2,
     {"tensor v is f32", "q is bf16"}},
    {"HeadWidth96",
     [] {
       return good_tensors({1, 130, 2, 96});
     },
     3,
     {"96", "64 and 128"}},
    {"HeadsDoNotDivide",
     [] {
       std::vector<Tensor> tensors = good_tensors({1, 130, 2, 128});
       tensors[0] = filled("q", {1, 130, 3, 128}, 0);
       return tensors;
     },
     2,
     {"2 heads", "q has 3"}},
    {"ValueTokens",
     [] {
       return with(2, filled("v", {1, 129, 2, 128}, 0));
     },
     2,
     {"tensor v", "129"}},
    {"NanInQ",
     [] { return poisoned(0, 5 * 256 + 128 + 7, std::nanf("")); },
     2,
     {"tensor q", "2 values", "[0, 5, 1, 7]"}},
    {"InfInV",
     [] { return poisoned(2, 0, -std::numeric_limits<float>::infinity()); },
     2,
     {"tensor v", "2 values", "[0, 0, 0, 0]"}},
    {"PackedWithoutBounds",
     [] {
       return good_tensors({130, 2, 128});
     },
     2,
     {"cu_seqlens is missing"}},
    {"BoundsWithBatch",
     [] {
       std::vector<Tensor> tensors = good_tensors();
       tensors.push_back(integers("cu_seqlens", {2}, {0, 130}));
       return tensors;
     },
     2,
     {"cu_seqlens", "[B, S, H, D]"}},
    {"FallingBounds",
     [] {
       return packed({0, 100, 90, 130});
     },
     2,
     {"cu_seqlens", "100", "90"}},
    {"BoundsStartAtOne",
     [] {
       return packed({1, 130});
     },
     2,
     {"cu_seqlens", "1"}},
    {"BoundsBehindTheEnd",
     [] {
       return packed({0, 131});
     },
     2,
     {"cu_seqlens", "131", "130"}},
    {"FloatBounds",
     [] {
       std::vector<Tensor> tensors = good_tensors({130, 2, 128});
       tensors.push_back(filled("cu_seqlens", {2}, 0, Dtype::kF32));
       return tensors;
     },
     2,
     {"cu_seqlens is f32", "i32"}},
};

class BadTensorsTest : public testing::TestWithParam<BadTensors> {};

TEST_P(BadTensorsTest, Attend_RefusesAndKeepsTheOldOutput) {
  const TempFolder folder;
  write_file(folder.path("in"), GetParam().tensors());
  write_bytes(folder.path("out"), "kept");
  std::vector<std::string> parts = GetParam().parts;
  parts.push_back(folder.path("in"));
  expect_refused(
      run_tessera({"attend", folder.path("in"), "-o", folder.path("out"), "--dense"}, folder),
      GetParam().exit_code, parts);
  EXPECT_EQ(read_bytes(folder.path("out")), "kept");
  EXPECT_EQ(folder.names(), (std::vector<std::string>{"in", "out"}));
}
INSTANTIATE_TEST_SUITE_P(Inputs, BadTensorsTest, testing::ValuesIn(kBadTensors),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(BadInput, MaxSeqlenUnderTheLongestDocument_IsRefused) {
  const TempFolder folder;
  write_file(folder.path("in"), packed({0, 100, 130}));
  const std::vector<std::string> args = {"attend",           folder.path("in"), "-o",
                                         folder.path("out"), "--dense",         "--max-seqlen"};
  std::vector<std::string> small = args, enough = args;
  small.push_back("99");
  enough.push_back("100");
  expect_refused(run_tessera(small, folder), 2, {"99", "100"});
  EXPECT_EQ(run_tessera(enough, folder).exit_code, 0);
}

TEST(BadInput, NanOutsideAllDocuments_IsNotLookedAt) {
  const TempFolder folder;
  std::vector<Tensor> tensors = packed({0, 129});
  for (int i = 0; i < 3; ++i) tensors[i].values.back() = std::nanf("");
  write_file(folder.path("in"), tensors);
  EXPECT_EQ(run_tessera({"attend", folder.path("in"), "-o", folder.path("out"), "--dense"}, folder)
                .exit_code,
            0);
}

TEST(BadFile, DamagedSafetensors_AreRefused) {
  const TempFolder folder;
  write_file(folder.path("good"), good_tensors());
  const std::string good = read_bytes(folder.path("good"));
  std::string long_header = good;
  long_header[6] = '\x7f';  // header length far over the file
  std::string bad_json = good;
  bad_json[8] = '[';
  const std::pair<const char*, std::string> cases[] = {
      {"empty", ""},
      {"short", good.substr(0, 5)},
      {"truncated", good.substr(0, good.size() - 100)},
      {"header_only", good.substr(0, 60)},
      {"long_header", long_header},
      {"bad_json", bad_json},
      {"text", "this is no tensor file, but it is long enough to hold a header\n"}};
  for (const auto& [name, bytes] : cases) {
    SCOPED_TRACE(name);
    write_bytes(folder.path(name), bytes);
    expect_refused(
        run_tessera({"attend", folder.path(name), "-o", folder.path("out"), "--dense"}, folder), 2,
        {folder.path(name)});
  }
  expect_refused(run_tessera({"route", folder.path("absent"), "-o", folder.path("out")}, folder), 2,
                 {folder.path("absent"), "No such file"});
  EXPECT_FALSE(std::filesystem::exists(folder.path("out")));
}

TEST(BadPlan, MadeForAnotherShape_NamesBothShapes) {
  const TempFolder folder;
  write_file(folder.path("in"), good_tensors());
  write_file(folder.path("longer"), good_tensors({1, 300, 2, 128}));
  write_file(folder.path("similar"), good_tensors({1, 131, 2, 128}));
  for (const char* made_from : {"longer", "similar"}) {
    const Outcome routed =
        run_tessera({"route", folder.path(made_from), "-o", folder.path("plan")}, folder);
    ASSERT_EQ(routed.exit_code, 0) << routed.err;
    const bool longer = std::string(made_from) == "longer";
    for (const char* command : {"attend", "compare", "explain"}) {
      std::vector<std::string> args = {command, folder.path("in"), "--plan", folder.path("plan")};
      if (std::string(command) == "attend") args.insert(args.end(), {"-o", folder.path("out")});
      expect_refused(
          run_tessera(args, folder), 2,
          {folder.path("plan"), longer ? "[1, 2, 5]" : "131", longer ? "[1, 2, 3]" : "130"});
    }
  }
}

TEST(BadPlan, OfOtherDocuments_IsRefused) {
  const TempFolder folder;
  write_file(folder.path("a"), packed({0, 70, 130}));
  write_file(folder.path("b"), packed({0, 60, 130}));
  ASSERT_EQ(run_tessera({"route", folder.path("a"), "-o", folder.path("plan")}, folder).exit_code,
            0);
  expect_refused(run_tessera({"attend", folder.path("b"), "--plan", folder.path("plan"), "-o",
                              folder.path("out")},
                             folder),
                 2, {folder.path("plan"), "0, 70, 130", "0, 60, 130"});
}

TEST(BadPlan, WrongTensors_AreNamed) {
  const TempFolder folder;
  write_file(folder.path("in"), good_tensors());
  const Tensor count = integers("block_count", {1, 2, 3}, std::vector<int32_t>(6, 1));
  write_file(folder.path("no_count"),
             {integers("block_index", {1, 2, 3, 1}, std::vector<int32_t>(6, 0))});
  write_file(folder.path("floats"), {filled("block_index", {1, 2, 3, 1}, 0, Dtype::kF32), count});
  for (const auto& [name, part] :
       {std::pair{"no_count", "block_count is missing"}, std::pair{"floats", "block_index is f32"},
        std::pair{"in", "block_index is missing"}}) {
    expect_refused(run_tessera({"attend", folder.path("in"), "--plan", folder.path(name), "-o",
                                folder.path("out")},
                               folder),
                   2, {folder.path(name), part});
  }
}

TEST(BadOutput, IsRefusedBeforeTheInputIsRead) {
  const TempFolder folder;
  write_bytes(folder.path("file"), "");
  const std::string absent = folder.path("absent_input");  // reading it would give another message
  const std::pair<std::string, const char*> cases[] = {
      {folder.path("no/such/out"), "does not exist"},
      {folder.path(""), "is a folder"},
      {folder.path("file/out"), "is no folder"}};
  for (const auto& [output, part] : cases) {
    expect_refused(run_tessera({"attend", absent, "-o", output, "--dense"}, folder), 2,
                   {output, part});
    expect_refused(run_tessera({"route", absent, "-o", output}, folder), 2, {output, part});
  }
  write_file(folder.path("in"), good_tensors());
  const std::string before = read_bytes(folder.path("in"));
  expect_refused(
      run_tessera({"attend", folder.path("in"), "-o", folder.path("in"), "--dense"}, folder), 2,
      {"is the input file"});
  EXPECT_EQ(read_bytes(folder.path("in")), before);
}

TEST(BadOutput, ReadOnlyFolder_IsRefused) {
  if (geteuid() == 0) GTEST_SKIP() << "root may write into any folder";
  const TempFolder folder;
  const std::string locked = folder.path("locked");
  ASSERT_EQ(mkdir(locked.c_str(), 0500), 0);
  expect_refused(run_tessera({"route", folder.path("absent"), "-o", locked + "/plan"}, folder), 2,
                 {locked, "cannot be written"});
}

TEST(BadOutput, FullDisk_IsReportedForStdout) {
  if (access("/dev/full", W_OK) != 0) GTEST_SKIP() << "no /dev/full here";
  const TempFolder folder;
  const std::string command =
      std::string(TESSERA_BINARY) + " doctor >/dev/full 2>" + folder.path("err");
  const int status = std::system(command.c_str());
  EXPECT_EQ(WEXITSTATUS(status), 2);
  EXPECT_NE(read_bytes(folder.path("err")).find("No space left"), std::string::npos);
}

TEST(BadOutput, FileSizeLimit_LeavesTheOldFileAndNothingElse) {
  const TempFolder folder;
  write_file(folder.path("in"), good_tensors());  // its output has 66,560 bytes
  write_bytes(folder.path("out"), "kept");
  const std::string command = "trap '' XFSZ; ulimit -f 32; " + std::string(TESSERA_BINARY) +
                              " attend " + folder.path("in") + " --dense -o " + folder.path("out") +
                              " 2>&1";
  FILE* shell = popen(("exec bash -c \"" + command + "\"").c_str(), "r");
  ASSERT_NE(shell, nullptr);
  std::string text;
  for (int c = fgetc(shell); c != EOF; c = fgetc(shell)) text.push_back(static_cast<char>(c));
  EXPECT_EQ(WEXITSTATUS(pclose(shell)), 2) << text;
  EXPECT_NE(text.find(folder.path("out")), std::string::npos) << text;
  EXPECT_EQ(read_bytes(folder.path("out")), "kept");
  EXPECT_EQ(folder.names(), (std::vector<std::string>{"in", "out"}));
}

// Whether the process has installed its SIGINT handler.
bool catches_interrupt(pid_t pid) {
  std::ifstream status("/proc/" + std::to_string(pid) + "/status");
  for (std::string line; std::getline(status, line);) {
    if (line.rfind("SigCgt:", 0) == 0) {
      return (std::stoull(line.substr(7), nullptr, 16) & (1ull << (SIGINT - 1))) != 0;
    }
  }
  return false;
}

// Starts minutes of work (the scalar kernel), with stderr as it is in the child. -1 on failure.
pid_t start_long_work(const std::string& in, const std::string& out, int* terminal) {
  const pid_t child = terminal != nullptr ? forkpty(terminal, nullptr, nullptr, nullptr) : fork();
  if (child == 0) {
    execl(TESSERA_BINARY, TESSERA_BINARY, "attend", in.c_str(), "-o", out.c_str(), "--dense",
          "--kernel", "cpu_reference", nullptr);
    _exit(127);
  }
  return child;
}

void expect_interrupted(pid_t child) {
  kill(child, SIGINT);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status)) << "ended by signal " << WTERMSIG(status);
  EXPECT_EQ(WEXITSTATUS(status), 130);
}

TEST(Interrupt, DuringLongWork_Exits130WithoutFiles) {
  const TempFolder folder;
  write_file(folder.path("in"), good_tensors({1, 6000, 2, 128}));
  const pid_t child = start_long_work(folder.path("in"), folder.path("out"), nullptr);
  ASSERT_GE(child, 0);
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (!catches_interrupt(child) && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  expect_interrupted(child);
  EXPECT_EQ(folder.names(), std::vector<std::string>{"in"});
}

TEST(Progress, LongWorkOnATerminal_DrawsABar) {
  const TempFolder folder;
  write_file(folder.path("in"), good_tensors({1, 6000, 2, 128}));
  int terminal = -1;
  const pid_t child = start_long_work(folder.path("in"), folder.path("out"), &terminal);
  ASSERT_GE(child, 0);
  std::string shown;
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (shown.find("s left") == std::string::npos && std::chrono::steady_clock::now() < deadline) {
    pollfd ready = {terminal, POLLIN, 0};
    char buffer[256];
    const ssize_t got = poll(&ready, 1, 100) > 0 ? read(terminal, buffer, sizeof buffer) : 0;
    if (got < 0) break;
    shown.append(buffer, static_cast<size_t>(got));
  }
  EXPECT_NE(shown.find("attend"), std::string::npos) << shown;
  EXPECT_NE(shown.find("s left"), std::string::npos) << shown;
  expect_interrupted(child);
  close(terminal);
}

}  // namespace
}  // namespace tessera::cli_test
