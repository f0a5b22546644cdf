// One case per rule of the canonical request. Cases change one valid request by a JSON merge patch.
#include "h3/pipeline/request.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "h3/common/error.h"
#include "h3/pipeline/request_fields.h"

namespace h3 {
namespace {

using nlohmann::json;

constexpr const char* kImage = R"({"type": "image", "uri": "a.png", "role": "reference"})";
constexpr const char* kVideo = R"({"type": "video", "uri": "a.mp4", "role": "reference"})";
constexpr const char* kSound = R"({"type": "audio", "uri": "a.wav", "role": "reference"})";
constexpr const char* kFirst =
    R"({"type": "image", "uri": "a.png", "role": "keyframe", "frame_index": 0})";
constexpr const char* kLast =
    R"({"type": "image", "uri": "b.png", "role": "keyframe", "frame_index": -1})";

json base(const std::string& task) {
  json request = json::parse(R"({
    "task": "", "prompt": "a cat", "conditions": [],
    "target": {"short_edge": 768, "aspect_ratio": "16:9", "duration_seconds": 5}})");
  request["task"] = task;
  if (task == "fl2va") request["conditions"] = json::parse(std::string("[") + kFirst + "]");
  if (task == "ref2va") request["conditions"] = json::parse(std::string("[") + kImage + "]");
  return request;
}

json list(std::initializer_list<std::pair<const char*, int>> entries) {
  json out = json::array();
  for (const auto& [entry, times] : entries) {
    for (int i = 0; i < times; ++i) out.push_back(json::parse(entry));
  }
  return out;
}

std::string faults(const std::string& text) {
  try {
    parse_video_request(text, "r.json");
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::kInvalidArgument);
    EXPECT_EQ(e.message().rfind("r.json: ", 0), 0u) << e.message();
    return e.what();
  }
  return {};
}

VideoRequest accepted(const json& request) { return parse_video_request(request.dump(), "r.json"); }

struct Fault {
  const char* task;
  const char* patch;  // JSON merge patch
  const char* expected;
};

class RequestFault : public testing::TestWithParam<Fault> {};

TEST_P(RequestFault, NamesTheField) {
  const Fault& f = GetParam();
  ASSERT_EQ(faults(base(f.task).dump()), "") << "the unchanged request must be valid";
  // Not json::merge_patch: it takes null for "remove", which is a case here as well.
  json request = base(f.task);
  const json patch = json::parse(f.patch);
  for (const auto& [name, value] : patch.items()) {
    if (name == "target" && value.is_object()) {
      for (const auto& [inner, v] : value.items()) request["target"][inner] = v;
    } else {
      request[name] = value;
    }
  }
  const std::string text = faults(request.dump());
  EXPECT_NE(text.find(std::string("r.json: ") + f.expected), std::string::npos)
      << "expected: " << f.expected << "\ngot: " << text;
}

INSTANTIATE_TEST_SUITE_P(
    Text, RequestFault,
    testing::Values(
        Fault{"t2va", R"({"task": null})", "task is missing; accepted: t2va, fl2va, ref2va"},
        Fault{"t2va", R"({"task": "T2VA"})", "task is 'T2VA'; accepted: t2va"},
        Fault{"t2va", R"({"task": 1})", "task is 1; accepted"},
        Fault{"t2va", R"({"prompt": null})", "prompt is missing"},
        Fault{"t2va", R"({"prompt": ""})", "prompt is ''; accepted: text"},
        Fault{"t2va", R"({"prompt": ["a"]})", "prompt is a list of 1"},
        Fault{"t2va", R"({"promt": "a"})", "promt is an unknown field; nearest is prompt"},
        Fault{"t2va", R"({"zzzzzzzzz": null})", "zzzzzzzzz is an unknown field; known fields"},
        Fault{"t2va", R"({"schema": "minimax_h3.request/v2"})",
              "schema is 'minimax_h3.request/v2'"},
        Fault{"t2va", R"({"output_mode": "latents"})", "output_mode is 'latents'; accepted: dec"},
        Fault{"t2va", R"({"quality": "extra-high"})",
              "quality is 'extra-high'; accepted: exact, lossless, high"},
        Fault{"ref2va", R"({"reference_resize_mode": "min"})",
              "reference_resize_mode is 'min'; accepted: diffusers, match, max"}));

