#include "h3/pipeline/request.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <limits>
#include <utility>

#include "h3/attention/names.h"
#include "h3/common/error.h"
#include "h3/pipeline/request_fields.h"
#include "h3/pipeline/strict_json.h"
#include "tessera/io/text.h"

namespace h3 {
namespace {

using nlohmann::json;
using namespace request_fields;

constexpr int64_t kMaxSeed = std::numeric_limits<int64_t>::max();
constexpr int64_t kMaxOutputs = 10, kMaxSteps = 1000;
// The checkpoint's limits on references.
constexpr size_t kMaxImages = 9, kMaxVideos = 3, kMaxAudios = 3, kMaxReferences = 12;

class RequestReader {
 public:
  VideoRequest read(const json& root, std::string_view label) {
    if (!root.is_object()) {
      fault("the request", "is {}; accepted: an object", describe_json(root));
    } else {
      top(root);
    }
    if (!faults_.empty()) {
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("{}: {}", label, fmt::join(faults_, "; ")));
    }
    return std::move(out_);
  }

 private:
  template <class... Args>
  void fault(const std::string& path, fmt::format_string<Args...> text, Args&&... args) {
    faults_.push_back(path + " " + fmt::format(text, std::forward<Args>(args)...));
  }

  template <class... Args>
  void warn(fmt::format_string<Args...> text, Args&&... args) {
    out_.warnings.push_back(fmt::format(text, std::forward<Args>(args)...));
  }

  // The member, or null.
  static const json& member(const json& object, const char* name) {
    static const json kNull;
    const auto it = object.find(name);
    return it == object.end() ? kNull : *it;
  }

  void refuse_value(const std::string& path, const json& value, const std::string& accepted) {
    if (value.is_null()) {
      fault(path, "is missing; accepted: {}", accepted);
    } else {
      fault(path, "is {}; accepted: {}", describe_json(value), accepted);
    }
  }

  std::optional<int64_t> integer(const std::string& path, const json& value, int64_t least,
                                 int64_t most, const std::string& accepted) {
    const bool fits = value.is_number_integer() &&
                      !(value.is_number_unsigned() && value.get<uint64_t>() > uint64_t(kMaxSeed));
    if (fits && value.get<int64_t>() >= least && value.get<int64_t>() <= most) {
      return value.get<int64_t>();
    }
    refuse_value(path, value, accepted);
    return std::nullopt;
  }

  template <class Accept>
  std::optional<double> number(const std::string& path, const json& value, Accept accept,
                               const std::string& accepted) {
    if (value.is_number() && std::isfinite(value.get<double>()) && accept(value.get<double>())) {
      return value.get<double>();
    }
    refuse_value(path, value, accepted);
    return std::nullopt;
  }

  std::optional<std::string> text(const std::string& path, const json& value,
                                  const std::string& accepted = "text that is not empty") {
    if (value.is_string() && !value.get_ref<const std::string&>().empty()) {
      return value.get<std::string>();
    }
    refuse_value(path, value, accepted);
    return std::nullopt;
  }

  template <class Value, size_t kCount>
  std::optional<Value> choice(const std::string& path, const json& value,
                              const std::array<std::pair<const char*, Value>, kCount>& choices) {
    Names names;
    for (const auto& [name, option] : choices) {
      if (value.is_string() && value.get_ref<const std::string&>() == name) return option;
      names.push_back(name);
    }
    refuse_value(path, value, fmt::format("{}", fmt::join(names, ", ")));
    return std::nullopt;
  }

  static std::string nearest(const std::string& name, const Names& known) {
    const std::string near = nearest_name(name, known);
    return near.empty() ? fmt::format("known fields: {}", fmt::join(known, ", "))
                        : fmt::format("nearest is {}", near);
  }

  static std::string shown(const std::string& name) {
    return tessera::io::detail::printable(name, 60);
  }

  void top(const json& root) {
    for (const auto& [name, value] : root.items()) top_field(name, value);
    if (const auto task = choice(
            "task", member(root, "task"),
            std::array{std::pair{"t2va", VideoTask::kT2va}, std::pair{"fl2va", VideoTask::kFl2va},
                       std::pair{"ref2va", VideoTask::kRef2va}})) {
      task_known_ = true;
      out_.task = *task;
    }
    if (auto prompt = text("prompt", member(root, "prompt"))) out_.prompt = std::move(*prompt);
    target(member(root, "target"));
    conditions(member(root, "conditions"));
    sampling(root);
    seeds(root);
  }

  void top_field(const std::string& name, const json& value) {
    if (contains(kTop, name)) return;
    if (const Rejected* r = rejected(name)) {
      if (value.is_null() || (r->false_is_absent && value == false)) return;
      return fault(name, "is {}; accepted: nothing, {}", describe_json(value), r->reason);
    }
    if (!contains(kIgnored, name)) {
      return fault(shown(name), "is an unknown field; {}", nearest(name, kTop));
    }
    if (!value.is_null()) warn("{} has no effect; target defines length and size", name);
  }

