// config.json of the audio VAE: key names of diffusers and of the release, and the published
// values.
#include "h3/models/vae_audio/config.h"

#include <array>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>

#include "h3/common/error.h"
#include "h3/weights/faults.h"
#include "h3/weights/json_text.h"
#include "tessera/io/mapped_file.h"

namespace h3::vae_audio {
namespace {

using Json = nlohmann::json;
using weights::json_value_text;

// Statistics of the published checkpoint's config.json.
constexpr std::array<float, 32> kMean{
    -0.020211687488382354f, 0.3876466479950502f,   -0.04398279799186767f, -0.28591514936373f,
    0.08179686214561671f,   -0.35782641352446604f, 0.040623809960919084f, -0.01552534501956604f,
    -0.223362481667332f,    0.1821006842509091f,   0.2941778783780663f,   -0.07901167601970885f,
    -0.056815072777201f,    -0.3699028221860095f,  -0.31616315591624855f, 0.5905951377425391f,
    -0.052139568068853864f, 0.013673160263486295f, -0.03691647864630577f, 0.09732660653298163f,
    -0.3394662328788498f,   -0.30685677538541667f, -0.24504598907458763f, -0.034698524462007344f,
    0.02868032184767538f,   -0.21217779266454084f, -0.1678263169941987f,  0.3221287889040614f,
    -0.1223055851554907f,   0.4356604928128464f,   -0.0502599202236253f,  0.3979258376211797f,
};
constexpr std::array<float, 32> kStd{
    1.6895524230479284f, 2.76263727217653f,   1.7945344281264435f, 1.6801681847309828f,
    1.6390226546605453f, 2.7788298348882177f, 1.7659090095747236f, 1.6199757612137327f,
    2.6336525640336896f, 1.8539356672817833f, 2.5056497896915633f, 1.811019237886178f,
    1.9579657790720237f, 1.6685498243529284f, 1.4922469314453364f, 3.298670198067373f,
    1.9491804496832168f, 1.8720003270431442f, 1.8334080103291832f, 1.6488070416529093f,
    1.6176957696319716f, 1.9131449234774398f, 1.5695245398428617f, 1.6943659940415912f,
    1.8318420762504692f, 1.5540637421583379f, 1.9344930328968526f, 1.599198216109855f,
    1.718045989838149f,  1.6307219190837705f, 1.8661226051202384f, 1.5613768203168363f,
};
constexpr int64_t kMaxSize = int64_t{1} << 16;  // larger sizes are damage
constexpr size_t kMaxStages = 16;
constexpr size_t kMaxConfigBytes = size_t{1} << 20;
constexpr int64_t kSampleRate = 32000;

int64_t product(const std::vector<int64_t>& values) {
  int64_t all = 1;
  for (const int64_t value : values) all *= value;
  return all;
}

std::string list_text(const std::vector<int64_t>& values) { return Json(values).dump(); }

class Parser {
 public:
  Parser(std::vector<const Json*> objects, const std::string& label)
      : objects_(std::move(objects)), faults_("MiniMax H3 audio_vae " + label) {}

  AudioVaeConfig parse() {
    read_size({"encoder_dim"}, &config_.encoder_dim);
    read_sizes({"encoder_rates"}, &config_.encoder_rates);
    read_size({"latent_dim"}, &config_.latent_dim);
    read_size({"latent_channels", "vae_latent_channels"}, &config_.latent_channels);
    read_size({"num_attention_heads"}, &config_.heads);
    read_size({"decoder_dim"}, &config_.decoder_dim);
    read_sizes({"decoder_rates"}, &config_.decoder_rates);
    read_sizes({"decoder_kernel_sizes"}, &config_.decoder_kernels);
    read_sizes({"resblock_kernel_sizes"}, &config_.resblock_kernels);
    read_dilations();
    read_size({"sampling_rate", "sample_rate"}, &config_.sample_rate);
    require_value("decoder_type", "bigvgan");
    require_value("attn_proj", true);
    if (faults_.empty()) check();
    if (faults_.empty()) read_statistics();
    faults_.throw_if_any("use the config.json that came with the checkpoint");
    return config_;
  }

