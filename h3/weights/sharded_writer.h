// Writes tensors as a checkpoint folder: shards and their index.
#pragma once

#include <string>
#include <vector>

#include "tessera/io/safetensors.h"

namespace h3::weights {

/// `items` in order into `shards` files of about equal size, named STEM-00001-of-0000N.safetensors,
/// and STEM.safetensors.index.json with metadata.total_size. The folder must exist. Throws
/// kInvalidArgument for items that cannot be written, kUnavailable if the disk refuses.
void write_sharded(const std::string& folder, const std::string& stem, size_t shards,
                   const std::vector<tessera::io::SafetensorsItem>& items);

/// A text file, atomically. Throws kUnavailable.
void write_text(const std::string& path, const std::string& text);

}  // namespace h3::weights
