// Names and shapes of the checkpoint, and where every row of the model's tensors comes from.
#include "h3/models/dit/names.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

#include "h3/common/error.h"
#include "h3/weights/recipes.h"

namespace h3::dit {
namespace {

using tessera::Dtype;
using weights::Piece;
using weights::SourceTensor;
using weights::TensorRecipe;

constexpr std::string_view kRope = "rope.inv_freq";

// How a tensor is divided among tensor-parallel ranks.
enum class Split { kWhole, kRows, kColumns };

// What a tensor of the model is made of in a diffusers checkpoint.
enum class Kind { kPlain, kQkv, kFc1 };

struct ModelTensor {
  std::string name;       // native
  std::string diffusers;  // of kQkv: up to the letter q, k or v
  std::vector<int64_t> shape;
  Kind kind = Kind::kPlain;
  Split split = Split::kWhole;
};

using Tensors = std::vector<ModelTensor>;

void add(Tensors& t, const std::string& native, const std::string& diffusers,
         std::vector<int64_t> shape, Split split = Split::kWhole, Kind kind = Kind::kPlain) {
  t.push_back({native, diffusers, std::move(shape), kind, split});
}

void add_linear(Tensors& t, const std::string& native, const std::string& diffusers, int64_t out,
                int64_t in, Split split = Split::kWhole) {
  add(t, native + ".weight", diffusers + ".weight", {out, in}, split);
  add(t, native + ".bias", diffusers + ".bias", {out}, split);
}

// A block of the stack or of the refiner; both have the same attention and MLP.
void add_block(Tensors& t, const DitConfig& c, const std::string& native, const std::string& other,
               bool adaln) {
  add(t, native + ".norm1.weight", other + ".norm1.weight", {c.hidden});
  add(t, native + ".norm2.weight", other + ".norm2.weight", {c.hidden});
  add(t, native + ".attn.qkv_proj.weight", other + ".attn.to_", {3 * c.inner(), c.hidden},
      Split::kRows, Kind::kQkv);
  add(t, native + ".attn.q_norm.weight", other + ".attn.norm_q.weight", {c.head_dim});
  add(t, native + ".attn.k_norm.weight", other + ".attn.norm_k.weight", {c.head_dim});
  add(t, native + ".attn.out_proj.weight", other + ".attn.to_out.0.weight", {c.hidden, c.inner()},
      Split::kColumns);
  add(t, native + ".mlp.fc1.weight", other + ".ff.net.0.proj.weight", {2 * c.ffn, c.hidden},
      Split::kRows, Kind::kFc1);
  add(t, native + ".mlp.fc2.weight", other + ".ff.net.2.weight", {c.hidden, c.ffn},
      Split::kColumns);
  if (adaln) {
    add_linear(t, native + ".adaln_proj.linear", other + ".adaln_proj.linear", c.adaln_out(),
               c.time_embed, Split::kRows);
  }
}

Tensors model_tensors(const DitConfig& c) {
  Tensors t;
  add_linear(t, "video_patch_proj", "proj_in", c.hidden, c.video_row(), Split::kRows);
  add_linear(t, "audio_patch_proj", "audio_proj_in", c.hidden, c.audio_row(), Split::kRows);
  add_linear(t, "condition_proj", "context_embedder", c.hidden, c.text_dim, Split::kRows);
  add_linear(t, "time_embedder.proj_in", "time_embedder.linear_1", c.time_hidden, c.timestep_input);
  add_linear(t, "time_embedder.proj_out", "time_embedder.linear_2", c.time_embed, c.time_hidden);
  for (int64_t j = 0; j < c.refiner_layers; ++j) {
    add_block(t, c, "token_refiner.blocks." + std::to_string(j),
              "token_refiner.refiner_blocks." + std::to_string(j), false);
  }
  add(t, "token_refiner.final_norm.weight", "token_refiner.final_norm.weight", {c.hidden});
  for (int64_t i = 0; i < c.layers; ++i) {
    add_block(t, c, "blocks." + std::to_string(i), "transformer_blocks." + std::to_string(i), true);
  }
  add(t, "final_layer.norm.weight", "norm_out.norm.weight", {c.hidden});
  add_linear(t, "final_layer.adaln_proj.linear", "norm_out.linear", c.final_adaln_out(),
             c.time_embed, Split::kRows);
  add_linear(t, "final_layer.video_out", "proj_out", c.video_row(), c.hidden);
  add_linear(t, "final_layer.audio_out", "audio_proj_out", c.audio_row(), c.hidden);
  return t;
}

Dtype stored_dtype(const std::string& native) {
  return is_fp32_island(native) ? Dtype::kF32 : Dtype::kBf16;
}

// Rows of a source that follow each other, appended to the target.
class Pieces {
 public:
  explicit Pieces(int64_t columns, int64_t first_column = 0)
      : columns_(columns), first_column_(first_column) {}
  void rows(const std::string& source, int64_t row, int64_t count) {
    list_.push_back({source, row, count, first_column_, columns_, target_row_});
    target_row_ += count;
  }
  std::vector<Piece> take() { return std::move(list_); }