 private:
  using Names = std::initializer_list<const char*>;

  struct Found {
    std::string name;
    const Json* value = nullptr;
  };

  // The value of whichever name is there; null counts as absent.
  Found find(const Names& names) {
    Found found;
    for (const Json* object : objects_) {
      for (const char* name : names) {
        const auto at = object->find(name);
        if (at == object->end() || at->is_null()) continue;
        if (found.value != nullptr && *found.value != *at) {
          faults_.add(found.name + " is " + json_value_text(*found.value) + " but " + name +
                      " is " + json_value_text(*at) + "; they mean the same");
          continue;
        }
        found = {name, &*at};
      }
    }
    return found;
  }

  static std::optional<int64_t> size_of(const Json& value) {
    if (!value.is_number_integer()) return std::nullopt;
    if (value.is_number_unsigned() && value.get<uint64_t>() > kMaxSize) return std::nullopt;
    const int64_t size = value.get<int64_t>();
    if (size < 1 || size > kMaxSize) return std::nullopt;
    return size;
  }

  void refuse(const Found& found, const std::string& accepted) {
    faults_.add(found.name + " is " + json_value_text(*found.value) + "; " + accepted +
                " is accepted");
  }

  void read_size(const Names& names, int64_t* out) {
    const Found found = find(names);
    if (found.value == nullptr) return;
    if (const auto size = size_of(*found.value)) {
      *out = *size;
    } else {
      refuse(found, "an integer from 1 to " + std::to_string(kMaxSize));
    }
  }

  static std::optional<std::vector<int64_t>> sizes_of(const Json& value) {
    if (!value.is_array() || value.empty() || value.size() > kMaxStages) return std::nullopt;
    std::vector<int64_t> sizes;
    for (const Json& entry : value) {
      const auto size = size_of(entry);
      if (!size || *size > 1024) return std::nullopt;  // so that products fit
      sizes.push_back(*size);
    }
    return sizes;
  }

  void read_sizes(const Names& names, std::vector<int64_t>* out) {
    const Found found = find(names);
    if (found.value == nullptr) return;
    if (auto sizes = sizes_of(*found.value)) {
      *out = std::move(*sizes);
    } else {
      refuse(found, "a list of 1 to " + std::to_string(kMaxStages) + " integers from 1 to 1024");
    }
  }

  void read_dilations() {
    const Found found = find({"resblock_dilation_sizes"});
    if (found.value == nullptr) return;
    std::vector<std::vector<int64_t>> all;
    bool good = found.value->is_array() && found.value->size() <= kMaxStages;
    for (size_t i = 0; good && i < found.value->size(); ++i) {
      auto sizes = sizes_of((*found.value)[i]);
      good = sizes.has_value();
      if (good) all.push_back(std::move(*sizes));
    }
    if (good) {
      config_.resblock_dilations = std::move(all);
    } else {
      refuse(found, "a list of lists of integers from 1 to 1024");
    }
  }

  template <class T>
  void require_value(const char* name, const T& expected) {
    const Found found = find({name});
    if (found.value != nullptr && *found.value != Json(expected)) {
      refuse(found, Json(expected).dump());
    }
  }