INSTANTIATE_TEST_SUITE_P(
    Target, RequestFault,
    testing::Values(
        Fault{"t2va", R"({"target": null})", "target is missing; accepted: an object"},
        Fault{"t2va", R"({"target": "16:9"})", "target is '16:9'; accepted: an object"},
        Fault{"t2va", R"({"target": {"short_edge": null}})", "target.short_edge is missing"},
        Fault{"t2va", R"({"target": {"short_edge": 0}})", "target.short_edge is 0; accepted"},
        Fault{"t2va", R"({"target": {"short_edge": -768}})", "target.short_edge is -768"},
        Fault{"t2va", R"({"target": {"short_edge": 768.5}})", "target.short_edge is 768.5"},
        Fault{"t2va", R"({"target": {"short_edge": "768"}})", "target.short_edge is '768'"},
        Fault{"t2va", R"({"target": {"short_edge": true}})", "target.short_edge is true"},
        Fault{"t2va", R"({"target": {"short_edge": 18446744073709551615}})",
              "target.short_edge is 18446744073709551615"},
        Fault{"t2va", R"({"target": {"duration_seconds": 20}})",
              "target.duration_seconds is 20; accepted: 4 to 15"},
        Fault{"t2va", R"({"target": {"duration_seconds": 3.99}})",
              "target.duration_seconds is 3.99; accepted: 4 to 15"},
        Fault{"t2va", R"({"target": {"duration_seconds": "5"}})", "target.duration_seconds is '5'"},
        Fault{"t2va", R"({"target": {"duration_seconds": true}})",
              "target.duration_seconds is true"},
        Fault{"t2va", R"({"target": {"duration_seconds": null}})",
              "target.duration_seconds is missing; accepted: 4 to 15"},
        Fault{"fl2va", R"({"target": {"duration_seconds": null}})",
              "target.duration_seconds is missing; accepted: 4 to 15"},
        Fault{"t2va", R"({"target": {"aspect_ratio": null}})", "target.aspect_ratio is missing"},
        Fault{"t2va", R"({"target": {"aspect_ratio": "2:1"}})",
              "target.aspect_ratio is '2:1'; accepted: auto, 21:9, 16:9"},
        Fault{"ref2va", R"({"target": {"aspect_ratio": "32:18"}})",
              "target.aspect_ratio is '32:18'"},
        Fault{"t2va", R"({"target": {"aspect_ratio": 1.5}})", "target.aspect_ratio is 1.5"},
        Fault{"fl2va", R"({"target": {"aspect_ratio": "5:1"}})",
              "target.aspect_ratio is '5:1'; accepted: auto, or W:H in integers, 1:4 to 4:1"},
        Fault{"fl2va", R"({"target": {"aspect_ratio": "0:1"}})", "target.aspect_ratio is '0:1'"},
        Fault{"fl2va", R"({"target": {"aspect_ratio": "1:"}})", "target.aspect_ratio is '1:'"},
        Fault{"fl2va", R"({"target": {"aspect_ratio": "16:9 "}})",
              "target.aspect_ratio is '16:9 '"},
        Fault{"fl2va", R"({"target": {"aspect_ratio": "1.5:1"}})",
              "target.aspect_ratio is '1.5:1'"},
        Fault{"fl2va", R"({"target": {"aspect_ratio": "Auto"}})",
              "target.aspect_ratio is 'Auto'"}));

