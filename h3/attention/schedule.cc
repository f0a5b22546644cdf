#include "h3/attention/schedule.h"

#include <fmt/format.h>

#include <algorithm>

#include "h3/common/error.h"
#include "tessera/layout.h"

namespace h3 {
namespace {

using tessera::kBlockTokens;

[[noreturn]] void refuse(std::string message, std::string hint = {}) {
  throw Error(ErrorCode::kInvalidArgument, std::move(message), std::move(hint));
}

int64_t blocks(int64_t rows) { return (rows + kBlockTokens - 1) / kBlockTokens; }

LayerGate closed(DenseReason reason, std::string why) { return {false, reason, std::move(why)}; }

}  // namespace

std::string_view to_text(DenseReason reason) {
  switch (reason) {
    case DenseReason::kOff: return "off";
    case DenseReason::kStack: return "stack";
    case DenseReason::kEarlyLayer: return "early_layer";
    case DenseReason::kHeadDim: return "head_dim";
    case DenseReason::kEarlyStep: return "early_step";
    case DenseReason::kDtype: return "dtype";
    case DenseReason::kShort: return "short";
    case DenseReason::kCausal: return "causal";
    case DenseReason::kNoVideo: return "no_video";
    case DenseReason::kBackend: return "backend";
  }
  return "?";
}

LayerGate layer_gate(const LayerDescriptor& layer, const SubBlockSettings& settings) {
  if (layer.stack != LayerStack::kDenoise || layer.role != AttentionRole::kSelf) {
    return closed(DenseReason::kStack, layer.role == AttentionRole::kCross
                                           ? "cross-attention is never sparse"
                                           : "not a layer of the denoise stack");
  }
  if (layer.index < settings.options.skip_first_layers) {
    return closed(DenseReason::kEarlyLayer, fmt::format("index below skip_first_layers {}",
                                                        settings.options.skip_first_layers));
  }
  if (layer.head_dim != 128) {
    return closed(DenseReason::kHeadDim, fmt::format("head width {}, not 128", layer.head_dim));
  }
  if (settings.off) return closed(DenseReason::kOff, "switched off");
  if (!settings.can_be_sparse()) return closed(DenseReason::kOff, "sparsity 0");
  return {true, DenseReason::kOff, {}};
}

std::optional<DenseReason> call_gate(const LayerGate& layer, const CallFacts& call,
                                     const SubBlockSettings& settings) {
  if (!layer.enabled) return layer.reason;
  if (call.step < settings.options.skip_first_steps) return DenseReason::kEarlyStep;
  if (call.dtype != tessera::Dtype::kBf16) return DenseReason::kDtype;
  if (call.key_rows < settings.options.min_seq_len) return DenseReason::kShort;
  if (call.causal) return DenseReason::kCausal;
  return {};
}

PackedRun decide_packed(std::span<const int32_t> cu, int64_t rows, int64_t max_seqlen, bool ready,
                        const SubBlockSettings& settings) {
  tessera::BlockLayout layout;
  if (const tessera::Status s = tessera::packed_documents(cu, rows, max_seqlen, &layout); !s.ok()) {
    refuse("packed documents: " + s.message());
  }
  PackedRun run;
  run.documents.reserve(layout.documents.size());
  for (const tessera::Document& d : layout.documents) {
    const bool sparse = ready && d.query_length >= settings.options.min_seq_len;
    const bool first = run.documents.empty();
    run.documents.push_back(
        {d.query_start, d.query_start + d.query_length, sparse, sparse && first});
    run.sparse_documents += sparse;
    run.zero_from = d.query_start + d.query_length;
  }
  return run;
}

std::vector<uint8_t> query_block_mask(std::span<const int64_t> video_rows, int64_t used) {
  if (used < 0) refuse(fmt::format("used rows are {}; accepted are 0 and more", used));
  std::vector<int32_t> count(static_cast<size_t>(blocks(used)), 0);
  std::vector<uint8_t> seen(static_cast<size_t>(used), 0);
  for (size_t i = 0; i < video_rows.size(); ++i) {
    const int64_t row = video_rows[i];
    if (row < 0 || row >= used) {
      refuse(fmt::format("video row index {} is {}; accepted are 0 to {} (used rows: {})", i, row,
                         used - 1, used));
    }
    if (std::exchange(seen[static_cast<size_t>(row)], 1) != 0) {
      refuse(fmt::format("video row {} is given twice, again at index {}", row, i));
    }
    ++count[static_cast<size_t>(row / kBlockTokens)];
  }
  std::vector<uint8_t> mask(count.size());
  for (size_t b = 0; b < mask.size(); ++b) {
    const int64_t real =
        std::min<int64_t>(kBlockTokens, used - static_cast<int64_t>(b) * kBlockTokens);
    mask[b] = count[b] == real;
  }
  return mask;
}

std::vector<int64_t> video_rows(std::span<const int64_t> latent_rows,
                                std::span<const uint8_t> text_is_video, int64_t text_rows,
                                int64_t first_text_row) {
  std::vector<int64_t> rows(latent_rows.begin(), latent_rows.end());
  if (text_is_video.empty()) return rows;
  if (static_cast<int64_t>(text_is_video.size()) != text_rows) {
    refuse(fmt::format("the text token mask has {} entries for {} text rows; give one per row",
                       text_is_video.size(), text_rows));
  }
  for (size_t i = 0; i < text_is_video.size(); ++i) {
    if (text_is_video[i] != 0) rows.push_back(first_text_row + static_cast<int64_t>(i));
  }
  return rows;
}

void check_query_block_mask(bool has_mask, size_t mask_blocks, const PackedRun& run) {
  if (run.sparse_documents == 0) return;
  if (!has_mask) {
    refuse(
        "requires subblock_sparse_query_block_mask when SubBlock sparse attention is active: no "
        "mask says which query blocks are video",
        "pass the mask of query_block_mask(), or switch sparse attention off for the request");
  }
  const int64_t want = blocks(run.documents[0].stop - run.documents[0].start);
  if (static_cast<int64_t>(mask_blocks) != want) {
    refuse(fmt::format("the query block mask has {} blocks; the first document has {} ({} rows)",
                       mask_blocks, want, run.documents[0].stop - run.documents[0].start));
  }
}

int64_t heads_per_call(int64_t query_rows, int64_t key_rows, int64_t max_pairs) {
  const int64_t pairs = std::max<int64_t>(1, blocks(query_rows) * blocks(key_rows));
  return std::max<int64_t>(1, max_pairs / pairs);
}

std::vector<HeadRange> split_heads(int64_t heads, int64_t query_rows, int64_t key_rows,
                                   int64_t group, int64_t max_pairs) {
  const int64_t most = heads_per_call(query_rows, key_rows, max_pairs);
  const int64_t step = std::max<int64_t>(group, most / group * group);
  std::vector<HeadRange> ranges;
  for (int64_t first = 0; first < heads; first += step) {
    ranges.push_back({first, std::min(step, heads - first)});
  }
  return ranges;
}

}  // namespace h3