  void target(const json& value) {
    if (!value.is_object()) return refuse_value("target", value, "an object");
    for (const auto& [name, ignored] : value.items()) {
      if (!contains(kTarget, name)) {
        warn("target.{} has no effect; {}", shown(name), nearest(name, kTarget));
      }
    }
    if (const auto edge = integer("target.short_edge", member(value, "short_edge"), 1, kMaxSeed,
                                  "integers above 0, 768 is the verified one")) {
      out_.target.short_edge = *edge;
      if (*edge != dit::kShortEdge) {
        warn("target.short_edge is {}; only {} is verified", *edge, dit::kShortEdge);
      }
    }
    aspect(member(value, "aspect_ratio"));
    const json& duration = member(value, "duration_seconds");
    if (duration.is_null()) {
      if (task_known_ && out_.task != VideoTask::kRef2va) {
        fault("target.duration_seconds", "is missing; accepted: 4 to 15");
      }
      return;
    }
    out_.target.duration_seconds = number(
        "target.duration_seconds", duration,
        [](double s) { return s >= dit::kMinSeconds && s <= dit::kMaxSeconds; }, "4 to 15");
    bad_duration_ = !out_.target.duration_seconds;
  }

  void aspect(const json& value) {
    const std::string path = "target.aspect_ratio";
    const bool free = task_known_ && out_.task == VideoTask::kFl2va;
    const std::string accepted = free ? "auto, or W:H in integers, 1:4 to 4:1"
                                      : fmt::format("auto, {}", fmt::join(kAspects, ", "));
    const auto given = text(path, value, accepted);
    if (!given || *given == "auto") return;
    const auto ratio = parse_aspect(*given);
    // While the task is wrong, only what no task accepts is a fault.
    if (!ratio || (task_known_ && !free && !contains(kAspects, *given))) {
      return refuse_value(path, value, accepted);
    }
    out_.target.aspect_ratio = *ratio;
  }

  static std::optional<AspectRatio> parse_aspect(const std::string& given) {
    AspectRatio r;
    const char* const end = given.data() + given.size();
    constexpr int64_t kMost = 1'000'000;
    const auto first = std::from_chars(given.data(), end, r.width);
    if (first.ec != std::errc{} || first.ptr == end || *first.ptr != ':') return std::nullopt;
    const auto second = std::from_chars(first.ptr + 1, end, r.height);
    if (second.ec != std::errc{} || second.ptr != end) return std::nullopt;
    if (r.width < 1 || r.height < 1 || r.width > kMost || r.height > kMost) return std::nullopt;
    if (r.width > dit::kMaxAspect * r.height || r.height > dit::kMaxAspect * r.width) {
      return std::nullopt;
    }
    return r;
  }

  void conditions(const json& value) {
    if (!value.is_null() && !value.is_array()) return refuse_value("conditions", value, "a list");
    bool all_read = true;
    for (size_t i = 0; i < value.size() && value.is_array(); ++i) {
      all_read &= condition(fmt::format("conditions[{}]", i), value[i]);
    }
    // Rules on the whole list would only echo the faults of its entries.
    if (all_read && task_known_) whole_list();
  }

  bool condition(const std::string& path, const json& value) {
    const size_t before = faults_.size();
    if (!value.is_object()) {
      refuse_value(path, value, "an object");
      return false;
    }
    for (const auto& [name, ignored] : value.items()) {
      if (!contains(kCondition, name)) {
        fault(path + "." + shown(name), "is an unknown field; {}", nearest(name, kCondition));
      }
    }
    RequestCondition c;
    const auto type = choice(path + ".type", member(value, "type"),
                             std::array{std::pair{"image", ConditionType::kImage},
                                        std::pair{"video", ConditionType::kVideo},
                                        std::pair{"video_audio", ConditionType::kVideoAudio},
                                        std::pair{"audio", ConditionType::kAudio}});
    const auto role = choice(path + ".role", member(value, "role"),
                             std::array{std::pair{"keyframe", ConditionRole::kKeyframe},
                                        std::pair{"reference", ConditionRole::kReference}});
    if (auto uri = text(path + ".uri", member(value, "uri"))) c.uri = std::move(*uri);
    if (type) c.type = *type;
    if (role) c.role = *role;
    if (type && role) roles(path, c);
    if (role) frame_index(path + ".frame_index", member(value, "frame_index"), &c);
    if (type) start_time(path + ".start_time_seconds", member(value, "start_time_seconds"), &c);
    out_.conditions.push_back(std::move(c));
    return faults_.size() == before;
  }

