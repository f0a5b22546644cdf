// `h3 launch` as users run it: the program gets its arguments as they were written.
#include <gtest/gtest.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>
#include <vector>

namespace h3 {
namespace {

struct Outcome {
  int exit_code = -1;
  std::string text;  // both streams
};

Outcome run_shell(const std::string& command) {
  Outcome outcome;
  FILE* pipe = popen(("exec 2>&1; " + command).c_str(), "r");
  if (pipe == nullptr) {
    ADD_FAILURE() << "no shell";
    return outcome;
  }
  char buffer[4096];
  while (size_t got = fread(buffer, 1, sizeof(buffer), pipe)) outcome.text.append(buffer, got);
  outcome.exit_code = WEXITSTATUS(pclose(pipe));
  return outcome;
}

Outcome launch(const std::string& rest) { return run_shell(H3_BINARY " launch " + rest); }

TEST(LaunchCommand, ProgramArguments_ArriveUnchanged) {
  const std::string words =
      "--my_flag 1 --attention-backend-config.sparsity 0.9 --component_attention_backends.x=fa "
      "--no-prefix -n 3 --ranks=4 --grace-s 1 --help -- a_b '' 'two words'";
  const std::string lines =
      "--my_flag\n1\n--attention-backend-config.sparsity\n0.9\n--component_attention_backends.x="
      "fa\n"
      "--no-prefix\n-n\n3\n--ranks=4\n--grace-s\n1\n--help\n--\na_b\n\ntwo words\n";
  for (const char* own :
       {"-n 1 --no-prefix -- ", "-n 1 --no-prefix ", "--no_prefix --num_gpus 1 --grace_s 2 ",
        "--ranks=1 --no-prefix --grace-s=2 "}) {
    const Outcome o = launch(std::string(own) + "printf '%s\\n' " + words);
    EXPECT_EQ(o.exit_code, 0) << own;
    EXPECT_EQ(o.text, lines) << own;
  }
}

TEST(LaunchCommand, Ranks_AreStartedAndTheirCodeReturned) {
  const Outcome o = launch("-n 2 sh -c 'echo $RANK of $WORLD_SIZE; exit 6'");
  EXPECT_EQ(o.exit_code, 6);
  EXPECT_NE(o.text.find(" of 2\n"), std::string::npos) << o.text;
}

TEST(LaunchCommand, BadCalls_SayWhatIsMissing) {
  struct Case {
    std::string arguments, words;
  };
  for (const Case& c :
       {Case{"-n 2", "no program given"}, Case{"-n 2 --", "no program given"},
        Case{"echo a", "--num-gpus"}, Case{"-n", "-n"},
        Case{"--rank 2 -- echo a", "unknown option --rank"}, Case{"-n 0 -- echo a", "0 ranks"},
        Case{"-n 1 --attention-backend-config.sparsity=1 -- echo a",
             "h3 launch has no option --attention-backend-config.sparsity"}}) {
    const Outcome o = launch(c.arguments);
    EXPECT_EQ(o.exit_code, 2) << c.arguments;
    EXPECT_NE(o.text.find(c.words), std::string::npos) << c.arguments << ": " << o.text;
  }
  EXPECT_NE(launch("--help").text.find("PROGRAM"), std::string::npos);
}

TEST(LaunchCommand, ReaderThatLeaves_DoesNotEndTheRanks) {
  char folder[] = "/tmp/h3-launch-XXXXXX";
  ASSERT_NE(mkdtemp(folder), nullptr);
  const std::string mark = std::string(folder) + "/mark", code = std::string(folder) + "/code";
  run_shell("{ " H3_BINARY
            " launch -n 1 -- sh -c 'echo a; sleep 0.3; echo b; echo c; sleep 0.3; "
            "echo x > " +
            mark + "; exit 4'; echo $? > " + code + "; } | head -1");
  EXPECT_EQ(run_shell("cat " + mark).text, "x\n");
  EXPECT_EQ(run_shell("cat " + code).text, "4\n");
  unlink(mark.c_str());
  unlink(code.c_str());
  rmdir(folder);
}

}  // namespace
}  // namespace h3
