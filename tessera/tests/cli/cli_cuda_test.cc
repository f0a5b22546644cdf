// The commands on a CUDA device against the same commands on the CPU: files of one format, values
// within the rounding of 16-bit tensors, refusals with a reason.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "tessera/tests/cli/cli_run.h"

namespace tessera::cli_test {
namespace {

using nlohmann::json;

constexpr uint64_t kSeed = 11;  // printed where values matter

json doctor(const TempFolder& folder) {
  const Outcome run = run_tessera({"doctor", "--json"}, folder);
  EXPECT_EQ(run.exit_code, 0) << run.err;
  return json::parse(run.out, nullptr, false);
}

class CudaCommands : public testing::Test {
 protected:
  void SetUp() override {
    const json cuda = doctor(folder_)["cuda"];
    if (!cuda["usable"]) GTEST_SKIP() << cuda["why_not"].get<std::string>();
  }

  std::string write_input(const std::vector<int64_t>& q, const std::vector<int64_t>& k,
                          Dtype dtype = Dtype::kBf16) {
    write_file(path("in"),
               {random_tensor("q", q, kSeed, 4, dtype), random_tensor("k", k, kSeed + 1, 4, dtype),
                random_tensor("v", k, kSeed + 2, 1, dtype)});
    return path("in");
  }
  std::string path(const std::string& name) const { return folder_.path(name); }

  json run_json(std::vector<std::string> args) {
    args.push_back("--json");
    const Outcome run = run_tessera(args, folder_);
    EXPECT_EQ(run.exit_code, 0) << run.err;
    return json::parse(run.out, nullptr, false);
  }

  // Runs on both devices; the report is the device's.
  json run_both(const std::vector<std::string>& args) {
    std::vector<std::string> cpu = args, cuda = args;
    cpu.insert(cpu.end(), {"-o", path("cpu")});
    cuda.insert(cuda.end(), {"-o", path("cuda"), "--device", "cuda"});
    run_json(cpu);
    const json report = run_json(cuda);
    EXPECT_EQ(report["device"], "cuda:0");
    return report;
  }

  void expect_close(const std::string& name, double tolerance) {
    const Tensor want = read_tensor(path("cpu"), name), got = read_tensor(path("cuda"), name);
    ASSERT_EQ(got.shape, want.shape);
    ASSERT_EQ(got.dtype, want.dtype);
    for (size_t i = 0; i < want.values.size(); ++i) {
      if (std::isinf(want.values[i])) {
        ASSERT_EQ(got.values[i], want.values[i]) << name << " " << i;
      } else {
        ASSERT_NEAR(got.values[i], want.values[i], tolerance) << name << " " << i;
      }
    }
  }

  // Ids in common, as a share of the CPU's; files must agree in everything else.
  double expect_same_plan() {
    const Tensor want = read_tensor(path("cpu"), "block_index");
    const Tensor got = read_tensor(path("cuda"), "block_index");
    EXPECT_EQ(got.shape, want.shape);
    EXPECT_EQ(read_tensor(path("cuda"), "block_count").values,
              read_tensor(path("cpu"), "block_count").values);
    if (got.shape != want.shape) return 0;
    const int64_t width = want.shape.back();
    int64_t common = 0, total = 0;
    for (size_t row = 0; row < want.values.size(); row += width) {
      const auto a = want.values.begin() + row, b = got.values.begin() + row;
      for (int64_t i = 0; i < width && a[i] >= 0; ++i, ++total) {
        common += std::count(b, b + width, a[i]);
      }
    }
    EXPECT_GT(total, 0);
    return double(common) / double(total);
  }