  void roles(const std::string& path, const RequestCondition& c) {
    if (c.role == ConditionRole::kKeyframe && c.type != ConditionType::kImage) {
      fault(path + ".type", "is not image; accepted for a keyframe: image");
    }
    if (c.role == ConditionRole::kReference && task_known_ && out_.task == VideoTask::kFl2va) {
      fault(path + ".role", "is reference; accepted for fl2va: keyframe");
    }
  }

  void frame_index(const std::string& path, const json& value, RequestCondition* c) {
    if (c->role == ConditionRole::kKeyframe) {
      c->frame_index = integer(path, value, -1, 0, "0 for the first frame, -1 for the last");
    } else if (!value.is_null()) {
      refuse_value(path, value, "nothing for a reference");
    }
  }

  void start_time(const std::string& path, const json& value, RequestCondition* c) {
    if (value.is_null()) return;
    if (c->type != ConditionType::kVideo && c->type != ConditionType::kVideoAudio) {
      return refuse_value(path, value, "nothing but for video and video_audio");
    }
    const auto seconds = number(
        path, value, [](double s) { return s >= 0; }, "0 or more seconds");
    c->start_time_seconds = seconds.value_or(0);
  }

  size_t count(ConditionRole role, std::initializer_list<ConditionType> types) const {
    return size_t(std::count_if(
        out_.conditions.begin(), out_.conditions.end(), [&](const RequestCondition& c) {
          return c.role == role && std::find(types.begin(), types.end(), c.type) != types.end();
        }));
  }

  void whole_list() {
    using enum ConditionType;
    const size_t total = out_.conditions.size();
    const size_t keyframes = count(ConditionRole::kKeyframe, {kImage});
    if (out_.task == VideoTask::kT2va) {
      if (total > 0) fault("conditions", "has {} entries; accepted for t2va: none", total);
      return;
    }
    if (total == 0) {
      return fault("conditions", "is empty; accepted for {}: {}", to_text(out_.task),
                   out_.task == VideoTask::kFl2va ? "1 or 2 keyframes" : "1 or more references");
    }
    if (keyframes > 0) keyframe_order();
    if (out_.task == VideoTask::kFl2va) return;
    const size_t images = count(ConditionRole::kReference, {kImage});
    const size_t videos = count(ConditionRole::kReference, {kVideo, kVideoAudio});
    const size_t audios = count(ConditionRole::kReference, {kAudio});
    const auto at_most = [&](const char* what, size_t got, size_t most) {
      if (got > most) fault("conditions", "has {} {}; accepted: at most {}", got, what, most);
    };
    at_most("reference images", images, kMaxImages);
    at_most("reference videos", videos, kMaxVideos);
    at_most("reference audios", audios, kMaxAudios);
    at_most("references", images + videos + audios, kMaxReferences);
    if (images + videos + audios == 0) {
      fault("conditions",
            "has keyframes only; accepted for ref2va: 1 or more references, or task "
            "fl2va");
    } else if (images + videos == 0) {
      fault("conditions", "has audio references only; accepted: at least one image or video");
    }
    if (!out_.target.duration_seconds && !bad_duration_)
      duration_source(keyframes, videos + audios);
  }

  void keyframe_order() {
    std::vector<int64_t> indices;
    for (const RequestCondition& c : out_.conditions) {
      if (c.role == ConditionRole::kKeyframe) indices.push_back(c.frame_index.value_or(0));
    }
    const bool good = indices.size() == 1 || indices == std::vector<int64_t>{0, -1};
    if (good) return;
    fault("conditions", "has keyframes with frame_index [{}]; accepted: [0], [-1] or [0, -1]",
          fmt::join(indices, ", "));
  }

  void duration_source(size_t keyframes, size_t with_sound) {
    const std::string path = "target.duration_seconds";
    if (keyframes > 0) return fault(path, "is missing; accepted with keyframes: 4 to 15");
    if (with_sound == 1) return;
    fault(path,
          "is missing; accepted: 4 to 15, or nothing with exactly one audio, video or video_audio "
          "condition, got {}",
          with_sound);
  }

