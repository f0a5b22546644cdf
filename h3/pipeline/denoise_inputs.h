// Puts a request and its encoded conditions together: what the text encoder and the autoencoders
// would hand to the denoiser, read from one safetensors file.
//
//   text                  [L, text_dim]  hidden states of the prompt, f32, bf16 or f16
//   text_is_vision        [L]            u8 or bool, optional: rows of vision blocks
//   text_is_video_pad     [L]            u8 or bool, optional: rows of <|video_pad|> tokens
//   condition.<i>.visual  [1, C, T, H, W] normalised latents of condition i of the request
//   condition.<i>.audio   [2, C, T]      of its sound
#pragma once

#include <string>

#include "h3/models/dit/config.h"
#include "h3/pipeline/denoise.h"
#include "h3/pipeline/request.h"

namespace h3::pipeline {

struct DenoiseInputs {
  DenoiseRequest request;  // with the first seed
  dit::Canvas canvas;
  dit::Timing timing;
};

/// Sigma shifts of the loaded model, for requests that name none.
struct ModelShifts {
  double video = 12, audio = 3;
};

/// Resolves geometry: canvas from the aspect ratio (auto: of the first keyframe, else 16:9),
/// duration from the request or from the one condition with sound. Throws kInvalidArgument with the
/// field or tensor: a file that cannot be read, tensors that are missing, left over, of a wrong
/// shape or not finite, conditions that do not fit the canvas or the task.
DenoiseInputs assemble_denoise(const VideoRequest& request, const std::string& features_path,
                               const dit::DitConfig& config, const ModelShifts& shifts,
                               int64_t forwards);

}  // namespace h3::pipeline
