// `h3 denoise` as users run it, on the model and the examples of `h3 make-tiny`.
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <nlohmann/json.hpp>
#include <thread>

#include "h3/cli/tests/run_h3.h"
#include "tessera/io/safetensors.h"

namespace h3::cli {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;
using tessera::io::SafetensorsFile;

class DenoiseCommand : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    std::string name = testing::TempDir() + "h3_denoise_XXXXXX";
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    root_ = new std::string(name);
    // Several tests at once on few cores: threads would wait for each other at every barrier.
    setenv("OMP_NUM_THREADS", "1", 0);
    const Outcome o = run_h3({"make-tiny", path("tiny"), "--seed", "3"});
    ASSERT_EQ(o.exit_code, 0) << o.err;
    // Shorter than the examples: two steps on the smallest canvas.
    Json request = read("tiny/examples/t2va.json");
    request["num_inference_steps"] = 2;
    request["target"]["short_edge"] = 32;
    write("short.json", request);
  }
  static void TearDownTestSuite() {
    fs::remove_all(*root_);
    delete root_;
  }
  static std::string path(const std::string& name) { return *root_ + "/" + name; }
  static Json read(const std::string& name) {
    std::ifstream file(path(name));
    return Json::parse(file);
  }
  static void write(const std::string& name, const Json& json) {
    std::ofstream(path(name)) << json.dump();
  }
  static std::string bytes(const std::string& name) {
    std::ifstream file(path(name), std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  static std::vector<std::string> arguments(const std::string& request,
                                            std::vector<std::string> more = {},
                                            const std::string& output = "out.safetensors") {
    std::vector<std::string> args = {"denoise",      path(request),
                                     "--model-path", path("tiny"),
                                     "--features",   path("tiny/examples/t2va.safetensors"),
                                     "-o",           path(output),
                                     "--device",     "cpu"};
    args.insert(args.end(), more.begin(), more.end());
    return args;
  }

  static void refuses(const std::vector<std::string>& args, const std::vector<std::string>& parts,
                      int code = 2) {
    fs::remove(path("out.safetensors"));
    const Outcome o = run_h3(args);
    EXPECT_EQ(o.exit_code, code) << o.err;
    expect_parts(o.err, parts);
    EXPECT_EQ(o.out, "");
    EXPECT_FALSE(fs::exists(path("out.safetensors")));
  }

  // The request of short.json, changed.
  static std::string request(const std::function<void(Json&)>& change) {
    Json json = read("short.json");
    change(json);
    write("changed.json", json);
    return "changed.json";
  }

  static std::string* root_;
};
std::string* DenoiseCommand::root_ = nullptr;

TEST_F(DenoiseCommand, WritesLatentsAndReport_SameBytesTwice) {
  const Outcome o = run_h3(arguments("short.json", {"--json", "--report", path("report.json")}));
  ASSERT_EQ(o.exit_code, 0) << o.err;
  SafetensorsFile file;
  ASSERT_TRUE(SafetensorsFile::open(path("out.safetensors"), &file).ok());
  EXPECT_EQ(file.find("video")->shape, (std::vector<int64_t>{1, 24, 32, 2, 2}));
  EXPECT_EQ(file.find("audio")->shape, (std::vector<int64_t>{2, 32, 178}));
  EXPECT_EQ(file.metadata().at("seed"), "0");
  EXPECT_EQ(file.metadata().at("frames"), "107");
  const Json report = Json::parse(o.out);
  EXPECT_EQ(report, read("report.json"));
  EXPECT_EQ(report["request"]["size"], "32x32");
  EXPECT_EQ(report["used_rows"], 12 + 2 * 178 + 32);
  EXPECT_EQ(report["outputs"][0]["steps"].size(), 2u);
  EXPECT_EQ(report["outputs"][0]["attention"]["total"]["dense_calls"]["backend"], 2 * 3);
  EXPECT_GT(report["outputs"][0]["attention_share"].get<double>(), 0);
  const Outcome again = run_h3(arguments("short.json", {"-q"}, "again.safetensors"));
  ASSERT_EQ(again.exit_code, 0) << again.err;
  EXPECT_EQ(bytes("out.safetensors"), bytes("again.safetensors"));
}

TEST_F(DenoiseCommand, SeveralOutputs_OneFileEachWithItsSeed) {
  const std::string name = request([](Json& r) { r["num_outputs_per_prompt"] = 2; });
  const Outcome o = run_h3(arguments(name, {"--seed", "7"}, "many.safetensors"));
  ASSERT_EQ(o.exit_code, 0) << o.err;
  for (const int k : {0, 1}) {
    SafetensorsFile file;
    const std::string one = path("many-" + std::to_string(k) + ".safetensors");
    ASSERT_TRUE(SafetensorsFile::open(one, &file).ok());
    EXPECT_EQ(file.metadata().at("seed"), std::to_string(7 + k));
  }
  EXPECT_NE(bytes("many-0.safetensors"), bytes("many-1.safetensors"));
  const Outcome single = run_h3(arguments("short.json", {"--seed", "8"}, "single.safetensors"));
  ASSERT_EQ(single.exit_code, 0) << single.err;
  EXPECT_EQ(bytes("many-1.safetensors"), bytes("single.safetensors"));
}

TEST_F(DenoiseCommand, PublishedSparseOptions_RunSparseWhereTheScheduleSays) {
  const std::string name = request([](Json& r) { r["target"]["short_edge"] = 128; });
  const Outcome o = run_h3(arguments(
      name,
      {"--attention-backend", "subblock_sparse_attn", "--component-attention-backends",
       "text_encoder=fa", "--attention-backend-config",
       R"({"sparsity":0.5,"skip_first_steps":1,"min_seq_len":512})", "--compare-dense", "--json"},
      "sparse.safetensors"));
  ASSERT_EQ(o.exit_code, 0) << o.err;
  const Json report = Json::parse(o.out);
  EXPECT_EQ(report["dtype"], "bf16");  // sparse attention is
  const Json& total = report["outputs"][0]["attention"]["total"];
  EXPECT_EQ(total["sparse_calls"], 3);
  EXPECT_EQ(total["dense_calls"], Json({{"early_step", 3}}));
  const Json& dense = report["outputs"][1]["attention"]["total"];
  EXPECT_EQ(dense["sparse_calls"], 0);
  EXPECT_EQ(dense["dense_calls"], Json({{"off", 6}}));
  const double cosine = report["against_dense"][0]["video"]["cosine"];
  EXPECT_GT(cosine, 0.9);
  EXPECT_LT(cosine, 1);
  EXPECT_TRUE(fs::exists(path("sparse-dense.safetensors")));
}

TEST_F(DenoiseCommand, TwoRanks_GiveTheSameVideo) {
  ASSERT_EQ(run_h3(arguments("short.json", {}, "one.safetensors")).exit_code, 0);
  const Outcome o = run_h3(
      arguments("short.json", {"--num-gpus", "2", "--ulysses-degree", "2"}, "two.safetensors"));
  ASSERT_EQ(o.exit_code, 0) << o.err;
  const Outcome c =
      run_h3({"compare-runs", path("one.safetensors"), path("two.safetensors"), "--json"});
  ASSERT_EQ(c.exit_code, 0) << c.err;
  EXPECT_LT(Json::parse(c.out)["video"]["relative_l2"].get<double>(), 1e-5);
}

TEST_F(DenoiseCommand, Interrupt_StopsBetweenStepsAndLeavesNothing) {
  const std::string name = request([](Json& r) {
    r["num_inference_steps"] = 1000;
    r["target"]["short_edge"] = 64;
  });
  std::vector<std::string> args = arguments(name, {}, "never.safetensors");
  const std::string log = path("interrupted.log");
  const pid_t child = fork();
  if (child == 0) {
    std::string binary = H3_BINARY;
    std::vector<char*> argv = {binary.data()};
    for (std::string& a : args) argv.push_back(a.data());
    argv.push_back(nullptr);
    if (!freopen(log.c_str(), "w", stderr)) _exit(126);
    execv(binary.c_str(), argv.data());
    _exit(127);
  }
  // From this line on the steps run.
  for (int i = 0; i < 600 && bytes("interrupted.log").find("prepare: ") == std::string::npos; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  ASSERT_EQ(kill(child, SIGINT), 0);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 130);
  for (const auto& entry : fs::directory_iterator(*root_)) {
    EXPECT_EQ(entry.path().filename().string().find("never"), std::string::npos);
  }
}

TEST_F(DenoiseCommand, BadRequests_NameTheFieldBeforeWeightsAreRead) {
  refuses(arguments(request([](Json& r) { r["target"]["duration_seconds"] = 20; })),
          {"target.duration_seconds is 20", "4 to 15"});
  refuses(arguments(request([](Json& r) { r["prompts"] = "x"; })), {"prompts", "prompt"});
  refuses(arguments(request([](Json& r) { r["task"] = "ref2va"; })), {"ref2va"});
  refuses(arguments(request([](Json& r) { r["seed"] = -1; })), {"seed is -1"});
  refuses(arguments(request([](Json& r) {
            r["attention"] = {{"sparsty", 0.5}};
          })),
          {"attention", "sparsity"});
  refuses(arguments(request([](Json& r) { r["quality"] = "high"; })), {"high"}, 3);
  for (const char* seed : {"9223372036854775808", "-1", "0x10", "010", "1.5", ""}) {
    refuses(arguments("short.json", {"--seed", seed}), {"--seed is ", "0 to 9223372036854775807"});
  }
  refuses(arguments(request([](Json& r) { r["num_outputs_per_prompt"] = 2; }),
                    {"--seed", "9223372036854775807"}),
          {"--seed 9223372036854775807", "output 1"});
  for (const char* shift : {"0", "-1", "nan", "inf"}) {
    refuses(arguments("short.json", {"--audio-flow-shift", shift}), {"audio_flow_shift"});
  }
  refuses(arguments("missing.json"), {"missing.json", "cannot be read"});
  refuses(arguments("short.json", {"--steps", "0"}), {"--num-inference-steps", "1"});
}

TEST_F(DenoiseCommand, BadModelsAndOptions_AreRefused) {
  refuses(arguments("short.json", {"--dtype", "f32", "--attention-backend", "subblock_sparse_attn",
                                   "--component-attention-backends", "text_encoder=fa"}),
          {"subblock_sparse_attn runs bf16", "f32"}, 3);
  refuses(arguments("short.json", {"--model-variant", "ref2va"}), {"ref2va"});
  refuses(arguments("short.json", {"--attention-backend", "sparse"}), {"sparse", "fa"});
  refuses(arguments("short.json", {"--num-gpus", "3", "--ulysses-degree", "3"}), {"3", "heads"});
  std::vector<std::string> device = arguments("short.json");
  device[9] = "tpu";
  refuses(device, {"--device is 'tpu'", "cpu"});
  std::vector<std::string> no_model = arguments("short.json");
  no_model[3] = path("nothing");
  refuses(no_model, {"nothing"});
  std::vector<std::string> folder = arguments("short.json");
  folder[7] = path("no/such/out.safetensors");
  refuses(folder, {"--output-path", "missing or not writable"});
  folder[7] = path("out.bin");
  refuses(folder, {"--output-path", ".safetensors"});
}

TEST_F(DenoiseCommand, BadFeatures_NameTheTensor) {
  const auto features = [&](const std::vector<tessera::io::SafetensorsItem>& items) {
    EXPECT_TRUE(tessera::io::write_safetensors(path("bad.safetensors"), items).ok());
    std::vector<std::string> args = arguments("short.json");
    args[5] = path("bad.safetensors");
    return args;
  };
  std::vector<float> values(2 * 192, 0.5f);
  const tessera::io::SafetensorsItem text{"text", tessera::Dtype::kF32, {2, 192}, values.data()};
  refuses(features({{"txt", tessera::Dtype::kF32, {2, 192}, values.data()}}), {"no tensor text"});
  refuses(features({{"text", tessera::Dtype::kF32, {2, 96}, values.data()}}), {"[2, 96]", "192"});
  refuses(features({text, {"condition.0.visual", tessera::Dtype::kF32, {1}, values.data()}}),
          {"condition.0.visual", "does not use"});
  values[7] = std::numeric_limits<float>::quiet_NaN();
  refuses(features({text}), {"text", "1 values that are not finite"});
}

TEST_F(DenoiseCommand, OneFileForTwoThings_IsRefused) {
  refuses(arguments("short.json", {"--report", path("out.safetensors")}), {"--report", "one file"});
  const Json before = read("short.json");
  refuses(arguments("short.json", {"--report", path("short.json")}), {"the request", "one file"});
  EXPECT_EQ(read("short.json"), before);
  fs::copy_file(path("tiny/examples/t2va.safetensors"), path("features.safetensors"));
  std::vector<std::string> args = arguments("short.json");
  args[5] = args[7] = path("features.safetensors");
  const Outcome o = run_h3(args);
  EXPECT_EQ(o.exit_code, 2) << o.err;
  expect_parts(o.err, {"--features", "one file"});
  EXPECT_EQ(bytes("features.safetensors"), bytes("tiny/examples/t2va.safetensors"));
  refuses(arguments("short.json", {"--report", "/dev/null"}), {"--report", "no regular file"});
}

TEST_F(DenoiseCommand, SparseRequest_RunsInBf16) {
  const std::string name = request([](Json& r) {
    r["target"]["short_edge"] = 128;
    r["attention"] = {{"backend", "subblock_sparse_attn"},
                      {"sparsity", 0.5},
                      {"skip_first_steps", 1},
                      {"min_seq_len", 512}};
  });
  const Outcome o = run_h3(arguments(name, {"--json"}, "asked.safetensors"));
  ASSERT_EQ(o.exit_code, 0) << o.err;
  const Json report = Json::parse(o.out);
  EXPECT_EQ(report["dtype"], "bf16");
  EXPECT_EQ(report["outputs"][0]["attention"]["total"]["sparse_calls"], 3);
  SafetensorsFile file;
  ASSERT_TRUE(SafetensorsFile::open(path("asked.safetensors"), &file).ok());
  expect_parts(file.metadata().at("attention"), {"subblock_sparse_attn", "sparsity=0.5"});
}

TEST_F(DenoiseCommand, RanksWithDifferentRequests_EndWithTheField) {
  Json other = read("short.json");
  other["seed"] = 5;
  write("other.json", other);
  // Every rank takes the request of its own number.
  fs::copy_file(path("short.json"), path("rank0.json"));
  fs::copy_file(path("other.json"), path("rank1.json"));
  std::string command;
  for (std::string a : arguments("rank$RANK.json", {}, "ranks.safetensors")) command += " " + a;
  const Outcome o = run_h3({"launch", "-n", "2", "--", "sh", "-c", H3_BINARY + command});
  EXPECT_EQ(o.exit_code, 2) << o.err;
  expect_parts(o.err, {"request.", "rank 0", "rank 1"});
  EXPECT_FALSE(fs::exists(path("ranks.safetensors")));
}

TEST_F(DenoiseCommand, DegreesThatContradictTheRanks_AreRefused) {
  refuses(arguments("short.json", {"--num-gpus", "2", "--ulysses-degree", "1"}), {"ulysses"});
  setenv("RANK", "0", 1);
  setenv("WORLD_SIZE", "1", 1);
  refuses(arguments("short.json", {"--num-gpus", "4"}), {"--num-gpus is 4", "1 ranks"});
  unsetenv("RANK");
  unsetenv("WORLD_SIZE");
}

TEST_F(DenoiseCommand, DamagedShard_IsRefusedBeforeAnythingRuns) {
  fs::copy(path("tiny"), path("damaged"), fs::copy_options::recursive);
  for (const auto& entry : fs::directory_iterator(path("damaged/transformer"))) {
    if (entry.path().string().find("00002-of") != std::string::npos) {
      fs::resize_file(entry.path(), fs::file_size(entry.path()) - 100);
    }
  }
  std::vector<std::string> args = arguments("short.json");
  args[3] = path("damaged");
  refuses(args, {"00002-of"});
}

}  // namespace
}  // namespace h3::cli
