// config.json of the video VAE: official key names, those of diffusers, and the published values.
#include "h3/models/vae_video/config.h"

#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>

#include "h3/common/error.h"
#include "h3/weights/faults.h"
#include "h3/weights/json_text.h"

namespace h3::vae_video {
namespace {

using Json = nlohmann::json;
using weights::json_value_text;

constexpr int64_t kMaxSize = int64_t{1} << 20;  // larger sizes are damage
constexpr int64_t kMaxLevels = 16;

struct SizeKey {
  const char* official;  // "vit." begins a key of vit_decoder_kwargs
  const char* diffusers;
  int64_t VideoVaeConfig::*member;
  int64_t least = 1, most = kMaxSize;
};

constexpr SizeKey kSizes[] = {
    {"num_res_blocks", "layers_per_block", &VideoVaeConfig::blocks_per_level, 1, 64},
    {"norm_num_groups", "norm_num_groups", &VideoVaeConfig::norm_groups},
    {"vit.num_layers", "decoder_num_layers", &VideoVaeConfig::layers, 1, 4096},
    {"vit.heads", "decoder_num_attention_heads", &VideoVaeConfig::heads, 1, 8192},
    {"vit.dim_head", "decoder_attention_head_dim", &VideoVaeConfig::head_dim, 1, 8192},
    {"vit.num_register_tokens", "decoder_num_register_tokens", &VideoVaeConfig::registers, 0, 4096},
    {"vit.ffn_mult", "decoder_ffn_mult", &VideoVaeConfig::ffn_mult, 1, 64},
    {"vae_clip_length", "clip_length", &VideoVaeConfig::clip_length, 1, 4096},
    {"vae_token_drop", "token_drop", &VideoVaeConfig::token_drop, 1, 4096},
};

struct RealKey {
  const char* official;
  const char* diffusers;
  double VideoVaeConfig::*member;
};

constexpr RealKey kReals[] = {
    {"norm_eps", "norm_eps", &VideoVaeConfig::norm_eps},
    {"vit.eps", "decoder_norm_eps", &VideoVaeConfig::decoder_eps},
    {"vit.rope_theta", "decoder_rope_theta", &VideoVaeConfig::rope_theta},
    {"vit.rope_dim_ratio", "decoder_rope_dim_ratio", &VideoVaeConfig::rope_ratio},
};

// A part of the model that has one form in the release. nullptr values stand for null.
struct FixedKey {
  const char* name;
  Json accepted;
};

const std::vector<FixedKey>& fixed_keys() {
  static const std::vector<FixedKey> keys = {
      {"use_3d_conv", true},
      {"use_vit_decoder", true},
      {"causal_encoder", true},
      {"use_t_isolated_gn", true},
      {"padding_mode", "reflect"},
      {"padding_mode_t", nullptr},
      {"spatial_padding_mode", "reflect"},
      {"zq_ch_encoder", nullptr},
      {"zq_ch_decoder", nullptr},
      {"pixel_norm_type", "imagenet"},
      {"in_channels", 3},
      {"out_ch", 3},
      {"out_channels", 3},
      {"vit.norm_type", "rms_norm"},
      {"vit.norm_affine", true},
      {"vit.qk_norm_affine", false},
      {"vit.ffn_activation_fn", "silu"},
      {"vit.ffn_use_gated", true},
      {"vit.bias", true},
  };
  return keys;
}

constexpr const char* kNormTypes[] = {"none", "layer_norm", "rms_norm"};

class Parser {
 public:
  Parser(const Json& json, std::string_view label)
      : json_(json), label_("MiniMax H3 video_vae config " + std::string(label)), faults_(label_) {}

  VideoVaeConfig parse() {
    require_released_form();
    for (const SizeKey& key : kSizes) {
      read_alias(
          key.official, key.diffusers,
          [&](const std::string& name) { return integer(name, key.least, key.most); },
          &(config_.*key.member));
    }
    for (const RealKey& key : kReals) {
      read_alias(
          key.official, key.diffusers, [&](const std::string& name) { return real(name); },
          &(config_.*key.member));
    }
    read_latent_channels();
    read_widths();
    read_factors("space_down", "spatial_downsample_factors", &config_.space_down);
    read_factors("time_down", "temporal_downsample_factors", &config_.time_down);
    read_qk_norm();
    read_tiles();
    read_statistics();
    note_unused();
    if (faults_.empty()) check();  // relations of values that are themselves in order
    faults_.throw_if_any("use the config.json that came with the checkpoint");
    return config_;
  }

