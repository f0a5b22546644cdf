#include "h3/pipeline/request_fields.h"

#include <algorithm>
#include <array>

namespace h3::request_fields {
namespace {

constexpr const char* kTiming = "frames follow from target.duration_seconds, at 24 frames/s";
constexpr const char* kDistilled = "the model is distilled: one forward a step, without guidance";
constexpr const char* kNative = "the output is the target canvas at 24 frames/s";
constexpr const char* kEvery = "every forward is computed";
constexpr const char* kFiles = "a request gives finished videos only";

constexpr std::array kRejected = {
    Rejected{"num_frames", kTiming},
    Rejected{"fps", kTiming},
    Rejected{"guidance_scale", kDistilled},
    Rejected{"guidance_scale_2", kDistilled},
    Rejected{"true_cfg_scale", kDistilled},
    Rejected{"audio_guidance_scale", kDistilled},
    Rejected{"guidance_rescale", kDistilled},
    Rejected{"negative_prompt", kDistilled},
    Rejected{"enable_frame_interpolation", kNative, true},
    Rejected{"frame_interpolation_exp", kNative},
    Rejected{"frame_interpolation_scale", kNative},
    Rejected{"frame_interpolation_model_path", kNative},
    Rejected{"enable_upscaling", kNative, true},
    Rejected{"upscaling_scale", kNative},
    Rejected{"upscaling_model_path", kNative},
    Rejected{"enable_teacache", kEvery, true},
    Rejected{"teacache_params", kEvery},
    Rejected{"enable_cache_dit", kEvery, true},
    Rejected{"cache_dit_params", kEvery},
    Rejected{"enable_spectrum", kEvery, true},
    Rejected{"spectrum_params", kEvery},
    Rejected{"skip_softmax_params", "attention is chosen with the field attention"},
    Rejected{"return_trajectory_latents", kFiles, true},
    Rejected{"return_trajectory_decoded", kFiles, true},
};

}  // namespace

const Names kTop = {"task",
                    "prompt",
                    "conditions",
                    "target",
                    "flow_shift",
                    "audio_flow_shift",
                    "seed",
                    "num_inference_steps",
                    "num_outputs_per_prompt",
                    "n",
                    "quality",
                    "imgvid_cond_noise_aug_for_inference",
                    "audio_cond_noise_aug_for_inference",
                    "reference_resize_mode",
                    "attention",
                    "attention_backend_override",
                    "output_mode",
                    "schema"};
const Names kTarget = {"short_edge", "aspect_ratio", "duration_seconds"};
const Names kCondition = {"type", "uri", "role", "frame_index", "start_time_seconds"};
const Names kIgnored = {"size",
                        "seconds",
                        "model",
                        "width",
                        "height",
                        "output_quality",
                        "output_compression",
                        "x264_preset",
                        "user",
                        "perf_dump_path"};
const Names kAspects = {"21:9", "16:9", "4:3", "1:1", "3:4", "9:16"};

const Rejected* rejected(std::string_view name) {
  const auto it = std::find_if(kRejected.begin(), kRejected.end(),
                               [&](const Rejected& r) { return name == r.name; });
  return it == kRejected.end() ? nullptr : &*it;
}

bool contains(const Names& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

}  // namespace h3::request_fields
