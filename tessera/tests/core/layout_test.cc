// How tokens fall into documents and blocks.
#include "tessera/layout.h"

#include <gtest/gtest.h>

#include <array>

#include "tessera/tests/support/attend_case.h"

namespace tessera {
namespace {

using testing::expect_refusal;
using testing::is_ok;

TEST(Layout, SingleDocument_RoundsBlocksUp) {
  for (const auto& [tokens, blocks] : {std::pair<int64_t, int32_t>{1, 1},
                                       {63, 1},
                                       {64, 1},
                                       {65, 2},
                                       {128, 2},
                                       {129, 3},
                                       {37760, 590},
                                       {int64_t{64} * 2000000 + 1, 2000001}}) {
    const BlockLayout layout = single_document(tokens, tokens + 64);
    EXPECT_EQ(layout.query_blocks, blocks) << tokens;
    EXPECT_EQ(layout.max_key_blocks, blocks + 1) << tokens;
    ASSERT_EQ(layout.documents.size(), 1u);
    EXPECT_EQ(layout.documents[0].key_length, tokens + 64);
    EXPECT_EQ(layout.documents[0].query_length, tokens);
  }
}

TEST(Layout, PackedWithEmptyDocument_NumbersBlocksOnwards) {
  BlockLayout layout;
  ASSERT_TRUE(
      is_ok(packed_documents(std::array<int32_t, 5>{0, 100, 100, 4196, 4292}, 4300, 0, &layout)));
  ASSERT_EQ(layout.documents.size(), 3u);
  EXPECT_EQ(layout.query_blocks, 2 + 64 + 2);
  EXPECT_EQ(layout.max_key_blocks, 64);
  EXPECT_EQ(layout.documents[1].query_start, 100);
  EXPECT_EQ(layout.documents[1].key_start, 100);
  EXPECT_EQ(layout.documents[1].query_length, 4096);
  EXPECT_EQ(layout.documents[1].first_query_block, 2);
  EXPECT_EQ(layout.documents[2].first_query_block, 66);
  // Documents never share a block: row 1 ends document 0, row 2 starts the next one.
  EXPECT_EQ(&layout.owner(0), &layout.documents[0]);
  EXPECT_EQ(&layout.owner(1), &layout.documents[0]);
  EXPECT_EQ(&layout.owner(2), &layout.documents[1]);
  EXPECT_EQ(&layout.owner(65), &layout.documents[1]);
  EXPECT_EQ(&layout.owner(66), &layout.documents[2]);
  EXPECT_EQ(&layout.owner(67), &layout.documents[2]);
}

TEST(Layout, NoDocuments_IsEmpty) {
  for (std::vector<int32_t> cu : {std::vector<int32_t>{0}, {0, 0}, {0, 0, 0}}) {
    BlockLayout layout;
    ASSERT_TRUE(is_ok(packed_documents(cu, 10, 0, &layout)));
    EXPECT_TRUE(layout.documents.empty());
    EXPECT_EQ(layout.query_blocks, 0);
    EXPECT_EQ(layout.max_key_blocks, 0);
  }
}

TEST(Layout, BadBounds_AreRefusedWithTheirPlace) {
  BlockLayout layout;
  const auto refuse = [&](std::vector<int32_t> cu, int64_t max_seqlen,
                          std::vector<std::string> parts) {
    expect_refusal(packed_documents(cu, 100, max_seqlen, &layout), StatusCode::kInvalidArgument,
                   parts);
  };
  refuse({}, 0, {"cu_seqlens is empty", "n + 1"});
  refuse({1, 10}, 0, {"cu_seqlens[0] is 1", "must be 0"});
  refuse({0, 100, 90, 95}, 0, {"falls from 100 to 90", "position 2"});
  refuse({0, 50, -1}, 0, {"falls from 50 to -1"});
  refuse({0, 50, 101}, 0, {"cu_seqlens[2] is 101", "100 tokens"});
  refuse({0, 40, 90}, 49, {"max_seqlen is 49", "50 tokens"});
  EXPECT_TRUE(layout.documents.empty()) << "a refusal must not write its output";
}

TEST(Layout, MaxSeqlenOfTheLongestOrMore_IsAccepted) {
  BlockLayout layout;
  const std::array<int32_t, 3> cu{0, 40, 90};
  EXPECT_TRUE(is_ok(packed_documents(cu, 100, 50, &layout)));
  EXPECT_TRUE(is_ok(packed_documents(cu, 90, 1000, &layout)));
}

}  // namespace
}  // namespace tessera
