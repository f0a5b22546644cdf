// config.json of the transformer: native key names, those of diffusers, and the published sizes.
#include "h3/models/dit/config.h"

#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "h3/weights/faults.h"
#include "h3/weights/json_text.h"

namespace h3::dit {
namespace {

using Json = nlohmann::json;
using weights::json_value_text;

constexpr const char* kNativeClass = "MiniMaxH3DiTModel";
constexpr const char* kDiffusersClass = "MiniMaxH3Transformer3DModel";

// Larger sizes are damage, and their products would not fit.
constexpr int64_t kMaxSize = int64_t{1} << 20;
constexpr int64_t kMaxLayers = 4096;
constexpr int64_t kHeadDim = 128;  // of every kernel and of the rotary tables
constexpr std::array<int64_t, 3> kPatch{1, 2, 2};

struct SizeKey {
  const char* native;
  const char* diffusers;  // may be the same
  int64_t DitConfig::*member;
  int64_t most = kMaxSize;
};

constexpr SizeKey kSizes[] = {
    {"hidden_size", "hidden_size", &DitConfig::hidden},
    {"num_layers", "num_layers", &DitConfig::layers, kMaxLayers},
    {"token_refiner_num_layers", "num_refiner_layers", &DitConfig::refiner_layers, kMaxLayers},
    {"num_attention_heads", "num_attention_heads", &DitConfig::heads, 8192},
    {"attention_head_dim", "attention_head_dim", &DitConfig::head_dim, 8192},
    {"ffn_hidden_size", "ffn_dim", &DitConfig::ffn},
    {"latents_dim", "in_channels", &DitConfig::video_channels},
    {"audio_latents_dim", "audio_in_channels", &DitConfig::audio_channels},
    {"text_dim", "text_dim", &DitConfig::text_dim},
    {"timestep_input_dim", "freq_dim", &DitConfig::timestep_input},
    {"time_embed_hidden_size", "time_embed_hidden_dim", &DitConfig::time_hidden},
    {"time_embed_dim", "time_embed_dim", &DitConfig::time_embed},
    {"rope_inv_freq_len", "rope_freq_dim", &DitConfig::rope_freqs},
};

struct RealKey {
  const char* name;
  double DitConfig::*member;
};

constexpr RealKey kReals[] = {
    {"norm_eps", &DitConfig::norm_eps},
    {"qk_norm_eps", &DitConfig::qk_norm_eps},
    {"final_norm_eps", &DitConfig::final_norm_eps},
    {"rope_theta", &DitConfig::rope_theta},
};

class Parser {
 public:
  Parser(const Json& json, std::string_view label)
      : json_(json), faults_(std::string(label)), known_(known_class()) {}

  DitConfig parse() {
    for (const SizeKey& key : kSizes) read_size(key);
    for (const RealKey& key : kReals) read_real(key);
    read_patch();
    if (faults_.empty()) check();  // relations of values that are themselves in order
    faults_.throw_if_any("use the config.json that came with the checkpoint");
    return config_;
  }

 private:
  bool known_class() {
    const auto name = json_.find("_class_name");
    return name != json_.end() && (*name == kNativeClass || *name == kDiffusersClass);
  }

  const Json* value(const char* key) const {
    const auto at = json_.find(key);
    return at == json_.end() ? nullptr : &*at;
  }

  // The theta has no native key, so a native file without a class may leave it out.
  void absent(const std::string& keys, bool optional = false) {
    if (known_ || optional) return;
    faults_.add(keys + " is missing, and _class_name is none of " + kNativeClass + ", " +
                kDiffusersClass + " whose published value could stand for it");
  }

  std::optional<int64_t> size(const char* key, int64_t most) {
    const Json* v = value(key);
    if (v == nullptr) return std::nullopt;
    const bool fits =
        v->is_number_integer() &&
        (!v->is_number_unsigned() || v->get<uint64_t>() <= static_cast<uint64_t>(INT64_MAX)) &&
        v->get<int64_t>() >= 1 && v->get<int64_t>() <= most;
    if (!fits) {
      faults_.add(std::string(key) + " is " + json_value_text(*v) + "; an integer from 1 to " +
                  std::to_string(most) + " is accepted");
      return std::nullopt;
    }
    return v->get<int64_t>();
  }

