// `h3 attention` as users run it: exit code, stdout, stderr.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace h3 {
namespace {

struct Outcome {
  int exit_code = -1;
  std::string out, err;
};

std::string read_all(int fd) {
  std::string text;
  std::array<char, 4096> buffer;
  for (ssize_t n; (n = read(fd, buffer.data(), buffer.size())) > 0;) {
    text.append(buffer.data(), static_cast<size_t>(n));
  }
  return text;
}

// stderr goes to a file, so that a full pipe cannot block the program.
Outcome run_h3(std::vector<std::string> args) {
  Outcome outcome;
  int out[2];
  FILE* const err = std::tmpfile();
  if (err == nullptr || pipe(out) != 0) {
    ADD_FAILURE() << "no pipe or temporary file";
    return outcome;
  }
  const pid_t child = fork();
  if (child == 0) {
    dup2(out[1], STDOUT_FILENO);
    dup2(fileno(err), STDERR_FILENO);
    close(out[0]);
    close(out[1]);
    std::string binary = H3_BINARY;
    std::vector<char*> argv = {binary.data()};
    for (std::string& a : args) argv.push_back(a.data());
    argv.push_back(nullptr);
    execv(binary.c_str(), argv.data());
    _exit(127);
  }
  close(out[1]);
  outcome.out = read_all(out[0]);
  close(out[0]);
  int status = 0;
  waitpid(child, &status, 0);
  outcome.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + status;
  std::rewind(err);
  lseek(fileno(err), 0, SEEK_SET);
  outcome.err = read_all(fileno(err));
  std::fclose(err);
  return outcome;
}

Outcome explain(std::vector<std::string> more) {
  more.insert(more.begin(), {"attention", "--explain"});
  return run_h3(more);
}

void expect_parts(const std::string& text, const std::vector<std::string>& parts) {
  for (const std::string& part : parts) {
    EXPECT_NE(text.find(part), std::string::npos) << "missing: " << part << "\nin: " << text;
  }
}

TEST(AttentionCommand, Cpu_ShowsEveryComponent) {
  const Outcome o = explain({"--device", "cpu"});
  EXPECT_EQ(o.exit_code, 0) << o.err;
  EXPECT_EQ(o.err, "");
  expect_parts(o.out, {"device   cpu", "transformer.blocks.0-49.attn", "token_refiner.blocks.0-1",
                       "text_encoder.", "video_vae.", "audio_vae.", "platform default",
                       "outside CUDA the VAE runs torch_sdpa directly"});
}

TEST(AttentionCommand, SubBlockOnHopper_ShowsScheduleAndKeptCount) {
  const Outcome o = explain({"--capability", "9.0", "--attention-backend", "subblock_sparse_attn",
                             "--attention-backend-config", R"({"sparsity": 0.8})"});
  EXPECT_EQ(o.exit_code, 0) << o.err;
  expect_parts(o.out, {"capability 9.0", "sparsity=0.8 n_k=4", "sparse from step 10",
                       "120 of 590 key blocks", "global backend fallback"});
}

TEST(AttentionCommand, Json_IsOneDocumentWithAllLayers) {
  const Outcome o = explain({"--json", "--capability=9.0", "--ulysses_degree", "8",
                             "--component_attention_backends", "transformer=subblock_sparse_attn"});
  ASSERT_EQ(o.exit_code, 0) << o.err;
  const auto json = nlohmann::json::parse(o.out);
  EXPECT_EQ(json["device"], "capability 9.0");
  EXPECT_EQ(json["request"]["ulysses_degree"], 8);
  EXPECT_EQ(json["request"]["component_attention_backends"]["transformer"], "subblock_sparse_attn");
  EXPECT_EQ(json["groups"][0]["chosen_by"], "component option");
  EXPECT_EQ(json["groups"][2]["backend"], "torch_sdpa");
  EXPECT_EQ(json["groups"][2]["passed_over"][0]["backend"], "fa");
}

TEST(AttentionCommand, DottedForms_AreMerged) {
  const Outcome o =
      explain({"--json", "--capability", "9.0", "--component-attention-backends", "transformer=fa",
               "--component-attention-backends.transformer", "subblock_sparse_attn",
               "--component_attention_backends.text-encoder=torch_sdpa",
               "--attention-backend-config.skip_first_layers=2",
               "--attention-backend-config.sparsity", "0.9"});
  ASSERT_EQ(o.exit_code, 0) << o.err;
  const auto json = nlohmann::json::parse(o.out);
  EXPECT_EQ(json["subblock_options"]["sparsity"], 0.9);
  EXPECT_EQ(json["groups"][0]["layers"], "blocks.0-1.attn");
  EXPECT_EQ(json["groups"][0]["sparse"], false);
  EXPECT_EQ(json["groups"][1]["sparse"], true);
  EXPECT_EQ(json["groups"][3]["chosen_by"], "component option");
}

TEST(AttentionCommand, PublishedComponentCommand_CarriesOver) {
  const Outcome o = explain({"--capability", "9.0", "--component-attention-backends",
                             "transformer=subblock_sparse_attn,text_encoder=fa,video_vae=fa"});
  EXPECT_EQ(o.exit_code, 0) << o.err;
  expect_parts(o.out, {"component option fa (fa has no kernel for this layer)",
                       "fa has no causal kernel; it resolves to torch_sdpa here"});
}

TEST(AttentionCommand, AllowedFallback_TakesTheConfigAlong) {
  const Outcome o = explain({"--capability", "10.3", "--attention-backend", "subblock_sparse_attn",
                             "--attention-backend-config", "sparsity=0.8", "--allow-fallback"});
  EXPECT_EQ(o.exit_code, 0) << o.err;
  expect_parts(o.out, {"fallback allowed by --allow-fallback"});
}

TEST(AttentionCommand, Backends_ListsTheMatrix) {
  const Outcome o = run_h3({"attention", "--backends"});
  EXPECT_EQ(o.exit_code, 0);
  expect_parts(o.out, {"subblock_sparse_attn (sparse)", "ring", "sage_attn_3", "fa3 = fa"});
  const Outcome json = run_h3({"attention", "--backends", "--json"});
  EXPECT_EQ(nlohmann::json::parse(json.out)["backends"].size(), 4u);
}

struct BadCall {
  const char* name;
  std::vector<std::string> args;
  int exit_code;
  std::vector<std::string> parts;
};

// FC-7 and selection errors: to stderr, one line, nothing on stdout.
TEST(AttentionCommand, BadCalls_GiveOneLineAndTheExitCode_FC7) {
  const std::string config = "--attention-backend-config", backend = "--attention-backend",
                    components = "--component-attention-backends", sub = "subblock_sparse_attn";
  const BadCall cases[] = {
      {"quotes eaten",
       {backend, sub, config, "{sparsity: 0.85}"},
       2,
       {"not JSON at byte 2", "{sparsity: 0.85}", "@FILE"}},
      {"unknown key",
       {backend, sub, config, R"({"sparsty": 0.85})"},
       2,
       {"'sparsty'", "'sparsity'"}},
      {"range", {backend, sub, config, R"({"sparsity": 1.0})"}, 2, {"[0, 1)"}},
      {"twice", {backend, sub, config, R"({"n_k": 4, "n_k": 4})"}, 2, {"given twice"}},
      {"file", {backend, sub, config, "@no/such.json"}, 2, {"no/such.json"}},
      {"short", {backend, sub, config, "min_seq_len=64"}, 2, {"at least 512"}},
      {"unused config", {"--device", "cpu", config, "sparsity=0.9"}, 2, {"no layer runs subblock"}},
      {"unknown backend",
       {backend, "subblok_sparse_attn"},
       2,
       {"unknown attention backend", "nearest is subblock_sparse_attn", "no_attention"}},
      {"empty backend", {backend, ""}, 2, {"unknown attention backend ''"}},
      {"known elsewhere", {backend, "sage_attn"}, 3, {"not in this engine"}},
      {"sage mode", {backend, sub, config, "compute_mode=sage_fp8"}, 3, {"sage_fp8"}},
      {"component", {components, "vae=fa"}, 2, {"'vae' does not exist", "video_vae"}},
      {"role", {components, "transformer.cross=fa"}, 2, {"no cross-attention layers"}},
      {"role name", {components, "transformer.all=fa"}, 2, {".self, .cross"}},
      {"component json", {components, "{transformer:fa}"}, 2, {"not JSON at byte", "received"}},
      {"dotted without value", {components + ".transformer"}, 2, {"needs a key and a value"}},
      {"dotted without key", {components + ".", "fa"}, 2, {"needs a key and a value"}},
      {"ring",
       {"--capability", "9.0", "--ring-degree", "2", components, "transformer=" + sub},
       2,
       {"ring"}},
      {"planned device", {"--capability", "10.0", backend, sub}, 3, {"later version"}},
      {"other device", {"--capability", "10.3", backend, sub}, 3, {"10.3", "9.0"}},
      {"capability", {"--capability", "90"}, 2, {"MAJOR.MINOR", "9.0"}},
      {"contradiction", {"--capability", "9.0", "--device", "cpu"}, 2, {"contradicts"}},
      {"device", {"--device", "tpu"}, 2, {"cpu, cuda, cuda:N"}},
      {"absent device", {"--device", "cuda:77"}, 2, {"cuda:77", "--capability"}},
      {"degree", {"--ring-degree", "0"}, 2, {"ring-degree"}},
      {"heads", {"--ulysses-degree", "5"}, 2, {"56 heads", "1, 2, 4, 7, 8, 14, 28, 56"}},
      {"heads", {"--ulysses-degree", "16"}, 2, {"56 heads", "degree 16", "1, 2, 4, 7, 8"}},
      {"odd heads", {"--device", "cpu", "--ulysses-degree", "5"}, 2, {"56 heads", "degree 5"}},
      {"role on the cpu",
       {"--device", "cpu", components, "video_vae.self=fa"},
       2,
       {"video_vae.self=fa was not applied", "outside CUDA"}},
      {"option",
       {"--attention-backed", "fa"},
       2,
       {"unknown option --attention-backed", "--attention-backend"}},
      {"both modes", {"--backends"}, 2, {"exactly one"}},
  };
  for (const BadCall& c : cases) {
    SCOPED_TRACE(c.name);
    const Outcome o = explain(c.args);
    EXPECT_EQ(o.exit_code, c.exit_code) << o.err;
    EXPECT_EQ(o.out, "");
    EXPECT_EQ(std::count(o.err.begin(), o.err.end(), '\n'), 1) << o.err;
    EXPECT_TRUE(o.err.starts_with("h3: error: ")) << o.err;
    expect_parts(o.err, c.parts);
  }
}

TEST(Program, WithoutCommand_SaysWhatIsAccepted) {
  const Outcome none = run_h3({});
  EXPECT_EQ(none.exit_code, 2);
  expect_parts(none.err, {"no command given", "attention"});
  const Outcome wrong = run_h3({"atention"});
  EXPECT_EQ(wrong.exit_code, 2);
  expect_parts(wrong.err, {"unknown command \"atention\"", "nearest: attention"});
  EXPECT_EQ(run_h3({"--version"}).exit_code, 0);
  EXPECT_EQ(run_h3({"attention", "--help"}).exit_code, 0);
  const Outcome no_mode = run_h3({"attention"});
  EXPECT_EQ(no_mode.exit_code, 2);
  expect_parts(no_mode.err, {"exactly one of --explain and --backends"});
}

TEST(AttentionCommand, FullDisk_IsReported) {
  if (access("/dev/full", W_OK) != 0) GTEST_SKIP() << "no /dev/full here";
  const std::string call =
      std::string(H3_BINARY) + " attention --backends > /dev/full 2> /dev/null";
  const int status = std::system(call.c_str());
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 1);
}

}  // namespace
}  // namespace h3
