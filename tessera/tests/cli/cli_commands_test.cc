// What each command reports, and that the pieces fit: route then attend equals attend alone,
// thread counts change no bit, the reference kernel agrees, JSON is JSON.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "tessera/tests/cli/cli_run.h"

namespace tessera::cli_test {
namespace {

using nlohmann::json;

constexpr uint64_t kSeed = 7;  // printed where values matter

std::string write_input(const TempFolder& folder, const std::vector<int64_t>& shape,
                        Dtype dtype = Dtype::kF32) {
  write_file(folder.path("in"), {random_tensor("q", shape, kSeed, 4, dtype),
                                 random_tensor("k", shape, kSeed + 1, 4, dtype),
                                 random_tensor("v", shape, kSeed + 2, 1, dtype)});
  return folder.path("in");
}

Outcome run_ok(const std::vector<std::string>& args, const TempFolder& folder) {
  Outcome run = run_tessera(args, folder);
  EXPECT_EQ(run.exit_code, 0) << run.err << run.out;
  return run;
}

json run_json(std::vector<std::string> args, const TempFolder& folder) {
  args.push_back("--json");
  const Outcome run = run_ok(args, folder);
  EXPECT_EQ(run.err, "");
  json report = json::parse(run.out, nullptr, false);
  EXPECT_FALSE(report.is_discarded()) << run.out;
  return report;
}

TEST(Route, Plan_HasTheDocumentedTensors) {
  SCOPED_TRACE("seed " + std::to_string(kSeed));
  const TempFolder folder;
  const std::string in = write_input(folder, {2, 1000, 3, 64});
  const json report = run_json({"route", in, "-o", folder.path("plan"), "--sparsity", "0.75",
                                "--dense-query-blocks", "0,14-15", "--protect-blocks", "3"},
                               folder);
  // 16 key blocks: ceil(0.25 * 16) = 4, rounded up to 8.
  EXPECT_EQ(report["kept_blocks"], 8);
  EXPECT_EQ(report["key_blocks"], 16);
  EXPECT_EQ(report["delivered_sparsity"], 0.5);
  EXPECT_EQ(report["dense_rows"], 2 * 3 * 3);
  EXPECT_GT(report["estimated_mass"].get<double>(), 0.5);
  const Tensor index = read_tensor(folder.path("plan"), "block_index");
  const Tensor count = read_tensor(folder.path("plan"), "block_count");
  const Tensor dense = read_tensor(folder.path("plan"), "dense_rows");
  const Tensor mass = read_tensor(folder.path("plan"), "estimated_mass");
  EXPECT_EQ(index.shape, (std::vector<int64_t>{2, 3, 16, 8}));
  EXPECT_EQ(count.shape, (std::vector<int64_t>{2, 3, 16}));
  EXPECT_EQ(dense.shape, (std::vector<int64_t>{2, 16}));
  EXPECT_EQ(dense.dtype, Dtype::kU8);
  EXPECT_EQ(mass.shape, count.shape);
  for (int64_t row = 0; row < 2 * 3 * 16; ++row) {
    const int64_t block = row % 16;
    const bool is_dense = block == 0 || block >= 14;
    EXPECT_EQ(dense.values[row / 48 * 16 + block] != 0, is_dense) << row;
    if (is_dense) continue;
    ASSERT_EQ(count.values[row], 8) << row;
    const auto begin = index.values.begin() + row * 8;
    EXPECT_TRUE(std::is_sorted(begin, begin + 8)) << row;
    EXPECT_NE(std::find(begin, begin + 8, 3.0f), begin + 8) << "protected block, row " << row;
  }
}

TEST(Route, WithoutDenseRows_WritesNoFlags) {
  const TempFolder folder;
  const std::string in = write_input(folder, {1, 500, 1, 64});
  run_ok({"route", in, "-o", folder.path("plan"), "--keep", "2"}, folder);
  io::SafetensorsFile file;
  ASSERT_TRUE(io::SafetensorsFile::open(folder.path("plan"), &file).ok());
  EXPECT_EQ(file.find("dense_rows"), nullptr);
  EXPECT_EQ(file.metadata().at("format"), "tessera-plan-1");
  EXPECT_EQ(file.metadata().at("query_tokens"), "500");
  EXPECT_EQ(json::parse(file.metadata().at("settings"))["keep"], 2);
}

TEST(Route, Mass_KeepsFewerBlocksForLess) {
  const TempFolder folder;
  const std::string in = write_input(folder, {1, 1000, 1, 64});
  double last = 0;
  for (const char* mass : {"0.1", "0.5", "0.99"}) {
    const json report = run_json({"route", in, "-o", folder.path("plan"), "--mass", mass,
                                  "--min-keep", "2", "--max-keep", "12"},
                                 folder);
    const double kept = report["mean_kept"];
    EXPECT_GT(kept, last) << mass;
    EXPECT_GE(report["min_kept"].get<int>(), 2);
    EXPECT_LE(report["max_kept"].get<int>(), 12);
    last = kept;
  }
}

TEST(Attend, PlanFileAndOwnRouting_GiveTheSameBits) {
  const TempFolder folder;
  const std::string in = write_input(folder, {1, 700, 2, 128}, Dtype::kBf16);
  run_ok({"route", in, "-o", folder.path("plan"), "--keep", "3"}, folder);
  run_ok({"attend", in, "-o", folder.path("a"), "--plan", folder.path("plan"), "--lse"}, folder);
  run_ok({"attend", in, "-o", folder.path("b"), "--keep", "3", "--lse"}, folder);
  for (const char* name : {"out", "lse"}) {
    EXPECT_EQ(read_tensor(folder.path("a"), name).values,
              read_tensor(folder.path("b"), name).values)
        << name;
  }
}

TEST(Attend, Threads_ChangeNoBit) {
  const TempFolder folder;
  const std::string in = write_input(folder, {1, 700, 2, 128});
  std::string first;
  for (const char* threads : {"1", "2", "3", "7"}) {
    run_ok({"attend", in, "-o", folder.path("out"), "--sparsity", "0.5", "--threads", threads},
           folder);
    if (first.empty()) first = read_bytes(folder.path("out"));
    EXPECT_EQ(read_bytes(folder.path("out")), first) << threads << " threads";
  }
}

TEST(Attend, ReferenceKernel_Agrees) {
  SCOPED_TRACE("seed " + std::to_string(kSeed));
  const TempFolder folder;
  const std::string in = write_input(folder, {1, 200, 2, 64});
  run_ok({"attend", in, "-o", folder.path("fast"), "--keep", "2"}, folder);
  const json report = run_json(
      {"attend", in, "-o", folder.path("slow"), "--keep", "2", "--kernel", "cpu_reference"},
      folder);
  EXPECT_EQ(report["kernel"], "cpu_reference");
  const Tensor fast = read_tensor(folder.path("fast"), "out");
  const Tensor slow = read_tensor(folder.path("slow"), "out");
  for (size_t i = 0; i < fast.values.size(); ++i) {
    ASSERT_NEAR(fast.values[i], slow.values[i], 2e-5) << i;
  }
}

TEST(Attend, UnknownKernel_IsRefused) {
  const TempFolder folder;
  const std::string in = write_input(folder, {1, 64, 1, 64});
  const Outcome run = run_tessera(
      {"attend", in, "-o", folder.path("out"), "--dense", "--kernel", "cpu_magic"}, folder);
  EXPECT_EQ(run.exit_code, 2) << run.err;
  EXPECT_NE(run.err.find("cpu_magic"), std::string::npos) << run.err;
}

TEST(Attend, SoftmaxScale_Changes_TheResult) {
  const TempFolder folder;
  const std::string in = write_input(folder, {1, 100, 1, 64});
  run_ok({"attend", in, "-o", folder.path("a"), "--dense"}, folder);
  run_ok({"attend", in, "-o", folder.path("b"), "--dense", "--softmax-scale", "0.125"}, folder);
  run_ok({"attend", in, "-o", folder.path("c"), "--dense", "--softmax-scale", "0.5"}, folder);
  EXPECT_EQ(read_tensor(folder.path("a"), "out").values,
            read_tensor(folder.path("b"), "out").values);
  EXPECT_NE(read_tensor(folder.path("a"), "out").values,
            read_tensor(folder.path("c"), "out").values);
}

TEST(Compare, FullLists_LoseNothing) {
  const TempFolder folder;
  const std::string in = write_input(folder, {1, 300, 2, 64});
  const json report = run_json({"compare", in, "--sparsity", "0", "--repeat", "1"}, folder);
  EXPECT_NEAR(report["recall"]["min"].get<double>(), 1, 1e-5);
  EXPECT_NEAR(report["cosine"].get<double>(), 1, 1e-9);
  EXPECT_LT(report["relative_l2"].get<double>(), 1e-5);
  EXPECT_NEAR(report["neighbour_overlap"].get<double>(), 1, 1e-12);
  EXPECT_EQ(report["plan"]["density"], 1.0);
}

TEST(Compare, FewBlocks_LoseWhatTheReferenceSays) {
  const TempFolder folder;
  // q = k = 0: a list of 2 of 5 equal blocks keeps exactly 2/5 of the mass.
  const std::vector<int64_t> shape = {1, 320, 1, 64};
  write_file(folder.path("in"),
             {filled("q", shape, 0, Dtype::kF32), filled("k", shape, 0, Dtype::kF32),
              random_tensor("v", shape, kSeed, 1, Dtype::kF32)});
  const json report =
      run_json({"compare", folder.path("in"), "--keep", "2", "--repeat", "1"}, folder);
  for (const char* part : {"mean", "min", "p5"}) {
    EXPECT_NEAR(report["recall"][part].get<double>(), 0.4, 1e-5) << part;
  }
  EXPECT_GT(report["relative_l2"].get<double>(), 0.1);
  EXPECT_LT(report["cosine"].get<double>(), 0.999);
  for (const char* key : {"dense_seconds", "sparse_seconds", "route_seconds", "speedup"}) {
    EXPECT_GT(report[key].get<double>(), 0) << key;
  }
  const Outcome text = run_ok({"compare", folder.path("in"), "--keep", "2"}, folder);
  EXPECT_NE(text.out.find("2 of 5 blocks"), std::string::npos) << text.out;
  EXPECT_NE(text.out.find("median of 3"), std::string::npos) << text.out;
}

TEST(Compare, GivenPlan_IsUsed) {
  const TempFolder folder;
  const std::string in = write_input(folder, {1, 300, 1, 64});
  run_ok({"route", in, "-o", folder.path("plan"), "--keep", "1"}, folder);
  const json report =
      run_json({"compare", in, "--plan", folder.path("plan"), "--repeat", "1"}, folder);
  EXPECT_EQ(report["plan"]["kept_blocks"], 1);
  EXPECT_EQ(report["route_seconds"], 0.0);
}

TEST(Explain, Budget_AgreesWithRouting) {
  const TempFolder folder;
  const std::vector<int64_t> shape = {1300, 2, 64};
  write_file(folder.path("in"),
             {random_tensor("q", shape, 1), random_tensor("k", shape, 2),
              random_tensor("v", shape, 3), integers("cu_seqlens", {4}, {0, 300, 1200, 1300})});
  const std::vector<std::string> settings = {"--sparsity", "0.5", "--min-seq-len", "200"};
  std::vector<std::string> explain = {"explain", folder.path("in")};
  std::vector<std::string> route = {"route", folder.path("in"), "-o", folder.path("plan")};
  explain.insert(explain.end(), settings.begin(), settings.end());
  route.insert(route.end(), settings.begin(), settings.end());
  const json told = run_json(explain, folder), routed = run_json(route, folder);
  for (const char* key : {"kept_blocks", "key_blocks", "density", "mean_kept", "dense_rows",
                          "routed_documents", "dense_documents"}) {
    EXPECT_EQ(told["plan"][key], routed[key]) << key;
  }
  EXPECT_EQ(told["plan"]["dense_documents"], 1);
  EXPECT_EQ(told["kernel"], "cpu_highway");
  EXPECT_EQ(told["ok"], true);
  ASSERT_FALSE(told["refusals"].empty());
}

TEST(Explain, Dense_RunsNothingAndKeepsAll) {
  const TempFolder folder;
  const std::string in = write_input(folder, {1, 100, 1, 64});
  const json told = run_json({"explain", in, "--dense"}, folder);
  EXPECT_EQ(told["mode"], "dense");
  EXPECT_EQ(told["density"], 1.0);
}

TEST(Doctor, ListsKernelsAndDevices) {
  const TempFolder folder;
  const json report = run_json({"doctor"}, folder);
  EXPECT_GE(report["cpu"]["hardware_threads"].get<int>(), 1);
  const json& cuda = report["cuda"];
  ASSERT_TRUE(cuda["built"].is_boolean());
  ASSERT_TRUE(cuda["devices"].is_array());
  EXPECT_NE(cuda["usable"].get<bool>(), cuda.contains("why_not")) << cuda;
  for (const json& device : cuda["devices"]) {
    EXPECT_GT(device["memory_gib"].get<double>(), 0) << device;
    EXPECT_NE(device["capability"].get<std::string>().find('.'), std::string::npos) << device;
    EXPECT_NE(device["usable"].get<bool>(), device.contains("why_not")) << device;
  }
  if (!cuda["built"]) {
    EXPECT_EQ(cuda["usable"], false);
    EXPECT_TRUE(cuda["devices"].empty());
  }
  std::vector<std::string> names;
  for (const json& kernel : report["kernels"]) names.push_back(kernel["name"]);
  EXPECT_NE(std::find(names.begin(), names.end(), "cpu_highway"), names.end());
  const Outcome text = run_ok({"doctor"}, folder);
  EXPECT_EQ(text.out.find("not in this build") == std::string::npos, cuda["built"].get<bool>())
      << text.out;
}

TEST(Bench, SmallShape_ReportsAllSubjects) {
  const TempFolder folder;
  const json report = run_json(
      {"bench", "--shape", "640,1", "--dtype", "f32", "--repeat", "2", "--density", "0.5"}, folder);
  ASSERT_EQ(report["cases"].size(), 4u);
  for (const json& one : report["cases"]) {
    EXPECT_GT(one["median_ms"].get<double>(), 0);
    EXPECT_LE(one["p10_ms"], one["p90_ms"]);
  }
  const json& shared = report["cases"][2];
  EXPECT_EQ(shared["subject"], "sparse_shared");
  EXPECT_EQ(shared["density"], 0.5);
  // Ten blocks, five kept of which four are common: eight rows have 40 entries in few blocks.
  EXPECT_GT(shared["sharing_factor"].get<double>(),
            report["cases"][1]["sharing_factor"].get<double>());
  EXPECT_TRUE(shared.contains("speedup_over_dense"));
  EXPECT_TRUE(report["cases"][3].contains("share_of_sparse"));
}

TEST(Bench, CudaOnlyOptions_AreRefusedOnTheCpu) {
  const TempFolder folder;
  const std::vector<std::vector<std::string>> cases = {
      {"--warm-up", "3"}, {"--lists", "bitmap"}, {"--density", "0.5", "--density", "0.25"}};
  for (const std::vector<std::string>& extra : cases) {
    std::vector<std::string> args = {"bench", "--shape", "128,1"};
    args.insert(args.end(), extra.begin(), extra.end());
    const Outcome run = run_tessera(args, folder);
    EXPECT_EQ(run.exit_code, 2) << extra.front();
    EXPECT_NE(run.err.find(extra.front()), std::string::npos) << run.err;
  }
  for (const char* lists : {"lists", "Bitmap"}) {
    EXPECT_EQ(run_tessera({"bench", "--lists", lists}, folder).exit_code, 2) << lists;
  }
  EXPECT_EQ(run_tessera({"bench", "--density", "0"}, folder).exit_code, 2);
}

TEST(Bench, Filter_SelectsAndRefuses) {
  const TempFolder folder;
  const json report =
      run_json({"bench", "--shape", "128,1", "--filter", "^dense.*bf16$", "--repeat", "1"}, folder);
  ASSERT_EQ(report["cases"].size(), 1u);
  EXPECT_EQ(report["cases"][0]["name"], "dense/S:128/H:1/D:128/bf16");
  for (const char* filter : {"nothing_like_it", "("}) {
    EXPECT_EQ(run_tessera({"bench", "--filter", filter}, folder).exit_code, 2) << filter;
  }
}

}  // namespace
}  // namespace tessera::cli_test
