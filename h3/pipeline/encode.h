// From pictures, clips and sound to the normalised latents that conditions are made of.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

#include "h3/media/reader.h"
#include "h3/models/dit/geometry.h"
#include "h3/pipeline/decode.h"

namespace h3::pipeline {

enum class Fit { kStretch, kCover };

struct EncodeRequest {
  std::string path;
  dit::Canvas canvas;  // 0 x 0: pictures as references (short edge 2048), clips on their own canvas
  Fit fit = Fit::kStretch;  // of pictures: the first keyframe is stretched, the second covers
  double start_seconds = 0;
  int64_t max_frames = 0;  // of clips; 0: all. Trimmed to 17 n + 5 in any case
  double max_seconds = 0;  // of sound; 0: all
};

/// What the file gave; undefined where it has none.
struct EncodedMedia {
  media::MediaInfo info;
  dit::Canvas canvas;
  int64_t frames = 0;
  at::Tensor visual;  // [1, C, T, h, w] f32 on the CPU
  at::Tensor audio;   // [2, C, T'] f32 on the CPU
};

/// Posterior of pictures and clips sampled with seed 42 and rounded to half, mean of sound: as the
/// published pipeline makes its conditions. Frames of a clip are held as bytes. Throws
/// kInvalidArgument for files and sizes that cannot be encoded.
EncodedMedia encode_media(LoadedVaes& vaes, const EncodeRequest& request);

}  // namespace h3::pipeline
