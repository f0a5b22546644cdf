// Where the autoencoders of a model path are.
#pragma once

#include <filesystem>
#include <string>

#include "h3/weights/model_paths.h"

namespace h3::cli {

/// The folder of the partition, or the path itself if it is no release. Throws as resolve_model.
inline std::string vae_folder(const weights::ModelRequest& model) {
  namespace fs = std::filesystem;
  const fs::path path(model.path);
  const bool release = fs::exists(path / "model_index.json") || fs::exists(path / "FL2VA") ||
                       fs::exists(path / "Ref2VA");
  return release ? weights::resolve_model(model).root : model.path;
}

}  // namespace h3::cli
