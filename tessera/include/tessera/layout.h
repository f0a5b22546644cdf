// How tokens fall into documents and 64-token blocks.
//
// An unpacked call is one document with query length Sq and key length Sk. A packed call holds n
// documents in one token axis, bounded by cu_seqlens [n + 1]; documents never share a block, so
// document d owns ceil(length / 64) query blocks of its own, numbered on from those before it.
// Key block ids are local to the document: id j covers keys [64 j, 64 j + 64) of that document.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "tessera/status.h"

namespace tessera {

struct Document {
  int64_t query_start = 0;  // first row on the query token axis
  int64_t query_length = 0;
  int64_t key_start = 0;
  int64_t key_length = 0;
  int32_t first_query_block = 0;  // index of its first query block in the plan
  int32_t query_blocks = 0;
  int32_t key_blocks = 0;
};

struct BlockLayout {
  std::vector<Document> documents;  // non-empty documents only, in order
  int32_t query_blocks = 0;         // sum over documents: the Gq of a plan
  int32_t max_key_blocks = 0;       // the largest document's Gk

  /// Document owning plan row `query_block`.
  const Document& owner(int32_t query_block) const;
};

/// One document: queries [0, sq) over keys [0, sk).
BlockLayout single_document(int64_t sq, int64_t sk);

/// Documents [cu[i], cu[i+1]) on a shared token axis of `tokens` rows. Refused: an empty span,
/// cu[0] != 0, falling bounds, a last bound over `tokens`. Rows past the last bound belong to no
/// document. `max_seqlen` > 0 must not be smaller than the longest document.
Status packed_documents(std::span<const int32_t> cu_seqlens, int64_t tokens, int64_t max_seqlen,
                        BlockLayout* out);

}  // namespace tessera
