// Field case FC-7: option texts that arrive damaged, and all the forms that are accepted.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cmath>
#include <string>
#include <vector>

#include "tessera/io/backend_options.h"
#include "tessera/tests/io/io_test_util.h"

namespace tessera::io {
namespace {

using testing::expect_refusal;
using testing::TempFolder;
using testing::write_all;

constexpr const char* kDefaults =
    "sparsity=0.75 n_k=4 n_q=4 skip_first_steps=10 skip_first_layers=0 min_seq_len=4096 "
    "compute_mode=bf16";

// The accepted options as one line, or the refusal.
std::string accepted(const std::string& text) {
  BackendOptions options;
  const Status s = parse_backend_options(text, &options);
  return s.ok() ? describe(options) : "refused: " + s.message();
}

Status parse(const std::string& text) {
  BackendOptions options;
  return parse_backend_options(text, &options);
}

TEST(BackendOptions, NothingGiven_IsDefaults) {
  for (const char* text : {"", "{}", " {} ", " \t\r\n", "{ }\r\n", "\xef\xbb\xbf{}"}) {
    EXPECT_EQ(accepted(text), kDefaults) << text;
  }
}

TEST(BackendOptions, OneKey_LeavesTheOthersAlone) {
  EXPECT_EQ(accepted(R"({"sparsity": 0.85})"),
            "sparsity=0.85 n_k=4 n_q=4 skip_first_steps=10 skip_first_layers=0 min_seq_len=4096 "
            "compute_mode=bf16");
}

TEST(BackendOptions, AllKeys_AreTaken) {
  const char* expected =
      "sparsity=0.5 n_k=8 n_q=1 skip_first_steps=0 skip_first_layers=3 min_seq_len=128 "
      "compute_mode=bf16";
  EXPECT_EQ(accepted(R"({"sparsity": 5e-1, "n_k": 8, "n_q": 1, "skip_first_steps": 0,
                         "skip_first_layers": 3, "min_seq_len": 128, "compute_mode": "bf16"})"),
            expected);
  EXPECT_EQ(accepted("sparsity=0.5,n_k=8 , n_q = 1,skip_first_steps=0,skip_first_layers=3,"
                     "min_seq_len=128,compute_mode=bf16"),
            expected);
}

TEST(BackendOptions, EdgesOfRanges_AreAccepted) {
  for (const char* text : {R"({"sparsity": 0})", R"({"sparsity": 0.0})", R"({"sparsity": -0.0})",
                           "sparsity=0", "sparsity=-0.0"}) {
    BackendOptions options;
    ASSERT_TRUE(parse_backend_options(text, &options).ok()) << text;
    EXPECT_EQ(options.sparsity, 0.0) << text;
    EXPECT_FALSE(std::signbit(options.sparsity)) << text;
  }
  BackendOptions options;
  ASSERT_TRUE(
      parse_backend_options("sparsity=0.9999999999999999,min_seq_len=9223372036854775807", &options)
          .ok());
  EXPECT_LT(options.sparsity, 1.0);
  EXPECT_EQ(options.min_seq_len, INT64_MAX);
  for (const char* n : {"1", "2", "4", "8"}) {
    EXPECT_TRUE(parse("n_k=" + std::string(n) + ",n_q=" + n).ok()) << n;
  }
}

struct Refusal {
  const char* name;
  std::string text;
  std::vector<std::string> parts;
  StatusCode code = StatusCode::kInvalidArgument;
};

void PrintTo(const Refusal& r, std::ostream* out) { *out << r.name; }

std::vector<Refusal> refusals() {
  const std::string in_range = "sparsity must be a number in [0, 1)";
  const std::string cells = "the integer 1, 2, 4 or 8";
  const std::vector<std::string> damaged = {"not JSON at byte", "received: '", "@FILE",
                                            "key=value"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.end(), damaged.begin(), damaged.end());
    return more;
  };
  return {
      {"QuotesEaten", "{sparsity: 0.85}", with({"at byte 2", "'{sparsity: 0.85}'"})},
      {"DoubledBraces", R"({{"sparsity": 0.85}})",
       with({"at byte 2", R"('{{"sparsity": 0.85}}')"})},
      {"EscapedBraces", R"(\{\"sparsity\":0.85\})", with({"at byte 1"})},
      {"SingleQuotes", "{'sparsity': 0.85}", with({"at byte 2"})},
      {"Cut", R"({"sparsity": 0.8)", with({})},
      {"TwoObjects", R"({} {})", with({"at byte 4"})},
      {"TrailingComma", R"({"sparsity": 0.8,})", with({"at byte 18"})},
      {"Comment", R"({"sparsity": 0.8 /* x */})", with({"at byte 18"})},
      {"NulHidesText", std::string("{}\0{", 4), with({"at byte 3", "NUL"})},
      {"BadUtf8", "{\"\xff\": 1}", with({"at byte 3", "\\xff"})},
      {"BareWord", "sparse", with({"not the name of an existing file"})},
      {"Array", "[0.85]", {"a JSON object {...} is needed, got an array", "received: '[0.85]'"}},
      {"Number", "0.85", {"a JSON object {...} is needed, got 0.85"}},
      {"Null", "null", {"a JSON object {...} is needed, got null"}},
      {"String", R"("sparsity")", {"a JSON object {...} is needed, got a string"}},
      {"UnknownKey",
       R"({"sparsty": 0.85})",
       {"unknown key 'sparsty'", "nearest known key is 'sparsity'", "known keys: sparsity, n_k"}},
      {"UnknownKeyCase", R"({"Min_Seq_Len": 1})", {"nearest known key is 'min_seq_len'"}},
      {"UnknownKeyPlural", "skip_first_step=1", {"nearest known key is 'skip_first_steps'"}},
      {"UnknownKeyDashes", "skip-first-layers=1", {"nearest known key is 'skip_first_layers'"}},
      {"UnknownKeyEmpty", R"({"": 1})", {"unknown key ''"}},
      {"SparsityOne", R"({"sparsity": 1.0})", {in_range, "got 1.0"}},
      {"SparsityIntegerOne", R"({"sparsity": 1})", {in_range, "got 1"}},
      {"SparsityNegative", R"({"sparsity": -0.1})", {in_range, "got -0.1"}},
      {"SparsityNanJson", R"({"sparsity": NaN})", with({in_range})},
      {"SparsityNanPair", "sparsity=nan", {in_range, "got nan"}},
      {"SparsityInfPair", "sparsity=-inf", {in_range, "got -inf"}},
      {"SparsityHugeJson", R"({"sparsity": 1e999})", {in_range, "1e999"}},
      {"SparsityHugePair", "sparsity=1e999", {in_range, "got 1e999"}},
      {"SparsityRoundsToOne", "sparsity=0.99999999999999999999", {in_range}},
      {"SparsityHex", "sparsity=0x0.8", {in_range, "got the string '0x0.8'"}},
      {"SparsityPercent", "sparsity=85%", {in_range, "got the string '85%'"}},
      {"SparsityString", R"({"sparsity": "0.85"})", {in_range, "got the string '0.85'"}},
      {"SparsityQuotedPair", R"(sparsity="0.85")", {in_range, "got the string '\"0.85\"'"}},
      {"SparsityBool", R"({"sparsity": true})", {in_range, "got true"}},
      {"SparsityBoolPair", "sparsity=true", {in_range, "got true"}},
      {"SparsityNull", R"({"sparsity": null})", {in_range, "got null"}},
      {"SparsityArray", R"({"sparsity": [0.5]})", {in_range, "got an array"}},
      {"SparsityObject", R"({"sparsity": {"n_k": 4}})", {in_range, "got an object"}},
      {"CellsThree", R"({"n_k": 3})", {"n_k must be " + cells, "got 3"}},
      {"CellsSixteen", R"({"n_q": 16})", {"n_q must be " + cells, "got 16"}},
      {"CellsZero", "n_q=0", {"n_q must be " + cells, "got 0"}},
      {"CellsWrapped", R"({"n_k": 4294967300})", {"n_k must be " + cells, "got 4294967300"}},
      {"CellsFraction", R"({"n_k": 4.9})", {"n_k must be " + cells, "got 4.9"}},
      {"CellsWholeFraction", R"({"n_k": 4.0})", {"n_k must be " + cells, "got 4.0"}},
      {"CellsBool", R"({"n_k": true})", {"n_k must be " + cells, "got true"}},
      {"CellsString", R"({"n_k": "4"})", {"n_k must be " + cells, "got the string '4'"}},
      {"StepsNegative",
       R"({"skip_first_steps": -1})",
       {"skip_first_steps must be an integer from 0", "got -1"}},
      {"StepsNegativePair", "skip_first_steps=-1", {"skip_first_steps", "got -1"}},
      {"StepsExponent", "skip_first_steps=1e1", {"skip_first_steps", "got 1e1"}},
      {"LayersNegative", R"({"skip_first_layers": -3})", {"skip_first_layers", "got -3"}},
      {"LengthNegative", R"({"min_seq_len": -4096})", {"min_seq_len", "got -4096"}},
      {"LengthBeyondInt64",
       R"({"min_seq_len": 9223372036854775808})",
       {"min_seq_len", "got 9223372036854775808"}},
      {"LengthBeyondInt64Pair",
       "min_seq_len=9223372036854775808",
       {"min_seq_len", "got 9223372036854775808"}},
      {"ModeUnknown",
       R"({"compute_mode": "fp16"})",
       {"compute_mode must be the string 'bf16'", "got the string 'fp16'"}},
      {"ModeCase", R"({"compute_mode": "BF16"})", {"compute_mode", "got the string 'BF16'"}},
      {"ModeBlank", R"({"compute_mode": " bf16"})", {"compute_mode", "got the string ' bf16'"}},
      {"ModeNumber", R"({"compute_mode": 16})", {"compute_mode", "got 16"}},
      {"ModeSage",
       R"({"compute_mode": "sage_fp8"})",
       {"'sage_fp8'", "use 'bf16'"},
       StatusCode::kUnsupported},
      {"WrongBeforeUnsupported", R"({"compute_mode": "sage_fp8", "n_k": 3})", {"n_k", "got 3"}},
      {"KeyTwice", R"({"n_k": 4, "n_k": 4})", {"'n_k' is given twice"}},
      {"KeyTwicePair", "n_k=4,n_q=4,n_k=8", {"'n_k' is given twice"}},
      {"PairWithoutValue", "sparsity=", {"key=value is needed at byte 1", "'sparsity='"}},
      {"PairWithoutKey", "n_k=4,=8", {"key=value is needed at byte 7", "'=8'"}},
      {"PairWithoutEquals", "n_k=4,n_q", {"key=value is needed at byte 7", "'n_q'"}},
      {"PairsTrailingComma", "n_k=4,", {"key=value is needed at byte 7"}},
      {"AtNothing", "@ ", {"'@' names no file"}},
      {"MissingFile", "@/no/such/options.json", {"/no/such/options.json", "errno 2"}},
      {"MissingPath", "/no/such/options.json", {"/no/such/options.json", "errno 2"}},
      {"MissingName", "no-such-options.json", {"no-such-options.json", "errno 2"}},
      {"TooLong", "{" + std::string(2 << 20, ' ') + "}", {"2097154 bytes", "at most 1048576"}},
  };
}

