// The pictures of `tessera video`, each as the bytes of a PNG file.
#pragma once

#include <cstdint>
#include <vector>

#include "tessera/status.h"
#include "tessera/video/clip.h"
#include "tessera/video/experiment.h"
#include "tessera/video/features.h"
#include "tessera/video/grid.h"

namespace tessera::video {

/// For four query blocks: frames of the clip with the kept key blocks in colour and the rest dark,
/// the query block outlined. Shows the head with the lowest recall.
Status draw_kept_blocks(const Clip& clip, const TokenGrid& grid, const Experiment& experiment,
                        std::vector<uint8_t>* png);

/// Kept mass against sparsity, one line a curve, and the point where the run itself was.
Status draw_recall(const RecallCurves& curves, const Experiment& experiment,
                   std::vector<uint8_t>* png);

/// A few frames: clip | dense output | sparse output | amplified difference, for the head with the
/// lowest recall.
Status draw_attention(const Clip& clip, const TokenGrid& grid, const Pca& pca,
                      const Experiment& experiment, std::vector<uint8_t>* png);

/// Root mean square difference of the two rendered outputs over all heads, in grey levels of 255.
double pixel_difference(const TokenGrid& grid, const Pca& pca, const Experiment& experiment);

}  // namespace tessera::video
