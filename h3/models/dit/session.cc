// A request on the transformer: what is computed once, and the forward of a step.
#include <ATen/Functions.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <cmath>

#include "h3/common/error.h"
#include "h3/layers/fused.h"
#include "h3/models/dit/call.h"

namespace h3::dit {
namespace {

// Order of the six tables in a block's AdaLN output.
enum Table { kShiftAttention, kScaleAttention, kGateAttention, kShiftMlp, kScaleMlp, kGateMlp };

constexpr int64_t kOutputRows = 8192;  // f32 copies of the final rows, a part at a time

std::string sizes_text(const at::Tensor& t) {
  std::string text = "[";
  for (const int64_t n : t.sizes()) text += (text.size() > 1 ? ", " : "") + std::to_string(n);
  return text + "]";
}

at::Tensor indices(const std::vector<int64_t>& values, const at::Device& device) {
  return at::tensor(at::ArrayRef<int64_t>(values), at::kLong).to(device);
}

// Rows of a list that lie in [start, start + rows): where to take them from, where they go.
struct LocalRows {
  at::Tensor take, put;  // empty: none
  LocalRows() = default;
  LocalRows(const std::vector<int64_t>& list, int64_t start, int64_t rows,
            const at::Device& device) {
    std::vector<int64_t> from, to;
    for (size_t i = 0; i < list.size(); ++i) {
      if (list[i] < start || list[i] >= start + rows) continue;
      from.push_back(static_cast<int64_t>(i));
      to.push_back(list[i] - start);
    }
    take = indices(from, device);
    put = indices(to, device);
  }
};

}  // namespace

struct DitSession::State {
  PackedLayout layout;
  int64_t start = 0, rows = 0;  // this rank's rows
  at::Tensor text;              // [text rows, hidden]
  LocalRows video, audio;
  at::Tensor target_video, target_audio;  // packed indices
  DitModel::Call call;

