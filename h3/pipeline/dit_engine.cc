#include "h3/pipeline/dit_engine.h"

#include <cstdio>
#include <fstream>

#include "h3/attention/h3_layers.h"
#include "h3/common/error.h"
#include "h3/layers/device_memory.h"
#include "h3/models/dit/memory.h"
#include "h3/parallel/plan_admission.h"
#include "h3/weights/recipes.h"

namespace h3::pipeline {
namespace {

AttentionPlan attention_plan(const DitOptions& options, const dit::DitConfig& config,
                             tessera::Dtype compute) {
  H3LayerOptions layers;
  layers.dit = {static_cast<int>(config.layers), static_cast<int>(config.refiner_layers),
                static_cast<int>(config.heads), compute};
  return resolve_attention(minimax_h3_layers(options.platform, layers), options.attention,
                           options.platform);
}

RuntimeOptions silent() {
  return {.log = [](std::string_view) {}};
}

bool any_sparse(const AttentionPlan& plan) {
  for (const ResolvedLayer& layer : plan.layers) {
    if (is_sparse(layer.backend)) return true;
  }
  return false;
}

uint64_t available_host_bytes() {
  std::ifstream file("/proc/meminfo");
  for (std::string line; std::getline(file, line);) {
    unsigned long long kib = 0;
    if (std::sscanf(line.c_str(), "MemAvailable: %llu kB", &kib) == 1) return kib * 1024;
  }
  return 0;  // not known
}

std::string gb_text(double bytes) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.2f GB", bytes / 1e9);
  return text;
}

}  // namespace

parallel::ConfigRecord DitSetup::record() const {
  parallel::ConfigRecord record;
  record.set("model.path", checkpoint.paths.transformer);
  record.set("model.config", dit::dit_config_json(checkpoint.config));
  record.set("model.bytes", static_cast<int64_t>(checkpoint.checkpoint.tensor_bytes()));
  record.set("dtype", std::string(tessera::dtype_name(compute)));
  parallel::record_plan(plan, &record);
  return record;
}

DitSetup plan_dit(const DitOptions& options) {
  DitSetup setup;
  setup.platform = options.platform;
  setup.device = options.device;
  setup.checkpoint = dit::open_dit_checkpoint(options.model);
  const dit::DitConfig& config = setup.checkpoint.config;
  setup.compute = options.compute.value_or(tessera::Dtype::kBf16);
  setup.plan = attention_plan(options, config, setup.compute);
  const bool sparse =
      any_sparse(setup.plan) || (options.request.backend && is_sparse(*options.request.backend));
  if (!options.compute && !options.platform.cuda && !sparse) {
    setup.compute = tessera::Dtype::kF32;  // the CPU is quick and exact in f32
    setup.plan = attention_plan(options, config, setup.compute);
  }
  // Layers without weights are enough to find out whether they can follow the request.
  AttentionRuntime(setup.plan, silent()).prepare(options.request);
  setup.degrees = parallel::resolve_degrees(options.degrees);
  parallel::admit_plan(setup.plan, setup.degrees);
  setup.recipes =
      dit::model_recipes(config, setup.checkpoint.style, setup.compute, {0, setup.degrees.tensor});
  setup.weight_bytes = weights::model_bytes(setup.recipes);
  return setup;
}

void require_memory(const DitSetup& setup, const RunSize& run) {
  const dit::DitConfig& config = setup.checkpoint.config;
  const double weights = static_cast<double>(setup.weight_bytes);
  const auto activations = static_cast<double>(
      dit::estimated_activation_bytes(config, run.rows / setup.degrees.sequence, setup.compute));
  const auto tables =
      static_cast<double>(dit::adaln_table_bytes(config, run.moments, setup.compute));
  const auto host = static_cast<double>(available_host_bytes());
  const double ranks = run.local_ranks;
  const bool cpu = setup.device.is_cpu();
  const double need = cpu ? ranks * (weights + activations + tables) : weights + activations;
  const double free = cpu ? host : static_cast<double>(device_memory(setup.device).free);
  if (free > 0 && need > free) {
    throw Error(ErrorCode::kOutOfMemory,
                "the transformer needs about " + gb_text(need) + " on " + setup.device.str() +
                    " (a rank: " + gb_text(weights) + " weights, " + gb_text(activations) +
                    " for " + std::to_string(run.rows) + " packed rows); free are " + gb_text(free),
                setup.degrees.tensor == 1
                    ? "free memory, make the video shorter, or spread the weights with --tp-size 2"
                    : "free memory, make the video shorter, or raise --tp-size");
  }
  if (!cpu && host > 0 && ranks * tables > host) {
    throw Error(ErrorCode::kOutOfMemory,
                "the AdaLN tables of all steps need " + gb_text(ranks * tables) +
                    " of host memory; available are " + gb_text(host),
                "use fewer steps or fewer ranks on this host");
  }
}

LoadedDit::LoadedDit(const DitSetup& setup, parallel::World* world,
                     const std::function<void(const weights::LoadProgress&)>& progress,
                     bool quiet) {
  dit::DitParallel parallel;
  if (world) {
    groups_ = world->sequence_groups();
    parallel.sequence = &*groups_;
    if (setup.degrees.tensor > 1) parallel.tensor = &world->group(parallel::GroupKind::kTensor);
  }
  attention_ = std::make_unique<AttentionRuntime>(
      setup.plan, quiet || (world && world->rank() > 0) ? silent() : RuntimeOptions{});
  const dit::TensorShard shard = parallel.shard();
  const auto recipes =
      dit::model_recipes(setup.checkpoint.config, setup.checkpoint.style, setup.compute, shard);
  weights::LoadOptions options;
  options.device = setup.device;
  options.progress = [&](const weights::LoadProgress& p) {
    load_seconds_ = p.seconds;
    load_gb_per_second_ = p.gb_per_second();
    if (progress) progress(p);
  };
  auto tensors = weights::load_tensors(setup.checkpoint.checkpoint, recipes, options);
  model_ = std::make_unique<dit::DitModel>(
      setup.checkpoint.config,
      dit::take_weights(setup.checkpoint.config, setup.compute, shard, std::move(tensors)),
      *attention_, parallel);
}

std::unique_ptr<LoadedDit> load_dit(
    const DitSetup& setup, parallel::World* world,
    const std::function<void(const weights::LoadProgress&)>& progress, bool quiet) {
  return std::make_unique<LoadedDit>(setup, world, progress, quiet);
}

}  // namespace h3::pipeline
