// Opening in the order in which faults are best told: paths, config, files, names, inventory.
#include "h3/models/dit/checkpoint.h"

#include "h3/common/error.h"
#include "tessera/io/mapped_file.h"

namespace h3::dit {
namespace {

constexpr size_t kMaxConfigBytes = size_t{1} << 20;

}  // namespace

DitConfig read_dit_config(const weights::ModelPaths& paths) {
  if (paths.config.empty()) return {};
  std::string text;
  const tessera::Status s =
      tessera::io::detail::read_text_file(paths.config, kMaxConfigBytes, &text);
  if (!s.ok()) throw Error(ErrorCode::kInvalidArgument, s.message());
  return parse_dit_config(text, paths.config);
}

weights::Inventory dit_inventory(const weights::Checkpoint& checkpoint, const DitConfig& config,
                                 NameStyle style) {
  return weights::take_inventory(checkpoint, checkpoint_tensors(config, style),
                                 optional_tensors(style));
}

DitCheckpoint open_dit_checkpoint(const weights::ModelRequest& request) {
  DitCheckpoint model;
  model.paths = weights::resolve_model(request);
  model.config = read_dit_config(model.paths);
  model.checkpoint = weights::Checkpoint::open(model.paths.transformer);
  model.style = name_style_of(model.checkpoint);
  weights::require_inventory(model.checkpoint, checkpoint_tensors(model.config, model.style),
                             optional_tensors(model.style));
  return model;
}

}  // namespace h3::dit
