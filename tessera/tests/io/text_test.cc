// Helpers that make outside text safe to print.
#include <gtest/gtest.h>

#include <string>

#include "tessera/io/text.h"

namespace tessera::io::detail {
namespace {

TEST(IoText, Utf8_FollowsTheStandard) {
  for (const char* good : {"", "abc", "\u00e9", "\u20ac", "\U0001f600", "\xf4\x8f\xbf\xbf"}) {
    EXPECT_TRUE(valid_utf8(good)) << good;
  }
  for (const char* bad : {"\x80", "\xc0\xaf", "\xc3", "\xe0\x80\x80", "\xed\xa0\x80",
                          "\xf0\x80\x80\x80", "\xf4\x90\x80\x80", "\xf5\x80\x80\x80", "a\xff"}) {
    EXPECT_FALSE(valid_utf8(bad)) << bad;
  }
}

TEST(IoText, Printable_EscapesAndCutsOnCharacterBounds) {
  EXPECT_EQ(printable("a\tb\r\n\x1b\x7f"), "a\\tb\\r\\n\\x1b\\x7f");
  EXPECT_EQ(printable("\xff\u00e9"), "\\xff\u00e9");
  EXPECT_EQ(printable("abc", 3), "abc");
  EXPECT_EQ(printable("abcd", 3), "abc... (4 bytes)");
  EXPECT_EQ(printable("ab\u00e9", 3), "ab... (4 bytes)");
  EXPECT_EQ(in_quotes("x"), "'x'");
}

TEST(IoText, EditDistance_CountsSteps) {
  EXPECT_EQ(edit_distance("", "abc"), 3u);
  EXPECT_EQ(edit_distance("sparsty", "sparsity"), 1u);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3u);
  EXPECT_EQ(edit_distance("N_K", "n_k"), 0u);
}

TEST(IoText, SmallFormats_AreShort) {
  EXPECT_EQ(shape_text({}), "[]");
  EXPECT_EQ(shape_text({2, 0, 64}), "[2, 0, 64]");
  EXPECT_EQ(shape_text(std::vector<int64_t>(9, 1)), "[1, 1, 1, 1, 1, 1, 1, 1, ... (rank 9)]");
  EXPECT_EQ(number_text(0.1), "0.1");
  EXPECT_EQ(trimmed(" \r\n a b\t"), "a b");
  EXPECT_EQ(trimmed(" \n"), "");
  EXPECT_EQ(errno_text(2), "No such file or directory (errno 2)");
}

}  // namespace
}  // namespace tessera::io::detail
