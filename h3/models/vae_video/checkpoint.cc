// Opening in the order in which faults are best told: folder, config, files, names, inventory.
#include "h3/models/vae_video/checkpoint.h"

#include <filesystem>

#include "h3/common/error.h"
#include "h3/weights/inventory.h"
#include "tessera/io/mapped_file.h"

namespace h3::vae_video {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxConfigBytes = size_t{1} << 20;

std::string read_text(const std::string& path) {
  std::string text;
  const tessera::Status s = tessera::io::detail::read_text_file(path, kMaxConfigBytes, &text);
  if (!s.ok()) throw Error(ErrorCode::kInvalidArgument, s.message());
  return text;
}

bool is_file(const fs::path& path) {
  std::error_code ignored;
  return fs::is_regular_file(path, ignored);
}

fs::path component_folder(const std::string& path) {
  for (const fs::path& folder :
       {fs::path(path) / "video_vae", fs::path(path) / "vae", fs::path(path)}) {
    if (is_file(folder / "config.json")) return folder;
  }
  throw Error(ErrorCode::kInvalidArgument,
              path +
                  " holds no video VAE: there is no config.json in video_vae/, in vae/ or in "
                  "the folder itself",
              "give the folder of a release (FL2VA, Ref2VA), of a diffusers copy, or video_vae");
}

}  // namespace

VideoVaeCheckpoint open_video_vae(const std::string& path) {
  VideoVaeCheckpoint vae;
  const fs::path folder = component_folder(path);
  vae.folder = folder.string();
  const fs::path source = folder / "source";
  const std::string config = (folder / "config.json").string();
  const bool has_source_config = is_file(source / "config.json");
  vae.config = parse_video_vae_config(
      read_text(config), config,
      has_source_config ? read_text((source / "config.json").string()) : std::string());
  const bool official = is_file(source / "model.safetensors");
  vae.checkpoint =
      weights::Checkpoint::open(official ? (source / "model.safetensors").string() : vae.folder);
  vae.style = name_style_of(vae.checkpoint);
  weights::require_inventory(vae.checkpoint, checkpoint_tensors(vae.config, vae.style),
                             optional_tensors(vae.config, vae.style));
  return vae;
}

}  // namespace h3::vae_video