 private:
  const Json* value(const std::string& key) const {
    const Json* from = &json_;
    std::string name = key;
    if (key.starts_with("vit.")) {
      const auto kwargs = json_.find("vit_decoder_kwargs");
      if (kwargs == json_.end() || !kwargs->is_object()) return nullptr;
      from = &*kwargs;
      name = key.substr(4);
    }
    const auto at = from->find(name);
    return at == from->end() ? nullptr : &*at;
  }

  static std::string shown(const std::string& key) {
    return key.starts_with("vit.") ? "vit_decoder_kwargs." + key.substr(4) : key;
  }

  std::optional<int64_t> integer_of(const std::string& name, const Json& v, int64_t least,
                                    int64_t most) {
    const bool fits =
        v.is_number_integer() &&
        (!v.is_number_unsigned() || v.get<uint64_t>() <= static_cast<uint64_t>(INT64_MAX)) &&
        v.get<int64_t>() >= least && v.get<int64_t>() <= most;
    if (fits) return v.get<int64_t>();
    faults_.add(name + " is " + json_value_text(v) + "; an integer from " + std::to_string(least) +
                " to " + std::to_string(most) + " is accepted");
    return std::nullopt;
  }

  std::optional<int64_t> integer(const std::string& key, int64_t least, int64_t most) {
    const Json* v = value(key);
    if (v == nullptr) return std::nullopt;
    return integer_of(shown(key), *v, least, most);
  }

  std::optional<double> real(const std::string& key) {
    const Json* v = value(key);
    if (v == nullptr) return std::nullopt;
    const double number = v->is_number() ? v->get<double>() : 0;
    if (std::isfinite(number) && number > 0) return number;
    faults_.add(shown(key) + " is " + json_value_text(*v) + "; a positive number is accepted");
    return std::nullopt;
  }

  std::optional<std::vector<int64_t>> integers(const std::string& key, int64_t least,
                                               int64_t most) {
    const Json* v = value(key);
    if (v == nullptr) return std::nullopt;
    if (!v->is_array() || v->empty() || v->size() > kMaxLevels) {
      faults_.add(shown(key) + " is " + json_value_text(*v) + "; a list of 1 to " +
                  std::to_string(kMaxLevels) + " integers, one per level, is accepted");
      return std::nullopt;
    }
    std::vector<int64_t> list;
    for (const Json& item : *v) {
      if (const auto number = integer_of("an entry of " + shown(key), item, least, most)) {
        list.push_back(*number);
      }
    }
    return list.size() == v->size() ? std::optional(list) : std::nullopt;
  }

  // Two names of one thing.
  template <class Read, class T>
  void read_alias(const std::string& official, const std::string& diffusers, Read read, T* out) {
    const auto a = read(official);
    const auto b = official == diffusers ? a : read(diffusers);
    if (a && b && *a != *b) {
      faults_.add(shown(official) + " is " + Json(*a).dump() + " but " + shown(diffusers) + " is " +
                  Json(*b).dump() + "; they mean the same");
    }
    if (a || b) *out = a ? *a : *b;
  }

  [[noreturn]] void unsupported(const std::string& text) {
    throw Error(ErrorCode::kUnsupported, label_ + ": " + text,
                "use the released MiniMax-H3 video VAE");
  }