 private:
  int64_t columns_, first_column_, target_row_ = 0;
  std::vector<Piece> list_;
};

// This rank's part [begin, begin + count) of `all`.
std::pair<int64_t, int64_t> part(int64_t all, const TensorShard& shard) {
  return {all / shard.size * shard.rank, all / shard.size};
}

// [q; k; v], all heads of this rank in each. Native files have q, k and v of head 0, then those of
// head 1, and so on.
std::vector<Piece> qkv_pieces(const DitConfig& c, const ModelTensor& t, NameStyle style,
                              const TensorShard& shard) {
  Pieces pieces(c.hidden);
  const auto [first, heads] = part(c.heads, shard);
  const int64_t d = c.head_dim;
  for (int64_t matrix = 0; matrix < 3; ++matrix) {
    switch (style) {
      case NameStyle::kNative:
        for (int64_t head = first; head < first + heads; ++head) {
          pieces.rows(t.name, (3 * head + matrix) * d, d);
        }
        break;
      case NameStyle::kComfy: pieces.rows(t.name, matrix * c.inner() + first * d, heads * d); break;
      case NameStyle::kDiffusers:
        pieces.rows(t.diffusers + "qkv"[matrix] + ".weight", first * d, heads * d);
        break;
    }
  }
  return pieces.take();
}

// [gate; up]; diffusers has [up; gate].
std::vector<Piece> fc1_pieces(const DitConfig& c, const ModelTensor& t, NameStyle style,
                              const TensorShard& shard) {
  Pieces pieces(c.hidden);
  const auto [first, count] = part(c.ffn, shard);
  const bool swapped = style == NameStyle::kDiffusers;
  const std::string& source = swapped ? t.diffusers : t.name;
  pieces.rows(source, (swapped ? c.ffn : 0) + first, count);
  pieces.rows(source, (swapped ? 0 : c.ffn) + first, count);
  return pieces.take();
}

std::vector<Piece> plain_pieces(const ModelTensor& t, NameStyle style, const TensorShard& shard) {
  const auto [rows, columns] = weights::as_matrix(t.shape);
  const auto [row, row_count] = t.split == Split::kRows ? part(rows, shard) : std::pair(0L, rows);
  const auto [column, column_count] =
      t.split == Split::kColumns ? part(columns, shard) : std::pair(0L, columns);
  Pieces pieces(column_count, column);
  pieces.rows(style == NameStyle::kDiffusers ? t.diffusers : t.name, row, row_count);
  return pieces.take();
}

void check_shard(const DitConfig& c, const TensorShard& shard) {
  const auto refuse = [&](const std::string& text, const std::string& hint) {
    throw Error(ErrorCode::kInvalidArgument,
                "tensor parallel size " + std::to_string(shard.size) + ": " + text, hint);
  };
  if (shard.size < 1 || shard.rank < 0 || shard.rank >= shard.size) {
    refuse("rank " + std::to_string(shard.rank) + " is not one of its ranks",
           "ranks from 0 to size - 1 are accepted");
  }
  const std::pair<const char*, int64_t> divided[] = {{"heads", c.heads},
                                                     {"hidden width", c.hidden},
                                                     {"ffn width", c.ffn},
                                                     {"video row", c.video_row()},
                                                     {"audio row", c.audio_row()}};
  for (const auto& [what, value] : divided) {
    if (value % shard.size != 0) {
      refuse("does not divide the " + std::string(what) + " of " + std::to_string(value),
             "use a size that divides heads, hidden and ffn width, video and audio row");
    }
  }
}

}  // namespace

std::vector<SourceTensor> checkpoint_tensors(const DitConfig& config, NameStyle style) {
  std::vector<SourceTensor> sources;
  const bool diffusers = style == NameStyle::kDiffusers;
  for (const ModelTensor& t : model_tensors(config)) {
    const Dtype dtype = stored_dtype(t.name);
    if (diffusers && t.kind == Kind::kQkv) {
      for (const char letter : {'q', 'k', 'v'}) {
        sources.push_back(
            {t.diffusers + letter + ".weight", {config.inner(), config.hidden}, dtype});
      }
    } else {
      sources.push_back({diffusers ? t.diffusers : t.name, t.shape, dtype});
    }
  }
  if (style == NameStyle::kNative) {
    sources.push_back({std::string(kRope), {config.rope_freqs}, Dtype::kF32});
  }
  return sources;
}

std::vector<std::string> optional_tensors(NameStyle style) {
  if (style == NameStyle::kComfy) return {std::string(kRope)};
  return {};
}

std::vector<TensorRecipe> model_recipes(const DitConfig& config, NameStyle style, Dtype compute,
                                        const TensorShard& shard) {
  if (compute != Dtype::kBf16 && compute != Dtype::kF32) {
    throw Error(ErrorCode::kInvalidArgument,
                "compute type " + std::string(dtype_name(compute)) + "; bf16 and f32 are accepted");
  }
  check_shard(config, shard);
  std::vector<TensorRecipe> recipes;
  for (const ModelTensor& t : model_tensors(config)) {
    TensorRecipe recipe{t.name, t.shape, is_fp32_island(t.name) ? Dtype::kF32 : compute, {}};
    if (t.split != Split::kWhole) recipe.shape[t.split == Split::kRows ? 0 : 1] /= shard.size;
    switch (t.kind) {
      case Kind::kPlain: recipe.pieces = plain_pieces(t, style, shard); break;
      case Kind::kQkv: recipe.pieces = qkv_pieces(config, t, style, shard); break;
      case Kind::kFc1: recipe.pieces = fc1_pieces(config, t, style, shard); break;
    }
    recipes.push_back(std::move(recipe));
  }
  return recipes;
}

bool is_fp32_island(const std::string& native_name) {
  constexpr std::string_view kIslands[] = {"video_patch_proj.",      "audio_patch_proj.",
                                           "time_embedder.",         "final_layer.video_out.",
                                           "final_layer.audio_out.", kRope};
  return std::any_of(std::begin(kIslands), std::end(kIslands),
                     [&](std::string_view prefix) { return native_name.starts_with(prefix); });
}

NameStyle name_style_of(const weights::Checkpoint& checkpoint) {
  // One name of each style that every model of it has.
  const bool native = checkpoint.find("video_patch_proj.weight") != nullptr;
  const bool diffusers = checkpoint.find("proj_in.weight") != nullptr;
  if (native == diffusers) {
    throw Error(ErrorCode::kInvalidArgument,
                checkpoint.path() + ": " +
                    (native ? "has native names and those of diffusers at once"
                            : "is no MiniMax-H3 transformer: neither video_patch_proj.weight "
                              "(native names) nor proj_in.weight (diffusers) is among its " +
                                  std::to_string(checkpoint.tensors().size()) + " tensors"),
                "give the transformer's folder or file");
  }
  if (diffusers) return NameStyle::kDiffusers;
  return checkpoint.prefixed() ? NameStyle::kComfy : NameStyle::kNative;
}

std::string_view name_style_text(NameStyle style) {
  switch (style) {
    case NameStyle::kNative: return "native";
    case NameStyle::kDiffusers: return "diffusers";
    case NameStyle::kComfy: return "comfy";
  }
  return "";
}

}  // namespace h3::dit
