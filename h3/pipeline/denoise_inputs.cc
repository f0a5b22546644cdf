#include "h3/pipeline/denoise_inputs.h"

#include <ATen/Functions.h>

#include <cstring>
#include <set>

#include "h3/common/error.h"
#include "h3/models/dit/noise.h"
#include "h3/models/dit/sampling.h"
#include "tessera/io/safetensors.h"

namespace h3::pipeline {
namespace {

using tessera::Dtype;
using tessera::io::SafetensorsEntry;
using tessera::io::SafetensorsFile;

[[noreturn]] void refuse(const std::string& text, const std::string& hint) {
  throw Error(ErrorCode::kInvalidArgument, text, hint);
}

std::string sizes_text(at::IntArrayRef sizes) {
  std::string text = "[";
  for (const int64_t n : sizes) text += (text.size() > 1 ? ", " : "") + std::to_string(n);
  return text + "]";
}

class Features {
 public:
  explicit Features(const std::string& path) {
    if (const tessera::Status status = SafetensorsFile::open(path, &file_); !status.ok()) {
      refuse(status.message(), "--features takes the file of text features and condition latents");
    }
  }

  bool has(const std::string& name) const { return file_.find(name) != nullptr; }

  /// f32 on the CPU.
  at::Tensor floats(const std::string& name) {
    const SafetensorsEntry& e = entry(name);
    const auto type = e.dtype == Dtype::kF32    ? at::kFloat
                      : e.dtype == Dtype::kBf16 ? at::kBFloat16
                                                : at::kHalf;
    if (e.dtype != Dtype::kF32 && e.dtype != Dtype::kBf16 && e.dtype != Dtype::kF16) {
      refuse(label(name) + " is " + std::string(tessera::dtype_name(e.dtype)) +
                 "; accepted: f32, bf16, f16",
             "convert the tensor");
    }
    at::Tensor t = at::empty(e.shape, type);
    if (e.bytes > 0) std::memcpy(t.data_ptr(), e.data, e.bytes);
    t = t.to(at::kFloat);
    if (const int64_t bad = at::isfinite(t).logical_not().sum().item<int64_t>(); bad > 0) {
      refuse(label(name) + " has " + std::to_string(bad) + " values that are not finite",
             "encode it again");
    }
    return t;
  }

  std::vector<uint8_t> flags(const std::string& name, int64_t rows) {
    if (!has(name)) return {};
    const SafetensorsEntry& e = entry(name);
    if ((e.dtype != Dtype::kU8 && e.dtype != Dtype::kBool) ||
        e.shape != std::vector<int64_t>{rows}) {
      refuse(label(name) + " is " + std::string(tessera::dtype_name(e.dtype)) + " " +
                 sizes_text(e.shape) + "; accepted: u8 or bool [" + std::to_string(rows) + "]",
             "give one flag per text row");
    }
    const auto* data = reinterpret_cast<const uint8_t*>(e.data);
    return {data, data + e.bytes};
  }

  void refuse_left_over() const {
    std::string names;
    for (const SafetensorsEntry& e : file_.entries()) {
      if (!used_.contains(e.name)) names += (names.empty() ? "" : ", ") + e.name;
    }
    if (!names.empty()) {
      refuse(file_.label() + " holds tensors that this request does not use: " + names,
             "condition numbers follow the request's list, from 0");
    }
  }

  std::string label(const std::string& name) const { return file_.label() + ": " + name; }

 private:
  const SafetensorsEntry& entry(const std::string& name) {
    used_.insert(name);
    if (const SafetensorsEntry* found = file_.find(name)) return *found;
    refuse(file_.label() + " has no tensor " + name, "write the encoded condition under that name");
  }