  void require_released_form() {
    if (const Json* v = value("vit_decoder_kwargs"); v != nullptr && !v->is_object()) {
      faults_.add("vit_decoder_kwargs is " + json_value_text(*v) + "; an object is accepted");
    }
    for (const char* key : {"causal_decoder", "vit.t_causal"}) {
      if (const Json* v = value(key); v != nullptr && *v != Json(false)) {
        unsupported(shown(key) + " is " + json_value_text(*v) +
                    "; the released ViT decoder is non-causal, false is accepted");
      }
    }
    for (const FixedKey& key : fixed_keys()) {
      const Json* v = value(key.name);
      if (v == nullptr || *v == key.accepted) continue;
      unsupported(shown(key.name) + " is " + json_value_text(*v) + "; " +
                  json_value_text(key.accepted) + " is accepted");
    }
    for (const char* key : {"isolated_first_frame", "isolated_last_frame", "isolated_key_frame"}) {
      if (const Json* v = value(key); v != nullptr && *v != Json(false)) {
        unsupported(std::string(key) + " is " + json_value_text(*v) + "; false is accepted");
      }
    }
    for (const char* key : {"encoder_parallel", "decoder_parallel"}) {
      if (const Json* v = value(key); v != nullptr && *v != Json(false)) {
        faults_.add(std::string(key) + " is " + json_value_text(*v) +
                    ": a tile is never split among ranks; use complete-tile parallel decode");
      }
    }
  }

  void read_latent_channels() {
    std::optional<int64_t> found;
    std::string first;
    for (const char* key : {"latent_channels", "z_channels", "embed_dim"}) {
      const auto count = integer(key, 1, 4096);
      if (!count) continue;
      if (found && *found != *count) {
        faults_.add(std::string(key) + " is " + std::to_string(*count) + " but " + first + " is " +
                    std::to_string(*found) + "; they mean the same");
      }
      if (!found) first = key;
      if (!found) found = count;
    }
    if (found) config_.latent_channels = *found;
  }

  void read_widths() {
    const auto widths = integers("block_out_channels", 1, kMaxSize);
    const auto base = integer("ch", 1, kMaxSize);
    const auto factors = integers("ch_mult", 1, 4096);
    std::optional<std::vector<int64_t>> official;
    if (base || factors) {
      official.emplace();
      const std::vector<int64_t> release{1, 2, 2, 4, 4, 8};
      for (const int64_t factor : factors.value_or(release)) {
        official->push_back(base.value_or(128) * factor);
      }
    }
    if (widths && official && *widths != *official) {
      faults_.add("block_out_channels is " + Json(*widths).dump() + " but ch times ch_mult is " +
                  Json(*official).dump() + "; they mean the same");
    }
    if (widths || official) config_.widths = widths ? *widths : *official;
  }

  void read_factors(const char* official, const char* diffusers, std::vector<int64_t>* out) {
    read_alias(
        official, diffusers, [&](const std::string& key) { return integers(key, 1, 2); }, out);
  }

  void read_qk_norm() {
    const Json* v = value("vit.qk_norm_type");
    if (v == nullptr) return;
    if (v->is_null()) {
      config_.qk_norm = QkNorm::kNone;
      return;
    }
    for (size_t i = 0; i < std::size(kNormTypes); ++i) {
      if (*v != Json(kNormTypes[i])) continue;
      config_.qk_norm = static_cast<QkNorm>(i);
      return;
    }
    faults_.add(shown("vit.qk_norm_type") + " is " + json_value_text(*v) +
                "; none, layer_norm and rms_norm are accepted");
  }

  void read_tiles() {
    TileSettings& encode = config_.encode_tiles;
    if (const auto n = integer("vae_tile_size", 1, kMaxSize)) encode.size = *n;
    if (const auto n = integer("vae_tile_overlap_min", 0, kMaxSize)) encode.min_overlap = *n;
    config_.decode_tiles = encode;
    if (const auto n = integer("decoder_tile_size", 1, kMaxSize)) config_.decode_tiles.size = *n;
    if (const auto n = integer("decoder_tile_overlap_min", 0, kMaxSize)) {
      config_.decode_tiles.min_overlap = *n;
    }
    if (const Json* v = value("vae_encoder_tiling")) {
      if (v->is_boolean() || *v == Json(0) || *v == Json(1)) {
        config_.encoder_tiling = *v == Json(true) || *v == Json(1);
      } else {
        faults_.add("vae_encoder_tiling is " + json_value_text(*v) + "; 0 and 1 are accepted");
      }
    }
  }