INSTANTIATE_TEST_SUITE_P(
    Numbers, RequestFault,
    testing::Values(
        Fault{"t2va", R"({"flow_shift": 0})", "flow_shift is 0; accepted: a finite number above 0"},
        Fault{"t2va", R"({"flow_shift": -3})", "flow_shift is -3"},
        Fault{"t2va", R"({"flow_shift": "12"})", "flow_shift is '12'"},
        Fault{"t2va", R"({"flow_shift": true})", "flow_shift is true"},
        Fault{"t2va", R"({"audio_flow_shift": 0.0})", "audio_flow_shift is 0.0"},
        Fault{"t2va", R"({"seed": -1})", "seed is -1; accepted: 0 to 9223372036854775807"},
        Fault{"t2va", R"({"seed": 9223372036854775808})", "seed is 9223372036854775808"},
        Fault{"t2va", R"({"seed": 1.0})", "seed is 1.0"},
        Fault{"t2va", R"({"seed": "7"})", "seed is '7'"},
        Fault{"t2va", R"({"seed": 9223372036854775806, "n": 3})",
              "seed is 9223372036854775806, and the last of 3 outputs would exceed"},
        Fault{"t2va", R"({"seed": []})", "seed has 0 entries; accepted: one per output, 1 to 10"},
        Fault{"t2va", R"({"seed": [1, 2], "n": 3})",
              "seed has 2 entries; accepted: one per output, 3"},
        Fault{"t2va", R"({"seed": [1, -2]})", "seed[1] is -2; accepted: 0 to"},
        Fault{"t2va", R"({"seed": [1,2,3,4,5,6,7,8,9,10,11]})", "seed has 11 entries"},
        Fault{"t2va", R"({"num_inference_steps": 0})",
              "num_inference_steps is 0; accepted: 1 to 1000"},
        Fault{"t2va", R"({"num_inference_steps": 1001})", "num_inference_steps is 1001"},
        Fault{"t2va", R"({"num_inference_steps": 8.5})", "num_inference_steps is 8.5"},
        Fault{"t2va", R"({"n": 0})", "n is 0; accepted: 1 to 10"},
        Fault{"t2va", R"({"n": 11})", "n is 11; accepted: 1 to 10"},
        Fault{"t2va", R"({"num_outputs_per_prompt": 0})", "num_outputs_per_prompt is 0"},
        Fault{"t2va", R"({"n": 2, "num_outputs_per_prompt": 3})",
              "n is 2 and num_outputs_per_prompt is 3"},
        Fault{"t2va", R"({"imgvid_cond_noise_aug_for_inference": 1.01})",
              "imgvid_cond_noise_aug_for_inference is 1.01; accepted: 0 to 1"},
        Fault{"t2va", R"({"audio_cond_noise_aug_for_inference": -0.5})",
              "audio_cond_noise_aug_for_inference is -0.5; accepted: 0 to 1"},
        Fault{"t2va", R"({"attention": {"sparsity": 1.5}})", "attention: sparsity must be"},
        Fault{"t2va", R"({"attention": {"sparsty": 0.5}})", "attention: unknown field 'sparsty'"},
        Fault{"t2va", R"({"attention": "fa"})", "attention: a JSON object or null is needed"},
        Fault{"t2va", R"({"attention_backend_override": 3})",
              "attention_backend_override: backend"},
        Fault{"t2va", R"({"attention": {"off": true}, "attention_backend_override": "fa"})",
              "attention_backend_override stands beside attention"}));

INSTANTIATE_TEST_SUITE_P(
    Conditions, RequestFault,
    testing::Values(
        Fault{"t2va", R"({"conditions": {}})", "conditions is an object; accepted: a list"},
        Fault{"t2va", R"({"conditions": [{"type": "image", "uri": "a", "role": "reference"}]})",
              "conditions has 1 entries; accepted for t2va: none"},
        Fault{"fl2va", R"({"conditions": []})",
              "conditions is empty; accepted for fl2va: 1 or 2 keyframes"},
        Fault{"ref2va", R"({"conditions": null})", "conditions is empty; accepted for ref2va"},
        Fault{"ref2va", R"({"conditions": ["a.png"]})",
              "conditions[0] is 'a.png'; accepted: an object"},
        Fault{"ref2va",
              R"({"conditions": [{"type": "image", "uri": "a", "role": "reference", "url": "b"}]})",
              "conditions[0].url is an unknown field; nearest is uri"},
        Fault{"ref2va", R"({"conditions": [{"type": "gif", "uri": "a", "role": "reference"}]})",
              "conditions[0].type is 'gif'; accepted: image, video, video_audio, audio"},
        Fault{"ref2va", R"({"conditions": [{"type": "image", "uri": "a", "role": "style"}]})",
              "conditions[0].role is 'style'; accepted: keyframe, reference"},
        Fault{"ref2va", R"({"conditions": [{"uri": "a", "role": "reference"}]})",
              "conditions[0].type is missing"},
        Fault{"ref2va", R"({"conditions": [{"type": "image", "uri": "a"}]})",
              "conditions[0].role is missing"},
        Fault{"ref2va", R"({"conditions": [{"type": "image", "uri": "", "role": "reference"}]})",
              "conditions[0].uri is ''"},
        Fault{"ref2va", R"({"conditions": [{"type": "image", "role": "reference"}]})",
              "conditions[0].uri is missing"},
        Fault{"fl2va", R"({"conditions": [{"type": "image", "uri": "a", "role": "reference"}]})",
              "conditions[0].role is reference; accepted for fl2va: keyframe"},
        Fault{"fl2va",
              R"({"conditions": [{"type":"video","uri":"a","role":"keyframe","frame_index":0}]})",
              "conditions[0].type is not image; accepted for a keyframe: image"},
        Fault{"fl2va", R"({"conditions": [{"type": "image", "uri": "a", "role": "keyframe"}]})",
              "conditions[0].frame_index is missing; accepted: 0 for the first frame, -1"},
        Fault{"fl2va",
              R"({"conditions": [{"type":"image","uri":"a","role":"keyframe","frame_index":60}]})",
              "conditions[0].frame_index is 60"},
        Fault{"fl2va",
              R"({"conditions": [{"type":"image","uri":"a","role":"keyframe","frame_index":-2}]})",
              "conditions[0].frame_index is -2"},
        Fault{"ref2va",
              R"({"conditions": [{"type":"image","uri":"a","role":"reference","frame_index":0}]})",
              "conditions[0].frame_index is 0; accepted: nothing for a reference"},
        Fault{"ref2va",
              R"({"conditions": [{"type":"image","uri":"a","role":"reference",
                                  "start_time_seconds":1}]})",
              "conditions[0].start_time_seconds is 1; accepted: nothing but for video"},
        Fault{"ref2va",
              R"({"conditions": [{"type":"video","uri":"a","role":"reference",
                                  "start_time_seconds":-1}]})",
              "conditions[0].start_time_seconds is -1; accepted: 0 or more seconds"}));

