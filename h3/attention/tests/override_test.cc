// What a request may ask for: parsing, contradictions, merged settings, batch signature.
#include <set>

#include "h3/attention/override.h"
#include "h3/attention/tests/plan_test_util.h"

namespace h3 {
namespace {

using testing::expect_parts;
using testing::thrown_by;

AttentionOverride parse(const std::string& json) {
  return parse_attention_override(json, "attention_backend_override");
}

TEST(Override, Fields_AreRead) {
  EXPECT_TRUE(parse("null").empty());
  EXPECT_TRUE(parse("").empty());
  EXPECT_TRUE(parse("{}").empty());
  EXPECT_TRUE(parse(R"({"backend": null, "sparsity": null, "off": null})").empty());
  EXPECT_TRUE(parse(R"({"off": false})").empty());
  EXPECT_EQ(parse(R"({"backend": " FA3 "})").backend, BackendId::kFa);
  const AttentionOverride o = parse(
      R"({"backend": "subblock_sparse_attn", "sparsity": 0.9, "skip_first_steps": 5,
          "skip_first_layers": 1, "min_seq_len": 512})");
  EXPECT_EQ(o.backend, BackendId::kSubBlock);
  EXPECT_EQ(o.sparsity, 0.9);
  EXPECT_EQ(o.skip_first_steps, 5);
  EXPECT_EQ(o.skip_first_layers, 1);
  EXPECT_EQ(o.min_seq_len, 512);
  EXPECT_EQ(parse(R"({"target_mass": 1})").target_mass, 1.0);
  EXPECT_TRUE(parse(R"({"off": true})").off);
}

TEST(Override, BadOnes_AreRefusedWithAllFaults_P) {
  const struct {
    const char* json;
    std::vector<std::string> parts;
  } cases[] = {
      {"3", {"attention_backend_override", "JSON object or null", "'3'"}},
      {"[]", {"JSON object or null"}},
      {"{backend: fa}", {"not JSON at byte"}},
      {R"({"backend": "turbo"})", {"unknown attention backend 'turbo'", "torch_sdpa"}},
      {R"({"backend": "sage_attn"})", {"not in this engine"}},
      {R"({"backend": 3})", {"backend must be a string, got 3"}},
      {R"({"sparcity": 0.5})",
       {"unknown field 'sparcity'", "nearest is 'sparsity'", "target_mass"}},
      {R"({"sparsity": 1})", {"sparsity must be a number in [0, 1), got 1"}},
      {R"({"sparsity": "0.5"})", {"the string '0.5'"}},
      {R"({"sparsity": true})", {"got true"}},
      {R"({"target_mass": 0})", {"target_mass must be a number in (0, 1], got 0"}},
      {R"({"min_seq_len": 511})", {"min_seq_len must be an integer from 512, got 511"}},
      {R"({"skip_first_steps": 1.5})", {"skip_first_steps must be an integer from 0, got 1.5"}},
      {R"({"skip_first_layers": -1})", {"got -1"}},
      {R"({"off": 1})", {"off must be true or false, got 1"}},
      {R"({"off": true, "sparsity": 0.5})", {"off excludes"}},
      {R"({"off": true, "backend": "subblock_sparse_attn"})", {"off excludes"}},
      {R"({"backend": "fa", "sparsity": 0.5})", {"backend fa is dense"}},
      {R"({"sparsity": 0.5, "target_mass": 0.9})", {"exclude each other"}},
      {R"({"sparsity": 0.5, "sparsity": 0.5})", {"given twice"}},
      // Everything that is wrong, in one message.
      {R"({"backend": "turbo", "sparsity": 2, "min_seq_len": 1, "x": 1})",
       {"'turbo'", "got 2", "got 1", "unknown field 'x'"}},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.json);
    const Error e = thrown_by([&] { parse(c.json); });
    EXPECT_EQ(e.code(), ErrorCode::kInvalidArgument);
    expect_parts(e.what(), c.parts);
  }
}

TEST(Override, Settings_AreMergedOverTheDefaults) {
  SubBlockSettings base;
  base.options.n_k = 8;
  EXPECT_EQ(with_override(base, {}), base);
  AttentionOverride o;
  o.sparsity = 0.9;
  o.min_seq_len = 1024;
  const SubBlockSettings merged = with_override(base, o);
  EXPECT_EQ(describe(merged),
            "sparsity=0.9 n_k=8 n_q=4 skip_first_steps=10 skip_first_layers=0 min_seq_len=1024 "
            "compute_mode=bf16");
  AttentionOverride mass;
  mass.target_mass = 0.95;
  EXPECT_EQ(with_override(base, mass).target_mass, 0.95);
  // A sparsity of the request replaces a mass target of the server.
  EXPECT_EQ(with_override(with_override(base, mass), o).target_mass, std::nullopt);
  AttentionOverride off;
  off.off = true;
  EXPECT_FALSE(with_override(base, off).can_be_sparse());
}

TEST(Override, BatchSignature_IsEqualForEqualOverridesOnly) {
  const char* texts[] = {
      "{}",
      R"({"backend": "fa"})",
      R"({"backend": "torch_sdpa"})",
      R"({"backend": "subblock_sparse_attn"})",
      R"({"sparsity": 0.9})",
      R"({"sparsity": 0.90000000000000002})",  // the same double
      R"({"sparsity": 0.9000000000000001})",
      R"({"target_mass": 0.9})",
      R"({"skip_first_steps": 9})",
      R"({"skip_first_layers": 9})",
      R"({"min_seq_len": 900})",
      R"({"off": true})",
  };
  for (const char* a : texts) {
    for (const char* b : texts) {
      EXPECT_EQ(batch_signature(parse(a)) == batch_signature(parse(b)), parse(a) == parse(b))
          << a << " " << b;
    }
  }
  AttentionOverride zero, minus_zero;
  zero.sparsity = 0.0;
  minus_zero.sparsity = -0.0;
  EXPECT_EQ(zero, minus_zero);
  EXPECT_EQ(batch_signature(zero), batch_signature(minus_zero));
  EXPECT_EQ(batch_signature(parse(R"({"backend": "fa3"})")),
            batch_signature(parse(R"({"backend":"FA"})")));
}

}  // namespace
}  // namespace h3
