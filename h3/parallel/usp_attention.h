// Attention over a sequence that is spread over ranks: Ulysses exchange, ring, or gathered keys and
// values around any AttentionImpl. On one rank, or told to skip, it is that implementation alone.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "h3/attention/impl.h"
#include "h3/parallel/ring.h"
#include "h3/parallel/ulysses.h"
#include "h3/parallel/world.h"

namespace h3::parallel {

/// Rows that every rank holds alike, beside its share of the sequence.
enum class Replicated {
  kNone,
  kPrefix,    // q, k and v are [replicated | share]
  kSuffix,    // q, k and v are [share | replicated]
  kKvPrefix,  // k and v are [replicated | share], q is the share alone
};

/// What one call adds to q, k and v. All ranks of the sequence group pass the same values (masks:
/// the same presence).
struct UspCall {
  /// Rows of each rank of the Ulysses group, when they differ. Always shares of one sequence, also
  /// on one rank (then one entry); documents go through forward_packed.
  std::vector<int64_t> seq_lens;
  /// Which of this rank's key rows count: bool [B, rows of k], in host memory, because row lists
  /// are made on the host. Query rows whose mask is false come out as zero.
  at::Tensor key_mask;
  /// Rows of the whole sequence that are real, the rest being padding at its end; -1: all. Padding
  /// keys are not seen and padding query rows come out as zero.
  int64_t valid_rows = -1;
  Replicated replicated = Replicated::kNone;
  int64_t replicated_rows = 0;
  bool skip_sequence_parallel = false;  // this call is local: every rank attends on its own
};

struct UspOptions {
  LayerFacts layer;  // heads of the whole model, backend, capabilities, skip_sequence_parallel
  bool causal = false;
};

class UspAttention {
 public:
  /// `groups` may be null for a local layer (one rank, or layer.skip_sequence_parallel). Admission
  /// happens here: heads, ring and gather rules of admit_layer, causal under ring (kUnsupported)
  /// and under requested K/V gather (kInvalidArgument). Automatic K/V gather turns into Ulysses for
  /// causal and sparse layers. The staging buffers are shared by the layers of a model.
  UspAttention(std::shared_ptr<AttentionImpl> impl, const SequenceGroups* groups,
               std::shared_ptr<StagingBuffers> staging, UspOptions options);

  /// q [B, s, H, D], k and v [B, s, Hkv, D] of this rank, heads of this tensor rank, plus
  /// replicated rows. Returns [B, rows of q, H, D]. Order of decisions: seq_lens; skip or one rank;
  /// K/V gather; ring; Ulysses. Combinations that are not served are refused with kUnsupported on
  /// all ranks. Enqueues on the current stream; on CUDA the host does not wait, except for the
  /// agreement check of a call with new shapes.
  at::Tensor forward(const Qkv& qkv, const UspCall& call, const AttentionContext& context);

  /// Packed rows: q [T / sp, H, D], k, v [T / sp, Hkv, D]; `bounds` speak of all T rows and go to
  /// the implementation unchanged, so that sparse layers route their heads over whole documents.
  /// Rows past the last bound are zero. Under K/V gather each document is one call. Ring serves one
  /// document: bounds (0, used), or (0, used, T) with max_seqlen = used and a second document of
  /// fewer than 64 rows, which then is alignment padding and comes out as zero; anything else is
  /// refused with kUnsupported.
  at::Tensor forward_packed(const Qkv& qkv, const PackedBounds& bounds,
                            const AttentionContext& context, bool skip_sequence_parallel = false);

  enum class Mode { kLocal, kUlysses, kRing, kKvGather };
  Mode mode() const { return mode_; }
  /// Why the mode is not the one the degrees name; empty if it is.
  const std::string& mode_reason() const { return mode_reason_; }

 private:
  bool is_local(bool skip) const { return skip || mode_ == Mode::kLocal; }
  void check_call(const Qkv& qkv, const UspCall& call) const;
  void require_agreement(const char* operation, const Qkv& qkv, const UspCall& call);
  at::Tensor forward_local(const Qkv& qkv, const UspCall& call, const AttentionContext& context);
  at::Tensor forward_ulysses(const Qkv& qkv, const UspCall& call, const AttentionContext& context);
  at::Tensor forward_ring(const Qkv& qkv, const UspCall& call);
  at::Tensor forward_gathered(const Qkv& qkv, const UspCall& call, const AttentionContext& context);
  at::Tensor packed_ring(const Qkv& qkv, const PackedBounds& bounds);
  void require_padding(const PackedBounds& bounds, int64_t total) const;
  at::Tensor packed_gathered(const Qkv& qkv, const PackedBounds& bounds,
                             const AttentionContext& context);
  at::Tensor gather_rows(const at::Tensor& x, Group& group);

  std::shared_ptr<AttentionImpl> impl_;
  std::shared_ptr<StagingBuffers> staging_;
  UspOptions options_;
  SequenceGroups groups_;
  Mode mode_ = Mode::kLocal;
  std::string mode_reason_;
  std::unique_ptr<UlyssesExchange> exchange_;
};

}  // namespace h3::parallel