class BackendOptionsRefusal : public ::testing::TestWithParam<Refusal> {};

TEST_P(BackendOptionsRefusal, Parse_NamesValueAndRule) {
  BackendOptions options;
  options.n_k = 2;
  expect_refusal(parse_backend_options(GetParam().text, &options), GetParam().code,
                 GetParam().parts);
  EXPECT_EQ(options.n_k, 2) << "a refusal must not change the options";
  EXPECT_EQ(options.sparsity, 0.75);
}

INSTANTIATE_TEST_SUITE_P(Damaged, BackendOptionsRefusal, ::testing::ValuesIn(refusals()),
                         [](const auto& info) { return info.param.name; });

TEST(BackendOptions, EveryPrefixOfAnObject_IsRefused) {
  const std::string whole = R"({"sparsity": 0.85, "compute_mode": "bf16", "n_k": 8})";
  ASSERT_TRUE(parse(whole).ok());
  for (size_t n = 1; n < whole.size(); ++n) EXPECT_FALSE(parse(whole.substr(0, n)).ok()) << n;
}

TEST(BackendOptions, DeepNesting_IsRefusedWithoutRecursion) {
  const std::string deep(200000, '[');
  EXPECT_FALSE(parse(R"({"sparsity": )" + deep + "}").ok());
  const std::string closed = R"({"sparsity": )" + deep + std::string(200000, ']') + "}";
  expect_refusal(parse(closed), StatusCode::kInvalidArgument, {"got an array"});
}

