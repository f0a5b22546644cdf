// Which query blocks a CTA works on, and where their bitmaps lie. Arithmetic only, so that the
// tests compile it for the host.
#pragma once

#include <cstdint>

#include "tessera/src/sm90/attention_params.h"

namespace tessera::sm90 {

/// C::kGroup consecutive query blocks of one head and document.
struct WorkItem {
  int batch, head, block;  // first of the query blocks, inside the document
};

template <class C>
__device__ __forceinline__ WorkItem locate_item(const ForwardParams& p, int item,
                                                const DocumentInfo*& d) {
  const int flat_head = item / p.items_per_head, local = item % p.items_per_head;
  d = &document_of<C::kPacked>(p, local);
  return {flat_head / p.heads, flat_head % p.heads, (local - d->first_item) * C::kGroup};
}

/// First bitmap word of an item's first query block; null for a dense run.
__device__ __forceinline__ const uint32_t* bitmap_rows(const ForwardParams& p,
                                                       const DocumentInfo& d,
                                                       const WorkItem& item) {
  if (p.bitmap == nullptr) return nullptr;
  return p.bitmap + item.batch * p.bitmap_batch + item.head * p.bitmap_head +
         int64_t{d.first_plan_row + item.block} * p.bitmap_row;
}

}  // namespace tessera::sm90
