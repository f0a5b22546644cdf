// --attention-backend-config and --component-attention-backends: FC-7 and the component syntax.
#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <fstream>

#include "h3/attention/options.h"
#include "h3/attention/tests/plan_test_util.h"

namespace h3 {
namespace {

using testing::expect_parts;
using testing::thrown_by;
using Dotted = std::vector<std::pair<std::string, std::string>>;

constexpr const char* kDefaults =
    "sparsity=0.75 n_k=4 n_q=4 skip_first_steps=10 skip_first_layers=0 min_seq_len=4096 "
    "compute_mode=bf16";

// A file that is removed with the object.
class TempFile {
 public:
  explicit TempFile(const std::string& content) {
    char pattern[] = "/tmp/h3_options_XXXXXX";
    const int fd = mkstemp(pattern);
    EXPECT_GE(fd, 0);
    close(fd);
    path_ = pattern;
    std::ofstream(path_) << content;
  }
  ~TempFile() { std::remove(path_.c_str()); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// G10, FC-7: defaults and accepted forms.
TEST(SubBlockOptions, AcceptedForms_GiveTheSameSettings_FC7_G10) {
  EXPECT_EQ(describe(parse_subblock_settings("")), kDefaults);
  EXPECT_EQ(describe(parse_subblock_settings("{}")), kDefaults);
  const std::string want =
      "sparsity=0.85 n_k=8 n_q=4 skip_first_steps=10 skip_first_layers=0 min_seq_len=4096 "
      "compute_mode=bf16";
  const TempFile file(R"({"sparsity": 0.85, "n_k": 8})");
  EXPECT_EQ(describe(parse_subblock_settings(R"({"sparsity": 0.85, "n_k": 8})")), want);
  EXPECT_EQ(describe(parse_subblock_settings("sparsity=0.85,n_k=8")), want);
  EXPECT_EQ(describe(parse_subblock_settings("@" + file.path())), want);
  EXPECT_EQ(describe(parse_subblock_settings(file.path())), want);
  EXPECT_EQ(describe(parse_subblock_settings("", {{"sparsity", "0.85"}, {"n_k", "8"}})), want);
  EXPECT_EQ(describe(parse_subblock_settings("{\"n_k\": 8}", {{"sparsity", "0.85"}})), want);
  EXPECT_EQ(describe(parse_subblock_settings("sparsity=0.1,n_k=8", {{"sparsity", "0.85"}})), want);
}

struct BadConfig {
  const char* name;
  std::string text;
  Dotted dotted;
  std::vector<std::string> parts;
  ErrorCode code = ErrorCode::kInvalidArgument;
};

TEST(SubBlockOptions, DamagedTexts_AreRefusedPrecisely_FC7_G10) {
  const BadConfig cases[] = {
      {"quotes eaten",
       "{sparsity: 0.85}",
       {},
       {"not JSON at byte 2", "received: '{sparsity: 0.85}'", "@FILE"}},
      {"doubled", R"({{"sparsity": 0.85}})", {}, {"not JSON at byte", "received"}},
      {"escaped", R"(\{\"sparsity\":0.85\})", {}, {"not JSON at byte 1", "received"}},
      {"unknown key", R"({"sparsty": 0.85})", {}, {"unknown key 'sparsty'", "'sparsity'"}},
      {"one", R"({"sparsity": 1.0})", {}, {"[0, 1)", "1.0"}},
      {"negative", R"({"sparsity": -0.1})", {}, {"[0, 1)"}},
      {"nan", R"({"sparsity": NaN})", {}, {"[0, 1)"}},
      {"n_k", R"({"n_k": 3})", {}, {"1, 2, 4 or 8", "got 3"}},
      {"n_q", R"({"n_q": 16})", {}, {"1, 2, 4 or 8", "got 16"}},
      {"fraction", R"({"n_k": 4.9})", {}, {"got 4.9"}},
      {"string", R"({"sparsity": "0.85"})", {}, {"the string '0.85'"}},
      {"bool", R"({"sparsity": true})", {}, {"got true"}},
      {"steps", R"({"skip_first_steps": -1})", {}, {"skip_first_steps", "got -1"}},
      {"layers", R"({"skip_first_layers": -1})", {}, {"skip_first_layers", "got -1"}},
      {"twice", R"({"n_k": 4, "n_k": 4})", {}, {"'n_k' is given twice"}},
      {"missing file", "@no/such/file.json", {}, {"no/such/file.json"}},
      {"short", "min_seq_len=511", {}, {"at least 512", "got 511", "8 blocks"}},
      {"zero length", "min_seq_len=0", {}, {"at least 512"}},
      {"mode", "compute_mode=fp4", {}, {"compute_mode", "fp4"}},
      {"mode case", "compute_mode=BF16", {}, {"compute_mode", "BF16"}},
      {"sage", "compute_mode=sage_fp8", {}, {"sage_fp8"}, ErrorCode::kUnsupported},
      {"dotted key", "", {{"sparsty", "0.5"}}, {"unknown key 'sparsty'", "'sparsity'"}},
      {"dotted twice", "", {{"n_k", "4"}, {"n-k", "8"}}, {"n_k is given twice"}},
      {"dotted value", "", {{"sparsity", "2"}}, {"[0, 1)", "got 2"}},
      {"dotted empty", "", {{"sparsity", ""}}, {"sparsity"}},
      {"dotted list", "", {{"sparsity", "0.5,n_k=8"}}, {"one value is needed"}},
      {"dotted short", "", {{"min_seq_len", "64"}}, {"at least 512"}},
  };
  for (const BadConfig& c : cases) {
    SCOPED_TRACE(c.name);
    const Error e = thrown_by([&] { parse_subblock_settings(c.text, c.dotted); });
    EXPECT_EQ(e.code(), c.code);
    expect_parts(e.what(), c.parts);
  }
}

TEST(SubBlockOptions, RouterConfig_FollowsTheBudgetKind) {
  SubBlockSettings s = parse_subblock_settings("sparsity=0.8,n_q=2");
  EXPECT_EQ(router_config(s).budget.kind, tessera::BudgetKind::kSparsity);
  EXPECT_EQ(router_config(s).budget.sparsity, 0.8);
  EXPECT_EQ(router_config(s).n_q, 2);
  s.target_mass = 0.95;
  EXPECT_EQ(router_config(s).budget.kind, tessera::BudgetKind::kMass);
  EXPECT_EQ(router_config(s).budget.mass, 0.95);
}

std::string told(const ComponentRequests& r) {
  std::string text;
  for (const auto& [name, b] : r.components)
    text += name + "=" + std::string(to_text(b.backend)) + " ";
  for (const auto& [key, b] : r.roles) {
    text += key.first + "." + std::string(to_text(key.second)) + "=" +
            std::string(to_text(b.backend)) + " ";
  }
  return text;
}

TEST(ComponentOptions, AcceptedForms_AreEqual) {
  const std::string want =
      "text_encoder=torch_sdpa transformer=subblock_sparse_attn transformer.cross=fa ";
  const std::string json =
      R"({"transformer": "subblock_sparse_attn", "text-encoder": "torch_sdpa", "transformer.cross": "fa3"})";
  const TempFile file(json + "\r\n");
  EXPECT_EQ(told(parse_component_requests(json)), want);
  EXPECT_EQ(told(parse_component_requests("@" + file.path())), want);
  EXPECT_EQ(
      told(parse_component_requests(
          " Transformer = SUBBLOCK_sparse_attn, text_encoder=torch_sdpa,transformer.Cross=fa")),
      want);
  EXPECT_EQ(told(parse_component_requests("", {{"transformer", "subblock_sparse_attn"},
                                               {"text-encoder", "torch_sdpa"},
                                               {"transformer.cross", "fa"}})),
            want);
  // The dotted form is merged over the text.
  EXPECT_EQ(
      told(parse_component_requests("transformer=fa,text_encoder=torch_sdpa,transformer.cross=fa",
                                    {{"transformer", "subblock_sparse_attn"}})),
      want);
  EXPECT_TRUE(parse_component_requests("").empty());
  EXPECT_TRUE(parse_component_requests(" {} ").empty());
}

TEST(ComponentOptions, DamagedTexts_AreRefusedPrecisely) {
  const BadConfig cases[] = {
      {"quotes eaten",
       "{transformer: fa}",
       {},
       {"not JSON at byte", "received: '{transformer: fa}'", "@FILE"}},
      {"number", R"({"transformer": 3})", {}, {"'transformer' must be a string, got 3"}},
      {"null", R"({"transformer": null})", {}, {"must be a string, got null"}},
      {"nested", R"({"transformer": {"cross": "fa"}})", {}, {"must be a string, got an object"}},
      {"list", R"(["fa"])", {}, {"a JSON object {...} is needed, got an array"}},
      {"string", R"("fa")", {}, {"a JSON object {...} is needed, got a string"}},
      {"nul", std::string("{}\0x", 4), {}, {"NUL"}},
      {"word", "fa", {}, {"not JSON at byte"}},
      {"no equals", "transformer=fa,vae", {}, {"name=backend is needed at byte 16", "'vae'"}},
      {"no value", "transformer=", {}, {"name=backend is needed at byte 1"}},
      {"no name", "=fa", {}, {"has no name"}},
      {"no name, role", ".cross=fa", {}, {"has no name"}},
      {"role", "transformer.both=fa", {}, {"role 'both' is not known", ".self, .cross"}},
      {"backend", "transformer=fast", {}, {"unknown attention backend 'fast'", "torch_sdpa"}},
      {"elsewhere", "transformer=sage_attn", {}, {"not in this engine"}, ErrorCode::kUnsupported},
      {"twice", "text_encoder=fa,text-encoder=fa", {}, {"given twice"}},
      {"twice json", R"({"a": "fa", "a": "fa"})", {}, {"given twice"}},
      {"twice role", "t.cross=fa,T.CROSS=fa", {}, {"given twice"}},
      {"twice dotted", "", {{"t", "fa"}, {"T", "fa"}}, {"given twice"}},
      {"file", "@no/such.json", {}, {"no/such.json"}},
  };
  for (const BadConfig& c : cases) {
    SCOPED_TRACE(c.name);
    const Error e = thrown_by([&] { parse_component_requests(c.text, c.dotted); });
    EXPECT_EQ(e.code(), c.code);
    expect_parts(e.what(), c.parts);
  }
}

}  // namespace
}  // namespace h3
