// When a sub-block layer is sparse: pure functions over host values, no tensors.
//
// Three gates: the layer's (once), the call's (step, dtype, length, causal), and per document of a
// packed call. A layer that is not ready runs its dense backend with the same arguments.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "h3/attention/layers.h"
#include "h3/attention/options.h"

namespace h3 {

/// Why a call or a document ran dense.
enum class DenseReason : uint8_t {
  kOff,         // sparsity 0 or switched off
  kStack,       // not a layer of the denoise stack, or cross-attention
  kEarlyLayer,  // index < skip_first_layers
  kHeadDim,     // head width is not 128
  kEarlyStep,   // step < skip_first_steps
  kDtype,       // q is not bf16
  kShort,       // fewer keys than min_seq_len, or no packed document is long enough
  kCausal,
  kNoVideo,  // the query block mask leaves no block to a sparse document
  kBackend,  // the layer's backend is a dense one
};
inline constexpr size_t kDenseReasons = 10;

/// "early_step": the label of counters and metrics.
std::string_view to_text(DenseReason reason);

struct LayerGate {
  bool enabled = false;
  DenseReason reason = DenseReason::kOff;  // if not enabled
  std::string why;                         // the same for people, with the numbers
};

/// Enabled iff sparsity > 0 (or a mass target) and not off, the layer is self-attention of the
/// denoise stack, index >= skip_first_layers and head width 128.
LayerGate layer_gate(const LayerDescriptor& layer, const SubBlockSettings& settings);

/// What the call gate looks at.
struct CallFacts {
  int64_t step = 0;  // index of the denoise step, 0-based
  tessera::Dtype dtype = tessera::Dtype::kBf16;
  int64_t key_rows = 0;  // Sk; of a packed call the rows of all documents together
  bool causal = false;
};

/// Why this call is dense, in this order: layer gate, step, dtype, length, causal. Nothing: sparse
/// (for a packed call: documents decide). Does not allocate.
std::optional<DenseReason> call_gate(const LayerGate& layer, const CallFacts& call,
                                     const SubBlockSettings& settings);

struct DocumentRun {
  int64_t start = 0, stop = 0;  // rows
  bool sparse = false;
  bool masked = false;  // the query block mask applies: first non-empty document only
};

struct PackedRun {
  std::vector<DocumentRun> documents;  // non-empty ones, in order
  int64_t zero_from = 0;               // rows from here on belong to no document and become 0
  int64_t sparse_documents = 0;
};

/// Decides per document: sparse iff `ready` (the call gate passed) and length >= min_seq_len.
/// `cu` [n + 1] are host bounds, `rows` the rows of the packed tensors, `max_seqlen` the caller's
/// claim for the longest document (0: none). Throws kInvalidArgument: no bounds, cu[0] != 0,
/// falling bounds, a last bound over `rows`, max_seqlen smaller than the longest document.
PackedRun decide_packed(std::span<const int32_t> cu, int64_t rows, int64_t max_seqlen, bool ready,
                        const SubBlockSettings& settings);

/// Which query blocks of a document of `used` rows hold video rows only: block i is 1 iff the
/// number of video rows in it equals clamp(used - 64 i, 0, 64). Throws kInvalidArgument for a
/// negative `used`, an index outside [0, used) and an index given twice, naming the place.
std::vector<uint8_t> query_block_mask(std::span<const int64_t> video_rows, int64_t used);

/// Video rows of a ref2va sequence: `latent_rows` and the text rows whose token is a video pad.
/// An empty `text_is_video` (no token ids known) leaves all text rows dense; otherwise it must have
/// one entry per text row (kInvalidArgument). Text row i is packed row `first_text_row` + i.
std::vector<int64_t> video_rows(std::span<const int64_t> latent_rows,
                                std::span<const uint8_t> text_is_video, int64_t text_rows,
                                int64_t first_text_row = 0);

/// The tri-state rule of a layer whose queries need provenance. A mask may be missing as long as
/// the call is dense; where sparse attention would run, a missing mask is an error
/// (kInvalidArgument), as is one whose length is not ceil(rows of the first document / 64).
void check_query_block_mask(bool has_mask, size_t mask_blocks, const PackedRun& run);

struct HeadRange {
  int64_t first = 0, count = 0;
};

/// (query block, key block) pairs that one call routes at most, over all its heads: scores and
/// lists stay under 2 GiB each.
inline constexpr int64_t kMaxPairsPerCall = int64_t{1} << 29;

/// Heads routed and run together: max(1, max_pairs / (ceil(Sq/64) * ceil(Sk/64))).
int64_t heads_per_call(int64_t query_rows, int64_t key_rows, int64_t max_pairs = kMaxPairsPerCall);

/// `heads` cut into ranges of at most heads_per_call; the result does not depend on the cut. With
/// grouped key heads the cuts fall between groups of `group` query heads.
std::vector<HeadRange> split_heads(int64_t heads, int64_t query_rows, int64_t key_rows,
                                   int64_t group = 1, int64_t max_pairs = kMaxPairsPerCall);

}  // namespace h3