  void check() {
    const AudioVaeConfig& c = config_;
    if (c.sample_rate != kSampleRate) {
      faults_.add("sample_rate is " + std::to_string(c.sample_rate) + "; 32000 is accepted");
    }
    for (const int64_t rate : c.encoder_rates) {
      if (rate < 2) faults_.add("encoder_rates has a stride of 1; 2 or more is accepted");
    }
    if (product(c.encoder_rates) != product(c.decoder_rates)) {
      faults_.add("decoder_rates " + list_text(c.decoder_rates) + " multiply to " +
                  std::to_string(product(c.decoder_rates)) + ", but encoder_rates " +
                  list_text(c.encoder_rates) + " to " + std::to_string(product(c.encoder_rates)) +
                  "; both must be the samples of a latent");
    }
    if (c.decoder_kernels.size() != c.decoder_rates.size()) {
      faults_.add("decoder_kernel_sizes has " + std::to_string(c.decoder_kernels.size()) +
                  " entries; one for each of the " + std::to_string(c.decoder_rates.size()) +
                  " decoder_rates is needed");
    } else {
      for (size_t i = 0; i < c.decoder_rates.size(); ++i) {
        const int64_t over = c.decoder_kernels[i] - c.decoder_rates[i];
        if (over >= 0 && over % 2 == 0) continue;
        faults_.add("decoder_kernel_sizes has " + std::to_string(c.decoder_kernels[i]) +
                    " for the rate " + std::to_string(c.decoder_rates[i]) +
                    "; the rate plus an even number keeps the length exact");
      }
    }
    const auto stages = static_cast<int64_t>(c.decoder_rates.size());
    if (c.decoder_dim % (int64_t{1} << stages) != 0) {
      faults_.add("decoder_dim is " + std::to_string(c.decoder_dim) + "; it is halved " +
                  std::to_string(stages) + " times and must divide");
    }
    if (c.resblock_dilations.size() != c.resblock_kernels.size()) {
      faults_.add("resblock_dilation_sizes has " + std::to_string(c.resblock_dilations.size()) +
                  " entries; one for each of the " + std::to_string(c.resblock_kernels.size()) +
                  " resblock_kernel_sizes is needed");
    }
    for (const int64_t kernel : c.resblock_kernels) {
      if (kernel % 2 == 0) {
        faults_.add("resblock_kernel_sizes has " + std::to_string(kernel) +
                    "; odd kernels are accepted");
      }
    }
    if (c.latent_dim % c.latent_channels != 0 || c.latent_dim == c.latent_channels) {
      faults_.add("latent_dim is " + std::to_string(c.latent_dim) + "; a multiple of the " +
                  std::to_string(c.latent_channels) + " latent_channels, 2 times or more, is " +
                  "accepted");
    }
    if (c.latent_dim % c.heads != 0) {
      faults_.add("num_attention_heads is " + std::to_string(c.heads) +
                  "; it must divide latent_dim " + std::to_string(c.latent_dim));
    }
  }

  std::optional<std::vector<float>> statistics(const Found& found, bool positive) {
    const Json& list = *found.value;
    const auto count = static_cast<size_t>(config_.latent_channels);
    if (!list.is_array() || list.size() != count) {
      faults_.add(
          found.name + " is " +
          (list.is_array() ? "a list of " + std::to_string(list.size()) : json_value_text(list)) +
          "; a list of " + std::to_string(count) + " numbers (latent_channels) is needed");
      return std::nullopt;
    }
    std::vector<float> values;
    for (const Json& entry : list) {
      const float value = entry.is_number() ? entry.get<float>() : NAN;
      if (!std::isfinite(value) || (positive && value <= 0)) {
        faults_.add(found.name + "[" + std::to_string(values.size()) + "] is " +
                    json_value_text(entry) + "; a finite " + (positive ? "positive " : "") +
                    "number is accepted");
        return std::nullopt;
      }
      values.push_back(value);
    }
    return values;
  }

  void read_statistics() {
    const Found mean = find({"latents_mean"}), std = find({"latents_std"});
    if (mean.value == nullptr && std.value == nullptr) {
      if (config_.latent_channels == static_cast<int64_t>(kMean.size())) {
        config_.latents_mean.assign(kMean.begin(), kMean.end());
        config_.latents_std.assign(kStd.begin(), kStd.end());
      }
      return;
    }
    for (const auto& [found, name] : {std::pair{&mean, "latents_mean"}, {&std, "latents_std"}}) {
      if (found->value == nullptr) {
        faults_.add(std::string(name) + " is missing; both statistics or none must be there");
      }
    }
    if (!faults_.empty()) return;
    if (auto values = statistics(mean, false)) config_.latents_mean = std::move(*values);
    if (auto values = statistics(std, true)) config_.latents_std = std::move(*values);
  }