TEST(BackendOptionsFile, AtAndPath_ReadTheFile) {
  const TempFolder folder;
  const std::string path = folder.file("options");
  const std::string expected =
      "sparsity=0.85 n_k=2 n_q=4 skip_first_steps=10 skip_first_layers=0 min_seq_len=4096 "
      "compute_mode=bf16";
  for (const char* content : {"{\"sparsity\": 0.85, \"n_k\": 2}",
                              "\xef\xbb\xbf{\r\n  \"sparsity\": 0.85,\r\n  \"n_k\": 2\r\n}\r\n",
                              "sparsity=0.85,n_k=2\n"}) {
    write_all(path, content);
    EXPECT_EQ(accepted("@" + path), expected) << content;
    EXPECT_EQ(accepted(" " + path + "\n"), expected) << content;
  }
  write_all(path, "");
  EXPECT_EQ(accepted("@" + path), kDefaults);
}

TEST(BackendOptionsFile, BadContent_NamesFileAndValue) {
  const TempFolder folder;
  const std::string path = folder.file("options.json");
  write_all(path, R"({"sparsity": 1.5})");
  expect_refusal(parse(path), StatusCode::kInvalidArgument, {path, "[0, 1)", "got 1.5"});
  write_all(path, "{sparsity: 0.5}");
  expect_refusal(parse("@" + path), StatusCode::kInvalidArgument,
                 {path, "not JSON at byte 2", "{sparsity: 0.5}"});
  // A file cannot send the reader on to another file.
  write_all(path, "@" + path);
  expect_refusal(parse("@" + path), StatusCode::kInvalidArgument, {path, "not JSON at byte 1"});
  write_all(path, std::string((1 << 20) + 1, ' '));
  expect_refusal(parse("@" + path), StatusCode::kInvalidArgument, {path, "1048577 bytes"});
}

TEST(BackendOptionsFile, WhatIsNoFile_IsRefused) {
  const TempFolder folder;
  expect_refusal(parse(folder.path()), StatusCode::kInvalidArgument,
                 {folder.path(), "Is a directory"});
  const std::string fifo = folder.file("fifo");
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  expect_refusal(parse("@" + fifo), StatusCode::kInvalidArgument, {fifo, "FIFO"});
}

TEST(BackendOptions, RouterConfig_TakesCellsAndSparsity) {
  BackendOptions options;
  ASSERT_TRUE(parse_backend_options("sparsity=0.5,n_k=8,n_q=2", &options).ok());
  const RouterConfig config = router_config(options);
  EXPECT_EQ(config.n_k, 8);
  EXPECT_EQ(config.n_q, 2);
  EXPECT_EQ(config.budget.kind, BudgetKind::kSparsity);
  EXPECT_EQ(config.budget.sparsity, 0.5);
  EXPECT_EQ(config.budget.granularity, 8);
  EXPECT_FALSE(config.weight_partial_cells);
}

}  // namespace
}  // namespace tessera::io
