// The MiniMax-H3 diffusion transformer: one packed sequence of text, condition, audio and video
// rows through 50 blocks; video and audio velocities out. Formulas: MiniMax-H3 model code as
// published (single stream, AdaLN per modality, 3-D rotary positions); rounding as in bf16 eager
// PyTorch.
//
//   DitModel model(config, weights, attention, parallel);
//   at::Tensor text = model.refine_text(features);        // once per prompt
//   DitSession session(model, layout, text, timesteps);   // once per request
//   Velocity v = session.forward(step, video_rows, audio_rows);
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <span>
#include <vector>

#include "h3/attention/runtime.h"
#include "h3/layers/phase_timer.h"
#include "h3/models/dit/layout.h"
#include "h3/models/dit/weights.h"
#include "h3/parallel/usp_attention.h"

namespace h3::dit {

/// How the model is spread. Null groups and one rank: not at all. The groups outlive the model.
struct DitParallel {
  const parallel::SequenceGroups* sequence = nullptr;
  parallel::Group* tensor = nullptr;
  TensorShard shard() const {
    return tensor ? TensorShard{tensor->rank(), tensor->size()} : TensorShard{};
  }
};

/// Data-ward velocities (x0 = x + sigma v) of the target rows, f32, on the model's device.
struct Velocity {
  at::Tensor video;  // [target video rows, video row]
  at::Tensor audio;  // [target audio rows, audio row]
};

class DitModel {
 public:
  /// Takes its attention layers, "blocks.<i>.attn" and "token_refiner.blocks.<j>.attn" of component
  /// "transformer", from `attention`, which outlives the model. Throws as UspAttention (admission).
  DitModel(const DitConfig& config, DitWeights weights, AttentionRuntime& attention,
           const DitParallel& parallel = {});

  /// [L, text_dim], any float dtype -> refined rows [L, hidden] in the compute dtype. Depends on
  /// the text alone: share it between the outputs of a prompt.
  at::Tensor refine_text(const at::Tensor& features);

  const DitConfig& config() const { return config_; }
  at::Device device() const { return weights_.refiner_norm.device(); }
  at::ScalarType compute_type() const { return weights_.refiner_norm.scalar_type(); }
  int64_t weight_bytes() const { return weights_.bytes(); }
  /// Ranks that share the rows: what layouts are packed for.
  int64_t sequence_ranks() const {
    return parallel_.sequence ? parallel_.sequence->sequence->size() : 1;
  }
  AttentionRuntime& attention() { return attention_; }
  PhaseTimer& timer() { return timer_; }

 private:
  friend class DitSession;
  struct Call;  // what all blocks of a forward share

  at::Tensor attend(const AttentionWeights& weights, parallel::UspAttention& layer, at::Tensor y,
                    const Call& call);
  void feed_forward(const BlockWeights& weights, at::Tensor& y);
  at::Tensor row_parallel(const at::Tensor& x, const at::Tensor& weight);
  at::Tensor column_parallel(const at::Tensor& x, const LinearWeights& linear);
  at::Tensor time_embedding(std::span<const float> timesteps);
  int64_t local_heads() const;

  const DitConfig config_;
  const DitWeights weights_;
  AttentionRuntime& attention_;
  const DitParallel parallel_;
  std::vector<std::unique_ptr<parallel::UspAttention>> layers_, refiner_layers_;
  PhaseTimer timer_;
};

/// One request: everything that does not change between its forwards is computed here, once, and
/// lives as long as the session: rotary table, refined text, the AdaLN tables of all steps (kept in
/// host memory, pinned for a device; one step's tables are on the device at a time).
class DitSession {
 public:
  /// `text`: of refine_text, layout.text_rows rows. `steps`: row timesteps of every forward. Throws
  /// kInvalidArgument if the padded length does not divide by the sequence ranks, or text and
  /// layout disagree.
  DitSession(DitModel& model, const PackedLayout& layout, const at::Tensor& text,
             std::span<const RowTimesteps> steps);
  ~DitSession();

  /// `video` [video rows, video row] and `audio` [audio rows, audio row], f32 on the model's
  /// device, in the order of the layout's lists, condition rows first. `step` counts from 0.
  /// Enqueues on the current stream. Throws kInvalidArgument for other shapes or a step that is
  /// none.
  Velocity forward(int64_t step, const at::Tensor& video, const at::Tensor& audio);

  int64_t steps() const;

 private:
  struct State;
  void check(int64_t step, const at::Tensor& video, const at::Tensor& audio) const;
  void bring_tables(int64_t step);
  at::Tensor embedded(const at::Tensor& video, const at::Tensor& audio);
  Velocity output(const at::Tensor& x);

  DitModel& model_;
  std::unique_ptr<State> state_;
};

}  // namespace h3::dit