struct ListFault {
  const char* task;
  json conditions;
  const char* expected;
  bool without_duration = false;
};

TEST(Request, WholeListOfConditions_IsChecked) {
  const ListFault cases[] = {
      {"fl2va", list({{kLast, 1}, {kFirst, 1}}),
       "conditions has keyframes with frame_index [-1, 0]"},
      {"fl2va", list({{kFirst, 2}}), "conditions has keyframes with frame_index [0, 0]"},
      {"fl2va", list({{kLast, 2}}), "conditions has keyframes with frame_index [-1, -1]"},
      {"fl2va", list({{kFirst, 1}, {kLast, 2}}), "frame_index [0, -1, -1]; accepted"},
      {"ref2va", list({{kImage, 10}}), "conditions has 10 reference images; accepted: at most 9"},
      {"ref2va", list({{kVideo, 4}}), "conditions has 4 reference videos; accepted: at most 3"},
      {"ref2va", list({{kImage, 1}, {kSound, 4}}),
       "conditions has 4 reference audios; accepted: at"},
      {"ref2va", list({{kImage, 9}, {kVideo, 3}, {kSound, 1}}),
       "conditions has 13 references; accepted: at most 12"},
      {"ref2va", list({{kSound, 1}}), "conditions has audio references only"},
      {"ref2va", list({{kFirst, 1}}), "conditions has keyframes only"},
      {"ref2va", list({{kLast, 1}, {kFirst, 1}, {kImage, 1}}), "frame_index [-1, 0]; accepted"},
      {"ref2va", list({{kImage, 1}}), "target.duration_seconds is missing", true},
      {"ref2va", list({{kVideo, 1}, {kSound, 1}}), "exactly one audio, video or video_audio", true},
      {"ref2va", list({{kFirst, 1}, {kVideo, 1}}),
       "target.duration_seconds is missing; accepted with keyframes", true},
  };
  for (const ListFault& c : cases) {
    json request = base(c.task);
    request["conditions"] = c.conditions;
    if (c.without_duration) request["target"].erase("duration_seconds");
    const std::string text = faults(request.dump());
    EXPECT_NE(text.find(c.expected), std::string::npos) << c.expected << "\ngot: " << text;
  }
}

TEST(Request, RejectedFields_AreRefusedWithTheReason) {
  for (const char* name :
       {"num_frames", "fps", "guidance_scale", "guidance_scale_2", "true_cfg_scale",
        "audio_guidance_scale", "negative_prompt", "enable_frame_interpolation", "enable_upscaling",
        "enable_teacache", "enable_cache_dit", "return_trajectory_latents", "enable_spectrum"}) {
    json request = base("t2va");
    request[name] = true;
    const std::string text = faults(request.dump());
    EXPECT_NE(text.find(std::string(name) + " is true; accepted: nothing, "), std::string::npos)
        << text;
    request[name] = nullptr;
    EXPECT_EQ(faults(request.dump()), "") << name;
  }
  json request = base("t2va");
  request["enable_teacache"] = false;
  EXPECT_EQ(faults(request.dump()), "");
  request["guidance_scale"] = 0;
  EXPECT_NE(faults(request.dump()), "");
}