  void read_size(const SizeKey& key) {
    const bool alias = std::string_view(key.native) != key.diffusers;
    const bool any = value(key.native) != nullptr || value(key.diffusers) != nullptr;
    if (!any) absent(alias ? std::string(key.native) + " (" + key.diffusers + ")" : key.native);
    const auto native = size(key.native, key.most);
    const auto other = alias ? size(key.diffusers, key.most) : native;
    if (native && other && *native != *other) {
      faults_.add(std::string(key.native) + " is " + std::to_string(*native) + " but " +
                  key.diffusers + " is " + std::to_string(*other) + "; they mean the same");
    }
    if (native || other) config_.*key.member = native ? *native : *other;
  }

  void read_real(const RealKey& key) {
    const Json* v = value(key.name);
    if (v == nullptr) {
      absent(key.name, key.member == &DitConfig::rope_theta);
      return;
    }
    const double number = v->is_number() ? v->get<double>() : 0;
    if (!std::isfinite(number) || number <= 0) {
      faults_.add(std::string(key.name) + " is " + json_value_text(*v) +
                  "; a positive number is accepted");
      return;
    }
    config_.*key.member = number;
  }

  void read_patch() {
    const Json* v = value("patch_size");
    if (v == nullptr) {
      absent("patch_size");
    } else if (*v != Json(kPatch)) {
      faults_.add("patch_size is " + json_value_text(*v) + "; [1, 2, 2] is accepted");
    }
  }

  // A size that follows from others.
  void check_derived(const char* key, int64_t expected, const char* formula) {
    const Json* v = value(key);
    if (v == nullptr || (v->is_number_integer() && *v == expected)) return;
    faults_.add(std::string(key) + " is " + json_value_text(*v) + "; " + formula + " = " +
                std::to_string(expected) + " is needed");
  }

  void check() {
    check_derived("adaln_out_features", config_.adaln_out(), "18 * hidden_size");
    check_derived("final_adaln_out_features", config_.final_adaln_out(), "2 * hidden_size");
    if (config_.head_dim != kHeadDim) {
      faults_.add("attention_head_dim is " + std::to_string(config_.head_dim) +
                  "; 128 is accepted");
    }
    if (6 * config_.rope_freqs > config_.head_dim) {
      faults_.add("rope_inv_freq_len is " + std::to_string(config_.rope_freqs) +
                  ": three axes of two halves need " + std::to_string(6 * config_.rope_freqs) +
                  " of the " + std::to_string(config_.head_dim) + " dimensions of a head");
    }
    if (config_.timestep_input % 2 != 0) {
      faults_.add("timestep_input_dim is " + std::to_string(config_.timestep_input) +
                  "; an even number is accepted (cosines and sines)");
    }
    for (const char* key : {"adaln_rank", "time_table_size"}) {
      if (const Json* v = value(key); v != nullptr && !v->is_null()) {
        faults_.add(std::string(key) + " is " + json_value_text(*v) +
                    ": this is a pruned checkpoint, which has tables in place of the timestep "
                    "embedder; only the full model is supported");
      }
    }
  }

  const Json& json_;
  weights::Faults faults_;
  bool known_;
  DitConfig config_;
};

nlohmann::ordered_json common_json(const DitConfig& config, const char* class_name, bool native) {
  nlohmann::ordered_json json;
  json["_class_name"] = class_name;
  for (const SizeKey& key : kSizes) {
    json[native ? key.native : key.diffusers] = config.*key.member;
  }
  json["patch_size"] = config.patch;
  for (const RealKey& key : kReals) json[key.name] = config.*key.member;
  return json;
}

}  // namespace

DitConfig parse_dit_config(std::string_view json, std::string_view label) {
  const Json object = weights::parse_json_object(json, label);
  return Parser(object, label).parse();
}

std::string dit_config_json(const DitConfig& config) {
  nlohmann::ordered_json json = common_json(config, kNativeClass, true);
  json["adaln_out_features"] = config.adaln_out();
  json["final_adaln_out_features"] = config.final_adaln_out();
  return json.dump(2) + "\n";
}

std::string dit_config_diffusers_json(const DitConfig& config) {
  return common_json(config, kDiffusersClass, false).dump(2) + "\n";
}

DitConfig tiny_dit_config() {
  DitConfig config;
  config.hidden = 256;
  config.layers = 3;
  config.heads = 8;
  config.ffn = 512;
  config.text_dim = 192;
  config.time_hidden = 256;
  config.time_embed = 128;
  return config;
}

}  // namespace h3::dit
