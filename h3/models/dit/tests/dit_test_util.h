// What the tests of the transformer's forward share: models with random weights, requests with
// random inputs, and distances.
#pragma once

#include <ATen/Context.h>
#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "h3/attention/h3_layers.h"
#include "h3/common/error.h"
#include "h3/models/dit/model.h"
#include "h3/models/dit/tiny.h"
#include "h3/weights/recipes.h"

namespace h3::dit {

inline constexpr uint64_t kSeed = 20261130;

inline at::ScalarType torch_type(tessera::Dtype dtype) {
  return dtype == tessera::Dtype::kF32 ? at::kFloat : at::kBFloat16;
}

/// A native checkpoint of random weights, cut for one tensor rank by the recipes of the model. The
/// f32 checkpoint is made once per config; bf16 weights are its values, rounded.
inline DitWeights checkpoint_weights(const DitConfig& config, tessera::Dtype compute,
                                     const TensorShard& shard = {},
                                     const at::Device& device = at::kCPU) {
  static std::map<std::string, std::map<std::string, at::Tensor>> made;
  std::map<std::string, at::Tensor>& files = made[dit_config_json(config)];
  if (files.empty()) {
    for (RandomTensor& t :
         random_checkpoint(config, NameStyle::kNative, tessera::Dtype::kF32, kSeed)) {
      const auto [rows, columns] = weights::as_matrix(t.shape);
      files[t.name] = at::from_blob(t.data.data(), {rows, columns}, at::kFloat).clone();
    }
  }
  std::unordered_map<std::string, at::Tensor> tensors;
  for (const weights::TensorRecipe& recipe :
       model_recipes(config, NameStyle::kNative, compute, shard)) {
    const auto [rows, columns] = weights::as_matrix(recipe.shape);
    at::Tensor target = at::empty({rows, columns}, torch_type(recipe.dtype));
    for (const weights::Piece& p : recipe.pieces) {
      target.narrow(0, p.target_row, p.rows)
          .copy_(files.at(p.source).narrow(0, p.row, p.rows).narrow(1, p.column, p.columns));
    }
    tensors[recipe.name] = target.view(recipe.shape).to(device);
  }
  return take_weights(config, compute, shard, std::move(tensors));
}

/// For what is refused before any number counts.
inline std::unordered_map<std::string, at::Tensor> zero_tensors(const DitConfig& config,
                                                                tessera::Dtype compute) {
  std::unordered_map<std::string, at::Tensor> tensors;
  for (const weights::TensorRecipe& recipe : model_recipes(config, NameStyle::kNative, compute)) {
    tensors[recipe.name] = at::zeros(recipe.shape, torch_type(recipe.dtype));
  }
  return tensors;
}

struct EngineOptions {
  tessera::Dtype compute = tessera::Dtype::kF32;
  BackendId backend = BackendId::kFa;
  SubBlockSettings subblock;  // of subblock_sparse_attn
  at::Device device = at::kCPU;

  Platform platform() const { return device.is_cpu() ? cpu_platform() : cuda_platform(9, 0); }
};

inline AttentionPlan make_plan(const DitConfig& config, const EngineOptions& options) {
  H3LayerOptions layers;
  layers.dit = {static_cast<int>(config.layers), static_cast<int>(config.refiner_layers),
                static_cast<int>(config.heads), options.compute};
  AttentionChoices choices;
  choices.components.components["transformer"] = {options.backend, true};
  if (options.backend == BackendId::kSubBlock) {
    choices.subblock = options.subblock;
    choices.subblock_given = true;
  }
  return resolve_attention(minimax_h3_layers(options.platform(), layers), choices,
                           options.platform());
}

/// A model and its attention.
struct Engine {
  Engine(const DitConfig& config, const EngineOptions& options, const DitParallel& parallel = {})
      : attention(make_plan(config, options), {.log = [](std::string_view) {}}),
        model(config, checkpoint_weights(config, options.compute, parallel.shard(), options.device),
              attention, parallel) {}

  CounterValues counters(const std::string& layer) const {
    for (const LayerReport& report : attention.stats()) {
      if (report.layer == "transformer." + layer) return report.counters;
    }
    ADD_FAILURE() << "no layer " << layer;
    return {};
  }
  void switch_to(const AttentionOverride& request) { attention.apply(attention.prepare(request)); }

  AttentionRuntime attention;
  DitModel model;
};

inline at::Tensor random_rows(int64_t rows, int64_t width, uint64_t seed) {
  at::Generator generator = at::globalContext().defaultGenerator(at::kCPU).clone();
  generator.set_current_seed(kSeed + seed);
  return at::empty({rows, width}, at::kFloat).normal_(0.0, 1.0, generator);
}

/// A request: layout, random inputs of it, row timesteps of every step.
struct Request {
  Request(const DitConfig& config, const LayoutRequest& wanted, const std::vector<StepTimes>& times)
      : layout(pack_layout(wanted)),
        text(random_rows(layout.text_rows, config.text_dim, 1)),
        video(random_rows(static_cast<int64_t>(layout.video_rows.size()), config.video_row(), 2)),
        audio(random_rows(static_cast<int64_t>(layout.audio_rows.size()), config.audio_row(), 3)) {
    for (const StepTimes& t : times) steps.push_back(row_timesteps(layout, t));
  }

  /// Velocities of all steps.
  std::vector<Velocity> run(DitModel& model) const {
    DitSession session(model, layout, model.refine_text(text), steps);
    std::vector<Velocity> all;
    const at::Tensor v = video.to(model.device()), a = audio.to(model.device());
    for (int64_t k = 0; k < session.steps(); ++k) all.push_back(session.forward(k, v, a));
    return all;
  }

  PackedLayout layout;
  at::Tensor text, video, audio;
  std::vector<RowTimesteps> steps;
};

inline double relative_distance(const at::Tensor& got, const at::Tensor& want) {
  return got.sub(want).norm().item<double>() / want.norm().item<double>();
}
/// The larger of video and audio.
inline double relative_distance(const Velocity& got, const Velocity& want) {
  return std::max(relative_distance(got.video, want.video),
                  relative_distance(got.audio, want.audio));
}
inline bool same_bits(const Velocity& a, const Velocity& b) {
  return a.video.equal(b.video) && a.audio.equal(b.audio);
}

/// The h3::Error that `call` throws; fails the test if there is none.
template <class Call>
Error thrown_by(Call call) {
  try {
    call();
  } catch (const Error& error) {
    return error;
  }
  ADD_FAILURE() << "nothing was thrown";
  return Error(ErrorCode::kInternal, "nothing was thrown");
}
inline void expect_parts(const Error& error, ErrorCode code,
                         const std::vector<std::string>& parts) {
  EXPECT_EQ(error.code(), code) << error.what();
  for (const std::string& part : parts) {
    EXPECT_NE(std::string(error.what()).find(part), std::string::npos)
        << "missing: " << part << "\nin: " << error.what();
  }
}

}  // namespace h3::dit