  std::optional<std::vector<float>> statistics(const char* key, bool positive) {
    const Json* v = value(key);
    if (v == nullptr || v->is_null()) return std::nullopt;
    const auto count = static_cast<size_t>(config_.latent_channels);
    const std::string needed = "; a list of " + std::to_string(count) + " finite numbers" +
                               (positive ? " above 0" : "") + " is accepted";
    if (!v->is_array() || v->size() != count) {
      faults_.add(std::string(key) +
                  (v->is_array() ? " has " + std::to_string(v->size()) + " entries"
                                 : " is " + json_value_text(*v)) +
                  needed);
      return std::vector<float>();
    }
    std::vector<float> list;
    for (const Json& item : *v) {
      // Numbers that are no floats would become infinite.
      const float number = item.is_number() ? static_cast<float>(item.get<double>()) : NAN;
      if (!std::isfinite(number) || (positive && number <= 0)) {
        faults_.add(std::string(key) + " holds " + json_value_text(item) + needed);
        return std::vector<float>();
      }
      list.push_back(number);
    }
    return list;
  }

  void read_statistics() {
    const auto mean = statistics("latents_mean", false), std = statistics("latents_std", true);
    if (mean && std) {
      config_.latents_mean = *mean;
      config_.latents_std = *std;
    } else if (mean || std) {
      faults_.add(std::string(mean ? "latents_std" : "latents_mean") +
                  " is missing; both lists or none are accepted");
    } else if (config_.latent_channels != 24) {
      faults_.add(
          "latents_mean and latents_std are missing, and the published ones are of 24 "
          "channels, not of " +
          std::to_string(config_.latent_channels));
    }
  }

  void note_unused() {
    const Json* kwargs = value("vit_decoder_kwargs");
    if (kwargs == nullptr || !kwargs->is_object()) return;
    for (const auto& [name, item] : kwargs->items()) {
      const std::string key = "vit." + name;
      bool known = key == "vit.t_causal" || key == "vit.qk_norm_type";
      for (const SizeKey& k : kSizes) known = known || key == k.official;
      for (const RealKey& k : kReals) known = known || key == k.official;
      for (const FixedKey& k : fixed_keys()) known = known || key == k.name;
      if (!known) config_.unused_keys.push_back(name);
    }
  }

  void check_tiles(const char* name, const TileSettings& tiles) {
    const int64_t unit = config_.space_ratio();
    const bool aligned = tiles.size % unit == 0 && tiles.min_overlap % unit == 0;
    if (aligned && tiles.min_overlap < tiles.size) return;
    faults_.add(std::string(name) + " of " + std::to_string(tiles.size) +
                " pixels with an overlap of at least " + std::to_string(tiles.min_overlap) +
                ": multiples of " + std::to_string(unit) +
                " (pixels per latent) with the overlap below the size are accepted");
  }

  void check() {
    const VideoVaeConfig& c = config_;
    if (c.space_down.size() != c.widths.size() || c.time_down.size() != c.widths.size()) {
      faults_.add("there are " + std::to_string(c.widths.size()) + " widths, " +
                  std::to_string(c.space_down.size()) + " spatial and " +
                  std::to_string(c.time_down.size()) +
                  " temporal factors; one of each per level is accepted");
      return;
    }
    for (size_t level = 0; level < c.widths.size(); ++level) {
      if (c.widths[level] % c.norm_groups != 0) {
        faults_.add("width " + std::to_string(c.widths[level]) + " of level " +
                    std::to_string(level) + " does not divide by the " +
                    std::to_string(c.norm_groups) + " groups of its norm");
      }
      if (c.space_down[level] == 1 && c.time_down[level] > 1) {
        faults_.add("level " + std::to_string(level) +
                    " halves time but not space; that is not of the released model");
      }
    }
    if (c.rope_dim() < 6 || c.rope_dim() % 6 != 0 || c.rope_dim() > c.head_dim) {
      faults_.add("rotary positions cover " + std::to_string(c.rope_dim()) + " of " +
                  std::to_string(c.head_dim) +
                  " channels of a head; a multiple of 6 (three axes of two halves) is accepted");
    }
    const int64_t tokens = (c.clip_length + c.time_ratio() - 1) / c.time_ratio();
    if (c.token_drop >= tokens) {
      faults_.add("token_drop is " + std::to_string(c.token_drop) + " of the " +
                  std::to_string(tokens) + " latents of a clip; 1 to " +
                  std::to_string(tokens - 1) + " is accepted");
    }
    check_tiles("encoder tiles", c.encode_tiles);
    check_tiles("decoder tiles", c.decode_tiles);
  }

