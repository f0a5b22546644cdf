// `h3 decode`: from latents to an MP4.
#include <c10/core/Device.h>

#include <chrono>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "h3/cli/attention_options.h"
#include "h3/cli/commands.h"
#include "h3/cli/device_option.h"
#include "h3/cli/progress.h"
#include "h3/cli/vae_folder.h"
#include "h3/common/error.h"
#include "h3/parallel/launch.h"
#include "h3/parallel/plan_admission.h"
#include "h3/parallel/world.h"
#include "h3/pipeline/decode.h"
#include "tessera/device.h"
#include "tessera/io/safetensors.h"

namespace h3::cli {
namespace {

struct Options {
  std::string latents, output, device, quality = "default", preset = "fast";
  weights::ModelRequest model;
  AttentionOptionTexts attention;
  int gpus = 0;
  bool json = false, quiet = false;
};

// What `h3 denoise` wrote about the run goes into the movie.
media::Settings metadata_of(const std::string& path) {
  media::Settings settings;
  tessera::io::SafetensorsFile file;
  if (tessera::io::SafetensorsFile::open(path, &file).ok()) settings = file.metadata();
  settings.erase("format");
  settings["decoder_version"] = tessera::version();
  return settings;
}

class Run {
 public:
  Run(const Options& options, const GlobalOptions& global)
      : options_(options), identity_(parallel::rank_identity()), progress_(options.quiet) {
    DeviceChoice device = choose_device(options.device);
    if (device.platform.cuda && identity_.world_size > 1) device.index = identity_.local_rank;
    pipeline::VaeOptions vae;
    vae.folder = vae_folder(options.model);
    vae.platform = device.platform;
    vae.device = c10::Device(device.name());
    vae.attention = attention_choices(options.attention, global);
    movie_.crf = media::crf_of_quality(options.quality);
    movie_.preset = options.preset;
    movie_.metadata = metadata_of(options.latents);
    movie_.progress = [this](int64_t done, int64_t total) { show(done, total); };
    setup_ = pipeline::plan_vaes(vae);
    latents_ = pipeline::read_latents(options.latents);
  }

  int run() {
    if (identity_.world_size == 1) return body(nullptr);
    parallel::WorldOptions world = parallel::WorldOptions::from_environment();
    world.degrees = parallel::resolve_degrees(
        {.world_size = identity_.world_size, .ulysses = identity_.world_size});
    parallel::record_plan(setup_.plan, &world.record);
    world.device = setup_.device.type();
    return parallel::run_rank(world, [&](parallel::World& w) { return body(&w); });
  }

 private:
  int body(parallel::World* world) {
    pipeline::LoadedVaes vaes(setup_);
    start_ = std::chrono::steady_clock::now();
    const pipeline::DecodeReport report =
        pipeline::decode_to_movie(vaes, latents_, options_.output, movie_,
                                  world ? &world->group(parallel::GroupKind::kVaeDecode) : nullptr);
    if (identity_.rank > 0) return kExitOk;
    progress_.finish("decode: " + std::to_string(report.frames) + " frames");
    print_text(options_.json ? json_text(report, vaes) : plain_text(report, vaes));
    return kExitOk;
  }

  void show(int64_t done, int64_t total) {
    const std::chrono::duration<double> time = std::chrono::steady_clock::now() - start_;
    progress_.step("decode", done, total, time.count() / static_cast<double>(done));
  }

  std::string json_text(const pipeline::DecodeReport& r, pipeline::LoadedVaes& vaes) const {
    nlohmann::ordered_json json = {
        {"version", tessera::version()},
        {"file", options_.output},
        {"device", setup_.device.str()},
        {"ranks", identity_.world_size},
        {"size", std::to_string(r.width) + "x" + std::to_string(r.height)},
        {"frames", r.frames},
        {"samples", r.samples},
        {"load_seconds", vaes.load_seconds()},
        {"audio_seconds", r.audio_seconds},
        {"video_seconds", r.video_seconds},
        {"write_seconds", r.write_seconds}};
    if (r.memory.peak > 0) json["peak_bytes"] = r.memory.peak;
    json["attention"] = nlohmann::ordered_json::parse(vaes.attention().stats_json())["total"];
    return json.dump(2) + "\n";
  }

  std::string plain_text(const pipeline::DecodeReport& r, const pipeline::LoadedVaes& vaes) const {
    char text[320];
    std::snprintf(text, sizeof(text),
                  "%lldx%lld, %lld frames and %lld samples on %s\nload %.2f s, audio %.2f s, video "
                  "%.2f s (%.1f frames/s; writing %.2f s)\n",
                  static_cast<long long>(r.width), static_cast<long long>(r.height),
                  static_cast<long long>(r.frames), static_cast<long long>(r.samples),
                  setup_.device.str().c_str(), vaes.load_seconds(), r.audio_seconds,
                  r.video_seconds, static_cast<double>(r.frames) / r.video_seconds,
                  r.write_seconds);
    std::string report = text;
    if (r.memory.peak > 0) {
      std::snprintf(text, sizeof(text), "memory peak %.2f GB\n",
                    static_cast<double>(r.memory.peak) / 1e9);
      report += text;
    }
    return report + "-> " + options_.output + "\n";
  }

  const Options options_;
  const parallel::RankIdentity identity_;
  Progress progress_;
  pipeline::MovieOptions movie_;
  pipeline::VaeSetup setup_;
  pipeline::Latents latents_;
  std::chrono::steady_clock::time_point start_;
};

int run_decode(const Options& options, const GlobalOptions& global) {
  if (options.gpus > 1 && parallel::rank_identity().source == "none") {
    parallel::LaunchOptions launch;
    launch.ranks = options.gpus;
    launch.command = global.arguments;
    launch.prefix_output = false;  // rank 0 alone prints
    return parallel::launch(launch).exit_code;
  }
  return Run(options, global).run();
}

}  // namespace

void add_decode_command(CLI::App& app, GlobalOptions& global) {
  auto options = std::make_shared<Options>();
  CLI::App* sub = add_command(app, global, "decode", "Turn latents into a video with sound",
                              "h3 decode latents.safetensors --model-path tiny -o out.mp4",
                              [options, &global] { return run_decode(*options, global); });
  sub->add_option("latents", options->latents, "Latents, as `h3 denoise` writes them")
      ->required()
      ->type_name("FILE");
  sub->add_option("--model-path", options->model.path,
                  "Release, partition, or a folder with video_vae/ (or vae/) and audio_vae/")
      ->required()
      ->type_name("PATH");
  sub->add_option("--model-variant", options->model.variant, "fl2va or ref2va")->type_name("NAME");
  sub->add_option("-o,--output-path", options->output, "Video: an .mp4 file")
      ->required()
      ->type_name("FILE");
  sub->add_option("--device", options->device, "cpu, cuda or cuda:N; default: what is here")
      ->type_name("DEVICE");
  sub->add_option("--num-gpus", options->gpus, "Ranks to start on this host; they share the tiles")
      ->check(CLI::Range(1, 4096))
      ->type_name("N");
  sub->add_option("--output-quality", options->quality,
                  "default, low, medium, high, maximum, or a compression of 0 to 100")
      ->type_name("NAME");
  sub->add_option("--x264-preset", options->preset, "Preset of the H.264 encoder")
      ->type_name("NAME");
  sub->add_flag("--json", options->json, "Print the report as JSON on stdout");
  sub->add_flag("-q,--quiet", options->quiet, "No progress on stderr");
  add_attention_options(sub, options->attention);
}

}  // namespace h3::cli
