// Where a row stands in time and space: the axes from which pack_layout fills PackedLayout. Double
// throughout, in the order of operations of the published code, so that the cast to float32 gives
// the published bits. One unit of time is 1/40 s: one audio latent.
#pragma once

#include <cstdint>
#include <vector>

namespace h3::dit {

/// Coordinates of the patches of one frame, on an axis that depends on the aspect ratio alone.
struct FrameGrid {
  std::vector<double> height;  // one per patch row
  std::vector<double> width;   // one per patch column
};

/// Grid of a frame of `height` x `width` latents, both even and positive.
FrameGrid frame_grid(int64_t height, int64_t width);

/// Time of each of `frames` latent frames. Sums start from 0; the origin is added last.
std::vector<double> frame_times(int64_t frames, double origin);

/// Time that `frames` latent frames fill, summed one after the other: moves the clock of
/// references.
double span_in_order(int64_t frames);

/// The same sum in the pairwise order of NumPy: anchors the last keyframe. Both orders are in the
/// published code and differ in the last bit from 16 frames on.
double span_pairwise(int64_t frames);

/// Time of the last keyframe of a target that starts at `origin`.
double last_keyframe_time(int64_t frames, double origin);

}  // namespace h3::dit
