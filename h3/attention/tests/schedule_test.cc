// Layer, step and call gates, packed documents, the query block mask, head splitting.
#include <limits>
#include <numeric>

#include "h3/attention/schedule.h"
#include "h3/attention/tests/plan_test_util.h"

namespace h3 {
namespace {

using testing::cross_layer;
using testing::denoise_layer;
using testing::expect_parts;
using testing::thrown_by;
using Mask = std::vector<uint8_t>;

TEST(LayerGate, Table_G1) {
  SubBlockSettings base, skip3, zero, off, mass;
  skip3.options.skip_first_layers = 3;
  zero.options.sparsity = 0;
  off.off = true;
  mass.options.sparsity = 0;
  mass.target_mass = 0.9;
  LayerDescriptor refiner = denoise_layer(7), narrow = denoise_layer(7), other = denoise_layer(7);
  refiner.stack = LayerStack::kRefiner;
  narrow.head_dim = 64;
  other.stack = LayerStack::kOther;
  const struct {
    const char* name;
    LayerDescriptor layer;
    SubBlockSettings settings;
    std::optional<DenseReason> closed;
  } cases[] = {
      {"first", denoise_layer(0), base, {}},
      {"last", denoise_layer(49), base, {}},
      {"below the skip", denoise_layer(2), skip3, DenseReason::kEarlyLayer},
      {"at the skip", denoise_layer(3), skip3, {}},
      {"refiner", refiner, base, DenseReason::kStack},
      {"another stack", other, base, DenseReason::kStack},
      {"cross", cross_layer(7), base, DenseReason::kStack},
      {"width 64", narrow, base, DenseReason::kHeadDim},
      {"sparsity 0", denoise_layer(7), zero, DenseReason::kOff},
      {"mass instead of sparsity", denoise_layer(7), mass, {}},
      {"off", denoise_layer(7), off, DenseReason::kOff},
  };
  for (const auto& c : cases) {
    const LayerGate gate = layer_gate(c.layer, c.settings);
    EXPECT_EQ(gate.enabled, !c.closed) << c.name;
    EXPECT_EQ(gate.why.empty(), gate.enabled) << c.name;
    EXPECT_EQ(gate.reason, c.closed.value_or(DenseReason::kOff)) << c.name;
  }
}

TEST(CallGate, Table_G2_G3) {
  const SubBlockSettings settings;
  const LayerGate open = layer_gate(denoise_layer(0), settings);
  const LayerGate closed{false, DenseReason::kEarlyLayer, "x"};
  const auto bf16 = tessera::Dtype::kBf16, f32 = tessera::Dtype::kF32, f16 = tessera::Dtype::kF16;
  const struct {
    LayerGate gate;
    CallFacts call;
    std::optional<DenseReason> want;
  } cases[] = {
      {open, {0, bf16, 8192, false}, DenseReason::kEarlyStep},
      {open, {9, bf16, 8192, false}, DenseReason::kEarlyStep},
      {open, {10, bf16, 8192, false}, {}},
      {open, {49, bf16, 8192, false}, {}},
      {open, {10, f32, 8192, false}, DenseReason::kDtype},
      {open, {10, f16, 8192, false}, DenseReason::kDtype},
      {open, {10, bf16, 4095, false}, DenseReason::kShort},
      {open, {10, bf16, 4096, false}, {}},
      {open, {10, bf16, 8192, true}, DenseReason::kCausal},
      // The first reason in the fixed order is the one that is counted.
      {open, {9, f32, 1, true}, DenseReason::kEarlyStep},
      {open, {10, f32, 1, true}, DenseReason::kDtype},
      {open, {10, bf16, 1, true}, DenseReason::kShort},
      {closed, {10, bf16, 8192, false}, DenseReason::kEarlyLayer},
  };
  for (size_t i = 0; i < std::size(cases); ++i) {
    EXPECT_EQ(call_gate(cases[i].gate, cases[i].call, settings), cases[i].want) << "case " << i;
  }
}

std::string told(const PackedRun& run) {
  std::string text;
  for (const DocumentRun& d : run.documents) {
    text += "[" + std::to_string(d.start) + "," + std::to_string(d.stop) + ")" +
            (d.sparse ? "S" : "d") + (d.masked ? "m" : "") + " ";
  }
  return text + "zero from " + std::to_string(run.zero_from);
}

TEST(PackedDocuments, EachIsDecidedAlone_FC5_G5) {
  const SubBlockSettings settings;
  const struct {
    std::vector<int32_t> cu;
    int64_t rows;
    bool ready;
    const char* want;
  } cases[] = {
      // FC-5: an empty document, one exactly at the limit, rows outside.
      {{0, 100, 100, 4196, 4292}, 4300, true, "[0,100)d [100,4196)S [4196,4292)d zero from 4292"},
      {{0, 8192, 8704}, 8704, true, "[0,8192)Sm [8192,8704)d zero from 8704"},
      {{0, 0, 8192, 16384}, 16384, true, "[0,8192)Sm [8192,16384)S zero from 16384"},
      {{0, 8192, 8704}, 8704, false, "[0,8192)d [8192,8704)d zero from 8704"},
      {{0, 4095}, 4095, true, "[0,4095)d zero from 4095"},
      {{0}, 64, true, "zero from 0"},
      {{0, 0}, 64, true, "zero from 0"},
  };
  for (const auto& c : cases) {
    EXPECT_EQ(told(decide_packed(c.cu, c.rows, 0, c.ready, settings)), c.want);
  }
}

TEST(PackedDocuments, BadBounds_AreRefused_FC5) {
  const SubBlockSettings settings;
  const struct {
    std::vector<int32_t> cu;
    int64_t rows, max_seqlen;
  } cases[] = {{{0, 100, 90}, 4300, 0},
               {{1, 100}, 4300, 0},
               {{0, 4301}, 4300, 0},
               {{}, 4300, 0},
               {{0, 100, 4196}, 4300, 4095}};
  for (const auto& c : cases) {
    const Error e = thrown_by([&] { decide_packed(c.cu, c.rows, c.max_seqlen, true, settings); });
    EXPECT_EQ(e.code(), ErrorCode::kInvalidArgument);
    expect_parts(e.what(), {"packed documents: "});
  }
}

std::vector<int64_t> range(int64_t from, int64_t to) {
  std::vector<int64_t> rows(static_cast<size_t>(to - from));
  std::iota(rows.begin(), rows.end(), from);
  return rows;
}

TEST(QueryBlockMask, OnlyPureVideoBlocksAreSparse_G7) {
  std::vector<int64_t> rows = range(0, 64);
  for (const int64_t r : range(128, 140)) rows.push_back(r);
  EXPECT_EQ(query_block_mask(rows, 140), (Mask{1, 0, 1}));  // the partial last block is all video
  rows.pop_back();
  EXPECT_EQ(query_block_mask(rows, 140), (Mask{1, 0, 0}));
  EXPECT_EQ(query_block_mask({}, 0), Mask{});
  EXPECT_EQ(query_block_mask({}, 65), (Mask{0, 0}));
  EXPECT_EQ(query_block_mask(range(1, 64), 64), (Mask{0}));
  // 5 s at 1344 x 768: audio rows 50-463, video rows 464-37,759; block 7 is mixed.
  const Mask mask = query_block_mask(range(464, 37760), 37760);
  ASSERT_EQ(mask.size(), 590u);
  for (size_t b = 0; b < mask.size(); ++b) EXPECT_EQ(mask[b], b >= 8) << b;
}

TEST(QueryBlockMask, BadIndices_AreNamed_G7) {
  const struct {
    std::vector<int64_t> rows;
    int64_t used;
    std::vector<std::string> parts;
  } cases[] = {
      {{0, -1}, 10, {"index 1 is -1", "0 to 9"}},
      {{3, 10}, 10, {"index 1 is 10", "used rows: 10"}},
      {{0}, 0, {"index 0 is 0"}},
      {{4, 5, 4}, 10, {"row 4 is given twice", "index 2"}},
      {{}, -1, {"used rows are -1"}},
      {{std::numeric_limits<int64_t>::max()}, 10, {"index 0"}},
  };
  for (const auto& c : cases) {
    const Error e = thrown_by([&] { query_block_mask(c.rows, c.used); });
    EXPECT_EQ(e.code(), ErrorCode::kInvalidArgument);
    expect_parts(e.what(), c.parts);
  }
}

// G8: the sets of ref2va, where some text rows are video pads.
TEST(VideoRows, TextProvenance_AddsVideoPadsOnly_G8) {
  const std::vector<int64_t> latent = {5, 6};
  EXPECT_EQ(video_rows(latent, Mask{0, 1, 0, 1}, 4), (std::vector<int64_t>{5, 6, 1, 3}));
  EXPECT_EQ(video_rows(latent, Mask{0, 1}, 2, 100), (std::vector<int64_t>{5, 6, 101}));
  EXPECT_EQ(video_rows(latent, {}, 4), latent);
  expect_parts(thrown_by([&] {
                 video_rows(latent, Mask{1, 1, 1}, 4);
               }).what(),
               {"3 entries for 4 text rows"});
}

// G6: the tri-state rule.
TEST(QueryBlockMask, MissingMask_IsAnErrorOnlyWhereSparseWouldRun_G6) {
  const SubBlockSettings settings;
  const std::vector<int32_t> long_cu = {0, 8192, 8256}, short_cu = {0, 2048, 2112};
  const PackedRun active = decide_packed(long_cu, 8256, 0, true, settings);
  EXPECT_NO_THROW(
      check_query_block_mask(false, 0, decide_packed(long_cu, 8256, 0, false, settings)));
  EXPECT_NO_THROW(
      check_query_block_mask(false, 0, decide_packed(short_cu, 2112, 0, true, settings)));
  EXPECT_NO_THROW(check_query_block_mask(true, 128, active));
  const Error missing = thrown_by([&] { check_query_block_mask(false, 0, active); });
  EXPECT_EQ(missing.code(), ErrorCode::kInvalidArgument);
  expect_parts(missing.what(), {"requires subblock_sparse_query_block_mask when SubBlock sparse "
                                "attention is active"});
  expect_parts(thrown_by([&] { check_query_block_mask(true, 129, active); }).what(),
               {"129 blocks", "has 128"});
}

TEST(HeadSplit, PairsPerCall_AreBounded_K6a) {
  EXPECT_EQ(heads_per_call(491520, 491520), 9);
  EXPECT_GE(heads_per_call(198000, 198000), 56);
  EXPECT_EQ(heads_per_call(0, 0), int64_t{1} << 29);
  EXPECT_EQ(heads_per_call(int64_t{1} << 40, int64_t{1} << 20), 1);
  const auto told = [](const std::vector<HeadRange>& ranges) {
    std::string text;
    for (const HeadRange& r : ranges) {
      text += std::to_string(r.first) + "+" + std::to_string(r.count) + " ";
    }
    return text;
  };
  EXPECT_EQ(told(split_heads(56, 37760, 37760)), "0+56 ");
  EXPECT_EQ(told(split_heads(20, 491520, 491520)), "0+9 9+9 18+2 ");
  // Groups of query heads that share a key head stay together.
  EXPECT_EQ(told(split_heads(20, 491520, 491520, 4)), "0+8 8+8 16+4 ");
  EXPECT_EQ(told(split_heads(32, 491520, 491520, 16)), "0+16 16+16 ");
}

}  // namespace
}  // namespace h3
