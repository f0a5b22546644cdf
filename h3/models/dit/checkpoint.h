// A transformer's checkpoint, opened and checked: paths, config, names and inventory. Header reads
// only. No torch.
//
//   const DitCheckpoint model = open_dit_checkpoint({.path = "MiniMax-H3", .variant = "fl2va"});
//   auto recipes = model_recipes(model.config, model.style, tessera::Dtype::kBf16);
#pragma once

#include "h3/models/dit/config.h"
#include "h3/models/dit/names.h"
#include "h3/weights/checkpoint.h"
#include "h3/weights/inventory.h"
#include "h3/weights/model_paths.h"

namespace h3::dit {

struct DitCheckpoint {
  weights::ModelPaths paths;
  DitConfig config;
  NameStyle style = NameStyle::kNative;
  weights::Checkpoint checkpoint;
};

/// Throws kInvalidArgument for everything that resolve_model, parse_dit_config, Checkpoint::open,
/// name_style_of and require_inventory refuse.
DitCheckpoint open_dit_checkpoint(const weights::ModelRequest& request);

/// The config.json of the paths; the published sizes for a file without one (ModelPaths::config),
/// which the inventory then confirms or refuses.
DitConfig read_dit_config(const weights::ModelPaths& paths);

/// What the checkpoint holds against what a model of this config needs.
weights::Inventory dit_inventory(const weights::Checkpoint& checkpoint, const DitConfig& config,
                                 NameStyle style);

}  // namespace h3::dit