TEST(Request, AllFaults_AreListedAtOnce) {
  json request = base("t2va");
  request["prompt"] = "";
  request["seed"] = -1;
  request["fps"] = 30;
  request["target"]["duration_seconds"] = 20;
  request["target"]["aspect_ratio"] = "7";
  const std::string text = faults(request.dump());
  for (const char* part : {"prompt is ''", "seed is -1", "fps is 30",
                           "target.duration_seconds is 20", "target.aspect_ratio is '7'"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << "\ngot: " << text;
  }
}

TEST(Request, Defaults_AreThePublishedOnes) {
  const VideoRequest r = accepted(base("t2va"));
  EXPECT_EQ(r.task, VideoTask::kT2va);
  EXPECT_EQ(r.prompt, "a cat");
  EXPECT_TRUE(r.conditions.empty());
  EXPECT_EQ(r.target.short_edge, 768);
  EXPECT_EQ(r.target.aspect_ratio, (AspectRatio{16, 9}));
  EXPECT_EQ(r.target.duration_seconds, 5.0);
  EXPECT_EQ(r.seeds, std::vector<int64_t>{42});
  EXPECT_EQ(r.num_inference_steps, 50);
  EXPECT_EQ(r.quality, Quality::kLossless);
  EXPECT_EQ(r.visual_condition_level, 0.999);
  EXPECT_EQ(r.audio_condition_level, 1.0);
  EXPECT_EQ(r.reference_resize, dit::ReferenceResize::kDiffusers);
  EXPECT_FALSE(r.flow_shift || r.audio_flow_shift);
  EXPECT_TRUE(r.attention.empty());
  EXPECT_TRUE(r.warnings.empty());
}

TEST(Request, EveryField_IsRead) {
  json request = base("ref2va");
  request.update(json::parse(R"({
    "schema": "minimax_h3.request/v1", "output_mode": "decoded_files",
    "flow_shift": 8, "audio_flow_shift": 2.5, "seed": 7, "n": 3, "num_inference_steps": 8,
    "quality": "exact", "reference_resize_mode": "match",
    "imgvid_cond_noise_aug_for_inference": 0.5, "audio_cond_noise_aug_for_inference": 0,
    "attention": {"backend": "subblock_sparse_attn", "sparsity": 0.5},
    "target": {"short_edge": 768, "aspect_ratio": "auto", "duration_seconds": 4.5},
    "conditions": [
      {"type": "image", "uri": "a.png", "role": "keyframe", "frame_index": 0},
      {"type": "image", "uri": "b.png", "role": "keyframe", "frame_index": -1},
      {"type": "video_audio", "uri": "file:///c.mp4", "role": "reference",
       "start_time_seconds": 1.5},
      {"type": "audio", "uri": "d.wav", "role": "reference"}]})"));
  const VideoRequest r = accepted(request);
  EXPECT_EQ(r.flow_shift, 8.0);
  EXPECT_EQ(r.audio_flow_shift, 2.5);
  EXPECT_EQ(r.seeds, (std::vector<int64_t>{7, 8, 9}));
  EXPECT_EQ(r.num_inference_steps, 8);
  EXPECT_EQ(r.quality, Quality::kExact);
  EXPECT_EQ(r.reference_resize, dit::ReferenceResize::kMatch);
  EXPECT_EQ(r.visual_condition_level, 0.5);
  EXPECT_EQ(r.audio_condition_level, 0.0);
  EXPECT_EQ(r.attention.backend, BackendId::kSubBlock);
  EXPECT_EQ(r.attention.sparsity, 0.5);
  EXPECT_TRUE(r.target.aspect_ratio.is_auto());
  ASSERT_EQ(r.conditions.size(), 4u);
  EXPECT_EQ(r.conditions[1],
            (RequestCondition{ConditionType::kImage, ConditionRole::kKeyframe, "b.png", -1, 0}));
  EXPECT_EQ(r.conditions[2],
            (RequestCondition{ConditionType::kVideoAudio, ConditionRole::kReference,
                              "file:///c.mp4", std::nullopt, 1.5}));
  EXPECT_EQ(r.conditions[3].type, ConditionType::kAudio);
}

TEST(Request, SeedLists_GiveOneOutputEach) {
  json request = base("t2va");
  request["seed"] = {5, 0, INT64_MAX};
  EXPECT_EQ(accepted(request).seeds, (std::vector<int64_t>{5, 0, INT64_MAX}));
  request["num_outputs_per_prompt"] = 3;
  EXPECT_EQ(accepted(request).num_outputs(), 3);
  request["seed"] = INT64_MAX;
  request["num_outputs_per_prompt"] = 1;
  EXPECT_EQ(accepted(request).seeds, std::vector<int64_t>{INT64_MAX});
  request["seed"] = nullptr;
  request["num_outputs_per_prompt"] = 2;
  EXPECT_EQ(accepted(request).seeds, (std::vector<int64_t>{42, 43}));
}

TEST(Request, OneCondition_MayGiveTheDuration) {
  for (const json& conditions : {list({{kVideo, 1}}), list({{kImage, 2}, {kSound, 1}})}) {
    json request = base("ref2va");
    request["conditions"] = conditions;
    request["target"].erase("duration_seconds");
    EXPECT_FALSE(accepted(request).target.duration_seconds);
  }
}

TEST(Request, Keyframes_AllowAnyIntegerRatio) {
  json request = base("fl2va");
  for (const auto& [text, want] :
       {std::pair{"7:4", AspectRatio{7, 4}}, std::pair{"1:4", AspectRatio{1, 4}},
        std::pair{"1920:1080", AspectRatio{1920, 1080}}}) {
    request["target"]["aspect_ratio"] = text;
    EXPECT_EQ(accepted(request).target.aspect_ratio, want);
  }
  request["conditions"] = list({{kFirst, 1}, {kLast, 1}});
  EXPECT_EQ(accepted(request).conditions.size(), 2u);
}

TEST(Request, Oddities_WarnOnly) {
  json request = base("t2va");
  request["target"]["short_edge"] = 512;
  request["target"]["duraton_seconds"] = 9;
  request["size"] = "1920x1080";
  request["model"] = nullptr;
  const VideoRequest r = accepted(request);
  ASSERT_EQ(r.warnings.size(), 3u);
  EXPECT_EQ(r.warnings[0], "size has no effect; target defines length and size");
  EXPECT_EQ(r.warnings[1], "target.duraton_seconds has no effect; nearest is duration_seconds");
  EXPECT_EQ(r.warnings[2], "target.short_edge is 512; only 768 is verified");
}

TEST(Request, PublishedBackendField_SetsTheBackend) {
  json request = base("t2va");
  request["attention_backend_override"] = "torch_sdpa";
  EXPECT_TRUE(accepted(request).attention.backend.has_value());
}

TEST(Request, BrokenJson_IsRefused) {
  EXPECT_NE(faults("").find("no JSON"), std::string::npos);
  EXPECT_NE(faults("{\"task\": }").find("no JSON"), std::string::npos);
  EXPECT_NE(faults("[1]").find("the request is a list of 1; accepted: an object"),
            std::string::npos);
  EXPECT_NE(faults("{} {}").find("no JSON"), std::string::npos);
  EXPECT_NE(faults("{\"flow_shift\": 1e999}").find("no JSON"), std::string::npos);
  EXPECT_NE(faults(std::string("{}\0{}", 5)).find("byte 3 is NUL"), std::string::npos);
  EXPECT_NE(faults("{\"prompt\": \"\xff\"}").find("no JSON"), std::string::npos);
  EXPECT_NE(faults(std::string(100000, '[')).find("nested over 16 levels"), std::string::npos);
}

TEST(Request, KeysGivenTwice_AreRefusedWithTheirPath) {
  EXPECT_NE(faults(R"({"seed": 1, "seed": 2})").find("r.json: seed is given twice"),
            std::string::npos);
  EXPECT_NE(faults(R"({"conditions": [1, {"a": []}, {"uri": 1, "uri": 2}]})")
                .find("conditions[2].uri is given twice"),
            std::string::npos);
  EXPECT_NE(faults(R"({"target": {"short_edge": 1, "short_edge": 1}})")
                .find("target.short_edge is given twice"),
            std::string::npos);
  EXPECT_EQ(faults(R"({"conditions": [{"uri": 1}, {"uri": 2}]})").find("twice"), std::string::npos);
}

TEST(Request, HostileNames_ArePrintable) {
  json request = base("t2va");
  request[std::string(5000, 'x')] = 1;
  request["a\nb\x1b[31m"] = 1;
  const std::string text = faults(request.dump());
  EXPECT_LT(text.size(), 1500u);
  EXPECT_EQ(text.find('\n'), std::string::npos);
  EXPECT_EQ(text.find('\x1b'), std::string::npos);
}

}  // namespace
}  // namespace h3
