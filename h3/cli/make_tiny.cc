// `h3 make-tiny`: a random model small enough for tests and first tries, in the published layouts.
#include <filesystem>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "h3/cli/commands.h"
#include "h3/common/error.h"
#include "h3/models/dit/tiny.h"
#include "h3/models/vae_audio/tiny.h"
#include "h3/models/vae_video/tiny.h"
#include "h3/weights/model_index.h"
#include "h3/weights/sharded_writer.h"
#include "h3/weights/staged_folder.h"

namespace h3::cli {
namespace {

using weights::Partition;

constexpr double kVideoShift = 12, kAudioShift = 3;  // as published

struct Options {
  std::string folder;
  int64_t seed = 0;
  std::string style = "native", dtype = "f32", partition = "fl2va";

  bool native() const { return style == "native"; }
  Partition which() const { return partition == "ref2va" ? Partition::kRef2va : Partition::kFl2va; }
};

// One folder of a model. A new part of the model is a new row of components().
struct Component {
  std::string folder;
  void (*write)(const std::string& folder, const Options& options);
};

void write_transformer(const std::string& folder, const Options& options) {
  write_random_transformer(folder, dit::tiny_dit_config(),
                           options.native() ? dit::NameStyle::kNative : dit::NameStyle::kDiffusers,
                           options.dtype == "bf16" ? tessera::Dtype::kBf16 : tessera::Dtype::kF32,
                           static_cast<uint64_t>(options.seed));
}

void write_scheduler(const std::string& folder, double shift) {
  const nlohmann::ordered_json json = {{"_class_name", "MiniMaxH3Scheduler"}, {"shift", shift}};
  weights::write_text(folder + "/scheduler_config.json", json.dump(2) + "\n");
}

void write_examples(const std::string& folder, const Options& options) {
  dit::write_example_requests(folder, dit::tiny_dit_config(), options.which() == Partition::kRef2va,
                              static_cast<uint64_t>(options.seed));
}

// Both fit the tiny transformer's latents: 24 channels, 16 x 16 pixels and 4 frames a latent; 32
// channels, 800 samples a latent.
void write_video_vae(const std::string& folder, const Options& options) {
  vae_video::write_random_video_vae(
      folder, vae_video::tiny_released_ratio_config(),
      options.native() ? vae_video::NameStyle::kOfficial : vae_video::NameStyle::kDiffusers,
      static_cast<uint64_t>(options.seed));
}

void write_audio_vae(const std::string& folder, const Options& options) {
  vae_audio::write_random_audio_vae(folder, vae_audio::tiny_released_ratio_config(),
                                    vae_audio::NormStyle::kPair,
                                    static_cast<uint64_t>(options.seed));
}

std::vector<Component> components(const Options& options) {
  if (options.native()) {
    return {{"transformer", write_transformer},
            {"video_vae", write_video_vae},
            {"audio_vae", write_audio_vae},
            {"examples", write_examples}};
  }
  const bool ref = options.which() == Partition::kRef2va;
  return {{ref ? "transformer_ref" : "transformer", write_transformer},
          {"vae", write_video_vae},
          {"audio_vae", write_audio_vae},
          {"examples", write_examples},
          {"scheduler",
           [](const std::string& folder, const Options&) { write_scheduler(folder, kVideoShift); }},
          {"audio_scheduler", [](const std::string& folder, const Options&) {
             write_scheduler(folder, kAudioShift);
           }}};
}

std::string model_index(const Options& options) {
  nlohmann::ordered_json json;
  json["_class_name"] = options.native() ? "MiniMaxH3Pipeline" : "MiniMaxH3ModularPipeline";
  if (options.native()) {
    json["_minimax_h3"] = {
        {"schema_version", 1},
        {"partition", weights::partition_text(options.which())},
        {"tasks", weights::partition_tasks(options.which())},
        {"task_aliases", nlohmann::ordered_json::object()},
        {"sigma_shift_scales", {{"video", kVideoShift}, {"audio", kAudioShift}}}};
    json["scheduler"] = nullptr;
  }
  return json.dump(2) + "\n";
}

int run_make_tiny(const Options& options) {
  weights::StagedFolder folder(options.folder, "h3 make-tiny");
  for (const Component& component : components(options)) {
    const std::filesystem::path path = std::filesystem::path(folder.path()) / component.folder;
    std::error_code error;
    if (!std::filesystem::create_directory(path, error)) {
      throw Error(ErrorCode::kUnavailable,
                  "cannot create " + path.string() + ": " + error.message());
    }
    component.write(path.string(), options);
  }
  weights::write_text(folder.path() + "/model_index.json", model_index(options));
  folder.commit();
  message("wrote a random " + options.style + " model of " + options.dtype + " weights to " +
          options.folder + "; look at it with `h3 inspect " + options.folder + "`");
  return kExitOk;
}

}  // namespace

void add_make_tiny_command(CLI::App& app, GlobalOptions& global) {
  auto options = std::make_shared<Options>();
  CLI::App* sub = add_command(app, global, "make-tiny",
                              "Write a random model small enough for tests and first tries",
                              "h3 make-tiny tiny --seed 1 --style diffusers",
                              [options] { return run_make_tiny(*options); });
  sub->add_option("folder", options->folder,
                  "New or empty folder, or one that this command made before")
      ->required()
      ->type_name("DIR");
  sub->add_option("--seed", options->seed, "Of the random weights")
      ->check(CLI::Range(int64_t{0}, std::numeric_limits<int64_t>::max()))
      ->type_name("N");
  sub->add_option("--style", options->style, "Layout and names: native or diffusers")
      ->check(CLI::IsMember({"native", "diffusers"}))
      ->type_name("NAME");
  sub->add_option("--dtype", options->dtype, "f32, or bf16 with the published fp32 islands")
      ->check(CLI::IsMember({"f32", "bf16"}))
      ->type_name("NAME");
  sub->add_option("--partition", options->partition, "fl2va or ref2va; the weights are the same")
      ->check(CLI::IsMember({"fl2va", "ref2va"}))
      ->type_name("NAME");
}

}  // namespace h3::cli