  // One entry per step.
  struct Step {
    int64_t unique = 0;
    at::Tensor tables;       // host: [layers, unique * 18 hidden] and [unique, 2 hidden], flat
    at::Tensor row, moment;  // int32 [rows]: of the block tables, of the final table
  };
  std::vector<Step> steps;
  at::Tensor slab;  // the tables of `current` on the device
  int64_t current = -1;
};

DitSession::DitSession(DitModel& model, const PackedLayout& layout, const at::Tensor& text,
                       std::span<const RowTimesteps> steps)
    : model_(model), state_(std::make_unique<State>()) {
  const c10::InferenceMode inference;
  const DitConfig& config = model.config_;
  const at::Device device = model.device();
  State& s = *state_;
  s.layout = layout;
  const parallel::SequenceGroups* groups = model.parallel_.sequence;
  const int64_t ranks = groups ? groups->sequence->size() : 1;
  if (layout.rows % ranks != 0) {
    throw Error(ErrorCode::kInvalidArgument,
                std::to_string(layout.rows) + " packed rows do not divide by " +
                    std::to_string(ranks) + " sequence ranks",
                "pack the layout for that many ranks");
  }
  if (text.dim() != 2 || text.size(0) != layout.text_rows || text.size(1) != config.hidden) {
    throw Error(ErrorCode::kInvalidArgument,
                "refined text is " + sizes_text(text) + "; the layout has " +
                    std::to_string(layout.text_rows) + " text rows of width " +
                    std::to_string(config.hidden),
                "pass the result of refine_text for the prompt of this layout");
  }
  int64_t timesteps = 0;
  for (const RowTimesteps& step : steps) timesteps += static_cast<int64_t>(step.unique.size());
  const auto request = parallel::Signature("request")
                           .add("rows", layout.rows)
                           .add("used", layout.used)
                           .add("text rows", layout.text_rows)
                           .add("steps", static_cast<int64_t>(steps.size()))
                           .add("timesteps", timesteps);
  if (groups) groups->sequence->require_agreement(request);
  if (model.parallel_.tensor) model.parallel_.tensor->require_agreement(request);
  s.rows = layout.rows / ranks;
  s.start = (groups ? groups->place.rank() : 0) * s.rows;
  s.text = text;
  s.video = LocalRows(layout.video_rows, s.start, s.rows, device);
  s.audio = LocalRows(layout.audio_rows, s.start, s.rows, device);
  const auto targets = [&](const std::vector<int64_t>& list, int64_t conditions) {
    return indices({list.begin() + conditions, list.end()}, device);
  };
  s.target_video = targets(layout.video_rows, layout.condition_video_rows);
  s.target_audio = targets(layout.audio_rows, layout.condition_audio_rows);

  // Rotary angles in f32 from positions cast to f32; power first, then reciprocal, as published.
  std::vector<float> positions(static_cast<size_t>(s.rows) * 3);
  for (size_t i = 0; i < positions.size(); ++i) {
    positions[i] = static_cast<float>(layout.positions[static_cast<size_t>(s.start) * 3 + i]);
  }
  std::vector<float> frequencies;
  for (int64_t n = 0; n < config.rope_freqs; ++n) {
    const float exponent = static_cast<float>(2 * n) / static_cast<float>(2 * config.rope_freqs);
    frequencies.push_back(1.0f / std::pow(static_cast<float>(config.rope_theta), exponent));
  }
  const at::Tensor angles = at::tensor(at::ArrayRef<float>(positions))
                                .to(device)
                                .view({s.rows, 3, 1})
                                .mul(at::tensor(at::ArrayRef<float>(frequencies)).to(device))
                                .reshape({s.rows, 3 * config.rope_freqs});
  s.call.rope = at::cat({angles.cos(), angles.sin()}, 1).to(model.compute_type());
  const auto used = static_cast<int32_t>(layout.used);
  s.call.bounds = {{0, used}, used};  // rows behind are padding: attention gives zeros there
  s.call.attention = model.attention_.context({0}, layout.sparse_rows, layout.used);

  // AdaLN of all steps: one pass over the weights.
  std::vector<float> moments;
  for (const RowTimesteps& step : steps) {
    moments.insert(moments.end(), step.unique.begin(), step.unique.end());
  }
  const auto pinned = [&](int64_t elements) {
    return at::empty(
        {elements},
        at::TensorOptions().dtype(model.compute_type()).pinned_memory(device.is_cuda()));
  };
  int64_t widest = 0;
  const RowTimesteps* before = nullptr;
  for (const RowTimesteps& step : steps) {
    State::Step next;
    next.unique = static_cast<int64_t>(step.unique.size());
    widest = std::max(widest, next.unique);
    next.tables =
        pinned(next.unique * (config.layers * config.adaln_out() + config.final_adaln_out()));
    if (before && before->inverse == step.inverse) {
      next.row = s.steps.back().row;
      next.moment = s.steps.back().moment;
    } else {
      const std::vector<int32_t> rows = adaln_rows(layout, step);
      const auto local = [&](const std::vector<int32_t>& all) {
        return at::tensor(at::ArrayRef<int32_t>(all.data() + s.start, s.rows), at::kInt).to(device);
      };
      next.row = local(rows);
      next.moment = local(step.inverse);
    }
    before = &step;
    s.steps.push_back(std::move(next));
  }
  const at::Tensor c = model.time_embedding(moments);
  const auto store = [&](const at::Tensor& table, int64_t layer) {  // [all moments, width]
    int64_t moment = 0;
    for (State::Step& step : s.steps) {
      const int64_t elements = step.unique * table.size(1);
      step.tables.narrow(0, layer * step.unique * config.adaln_out(), elements)
          .copy_(table.narrow(0, moment, step.unique).reshape({elements}), device.is_cuda());
      moment += step.unique;
    }
  };
  for (int64_t i = 0; i < config.layers; ++i) {
    const BlockWeights& block = model.weights_.blocks[static_cast<size_t>(i)];
    store(model.column_parallel(c, {block.adaln_weight, block.adaln_bias}), i);
  }
  store(model.column_parallel(c, model.weights_.final_adaln), config.layers);
  s.slab = at::empty({widest * (config.layers * config.adaln_out() + config.final_adaln_out())},
                     text.options());
}

DitSession::~DitSession() = default;

int64_t DitSession::steps() const { return static_cast<int64_t>(state_->steps.size()); }

void DitSession::check(int64_t step, const at::Tensor& video, const at::Tensor& audio) const {
  const State& s = *state_;
  if (step < 0 || step >= steps()) {
    throw Error(ErrorCode::kInvalidArgument, "step is " + std::to_string(step) +
                                                 "; this request has steps 0 to " +
                                                 std::to_string(steps() - 1));
  }
  const auto require = [&](const char* name, const at::Tensor& t, size_t rows, int64_t width) {
    if (t.dim() == 2 && t.size(0) == static_cast<int64_t>(rows) && t.size(1) == width &&
        t.scalar_type() == at::kFloat && t.device() == model_.device()) {
      return;
    }
    throw Error(ErrorCode::kInvalidArgument,
                std::string(name) + " rows are " + sizes_text(t) + " " +
                    c10::toString(t.scalar_type()) + " on " + t.device().str() + "; accepted: [" +
                    std::to_string(rows) + ", " + std::to_string(width) + "] float on " +
                    model_.device().str());
  };
  require("video", video, s.layout.video_rows.size(), model_.config_.video_row());
  require("audio", audio, s.layout.audio_rows.size(), model_.config_.audio_row());
}

void DitSession::bring_tables(int64_t step) {
  State& s = *state_;
  if (s.current == step) return;
  const at::Tensor& tables = s.steps[static_cast<size_t>(step)].tables;
  s.slab.narrow(0, 0, tables.numel()).copy_(tables, /*non_blocking=*/true);
  s.current = step;
}

at::Tensor DitSession::embedded(const at::Tensor& video, const at::Tensor& audio) {
  const State& s = *state_;
  const auto span = model_.timer_.measure(Phase::kEmbed);
  at::Tensor x = at::zeros({s.rows, model_.config_.hidden}, s.text.options());
  const int64_t text_end = std::clamp<int64_t>(s.layout.text_rows - s.start, 0, s.rows);
  if (text_end > 0) x.narrow(0, 0, text_end).copy_(s.text.narrow(0, s.start, text_end));
  const auto put = [&](const LocalRows& rows, const at::Tensor& source, const LinearWeights& in) {
    if (rows.put.numel() == 0) return;
    x.index_copy_(
        0, rows.put,
        model_.column_parallel(source.index_select(0, rows.take), in).to(x.scalar_type()));
  };
  put(s.video, video, model_.weights_.video_in);
  put(s.audio, audio, model_.weights_.audio_in);
  return x;
}

Velocity DitSession::forward(int64_t step, const at::Tensor& video, const at::Tensor& audio) {
  const c10::InferenceMode inference;
  check(step, video, audio);
  bring_tables(step);
  State& s = *state_;
  DitModel& m = model_;
  const DitConfig& config = m.config_;
  const int64_t hidden = config.hidden;
  const State::Step& now = s.steps[static_cast<size_t>(step)];
  s.call.attention.step = {step};

  const auto table = [&](int64_t layer, Table which) {
    return s.slab
        .narrow(0, layer * now.unique * config.adaln_out(), now.unique * config.adaln_out())
        .view({now.unique * 3, 6 * hidden})
        .narrow(1, which * hidden, hidden);
  };
  at::Tensor x = embedded(video, audio), y;
  {
    const auto span = m.timer_.measure(Phase::kPointwise);
    y = layers::rms_norm_modulate(x, m.weights_.blocks[0].norm1, config.norm_eps,
                                  table(0, kScaleAttention), table(0, kShiftAttention), now.row);
  }
  for (int64_t i = 0; i < config.layers; ++i) {
    const BlockWeights& block = m.weights_.blocks[static_cast<size_t>(i)];
    at::Tensor part =
        m.attend(block.attention, *m.layers_[static_cast<size_t>(i)], std::move(y), s.call);
    {
      const auto span = m.timer_.measure(Phase::kPointwise);
      y = layers::gated_residual_norm_modulate_(x, part, table(i, kGateAttention), block.norm2,
                                                config.norm_eps, table(i, kScaleMlp),
                                                table(i, kShiftMlp), now.row);
    }
    part.reset();
    m.feed_forward(block, y);
    const auto span = m.timer_.measure(Phase::kPointwise);
    if (i + 1 == config.layers) {
      layers::gated_residual_(x, y, table(i, kGateMlp), now.row);
    } else {
      y = layers::gated_residual_norm_modulate_(
          x, y, table(i, kGateMlp), m.weights_.blocks[static_cast<size_t>(i + 1)].norm1,
          config.norm_eps, table(i + 1, kScaleAttention), table(i + 1, kShiftAttention), now.row);
    }
  }
  y.reset();
  return output(x);
}

Velocity DitSession::output(const at::Tensor& x) {
  const State& s = *state_;
  const DitConfig& config = model_.config_;
  const DitWeights& w = model_.weights_;
  const auto span = model_.timer_.measure(Phase::kOutput);
  const State::Step& now = s.steps[static_cast<size_t>(s.current)];
  const at::Tensor tables = s.slab
                                .narrow(0, config.layers * now.unique * config.adaln_out(),
                                        now.unique * config.final_adaln_out())
                                .view({now.unique, 2 * config.hidden});
  const at::Tensor y = layers::rms_norm_modulate(x, w.final_norm, config.final_norm_eps,
                                                 tables.narrow(1, config.hidden, config.hidden),
                                                 tables.narrow(1, 0, config.hidden), now.moment);
  // Both heads as one product; ranks exchange these narrow rows, not the hidden ones.
  const int64_t video_width = config.video_row(), width = video_width + config.audio_row();
  const at::Tensor weight = at::cat({w.video_out.weight, w.audio_out.weight});
  const at::Tensor bias = at::cat({w.video_out.bias, w.audio_out.bias});
  at::Tensor mine = at::empty({s.rows, width}, weight.options());
  for (int64_t first = 0; first < s.rows; first += kOutputRows) {
    const int64_t rows = std::min(kOutputRows, s.rows - first);
    mine.narrow(0, first, rows)
        .copy_(project(y.narrow(0, first, rows).to(at::kFloat), weight, bias));
  }
  at::Tensor all = mine;
  if (const parallel::SequenceGroups* groups = model_.parallel_.sequence;
      groups && groups->sequence->size() > 1) {
    all = at::empty({s.layout.rows, width}, mine.options());
    groups->sequence->all_gather(all.view({-1}), mine.view({-1}));
  }
  return {all.narrow(1, 0, video_width).index_select(0, s.target_video),
          all.narrow(1, video_width, config.audio_row()).index_select(0, s.target_audio)};
}

}  // namespace h3::dit
