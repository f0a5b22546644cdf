// Documents and their blocks from cu_seqlens.
#include "tessera/layout.h"

#include <algorithm>

#include "tessera/src/common/cat.h"
#include "tessera/types.h"

namespace tessera {
namespace {

int32_t blocks_of(int64_t tokens) {
  return static_cast<int32_t>((tokens + kBlockTokens - 1) / kBlockTokens);
}

}  // namespace

const Document& BlockLayout::owner(int32_t query_block) const {
  auto after = std::upper_bound(
      documents.begin(), documents.end(), query_block,
      [](int32_t block, const Document& d) { return block < d.first_query_block; });
  return *(after - 1);
}

BlockLayout single_document(int64_t sq, int64_t sk) {
  BlockLayout layout;
  layout.documents.push_back({.query_length = sq,
                              .key_length = sk,
                              .query_blocks = blocks_of(sq),
                              .key_blocks = blocks_of(sk)});
  layout.query_blocks = blocks_of(sq);
  layout.max_key_blocks = blocks_of(sk);
  return layout;
}

Status packed_documents(std::span<const int32_t> cu_seqlens, int64_t tokens, int64_t max_seqlen,
                        BlockLayout* out) {
  using internal::cat;
  if (cu_seqlens.empty()) {
    return invalid_argument(
        "cu_seqlens is empty; give n + 1 bounds for n documents, starting with 0");
  }
  if (cu_seqlens[0] != 0) {
    return invalid_argument(cat("cu_seqlens[0] is ", cu_seqlens[0], "; the first bound must be 0"));
  }
  BlockLayout layout;
  int64_t longest = 0;
  for (size_t i = 1; i < cu_seqlens.size(); ++i) {
    const int64_t begin = cu_seqlens[i - 1], end = cu_seqlens[i];
    if (end < begin) {
      return invalid_argument(cat("cu_seqlens falls from ", begin, " to ", end, " at position ", i,
                                  "; bounds must never decrease"));
    }
    if (end > tokens) {
      return invalid_argument(cat("cu_seqlens[", i, "] is ", end, " but the tensors hold ", tokens,
                                  " tokens; bounds must lie in [0, ", tokens, "]"));
    }
    const int64_t length = end - begin;
    if (length == 0) continue;
    longest = std::max(longest, length);
    const int32_t blocks = blocks_of(length);
    layout.documents.push_back({.query_start = begin,
                                .query_length = length,
                                .key_start = begin,
                                .key_length = length,
                                .first_query_block = layout.query_blocks,
                                .query_blocks = blocks,
                                .key_blocks = blocks});
    layout.query_blocks += blocks;
    layout.max_key_blocks = std::max(layout.max_key_blocks, blocks);
  }
  if (max_seqlen > 0 && max_seqlen < longest) {
    return invalid_argument(cat("max_seqlen is ", max_seqlen, " but the longest document has ",
                                longest, " tokens; give at least that or leave it out"));
  }
  *out = std::move(layout);
  return {};
}

}  // namespace tessera
