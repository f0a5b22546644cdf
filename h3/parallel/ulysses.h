// The Ulysses exchange: from some rows of all heads to all rows of some heads, and back. With u
// ranks, rank r ends up with heads [r * H / u, (r + 1) * H / u) and the rows of rank j at offset
// j * s (or at the sum of the row counts before j).
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "h3/attention/impl.h"
#include "h3/parallel/group.h"
#include "h3/parallel/staging.h"

namespace h3::parallel {

class UlyssesExchange {
 public:
  /// Both must outlive the exchange. A group of one rank passes tensors through.
  UlyssesExchange(Group& group, StagingBuffers& staging) : group_(group), staging_(staging) {}

  /// q [B, s, H, D], k and v [B, s, Hkv, D] -> q [B, S, H / u, D], k, v [B, S, Hkv / u, D]. One
  /// collective when why_not_packed is empty, three otherwise; the bits are the same. Results for
  /// B = 1 are views of a staging buffer (rows 3 * D * H / u apart, heads 3 * D apart when packed):
  /// valid until the next call, which may overwrite them. seq_lens (rows of each rank): empty when
  /// all ranks hold the same number. Throws kInvalidArgument for heads that u does not divide and
  /// for seq_lens that do not fit.
  Qkv to_heads(const Qkv& qkv, const std::vector<int64_t>& seq_lens = {});
  /// The same by three collectives whatever the shapes.
  Qkv to_heads_unpacked(const Qkv& qkv, const std::vector<int64_t>& seq_lens = {});

  /// Inverse for the output: [B, S, H / u, D] -> [B, s, H, D], a new contiguous tensor.
  at::Tensor to_rows(const at::Tensor& out, const std::vector<int64_t>& seq_lens = {});

  /// This rank's heads of rows that all ranks hold: [B, R, H, D] -> [B, R, H / u, D], a view.
  at::Tensor own_heads(const at::Tensor& replicated) const;
  /// The inverse: every rank's [B, R, H / u, D] -> [B, R, H, D] on every rank.
  at::Tensor all_heads(const at::Tensor& own);

  /// Why q, k and v cannot travel in one collective; empty if they can. They need equal shapes,
  /// dtypes and last stride 1, and, with B > 1, batch entries that follow each other without a gap.
  static std::string why_not_packed(const Qkv& qkv);

 private:
  at::Tensor to_heads(const at::Tensor& x, StagingRole send, StagingRole receive, bool keep,
                      const std::vector<int64_t>& seq_lens);
  at::Tensor exchange_packed(const at::Tensor& send, int64_t width,
                             const std::vector<int64_t>& seq_lens, StagingRole role);
  void check(const at::Tensor& x, const std::vector<int64_t>& seq_lens) const;
  int64_t degree() const { return group_.size(); }

  Group& group_;
  StagingBuffers& staging_;
};

}  // namespace h3::parallel
