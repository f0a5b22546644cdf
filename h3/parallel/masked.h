// Attention over the rows that a mask keeps, for implementations that know no masks.
#pragma once

#include <ATen/core/Tensor.h>

#include "h3/attention/impl.h"

namespace h3::parallel {

/// True if every element of a bool mask in host memory is set.
bool all_set(const at::Tensor& mask);

/// Queries with query_mask [B, Sq] attend to keys with key_mask [B, Sk] (bool, host memory); other
/// query rows come out as zero, as does everything in a batch entry without keys. With all rows set
/// this is one plain call; otherwise one call for each batch entry, on copies of the kept rows.
at::Tensor masked_attention(AttentionImpl& impl, const Qkv& qkv, const at::Tensor& query_mask,
                            const at::Tensor& key_mask, const AttentionContext& context);

}  // namespace h3::parallel