  void sampling(const json& root) {
    const auto positive = [&](const char* name, std::optional<double>* out) {
      const json& value = member(root, name);
      if (value.is_null()) return;
      *out = number(
          name, value, [](double s) { return s > 0; }, "a finite number above 0");
    };
    positive("flow_shift", &out_.flow_shift);
    positive("audio_flow_shift", &out_.audio_flow_shift);
    const auto level = [&](const char* name, double* out) {
      const json& value = member(root, name);
      if (value.is_null()) return;
      *out = number(
                 name, value, [](double s) { return s >= 0 && s <= 1; }, "0 to 1")
                 .value_or(0);
    };
    level("imgvid_cond_noise_aug_for_inference", &out_.visual_condition_level);
    level("audio_cond_noise_aug_for_inference", &out_.audio_condition_level);
    if (const json& value = member(root, "num_inference_steps"); !value.is_null()) {
      out_.num_inference_steps =
          integer("num_inference_steps", value, 1, kMaxSteps, fmt::format("1 to {}", kMaxSteps))
              .value_or(1);
    }
    if (const json& value = member(root, "quality"); !value.is_null()) {
      out_.quality = choice("quality", value,
                            std::array{std::pair{"exact", Quality::kExact},
                                       std::pair{"lossless", Quality::kLossless},
                                       std::pair{"high", Quality::kHigh}})
                         .value_or(Quality::kLossless);
    }
    if (const json& value = member(root, "reference_resize_mode"); !value.is_null()) {
      using enum dit::ReferenceResize;
      out_.reference_resize = choice("reference_resize_mode", value,
                                     std::array{std::pair{"diffusers", kDiffusers},
                                                std::pair{"match", kMatch}, std::pair{"max", kMax}})
                                  .value_or(kDiffusers);
    }
    fixed_text(root, "output_mode", "decoded_files");
    fixed_text(root, "schema", kSchema);
    attention(member(root, "attention"), member(root, "attention_backend_override"));
  }

  void fixed_text(const json& root, const char* name, std::string_view only) {
    const json& value = member(root, name);
    if (!value.is_null() && value != only) refuse_value(name, value, std::string(only));
  }

  // attention_backend_override is the published name for the backend alone.
  void attention(const json& whole, const json& backend) {
    if (!whole.is_null() && !backend.is_null()) {
      return fault("attention_backend_override", "stands beside attention; accepted: one of them");
    }
    if (whole.is_null() && backend.is_null()) return;
    try {
      out_.attention = backend.is_null()
                           ? parse_attention_override(whole.dump(), "attention")
                           : parse_attention_override(json{{"backend", backend}}.dump(),
                                                      "attention_backend_override");
    } catch (const Error& e) {
      faults_.push_back(e.what());
    }
  }

  void seeds(const json& root) {
    const std::string accepted = fmt::format("1 to {}", kMaxOutputs);
    std::optional<int64_t> outputs;
    bool good = true;
    for (const char* name : {"num_outputs_per_prompt", "n"}) {
      const json& value = member(root, name);
      if (value.is_null()) continue;
      const auto got = integer(name, value, 1, kMaxOutputs, accepted);
      if (got && outputs && *got != *outputs) {
        fault(name, "is {} and num_outputs_per_prompt is {}; accepted: one of them", *got,
              *outputs);
      }
      good &= got.has_value();
      if (got) outputs = got;
    }
    const json& value = member(root, "seed");
    if (value.is_array()) return seed_list(value, outputs, good);
    const int64_t n = outputs.value_or(1);
    int64_t first = out_.seeds.front();
    if (!value.is_null()) {
      const auto got = integer("seed", value, 0, kMaxSeed, fmt::format("0 to {}", kMaxSeed));
      if (!got) return;
      first = *got;
    }
    if (first > kMaxSeed - (n - 1)) {
      return fault("seed", "is {}, and the last of {} outputs would exceed {}; accepted: 0 to {}",
                   first, n, kMaxSeed, kMaxSeed - (n - 1));
    }
    out_.seeds.clear();
    for (int64_t k = 0; k < n; ++k) out_.seeds.push_back(first + k);
  }

  void seed_list(const json& value, std::optional<int64_t> outputs, bool outputs_good) {
    const int64_t n = int64_t(value.size());
    if (n < 1 || n > kMaxOutputs || (outputs_good && outputs.value_or(n) != n)) {
      return fault("seed", "has {} entries; accepted: one per output, {}", n,
                   outputs ? std::to_string(*outputs) : fmt::format("1 to {}", kMaxOutputs));
    }
    out_.seeds.clear();
    for (int64_t k = 0; k < n; ++k) {
      out_.seeds.push_back(integer(fmt::format("seed[{}]", k), value[size_t(k)], 0, kMaxSeed,
                                   fmt::format("0 to {}", kMaxSeed))
                               .value_or(0));
    }
  }

  VideoRequest out_;
  std::vector<std::string> faults_;
  bool task_known_ = false;
  bool bad_duration_ = false;  // given, and a fault already
};

}  // namespace

std::string_view to_text(VideoTask task) {
  switch (task) {
    case VideoTask::kT2va: return "t2va";
    case VideoTask::kFl2va: return "fl2va";
    case VideoTask::kRef2va: return "ref2va";
  }
  return "no task";
}

VideoRequest parse_video_request(std::string_view text, std::string_view label) {
  return RequestReader().read(parse_strict_json(text, label), label);
}

}  // namespace h3