  SafetensorsFile file_;
  std::set<std::string> used_;
};

at::Tensor visual(Features& features, size_t i, const dit::DitConfig& config) {
  const std::string name = "condition." + std::to_string(i) + ".visual";
  const at::Tensor t = features.floats(name);
  if (t.dim() != 5 || t.size(0) != 1 || t.size(1) != config.video_channels || t.size(2) < 1 ||
      t.size(3) < 2 || t.size(4) < 2 || t.size(3) % 2 != 0 || t.size(4) % 2 != 0) {
    refuse(features.label(name) + " is " + sizes_text(t.sizes()) + "; accepted: [1, " +
               std::to_string(config.video_channels) + ", T, H, W] with even H and W",
           "encode the condition on a canvas of multiples of 32 pixels");
  }
  return t;
}

at::Tensor sound(Features& features, size_t i, const dit::DitConfig& config) {
  const std::string name = "condition." + std::to_string(i) + ".audio";
  const at::Tensor t = features.floats(name);
  if (t.dim() != 3 || t.size(0) != dit::kStereo || t.size(1) != config.audio_channels ||
      t.size(2) < 1) {
    refuse(features.label(name) + " is " + sizes_text(t.sizes()) + "; accepted: [2, " +
               std::to_string(config.audio_channels) + ", T]",
           "encode the sound as two channels");
  }
  return t;
}

dit::LatentShape shape_of(const at::Tensor& visual) {
  return {visual.size(2), visual.size(3), visual.size(4)};
}

// Conditions of the request into the two lists of the layout.
void add_conditions(const VideoRequest& request, Features& features, const dit::DitConfig& config,
                    DenoiseRequest* out) {
  for (size_t i = 0; i < request.conditions.size(); ++i) {
    const RequestCondition& c = request.conditions[i];
    if (c.role == ConditionRole::kKeyframe) {
      out->layout.keyframes.push_back(c.frame_index == 0 ? dit::Keyframe::kFirst
                                                         : dit::Keyframe::kLast);
      out->keyframes.push_back({visual(features, i, config), {}});
      continue;
    }
    ConditionLatents latents;
    dit::Reference reference;
    if (c.type != ConditionType::kAudio) {
      latents.visual = visual(features, i, config);
      reference.visual = shape_of(latents.visual);
    }
    const bool may_be_silent = c.type == ConditionType::kVideo;
    const std::string audio_name = "condition." + std::to_string(i) + ".audio";
    if (c.type != ConditionType::kImage && (!may_be_silent || features.has(audio_name))) {
      latents.audio = sound(features, i, config);
      reference.audio_latents = latents.audio.size(2);
    }
    reference.kind = c.type == ConditionType::kImage   ? dit::ReferenceKind::kImage
                     : c.type == ConditionType::kAudio ? dit::ReferenceKind::kAudio
                                                       : dit::ReferenceKind::kVideo;
    if (reference.kind == dit::ReferenceKind::kImage && reference.visual.frames != 1) {
      refuse("conditions[" + std::to_string(i) + "] is an image with " +
                 std::to_string(reference.visual.frames) + " latent frames; accepted: 1",
             "use type \"video\" for moving pictures");
    }
    out->layout.references.push_back(reference);
    out->references.push_back(std::move(latents));
  }
}

dit::Canvas canvas_of(const VideoRequest& request, const DenoiseRequest& out) {
  const AspectRatio& ratio = request.target.aspect_ratio;
  if (!ratio.is_auto()) {
    return dit::target_canvas(static_cast<double>(ratio.width), static_cast<double>(ratio.height),
                              request.target.short_edge);
  }
  if (!out.keyframes.empty()) {  // encoded on the canvas already
    const dit::LatentShape shape = shape_of(out.keyframes.front().visual);
    return {shape.width * dit::kPixelsPerLatent, shape.height * dit::kPixelsPerLatent};
  }
  return dit::target_canvas(16, 9, request.target.short_edge);
}

dit::Timing timing_of(const VideoRequest& request, const DenoiseRequest& out) {
  if (request.target.duration_seconds)
    return dit::timing_of_seconds(*request.target.duration_seconds);
  int64_t latents = 0, sounds = 0;
  for (const dit::Reference& reference : out.layout.references) {
    sounds += reference.audio_latents > 0;
    latents = std::max(latents, reference.audio_latents);
  }
  if (sounds != 1) {
    refuse("target.duration_seconds is absent and " + std::to_string(sounds) +
               " conditions have sound; accepted: exactly 1",
           "give target.duration_seconds");
  }
  const double seconds =
      static_cast<double>(latents) / static_cast<double>(dit::kAudioLatentsPerSecond);
  if (seconds < dit::kMinSeconds || seconds > dit::kMaxSeconds) {
    refuse("target.duration_seconds is absent and the sound of the condition lasts " +
               std::to_string(seconds) + " s; accepted: 4 to 15",
           "give target.duration_seconds");
  }
  return dit::timing_of_seconds(seconds);
}

}  // namespace

DenoiseInputs assemble_denoise(const VideoRequest& request, const std::string& features_path,
                               const dit::DitConfig& config, const ModelShifts& shifts,
                               int64_t forwards) {
  Features features(features_path);
  DenoiseInputs inputs;
  DenoiseRequest& out = inputs.request;
  out.text = features.floats("text");
  if (out.text.dim() != 2 || out.text.size(0) < 1 || out.text.size(1) != config.text_dim) {
    refuse(features.label("text") + " is " + sizes_text(out.text.sizes()) + "; accepted: [L, " +
               std::to_string(config.text_dim) + "] with L >= 1",
           "give the hidden states of the prompt, without a batch axis");
  }
  out.layout.text_rows = out.text.size(0);
  out.layout.text_is_vision = features.flags("text_is_vision", out.layout.text_rows);
  out.layout.text_is_video_pad = features.flags("text_is_video_pad", out.layout.text_rows);
  add_conditions(request, features, config, &out);
  features.refuse_left_over();

  inputs.canvas = canvas_of(request, out);
  inputs.timing = timing_of(request, out);
  out.layout.target = inputs.canvas.latents(inputs.timing.latent_frames);
  out.layout.target_audio_latents = inputs.timing.audio_latents;
  for (size_t i = 0; i < out.keyframes.size(); ++i) {
    const dit::LatentShape shape = shape_of(out.keyframes[i].visual);
    const dit::LatentShape& want = out.layout.target;
    if (shape.frames == 1 && shape.height == want.height && shape.width == want.width) continue;
    refuse("keyframe " + std::to_string(i) + " has latents " + std::to_string(shape.frames) +
               " x " + std::to_string(shape.height) + " x " + std::to_string(shape.width) +
               "; the canvas " + std::to_string(inputs.canvas.width) + "x" +
               std::to_string(inputs.canvas.height) + " needs 1 x " + std::to_string(want.height) +
               " x " + std::to_string(want.width),
           "encode keyframes on the canvas of the request");
  }
  for (size_t i = 0; i < out.layout.references.size(); ++i) {
    const dit::Reference& reference = out.layout.references[i];
    if (reference.kind != dit::ReferenceKind::kVideo) continue;
    const int64_t frames = reference.visual.frames;
    if (frames >= 7 && frames % 5 == 2 && frames <= out.layout.target.frames) continue;
    refuse("reference " + std::to_string(i) + " has " + std::to_string(frames) +
               " latent frames; accepted: 5 n + 2, at least 7, and no more than the target's " +
               std::to_string(out.layout.target.frames),
           "trim the video before it is encoded");
  }
  out.forwards = forwards;
  out.video_shift = request.flow_shift.value_or(shifts.video);
  out.audio_shift = request.audio_flow_shift.value_or(shifts.audio);
  // Found out here, not after the weights were read.
  for (const auto& [name, shift] :
       {std::pair{"flow_shift", out.video_shift}, std::pair{"audio_flow_shift", out.audio_shift}}) {
    try {
      dit::sigma_grid(forwards, shift);
    } catch (const Error& error) {
      refuse(std::string(name) + ": " + error.message(), error.hint());
    }
  }
  out.seed = static_cast<uint64_t>(request.seeds.front());
  out.visual_level = request.visual_condition_level;
  out.audio_level = request.audio_condition_level;
  return inputs;
}

}  // namespace h3::pipeline
