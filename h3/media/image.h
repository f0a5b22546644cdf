// A picture in memory and what is done to it between decoder and VAE.
#pragma once

#include <cstdint>
#include <vector>

namespace h3::media {

struct Image {
  int width = 0, height = 0;
  std::vector<uint8_t> rgb;  // [height, width, 3]
};

/// How a stored picture has to be turned, numbered as in EXIF: 1 not at all, 3 by half, 6 a quarter
/// clockwise, 8 a quarter back; 2, 4, 5 and 7 are mirrored. Throws kInvalidArgument for others.
Image oriented(Image image, int orientation);

/// To exactly `width` x `height` with a Lanczos filter of three lobes, wider when shrinking; equal
/// sizes give a copy. Weights and roundings are those of Pillow, whose results it equals. Throws
/// kInvalidArgument for empty pictures and sizes below 1.
Image resize_lanczos(const Image& image, int width, int height);

/// Scaled to cover `width` x `height`, keeping the ratio, then cut in the middle.
Image cover_crop(const Image& image, int width, int height);

}  // namespace h3::media
