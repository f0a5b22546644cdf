// The canonical request: minimax_h3.request/v1. Read strictly, before anything is loaded or any
// file is opened. No torch.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "h3/attention/override.h"
#include "h3/models/dit/geometry.h"

namespace h3 {

enum class VideoTask : uint8_t { kT2va, kFl2va, kRef2va };
enum class ConditionType : uint8_t { kImage, kVideo, kVideoAudio, kAudio };
enum class ConditionRole : uint8_t { kKeyframe, kReference };
enum class Quality : uint8_t { kExact, kLossless, kHigh };

/// "t2va", "fl2va", "ref2va".
std::string_view to_text(VideoTask task);

struct RequestCondition {
  ConditionType type = ConditionType::kImage;
  ConditionRole role = ConditionRole::kReference;
  std::string uri;                     // not opened or checked here
  std::optional<int64_t> frame_index;  // of keyframes: 0, or -1 for the last frame
  double start_time_seconds = 0;       // of videos
  friend bool operator==(const RequestCondition&, const RequestCondition&) = default;
};

/// "W:H" as integers; "auto" is 0:0.
struct AspectRatio {
  int64_t width = 0, height = 0;
  bool is_auto() const { return width == 0; }
  friend bool operator==(const AspectRatio&, const AspectRatio&) = default;
};

struct RequestTarget {
  int64_t short_edge = dit::kShortEdge;
  AspectRatio aspect_ratio;
  /// Absent: as long as the sound of the one condition that has sound (ref2va).
  std::optional<double> duration_seconds;
};

struct VideoRequest {
  VideoTask task = VideoTask::kT2va;
  std::string prompt;
  std::vector<RequestCondition> conditions;  // in the order of the request, which matters
  RequestTarget target;
  std::optional<double> flow_shift, audio_flow_shift;  // absent: the model's, else 12 and 3
  std::vector<int64_t> seeds = {42};                   // one per output
  int64_t num_inference_steps = 50;
  Quality quality = Quality::kLossless;
  double visual_condition_level = 0.999;  // imgvid_cond_noise_aug_for_inference
  double audio_condition_level = 1.0;     // audio_cond_noise_aug_for_inference
  dit::ReferenceResize reference_resize = dit::ReferenceResize::kDiffusers;
  AttentionOverride attention;

  /// What was accepted but is worth a remark: fields without effect, short edges other than 768.
  std::vector<std::string> warnings;

  int64_t num_outputs() const { return int64_t(seeds.size()); }
};

/// Reads one JSON object. null stands for an absent field. Throws kInvalidArgument with every fault
/// at once, each beginning with the path of its field ("target.duration_seconds is 20; accepted: 4
/// to 15"); `label` (a file name, "the request") begins the message. Unknown fields are faults,
/// with the nearest known name; in `target` they only warn, as published. Sound of references,
/// media durations and picture sizes are checked where the media are opened.
VideoRequest parse_video_request(std::string_view json, std::string_view label);

}  // namespace h3