  const Json& json_;
  const std::string label_;
  weights::Faults faults_;
  VideoVaeConfig config_;
};

// What source/config.json says and the wrapper does not; differences are told.
void merge_source(Json* json, const Json& source, std::string_view label) {
  weights::Faults faults("MiniMax H3 video_vae config " + std::string(label));
  for (const auto& [key, value] : source.items()) {
    if (key.starts_with("_") || key == "model_type" || key == "architectures") continue;
    const auto at = json->find(key);
    if (at == json->end()) {
      (*json)[key] = value;
    } else if (*at != value) {
      faults.add(key + " is " + json_value_text(*at) + " but " + json_value_text(value) +
                 " in source/config.json");
    }
  }
  faults.throw_if_any("use the two config.json files of one release");
}

void put_tiles(nlohmann::ordered_json& json, const VideoVaeConfig& c) {
  json["vae_tile_size"] = c.encode_tiles.size;
  json["vae_tile_overlap_min"] = c.encode_tiles.min_overlap;
  if (c.decode_tiles == c.encode_tiles) return;
  json["decoder_tile_size"] = c.decode_tiles.size;
  json["decoder_tile_overlap_min"] = c.decode_tiles.min_overlap;
}

}  // namespace

VideoVaeConfig parse_video_vae_config(std::string_view json, std::string_view label,
                                      std::string_view source) {
  Json object = weights::parse_json_object(json, label);
  if (!source.empty()) {
    merge_source(&object, weights::parse_json_object(source, "source of " + std::string(label)),
                 label);
  }
  return Parser(object, label).parse();
}

std::string video_vae_config_json(const VideoVaeConfig& c) {
  nlohmann::ordered_json json;
  json["_class_name"] = "MiniMaxH3VideoVAE";
  json["latent_channels"] = json["z_channels"] = c.latent_channels;
  const int64_t base = c.widths.empty() ? 1
                                        : std::accumulate(c.widths.begin(), c.widths.end(),
                                                          int64_t{0}, std::gcd<int64_t, int64_t>);
  std::vector<int64_t> factors;
  for (const int64_t width : c.widths) factors.push_back(width / base);
  json["ch"] = base;
  json["ch_mult"] = factors;
  json["space_down"] = c.space_down;
  json["time_down"] = c.time_down;
  json["causal_encoder"] = true;
  json["causal_decoder"] = false;
  nlohmann::ordered_json vit;
  const auto put = [&](const std::string& key, const auto& value) {
    (key.starts_with("vit.") ? vit[key.substr(4)] : json[key]) = value;
  };
  for (const SizeKey& key : kSizes) put(key.official, c.*key.member);
  for (const RealKey& key : kReals) put(key.official, c.*key.member);
  put("vit.qk_norm_type", kNormTypes[static_cast<size_t>(c.qk_norm)]);
  put("vit.qk_norm_affine", false);
  json["vit_decoder_kwargs"] = vit;
  json["vae_encoder_tiling"] = c.encoder_tiling ? 1 : 0;
  put_tiles(json, c);
  json["latents_mean"] = c.latents_mean;
  json["latents_std"] = c.latents_std;
  return json.dump(2) + "\n";
}

std::string video_vae_config_diffusers_json(const VideoVaeConfig& c) {
  nlohmann::ordered_json json;
  json["_class_name"] = "AutoencoderKLMiniMaxH3";
  json["in_channels"] = json["out_channels"] = VideoVaeConfig::kPixelChannels;
  json["latent_channels"] = c.latent_channels;
  json["block_out_channels"] = c.widths;
  json["spatial_downsample_factors"] = c.space_down;
  json["temporal_downsample_factors"] = c.time_down;
  json["spatial_padding_mode"] = "reflect";
  for (const SizeKey& key : kSizes) json[key.diffusers] = c.*key.member;
  for (const RealKey& key : kReals) json[key.diffusers] = c.*key.member;
  if (!(c.encode_tiles == TileSettings{} && c.decode_tiles == TileSettings{})) put_tiles(json, c);
  json["latents_mean"] = c.latents_mean;
  json["latents_std"] = c.latents_std;
  return json.dump(2) + "\n";
}

}  // namespace h3::vae_video