  const std::vector<const Json*> objects_;
  weights::Faults faults_;
  AudioVaeConfig config_;
};

// The constructor's arguments inside metadata.json: {"metadata": {"kwargs": {...}}} or without the
// outer object.
const Json* constructor_arguments(const Json& metadata) {
  const Json* object = &metadata;
  for (const char* key : {"metadata", "kwargs"}) {
    const auto at = object->find(key);
    if (at != object->end() && at->is_object()) object = &*at;
  }
  return object == &metadata ? nullptr : object;
}

std::string read_text(const std::string& path) {
  std::string text;
  const tessera::Status s = tessera::io::detail::read_text_file(path, kMaxConfigBytes, &text);
  if (!s.ok()) throw Error(ErrorCode::kInvalidArgument, s.message());
  return text;
}

}  // namespace

int64_t AudioVaeConfig::hop() const { return product(encoder_rates); }

AudioVaeConfig published_audio_vae_config() {
  AudioVaeConfig config;
  config.latents_mean.assign(kMean.begin(), kMean.end());
  config.latents_std.assign(kStd.begin(), kStd.end());
  return config;
}

AudioVaeConfig tiny_audio_vae_config() {
  AudioVaeConfig config;
  config.encoder_dim = 4;
  config.encoder_rates = {2, 2};
  config.latent_dim = 32;
  config.latent_channels = 8;
  config.heads = 2;
  config.decoder_dim = 16;
  config.decoder_rates = {2, 2};
  config.decoder_kernels = {4, 4};
  config.resblock_kernels = {3, 7};
  config.resblock_dilations = {{1, 3}, {1, 3}};
  config.latents_mean.assign(kMean.begin(), kMean.begin() + config.latent_channels);
  config.latents_std.assign(kStd.begin(), kStd.begin() + config.latent_channels);
  return config;
}

AudioVaeConfig tiny_released_ratio_config() {
  AudioVaeConfig config = published_audio_vae_config();
  config.encoder_dim = 4;
  config.latent_dim = 64;
  config.heads = 2;
  config.decoder_dim = 256;
  config.resblock_kernels = {3};
  config.resblock_dilations = {{1, 3}};
  return config;
}

AudioVaeConfig parse_audio_vae_config(std::string_view json, std::string_view label,
                                      std::string_view metadata) {
  const Json object = weights::parse_json_object(json, label);
  std::vector<const Json*> objects{&object};
  Json extra;
  if (!metadata.empty()) {
    extra = weights::parse_json_object(metadata, std::string(label) + " (metadata.json)");
    if (const Json* arguments = constructor_arguments(extra)) objects.push_back(arguments);
  }
  return Parser(std::move(objects), std::string(label)).parse();
}

AudioVaeConfig read_audio_vae_config(const std::string& folder) {
  const std::string path = folder + "/config.json", metadata = folder + "/metadata.json";
  std::error_code ec;
  const bool has_metadata = std::filesystem::exists(metadata, ec);
  return parse_audio_vae_config(read_text(path), path,
                                has_metadata ? read_text(metadata) : std::string());
}

std::string audio_vae_config_json(const AudioVaeConfig& config) {
  nlohmann::ordered_json json;
  json["_class_name"] = "AutoencoderKLMiniMaxH3Audio";
  json["encoder_dim"] = config.encoder_dim;
  json["encoder_rates"] = config.encoder_rates;
  json["latent_dim"] = config.latent_dim;
  json["latent_channels"] = config.latent_channels;
  json["num_attention_heads"] = config.heads;
  json["decoder_dim"] = config.decoder_dim;
  json["decoder_rates"] = config.decoder_rates;
  json["decoder_kernel_sizes"] = config.decoder_kernels;
  json["resblock_kernel_sizes"] = config.resblock_kernels;
  json["resblock_dilation_sizes"] = config.resblock_dilations;
  json["sampling_rate"] = config.sample_rate;
  if (!config.latents_mean.empty()) {
    json["latents_mean"] = config.latents_mean;
    json["latents_std"] = config.latents_std;
  }
  return json.dump(2) + "\n";
}

void size_audio_layers(const AudioVaeConfig& config, ModelLayers* layers) {
  for (LayerDescriptor& layer : layers->layers) {
    if (layer.component != "audio_vae") continue;
    layer.heads = layer.kv_heads = static_cast<int>(config.heads);
    layer.head_dim = static_cast<int>(config.head_dim());
  }
}

}  // namespace h3::vae_audio
