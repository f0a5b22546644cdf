// The words on the command line: damaged backend options, conflicts, ranges, spellings, help.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <nlohmann/json.hpp>
#include <ostream>

#include "tessera/tests/cli/cli_run.h"

namespace tessera::cli_test {
namespace {

using nlohmann::json;

void write_input(const TempFolder& folder, std::vector<int64_t> shape = {1, 700, 1, 64}) {
  write_file(folder.path("in"), {random_tensor("q", shape, 1), random_tensor("k", shape, 2),
                                 random_tensor("v", shape, 3)});
}

void expect_usage_error(const Outcome& run, const std::vector<std::string>& parts) {
  EXPECT_EQ(run.exit_code, 2) << run.err;
  EXPECT_EQ(run.out, "");
  EXPECT_EQ(run.err.rfind("tessera: error: ", 0), 0u) << run.err;
  EXPECT_EQ(std::count(run.err.begin(), run.err.end(), '\n'), 1) << run.err;
  for (const std::string& part : parts) {
    EXPECT_NE(run.err.find(part), std::string::npos) << "no \"" << part << "\" in: " << run.err;
  }
}

struct Damaged {
  const char* text;
  std::vector<std::string> parts;
};

// Test names hold letters, digits and underscores only.
std::string label_of(const testing::TestParamInfo<Damaged>& info) {
  std::string label = std::to_string(info.index);
  for (char c : std::string(info.param.text)) label += std::isalnum(c) != 0 ? c : '_';
  return label;
}

void PrintTo(const Damaged& damaged, std::ostream* out) {
  *out << std::string(damaged.text).size() << " bytes";
}

class BackendConfig : public testing::TestWithParam<Damaged> {};

TEST_P(BackendConfig, Damaged_IsRefusedBeforeTheInputIsRead) {
  const TempFolder folder;
  std::vector<std::string> parts = GetParam().parts;
  parts.push_back("--attention-backend-config");
  for (const char* command : {"route", "attend", "compare", "explain"}) {
    std::vector<std::string> args = {command, folder.path("absent"), "--attention-backend-config",
                                     GetParam().text};
    if (command[0] == 'r' || command[0] == 'a') args.insert(args.end(), {"-o", folder.path("x")});
    expect_usage_error(run_tessera(args, folder), parts);
  }
}
INSTANTIATE_TEST_SUITE_P(
    Texts, BackendConfig,
    testing::Values(Damaged{"{sparsity: 0.85}", {"not JSON", "{sparsity: 0.85}", "@FILE"}},
                    Damaged{"{{\"sparsity\": 0.85}}", {"not JSON"}},
                    Damaged{"\\{\\\"sparsity\\\":0.85\\}", {"not JSON"}},
                    Damaged{"{\"sparsty\": 0.85}", {"unknown key", "nearest", "sparsity"}},
                    Damaged{"{\"sparsity\": 1.0}", {"[0, 1)"}},
                    Damaged{"{\"sparsity\": -0.1}", {"[0, 1)", "-0.1"}},
                    Damaged{"{\"n_k\": 3}", {"n_k", "1, 2, 4 or 8", "3"}},
                    Damaged{"{\"n_q\": 16}", {"n_q", "1, 2, 4 or 8", "16"}},
                    Damaged{"{\"n_k\": 4.9}", {"n_k", "4.9"}},
                    Damaged{"{\"sparsity\": \"0.85\"}", {"sparsity", "number"}},
                    Damaged{"{\"sparsity\": true}", {"sparsity", "number"}},
                    Damaged{"{\"skip_first_steps\": -1}", {"skip_first_steps", "-1"}},
                    Damaged{"{\"n_k\": 4, \"n_k\": 4}", {"n_k", "twice"}},
                    Damaged{"@no_such_options.json", {"no_such_options.json"}},
                    Damaged{"sparsity=NaN", {"sparsity", "[0, 1)"}}),
    label_of);

TEST(BackendConfigText, Accepted_IsPrintedOnceWithTheKeptCount) {
  const TempFolder folder;
  write_input(folder);
  write_bytes(folder.path("options.json"), "{\"sparsity\": 0.85, \"min_seq_len\": 0}");
  const std::string at_file = "@" + folder.path("options.json");
  for (const std::string& text :
       {std::string("{\"sparsity\": 0.85, \"min_seq_len\": 0}"), at_file,
        folder.path("options.json"), std::string("sparsity=0.85,min_seq_len=0")}) {
    const Outcome run = run_tessera(
        {"route", folder.path("in"), "-o", folder.path("plan"), "--attention_backend_config", text},
        folder);
    ASSERT_EQ(run.exit_code, 0) << run.err;
    // 11 key blocks: ceil(0.15 * 11) = 2, rounded up to 8.
    EXPECT_NE(run.err.find("sparsity=0.85 n_k=4 n_q=4 skip_first_steps=10 skip_first_layers=0 "
                           "min_seq_len=0"),
              std::string::npos)
        << run.err;
    EXPECT_NE(run.err.find("8 of 11 blocks, sparsity 0.2727 delivered for 0.85 asked"),
              std::string::npos)
        << run.err;
    EXPECT_EQ(std::count(run.err.begin(), run.err.end(), '\n'), 1) << run.err;
    EXPECT_EQ(read_tensor(folder.path("plan"), "block_count").values, std::vector<float>(11, 8.0f));
  }
}

TEST(BackendConfigText, Defaults_LeaveShortSequencesDense) {
  const TempFolder folder;
  write_input(folder);
  for (const char* text : {"", "{}"}) {
    const Outcome run = run_tessera(
        {"explain", folder.path("in"), "--json", "--attention-backend-config", text}, folder);
    ASSERT_EQ(run.exit_code, 0) << run.err;
    const json report = json::parse(run.out);
    EXPECT_EQ(report["plan"]["dense_documents"], 1);
    EXPECT_EQ(report["settings"]["min_seq_len"], 4096);
    EXPECT_EQ(report["density"], 1.0);
  }
}

TEST(BackendConfigText, UnsupportedMode_Exits3) {
  const TempFolder folder;
  const Outcome run = run_tessera({"explain", folder.path("absent"), "--attention-backend-config",
                                   "{\"compute_mode\": \"sage_fp8\"}"},
                                  folder);
  EXPECT_EQ(run.exit_code, 3) << run.err;
}

TEST(Conflicts, NameBothOptions) {
  const TempFolder folder;
  const std::string in = folder.path("absent"), out = folder.path("out");
  const std::string config = "--attention-backend-config";
  const std::pair<std::vector<std::string>, std::vector<std::string>> cases[] = {
      {{"route", in, "-o", out, config, "{}", "--sparsity", "0.5"}, {config, "--sparsity"}},
      {{"route", in, "-o", out, config, "{}", "--n-q", "4"}, {config, "--n-q"}},
      {{"compare", in, config, "{}", "--min-seq-len", "0"}, {config, "--min-seq-len"}},
      {{"route", in, "-o", out, "--sparsity", "0.5", "--keep", "3"}, {"--sparsity", "--keep"}},
      {{"route", in, "-o", out, "--mass", "0.5", "--keep", "3"}, {"--mass", "--keep"}},
      {{"route", in, "-o", out, "--min-keep", "3"}, {"--min-keep", "--mass"}},
      {{"route", in, "-o", out, "--keep", "3", "--granularity", "8"}, {"--granularity", "--keep"}},
      {{"attend", in, "-o", out, "--dense", "--plan", in}, {"--dense", "--plan"}},
      {{"attend", in, "-o", out, "--dense", "--keep", "3"}, {"--dense", "routing options"}},
      {{"attend", in, "-o", out}, {"--plan", "--sparsity", "--dense"}}};
  for (const auto& [args, parts] : cases) expect_usage_error(run_tessera(args, folder), parts);
}

TEST(Ranges, NameTheValueAndWhatIsAccepted) {
  const TempFolder folder;
  const std::vector<std::string> cases[] = {{"--sparsity", "1"},
                                            {"--sparsity", "-0.1"},
                                            {"--sparsity", "nan"},
                                            {"--sparsity", "x"},
                                            {"--keep", "0"},
                                            {"--mass", "0"},
                                            {"--mass", "1.5"},
                                            {"--n-q", "3"},
                                            {"--n-k", "16"},
                                            {"--n-k", "4.9"},
                                            {"--granularity", "0"},
                                            {"--protect-blocks", "1,,2"},
                                            {"--protect-blocks", "5-3"},
                                            {"--protect-blocks", "-1"},
                                            {"--protect-blocks", "99999999999"},
                                            {"--threads", "-1"},
                                            {"--min-seq-len", "-1"}};
  for (const std::vector<std::string>& option : cases) {
    const Outcome run = run_tessera(
        {"route", folder.path("absent"), "-o", folder.path("out"), option[0], option[1]}, folder);
    expect_usage_error(run, {option[0], option[1]});
  }
}

TEST(Ranges, TextThatIsNoNumber_NamesWhatIsAccepted) {
  const TempFolder folder;
  const std::vector<std::array<std::string, 3>> cases = {
      {"--sparsity", "much", "[0, 1)"},
      {"--keep", "1.5", "1 or more"},
      {"--keep", "99999999999", "1 or more"},
      {"--mass", "half", "(0, 1]"},
      {"--max-keep", "x", "0 (no cap) or more"},
      {"--granularity", "x", "1 or more"},
      {"--n-q", "four", "1, 2, 4 or 8"},
      {"--min-seq-len", "-3", "0 or more"},
      {"--max-seqlen", "x", "0 or more"},
      {"--softmax-scale", "x", "a positive number, or 0"},
      {"--repeat", "x", "1 to 1000"}};
  for (const auto& [flag, value, accepted] : cases) {
    expect_usage_error(run_tessera({"compare", folder.path("absent"), flag, value}, folder),
                       {flag, value, accepted});
  }
}

TEST(Spelling, HyphenAndUnderscore_AreTheSame) {
  const TempFolder folder;
  write_input(folder);
  for (const char* prefix : {"--n-q=2", "--n_q=2"}) {
    const Outcome run = run_tessera(
        {"route", folder.path("in"), "-o", folder.path("plan"), prefix, "--json"}, folder);
    ASSERT_EQ(run.exit_code, 0) << run.err;
    EXPECT_EQ(json::parse(run.out)["settings"]["n_q"], 2);
  }
}

TEST(Spelling, Unknown_SuggestsTheNearest) {
  const TempFolder folder;
  expect_usage_error(run_tessera({"rout"}, folder), {"\"rout\"", "nearest: route"});
  expect_usage_error(run_tessera({"route", "x", "--sparsty", "0.5"}, folder),
                     {"--sparsty", "nearest: --sparsity"});
  expect_usage_error(run_tessera({}, folder), {"no command"});
  expect_usage_error(run_tessera({"route"}, folder), {"required", "tessera route --help"});
}

TEST(Help, EveryCommand_HasAnExample) {
  const TempFolder folder;
  for (const std::string command : {"route", "attend", "compare", "explain", "doctor", "bench"}) {
    const Outcome run = run_tessera({command, "--help"}, folder);
    EXPECT_EQ(run.exit_code, 0);
    EXPECT_EQ(run.err, "");
    EXPECT_NE(run.out.find("Example:\n  tessera " + command), std::string::npos) << run.out;
    for (const char* option : {"--json", "--threads"}) {
      EXPECT_NE(run.out.find(option), std::string::npos) << command << option;
    }
  }
  const Outcome version = run_tessera({"--version"}, folder);
  EXPECT_EQ(version.exit_code, 0);
  EXPECT_EQ(version.out.rfind("tessera 0.", 0), 0u) << version.out;
}

// Every command that takes --device, with an input that does not exist: the device comes first.
std::vector<std::vector<std::string>> device_commands(const TempFolder& folder) {
  const std::string absent = folder.path("absent");
  return {{"attend", absent, "-o", folder.path("out"), "--dense"},
          {"route", absent, "-o", folder.path("out")},
          {"compare", absent},
          {"explain", absent, "--dense"},
          {"bench", "--shape", "128,1"}};
}

TEST(Device, OutOfReach_IsRefusedBeforeAnythingIsRead) {
  const TempFolder folder;
  for (std::vector<std::string> args : device_commands(folder)) {
    SCOPED_TRACE(args.front());
    // No machine has that many, so this holds with and without CUDA in the build.
    args.insert(args.end(), {"--device", "cuda:999"});
    const Outcome run = run_tessera(args, folder);
    EXPECT_EQ(run.exit_code, 3) << run.err;
    EXPECT_EQ(run.out, "");
    for (const char* word : {"--device cuda:999", "CUDA"}) {
      EXPECT_NE(run.err.find(word), std::string::npos) << run.err;
    }
    EXPECT_EQ(run.err.find("absent"), std::string::npos) << run.err;
  }
}

TEST(Device, UnknownWord_IsRefused) {
  const TempFolder folder;
  for (const std::vector<std::string>& args : device_commands(folder)) {
    for (const char* word : {"toaster", "cuda:", "cuda:-1", "cuda:0x", "CUDA", "gpu"}) {
      SCOPED_TRACE(args.front() + " " + word);
      std::vector<std::string> all = args;
      all.insert(all.end(), {"--device", word});
      expect_usage_error(run_tessera(all, folder), {word, "cpu", "cuda:N"});
    }
  }
}

}  // namespace
}  // namespace tessera::cli_test