  TempFolder folder_;
};

TEST_F(CudaCommands, Attend_DenseAgreesWithTheCpu) {
  SCOPED_TRACE("seed " + std::to_string(kSeed));
  for (Dtype dtype : {Dtype::kBf16, Dtype::kF16}) {
    const std::string in = write_input({2, 333, 4, 128}, {2, 450, 2, 128}, dtype);
    const json report = run_both({"attend", in, "--dense", "--lse"});
    EXPECT_EQ(report["kernel"].get<std::string>().rfind("sm90", 0), 0u) << report;
    EXPECT_GT(report["attend_seconds"].get<double>(), 0);
    expect_close("out", 2e-2);
    expect_close("lse", 1e-2);
  }
}

TEST_F(CudaCommands, Attend_RoutedWithDenseRowsAgreesWithTheCpu) {
  SCOPED_TRACE("seed " + std::to_string(kSeed));
  const std::string in = write_input({1, 1000, 2, 128}, {1, 1000, 2, 128});
  // One plan for both, so that a near tie of scores cannot decide.
  run_json({"route", in, "-o", path("plan"), "--keep", "5", "--dense-query-blocks", "0,7-8"});
  for (const char* kernel : {"sm90_union", "sm90_union_plain", "sm90_list"}) {
    SCOPED_TRACE(kernel);
    run_json({"attend", in, "-o", path("cpu"), "--plan", path("plan"), "--lse"});
    const json report = run_json({"attend", in, "-o", path("cuda"), "--plan", path("plan"), "--lse",
                                  "--device", "cuda:0", "--kernel", kernel});
    EXPECT_EQ(report["kernel"], kernel);
    expect_close("out", 2e-2);
    expect_close("lse", 1e-2);
  }
}

TEST_F(CudaCommands, Attend_PackedDocumentsAgreeWithTheCpu) {
  SCOPED_TRACE("seed " + std::to_string(kSeed));
  const std::vector<int64_t> shape = {700, 2, 128};
  write_file(
      path("in"),
      {random_tensor("q", shape, kSeed, 4), random_tensor("k", shape, kSeed + 1, 4),
       random_tensor("v", shape, kSeed + 2), integers("cu_seqlens", {4}, {0, 100, 100, 650})});
  run_json({"route", path("in"), "-o", path("plan"), "--keep", "2", "--min-seq-len", "200"});
  run_both({"attend", path("in"), "--plan", path("plan"), "--lse"});
  expect_close("out", 2e-2);
  expect_close("lse", 1e-2);
}

TEST_F(CudaCommands, Route_WritesTheCpusPlan) {
  SCOPED_TRACE("seed " + std::to_string(kSeed));
  const std::string in = write_input({2, 1500, 4, 128}, {2, 1500, 2, 128});
  const json report = run_both(
      {"route", in, "--sparsity", "0.6", "--dense-query-blocks", "3", "--protect-blocks", "1"});
  EXPECT_EQ(report["dense_rows"], 2 * 4);
  EXPECT_GE(expect_same_plan(), 0.98);
  EXPECT_EQ(read_tensor(path("cuda"), "dense_rows").values,
            read_tensor(path("cpu"), "dense_rows").values);
  expect_close("estimated_mass", 2e-2);
}

TEST_F(CudaCommands, Route_WithoutDenseRowsWritesNoFlags) {
  const std::string in = write_input({1, 500, 1, 128}, {1, 500, 1, 128});
  run_both({"route", in, "--keep", "2"});
  io::SafetensorsFile file;
  ASSERT_TRUE(io::SafetensorsFile::open(path("cuda"), &file).ok());
  EXPECT_EQ(file.find("dense_rows"), nullptr);
  EXPECT_EQ(file.metadata().at("format"), "tessera-plan-1");
}

TEST_F(CudaCommands, Compare_ReportsTheCpusQuality) {
  SCOPED_TRACE("seed " + std::to_string(kSeed));
  const std::string in = write_input({1, 1200, 2, 128}, {1, 1200, 2, 128});
  const std::vector<std::string> args = {"compare", in, "--keep", "6", "--repeat", "2"};
  std::vector<std::string> cuda = args;
  cuda.insert(cuda.end(), {"--device", "cuda"});
  const json want = run_json(args), got = run_json(cuda);
  EXPECT_EQ(got["device"], "cuda:0");
  for (const char* field : {"cosine", "relative_l2"}) {
    EXPECT_NEAR(got[field].get<double>(), want[field].get<double>(), 1e-2) << field;
  }
  EXPECT_NEAR(got["recall"]["mean"].get<double>(), want["recall"]["mean"].get<double>(), 1e-2);
  for (const char* field : {"dense_seconds", "sparse_seconds", "route_seconds"}) {
    EXPECT_GT(got[field].get<double>(), 0) << field;
    EXPECT_LT(got[field].get<double>(), 1) << field;
  }
}

TEST_F(CudaCommands, Explain_NamesTheKernelAndCountsThePlan) {
  const std::string in = write_input({1, 1024, 2, 128}, {1, 1024, 2, 128});
  const json told = run_json({"explain", in, "--keep", "4", "--device", "cuda"});
  EXPECT_EQ(told["kernel"], "sm90_union");
  EXPECT_EQ(told["density"], 0.25);
  EXPECT_EQ(run_json({"explain", in, "--dense", "--device", "cuda"})["density"], 1.0);
}

TEST_F(CudaCommands, F32AndNarrowHeads_AreRefusedByName) {
  for (const auto& [dtype, width, word] :
       {std::tuple{Dtype::kF32, 128, "bf16 and f16"}, std::tuple{Dtype::kBf16, 64, "128"}}) {
    const std::string in = write_input({1, 100, 1, width}, {1, 100, 1, width}, dtype);
    for (const char* command : {"attend", "route", "compare", "explain"}) {
      std::vector<std::string> args = {command, in, "--keep", "1", "--device", "cuda"};
      if (command == std::string("attend") || command == std::string("route")) {
        args.insert(args.end(), {"-o", path("out")});
      }
      const Outcome run = run_tessera(args, folder_);
      EXPECT_EQ(run.exit_code, 3) << command << run.err;
      EXPECT_NE(run.err.find(word), std::string::npos) << command << run.err;
    }
  }
}

TEST_F(CudaCommands, CpuKernelName_IsRefused) {
  const std::string in = write_input({1, 100, 1, 128}, {1, 100, 1, 128});
  const Outcome run = run_tessera(
      {"attend", in, "-o", path("out"), "--dense", "--device", "cuda", "--kernel", "cpu_highway"},
      folder_);
  EXPECT_EQ(run.exit_code, 3) << run.err;
  EXPECT_NE(run.err.find("cpu_highway"), std::string::npos) << run.err;
}

TEST_F(CudaCommands, Bench_ReportsCheckedCases) {
  for (const char* lists : {"index", "bitmap"}) {
    const json report =
        run_json({"bench", "--device", "cuda", "--shape", "1000,2", "--repeat", "3", "--warm-up",
                  "2", "--density", "0.5", "--kernel", "sm90_list", "--lists", lists});
    // dense, random and shared with two kernels each; the router with and without a graph.
    ASSERT_EQ(report["cases"].size(), 8u);
    for (const json& one : report["cases"]) {
      EXPECT_GT(one["median_ms"].get<double>(), 0) << one;
      EXPECT_LE(one["p10_ms"], one["p90_ms"]) << one;
    }
    EXPECT_EQ(report["cases"][0]["name"], "dense/S:1000/H:2/bf16/default");
    EXPECT_GT(report["cases"][0]["tflops"].get<double>(), 0);
  }
  const Outcome none = run_tessera({"bench", "--device", "cuda", "--filter", "nothing"}, folder_);
  EXPECT_EQ(none.exit_code, 2) << none.err;
  const Outcome f32 = run_tessera({"bench", "--device", "cuda", "--dtype", "f32"}, folder_);
  EXPECT_EQ(f32.exit_code, 3) << f32.err;
}

}  // namespace
}  // namespace tessera::cli_test
