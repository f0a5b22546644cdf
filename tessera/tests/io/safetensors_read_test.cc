// The safetensors reader: bytes as the reference writer makes them, and every refusal with its
// message.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "tessera/io/safetensors.h"
#include "tessera/tests/io/io_test_util.h"

namespace tessera::io {
namespace {

using testing::expect_refusal;
using testing::length_bytes;
using testing::safetensors_bytes;
using testing::TempFolder;
using testing::write_all;

// Bytes at an address aligned to 64, as a mapping is.
class AlignedBytes {
 public:
  explicit AlignedBytes(const std::string& content)
      : bytes_(static_cast<std::byte*>(std::aligned_alloc(64, (content.size() / 64 + 1) * 64))),
        size_(content.size()) {
    std::memcpy(bytes_, content.data(), content.size());
  }
  AlignedBytes(const AlignedBytes&) = delete;
  AlignedBytes& operator=(const AlignedBytes&) = delete;
  ~AlignedBytes() { std::free(bytes_); }
  Status parse(SafetensorsFile* out) const {
    return SafetensorsFile::parse(bytes_, size_, "in.safetensors", out);
  }

 private:
  std::byte* bytes_;
  size_t size_;
};

Status parse(const std::string& content) {
  SafetensorsFile file;
  return AlignedBytes(content).parse(&file);
}

TEST(SafetensorsReader, ReferenceBytes_AreRead) {
  // What the reference writer makes of {"w": f32 [[1, 2, 3]], "i": i8 [-1, 5]} with metadata.
  const std::string header =
      R"({"__metadata__":{"format":"pt"},"w":{"dtype":"F32","shape":[1,3],"data_offsets":[0,12]},)"
      R"("i":{"dtype":"I8","shape":[2],"data_offsets":[12,14]}})";
  const std::string data("\x00\x00\x80\x3f\x00\x00\x00\x40\x00\x00\x40\x40\xff\x05", 14);
  const AlignedBytes bytes(safetensors_bytes(header, data));
  SafetensorsFile file;
  const Status s = bytes.parse(&file);
  ASSERT_TRUE(s.ok()) << s.message();
  EXPECT_EQ(file.label(), "in.safetensors");
  EXPECT_EQ(file.metadata(), (std::map<std::string, std::string>{{"format", "pt"}}));
  ASSERT_EQ(file.entries().size(), 2u);
  const SafetensorsEntry* w = file.find("w");
  ASSERT_NE(w, nullptr);
  EXPECT_EQ(w->dtype, Dtype::kF32);
  EXPECT_EQ(w->shape, (std::vector<int64_t>{1, 3}));
  EXPECT_EQ(w->bytes, 12u);
  float values[3];
  std::memcpy(values, w->data, sizeof values);
  EXPECT_EQ(values[0], 1.0f);
  EXPECT_EQ(values[1], 2.0f);
  EXPECT_EQ(values[2], 3.0f);
  const SafetensorsEntry* i = file.find("i");
  ASSERT_NE(i, nullptr);
  EXPECT_EQ(std::to_integer<int>(i->data[0]), 255);
  EXPECT_EQ(std::to_integer<int>(i->data[1]), 5);
  EXPECT_EQ(file.find("x"), nullptr);
}

TEST(SafetensorsReader, EveryDtype_IsKnown) {
  const std::vector<std::pair<std::string, Dtype>> dtypes = {
      {"BF16", Dtype::kBf16}, {"F16", Dtype::kF16}, {"F32", Dtype::kF32},   {"F64", Dtype::kF64},
      {"I8", Dtype::kI8},     {"U8", Dtype::kU8},   {"BOOL", Dtype::kBool}, {"I16", Dtype::kI16},
      {"U16", Dtype::kU16},   {"I32", Dtype::kI32}, {"U32", Dtype::kU32},   {"I64", Dtype::kI64},
      {"U64", Dtype::kU64}};
  for (const auto& [name, dtype] : dtypes) {
    const size_t bytes = 3 * dtype_bytes(dtype);
    const AlignedBytes file_bytes(safetensors_bytes(R"({"t":{"dtype":")" + name +
                                                        R"(","shape":[3],"data_offsets":[0,)" +
                                                        std::to_string(bytes) + "]}}",
                                                    std::string(bytes, 'x')));
    SafetensorsFile file;
    const Status s = file_bytes.parse(&file);
    ASSERT_TRUE(s.ok()) << name << ": " << s.message();
    EXPECT_EQ(file.entries()[0].dtype, dtype) << name;
  }
}

TEST(SafetensorsReader, LegalExtremes_AreAccepted) {
  EXPECT_TRUE(parse(safetensors_bytes("{}", "")).ok());
  EXPECT_TRUE(parse(safetensors_bytes(R"({"__metadata__":{}})", "")).ok());
  // A scalar, an empty tensor before and behind data, escapes in a name, any order of fields.
  const AlignedBytes bytes(
      safetensors_bytes(R"({"b":{"data_offsets":[4,4],"shape":[7,0],"dtype":"F64"},)"
                        R"("a":{"dtype":"F32","shape":[],"data_offsets":[0,4]},)"
                        R"("\u00e9\n":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}})",
                        "abcd"));
  SafetensorsFile file;
  const Status s = bytes.parse(&file);
  ASSERT_TRUE(s.ok()) << s.message();
  ASSERT_EQ(file.entries().size(), 3u);
  ASSERT_NE(file.find("a"), nullptr);
  EXPECT_EQ(file.find("a")->bytes, 4u);
  ASSERT_NE(file.find("\u00e9\n"), nullptr);
  EXPECT_EQ(file.find("b")->bytes, 0u);
  EXPECT_EQ(file.find("b")->shape, (std::vector<int64_t>{7, 0}));
}

TEST(SafetensorsReader, FailedParse_LeavesOutAlone) {
  const AlignedBytes good(
      safetensors_bytes(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", "x"));
  SafetensorsFile file;
  ASSERT_TRUE(good.parse(&file).ok());
  const AlignedBytes bad("short");
  EXPECT_FALSE(bad.parse(&file).ok());
  EXPECT_NE(file.find("a"), nullptr);
}

struct Refusal {
  const char* name;
  std::string content;
  std::vector<std::string> parts;
  StatusCode code = StatusCode::kInvalidArgument;
};

void PrintTo(const Refusal& r, std::ostream* out) { *out << r.name; }

std::string one(const std::string& fields, const std::string& data = "") {
  return safetensors_bytes("{\"q\":{" + fields + "}}", data);
}

std::vector<Refusal> refusals() {
  const std::string u8_4 = R"("dtype":"U8","shape":[4],)";
  const std::string deep(100000, '[');
  return {
      {"Empty", "", {"only 0 bytes"}},
      {"SevenBytes", "1234567", {"only 7 bytes", "8 bytes of header length"}},
      {"LengthBeyondFile", length_bytes(100) + "{}", {"header length 100", "file of 10 bytes"}},
      {"LengthOneBeyondFile", length_bytes(3) + "{}", {"header length 3 does not fit"}},
      {"LengthTooLarge", length_bytes(100'000'001) + "{}", {"100000001", "limit of 100000000"}},
      {"LengthHuge", length_bytes(~uint64_t{0}) + "{}", {"18446744073709551615", "limit"}},
      {"LengthWraps", length_bytes(~uint64_t{0} - 7) + "{}", {"18446744073709551608", "limit"}},
      {"LengthZero", length_bytes(0) + "{}", {"beginning with '{'", "no bytes"}},
      {"NotJson", safetensors_bytes("{nonsense}", ""), {"not JSON at byte 3 of the header"}},
      {"CutJson", safetensors_bytes(R"({"q":{)", ""), {"not JSON at byte"}},
      {"Garbage", safetensors_bytes("PK\x03\x04 zip", ""), {"beginning with '{'", "PK\\x03"}},
      {"LeadingBlank", safetensors_bytes(" {}", ""), {"beginning with '{'"}},
      {"TrailingText", safetensors_bytes("{} {}", ""), {"not JSON at byte 4"}},
      {"NulHidesText", safetensors_bytes(std::string("{}\0{", 4), ""), {"byte 3", "NUL"}},
      {"BadUtf8", safetensors_bytes("{\"\xff\":1}", ""), {"not JSON at byte 3"}},
      {"TopArray", safetensors_bytes("[]", ""), {"beginning with '{'"}},
      {"DeepArrays", one(R"("shape":)" + deep), {"'q'", "shape[0]", "an array"}},
      {"DeepTop", safetensors_bytes("{\"q\":" + deep, ""), {"'q' must be an object"}},
      {"EntryNumber", safetensors_bytes(R"({"q":1})", ""), {"'q' must be an object, got 1"}},
      {"EntryNull", safetensors_bytes(R"({"q":null})", ""), {"'q' must be an object, got null"}},
      {"DuplicateTensor",
       safetensors_bytes("{\"q\":{" + u8_4 + "\"data_offsets\":[0,4]},\"q\":{" + u8_4 +
                             "\"data_offsets\":[0,4]}}",
                         "abcd"),
       {"'q' is given twice"}},
      {"DuplicateField",
       one(u8_4 + R"("dtype":"U8","data_offsets":[0,4])", "abcd"),
       {"'q'", "'dtype' is given twice"}},
      {"UnknownField",
       one(u8_4 + R"("data_offsets":[0,4],"x":1)", "abcd"),
       {"'q'", "unknown field 'x'"}},
      {"NoDtype", one(R"("shape":[4],"data_offsets":[0,4])", "abcd"), {"'q'", "dtype is missing"}},
      {"NoShape", one(R"("dtype":"U8","data_offsets":[0,4])", "abcd"), {"'q'", "shape is missing"}},
      {"NoOffsets", one(R"("dtype":"U8","shape":[4])", "abcd"), {"'q'", "data_offsets is missing"}},
      {"UnknownDtype",
       one(R"("dtype":"f32","shape":[1],"data_offsets":[0,4])", "abcd"),
       {"'q'", "dtype 'f32'", "BF16, F16, F32"}},
      {"ForeignDtype",
       one(R"("dtype":"F8_E4M3","shape":[4],"data_offsets":[0,4])", "abcd"),
       {"'q'", "dtype 'F8_E4M3'", "convert"},
       StatusCode::kUnsupported},
      {"DtypeNumber",
       one(R"("dtype":3,"shape":[4],"data_offsets":[0,4])", "abcd"),
       {"'q'", "dtype must be a string, got 3"}},
      {"ShapeString",
       one(R"("dtype":"U8","shape":"4","data_offsets":[0,4])", "abcd"),
       {"'q'", "shape must be an array of integers, got the string '4'"}},
      {"NegativeSize",
       one(R"("dtype":"U8","shape":[2,-2],"data_offsets":[0,4])", "abcd"),
       {"'q'", "shape[1]", "got -2"}},
      {"FractionalSize",
       one(R"("dtype":"U8","shape":[4.0],"data_offsets":[0,4])", "abcd"),
       {"'q'", "shape[0]", "got 4.0"}},
      {"BoolSize",
       one(R"("dtype":"U8","shape":[true],"data_offsets":[0,1])", "a"),
       {"'q'", "shape[0]", "got true"}},
      {"SizeBeyondInt64",
       one(R"("dtype":"U8","shape":[9223372036854775808],"data_offsets":[0,4])", "abcd"),
       {"'q'", "shape[0]", "got 9223372036854775808"}},
      {"SizeBeyondUint64",
       one(R"("dtype":"U8","shape":[99999999999999999999],"data_offsets":[0,4])", "abcd"),
       {"'q'", "shape[0]", "got 99999999999999999999"}},
      {"ProductOverflows",
       one(R"("dtype":"U8","shape":[4294967296,4294967296],"data_offsets":[0,0])"),
       {"'q'", "[4294967296, 4294967296]", "overflows"}},
      {"BytesOverflow",
       one(R"("dtype":"F64","shape":[2305843009213693952],"data_offsets":[0,0])"),
       {"'q'", "f64", "overflows"}},
      {"OverflowBesideZero",
       one(R"("dtype":"U8","shape":[0,4294967296,4294967296],"data_offsets":[0,0])"),
       {"'q'", "overflows"}},
      {"RankTooLarge",
       one(R"("dtype":"U8","shape":[1)" +
               [] {
                 std::string s;
                 for (int i = 0; i < 64; ++i) s += ",1";
                 return s;
               }() +
               R"(],"data_offsets":[0,1])",
           "a"),
       {"'q'", "more than 64 sizes"}},
      {"OneOffset", one(u8_4 + R"("data_offsets":[0])", "abcd"), {"'q'", "has 1 numbers"}},
      {"ThreeOffsets",
       one(u8_4 + R"("data_offsets":[0,4,4])", "abcd"),
       {"'q'", "more than 2 numbers"}},
      {"NegativeOffset",
       one(u8_4 + R"("data_offsets":[-4,0])", "abcd"),
       {"'q'", "data_offsets[0]", "got -4"}},
      {"BeginBehindEnd",
       one(u8_4 + R"("data_offsets":[4,0])", "abcd"),
       {"'q'", "[4, 0]", "end before they begin"}},
      {"BeyondData",
       one(u8_4 + R"("data_offsets":[0,4])", "abc"),
       {"'q'", "[0, 4]", "beyond the 3 bytes", "truncated"}},
      {"HugeOffsets",
       one(u8_4 + R"("data_offsets":[18446744073709551611,18446744073709551615])", "abcd"),
       {"'q'", "beyond the 4 bytes"}},
      {"SpanTooLong",
       one(u8_4 + R"("data_offsets":[0,5])", "abcde"),
       {"'q'", "span 5 bytes", "u8 of shape [4] needs 4"}},
      {"SpanTooShort",
       one(R"("dtype":"F32","shape":[2],"data_offsets":[0,4])", "abcd"),
       {"'q'", "span 4 bytes", "needs 8"}},
      {"Overlap",
       safetensors_bytes("{\"q\":{" + u8_4 + "\"data_offsets\":[0,4]},\"k\":{" + u8_4 +
                             "\"data_offsets\":[2,6]}}",
                         "abcdef"),
       {"'k'", "begins at byte 2", "inside the tensor before it", "ends at 4"}},
      {"SameSpan",
       safetensors_bytes("{\"q\":{" + u8_4 + "\"data_offsets\":[0,4]},\"k\":{" + u8_4 +
                             "\"data_offsets\":[0,4]}}",
                         "abcd"),
       {"'k'", "inside the tensor before it"}},
      {"EmptyInside",
       safetensors_bytes("{\"q\":{" + u8_4 +
                             R"("data_offsets":[0,4]},"k":{"dtype":"U8","shape":[0],)"
                             R"("data_offsets":[2,2]}})",
                         "abcd"),
       {"'k'", "inside the tensor before it"}},
      {"GapInFront",
       one(u8_4 + R"("data_offsets":[1,5])", "abcde"),
       {"'q'", "begins at byte 1", "gap behind byte 0"}},
      {"GapBetween",
       safetensors_bytes("{\"q\":{" + u8_4 + "\"data_offsets\":[0,4]},\"k\":{" + u8_4 +
                             "\"data_offsets\":[5,9]}}",
                         "abcdefghi"),
       {"'k'", "begins at byte 5", "gap behind byte 4"}},
      {"TrailingBytes",
       one(u8_4 + R"("data_offsets":[0,4])", "abcdef"),
       {"2 bytes follow the last tensor"}},
      {"DataWithoutTensors", safetensors_bytes("{}", "x"), {"1 bytes follow the last tensor"}},
      {"MisalignedHeader",
       length_bytes(58) + R"({"q":{"dtype":"F32","shape":[1],"data_offsets":[0,4] } }  )" + "abcd",
       {"'q'", "begins at byte 66", "not a multiple of the 4 bytes of f32"}},
      {"MisalignedTensor",
       safetensors_bytes(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                         R"("q":{"dtype":"BF16","shape":[1],"data_offsets":[1,3]}})",
                         "abc"),
       {"'q'", "not a multiple of the 2 bytes of bf16"}},
      {"MetadataNumber",
       safetensors_bytes(R"({"__metadata__":{"n":1}})", ""),
       {"__metadata__ key 'n' must be a string, got 1"}},
      {"MetadataNested",
       safetensors_bytes(R"({"__metadata__":{"n":{}}})", ""),
       {"__metadata__ key 'n' must be a string, got an object"}},
      {"MetadataString",
       safetensors_bytes(R"({"__metadata__":"x"})", ""),
       {"__metadata__ must be an object, got the string 'x'"}},
      {"MetadataKeyTwice",
       safetensors_bytes(R"({"__metadata__":{"n":"1","n":"1"}})", ""),
       {"__metadata__", "'n' twice"}},
      {"MetadataTwice",
       safetensors_bytes(R"({"__metadata__":{},"__metadata__":{}})", ""),
       {"__metadata__", "given twice"}},
  };
}

class SafetensorsRefusal : public ::testing::TestWithParam<Refusal> {};

TEST_P(SafetensorsRefusal, Parse_NamesTheReason) {
  std::vector<std::string> parts = GetParam().parts;
  parts.push_back("'in.safetensors'");
  expect_refusal(parse(GetParam().content), GetParam().code, parts);
}

INSTANTIATE_TEST_SUITE_P(Hostile, SafetensorsRefusal, ::testing::ValuesIn(refusals()),
                         [](const auto& info) { return info.param.name; });

TEST(SafetensorsReader, EveryTruncation_IsRefused) {
  const std::string whole = safetensors_bytes(
      R"({"__metadata__":{"a":"b"},"q":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})",
      "abcdefgh");
  ASSERT_TRUE(parse(whole).ok());
  for (size_t n = 0; n < whole.size(); ++n) EXPECT_FALSE(parse(whole.substr(0, n)).ok()) << n;
}

TEST(SafetensorsReader, ControlCharactersInNames_AreEscapedInMessages) {
  const Status s = parse(safetensors_bytes("{\"a\\u001b[31m\\n\":1}", ""));
  expect_refusal(s, StatusCode::kInvalidArgument, {"'a\\x1b[31m\\n'"});
}

TEST(SafetensorsOpen, File_IsMappedAndOutlivesItsName) {
  const TempFolder folder;
  const std::string path = folder.file("a.safetensors");
  write_all(path,
            safetensors_bytes(R"({"q":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})", "abcd"));
  SafetensorsFile file;
  const Status s = SafetensorsFile::open(path, &file);
  ASSERT_TRUE(s.ok()) << s.message();
  ::unlink(path.c_str());
  const SafetensorsFile moved = std::move(file);
  ASSERT_NE(moved.find("q"), nullptr);
  EXPECT_EQ(std::memcmp(moved.find("q")->data, "abcd", 4), 0);
  EXPECT_EQ(moved.label(), path);
}

TEST(SafetensorsOpen, WhatIsNoFile_IsIoErrorWithPathAndReason) {
  const TempFolder folder;
  SafetensorsFile file;
  const std::string missing = folder.file("missing.safetensors");
  expect_refusal(SafetensorsFile::open(missing, &file), StatusCode::kIo,
                 {missing, "No such file or directory (errno 2)"});
  expect_refusal(SafetensorsFile::open(folder.path(), &file), StatusCode::kIo,
                 {folder.path(), "Is a directory (errno 21)"});
  const std::string empty = folder.file("empty");
  write_all(empty, "");
  expect_refusal(SafetensorsFile::open(empty, &file), StatusCode::kIo, {empty, "empty (0 bytes)"});
  const std::string fifo = folder.file("fifo");
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  expect_refusal(SafetensorsFile::open(fifo, &file), StatusCode::kIo, {fifo, "FIFO"});
  expect_refusal(SafetensorsFile::open("/dev/zero", &file), StatusCode::kIo,
                 {"/dev/zero", "regular file"});
  expect_refusal(SafetensorsFile::open("", &file), StatusCode::kIo, {"errno 2"});
  expect_refusal(SafetensorsFile::open(std::string("a\0b", 3), &file), StatusCode::kIo, {"NUL"});
}

TEST(SafetensorsOpen, DamagedFile_NamesThePath) {
  const TempFolder folder;
  const std::string path = folder.file("bad.safetensors");
  write_all(path, "this is no safetensors file");
  SafetensorsFile file;
  expect_refusal(SafetensorsFile::open(path, &file), StatusCode::kInvalidArgument,
                 {path, "header length"});
}

}  // namespace
}  // namespace tessera::io
