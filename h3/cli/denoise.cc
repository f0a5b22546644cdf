// `h3 denoise`: from a request and encoded conditions to latents, with a report of what ran.
#include <ATen/ops/zeros.h>
#include <c10/core/Device.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "h3/cli/attention_options.h"
#include "h3/cli/commands.h"
#include "h3/cli/device_option.h"
#include "h3/cli/progress.h"
#include "h3/cli/run_files.h"
#include "h3/common/error.h"
#include "h3/common/hash.h"
#include "h3/models/dit/sampling.h"
#include "h3/parallel/launch.h"
#include "h3/pipeline/against_dense.h"
#include "h3/pipeline/dit_engine.h"
#include "h3/pipeline/run_report.h"
#include "tessera/device.h"
#include "tessera/io/safetensors.h"

namespace h3::cli {
namespace {

using pipeline::DenoiseResult;

struct Options {
  std::string request, features, output, report, device, dtype;
  weights::ModelRequest model;
  AttentionOptionTexts attention;
  int tensor = 1, gpus = 0;
  std::optional<std::string> seed;
  std::optional<int64_t> steps;
  std::optional<double> flow_shift, audio_flow_shift;
  std::string step_count = "forwards";
  bool compare_dense = false, no_profile = false, json = false, quiet = false;
};

std::atomic<bool> g_interrupted{false};

// The first interrupt stops at the next step; a second one ends the process as usual.
void on_interrupt(int signal) {
  g_interrupted = true;
  std::signal(signal, SIG_DFL);
}

// Takes interrupts while it lives.
class Interrupts {
 public:
  Interrupts() {
    for (const int s : {SIGINT, SIGTERM}) std::signal(s, on_interrupt);
  }
  ~Interrupts() {
    for (const int s : {SIGINT, SIGTERM}) std::signal(s, SIG_DFL);
  }
  Interrupts(const Interrupts&) = delete;
  Interrupts& operator=(const Interrupts&) = delete;
};

std::string read_text(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(file), {}};
  if (!file) {
    throw Error(ErrorCode::kInvalidArgument, "request file " + path + " cannot be read",
                "give a JSON file with task, prompt and target");
  }
  return text;
}

VideoRequest read_request(const Options& options) {
  VideoRequest request = parse_video_request(read_text(options.request), options.request);
  for (const std::string& warning : request.warnings) message("note: " + warning);
  if (options.seed) {
    const int64_t seed = parse_seed(*options.seed, "--seed");
    for (size_t k = 0; k < request.seeds.size(); ++k) {
      if (seed > std::numeric_limits<int64_t>::max() - static_cast<int64_t>(k)) {
        throw Error(ErrorCode::kInvalidArgument,
                    "--seed " + *options.seed + " leaves no seed for output " + std::to_string(k),
                    "use a smaller seed");
      }
      request.seeds[k] = seed + static_cast<int64_t>(k);
    }
  }
  if (options.steps) request.num_inference_steps = *options.steps;
  if (options.flow_shift) request.flow_shift = options.flow_shift;
  if (options.audio_flow_shift) request.audio_flow_shift = options.audio_flow_shift;
  if (request.quality == Quality::kHigh) {
    throw Error(ErrorCode::kUnsupported,
                "quality is \"high\", which needs block caching; this engine has none",
                "use \"lossless\" or \"exact\"");
  }
  return request;
}

void require_task(const weights::ModelPaths& paths, VideoTask task) {
  const std::string name(to_text(task));
  if (paths.tasks.empty() ||
      std::find(paths.tasks.begin(), paths.tasks.end(), name) != paths.tasks.end()) {
    return;
  }
  throw Error(ErrorCode::kInvalidArgument,
              "the request's task is " + name + "; the model at " + paths.transformer + " serves " +
                  joined(paths.tasks),
              "choose the other partition with --model-variant");
}

std::optional<tessera::Dtype> dtype_of(const std::string& text) {
  if (text == "bf16") return tessera::Dtype::kBf16;
  if (text == "f32") return tessera::Dtype::kF32;
  return std::nullopt;
}

std::string output_name(const Options& options, size_t k, size_t outputs, const char* suffix) {
  if (outputs == 1 && *suffix == 0) return options.output;
  const size_t dot = options.output.rfind(".safetensors");
  const std::string stem = options.output.substr(0, dot);
  const std::string number = outputs == 1 ? "" : "-" + std::to_string(k);
  return stem + number + suffix + ".safetensors";
}

void write_latents(const std::string& path, const DenoiseResult& result,
                   const std::map<std::string, std::string>& metadata) {
  const at::Tensor video = result.video.contiguous(), audio = result.audio.contiguous();
  const tessera::Status status = tessera::io::write_safetensors(
      path,
      {{"video", tessera::Dtype::kF32, video.sizes().vec(), video.data_ptr()},
       {"audio", tessera::Dtype::kF32, audio.sizes().vec(), audio.data_ptr()}},
      metadata);
  if (!status.ok()) throw Error(ErrorCode::kUnavailable, status.message());
}

class Run {
 public:
  Run(const Options& options, const GlobalOptions& global)
      : options_(options), progress_(options.quiet) {
    if (!options.output.ends_with(".safetensors")) {
      throw Error(
          ErrorCode::kInvalidArgument,
          "--output-path is " + options.output + "; accepted: a name ending in .safetensors",
          "latents are written as safetensors");
    }
    require_writable(options.output, "--output-path");
    if (!options.report.empty()) require_writable(options.report, "--report");
    request_ = read_request(options);
    device_ = choose_device(options.device);
    identity_ = parallel::rank_identity();
    if (options.gpus > 0 && identity_.source != "none" && options.gpus != identity_.world_size) {
      throw Error(ErrorCode::kInvalidArgument,
                  "--num-gpus is " + std::to_string(options.gpus) + " and the environment (" +
                      identity_.source + ") says " + std::to_string(identity_.world_size) +
                      " ranks",
                  "leave --num-gpus out where a launcher starts the ranks");
    }
    if (device_.platform.cuda && identity_.world_size > 1) {
      if (folded(options.device).starts_with("cuda:")) {
        throw Error(ErrorCode::kInvalidArgument,
                    "--device is " + options.device + " with " +
                        std::to_string(identity_.world_size) + " ranks, which have a device each",
                    "use --device cuda, and CUDA_VISIBLE_DEVICES to choose");
      }
      device_.index = identity_.local_rank;
    }
    pipeline::DitOptions dit;
    dit.model = options.model;
    dit.platform = device_.platform;
    dit.device = c10::Device(device_.name());
    dit.compute = dtype_of(options.dtype);
    dit.attention = attention_choices(options.attention, global);
    dit.degrees.world_size = identity_.world_size;
    dit.degrees.tensor = options.tensor;
    if (options.attention.ulysses_degree) dit.degrees.ulysses = *options.attention.ulysses_degree;
    if (options.attention.ring_degree) dit.degrees.ring = *options.attention.ring_degree;
    dit.request = request_.attention;
    setup_ = pipeline::plan_dit(dit);
    const weights::ModelPaths& paths = setup_.checkpoint.paths;
    require_task(paths, request_.task);
    if (!paths.dmd_denoising_steps.empty() || !paths.pdd_fused_heads.empty()) {
      throw Error(
          ErrorCode::kUnsupported,
          "the model at " + paths.transformer + " is a distilled release with its own step grid",
          "use the base model");
    }
    const auto convention =
        options.step_count == "forwards" ? dit::StepCount::kForwards : dit::StepCount::kGridPoints;
    inputs_ =
        pipeline::assemble_denoise(request_, options.features, setup_.checkpoint.config,
                                   {paths.video_shift, paths.audio_shift},
                                   dit::forwards_of(request_.num_inference_steps, convention));
    layout_ = dit::pack_layout(inputs_.request.layout, setup_.degrees.sequence);
    pipeline::require_memory(
        setup_,
        {.rows = layout_.rows, .moments = moments(), .local_ranks = identity_.local_world_size});
    std::vector<std::pair<std::string, std::string>> files = {{"the request", options.request},
                                                              {"--features", options.features}};
    for (size_t k = 0; k < request_.seeds.size(); ++k) {
      for (const char* suffix : {"", "-dense"}) {
        if (*suffix && !options.compare_dense) continue;
        files.emplace_back("an output", output_name(options, k, request_.seeds.size(), suffix));
      }
    }
    if (!options.report.empty()) files.emplace_back("--report", options.report);
    require_distinct(files);
  }

  int run() {
    if (identity_.world_size == 1) return body(nullptr);
    parallel::WorldOptions world = parallel::WorldOptions::from_environment();
    world.degrees = setup_.degrees;
    world.record = setup_.record();
    record_request(&world.record);
    world.record.add(setup_.degrees);
    world.device = setup_.device.type();
    return parallel::run_rank(world, [&](parallel::World& w) { return body(&w); });
  }

 private:
  bool first() const { return identity_.rank == 0; }

  int body(parallel::World* world) {
    world_ = world;
    dit_ = pipeline::load_dit(
        setup_, world,
        [&](const weights::LoadProgress& p) {
          if (first()) progress_.bytes("load", p.bytes_done, p.bytes_total, p.seconds);
        },
        options_.quiet);
    if (first()) {
      char text[96];
      std::snprintf(text, sizeof(text), "load: %.2f GB in %.2f s (%.2f GB/s)",
                    static_cast<double>(dit_->model().weight_bytes()) / 1e9, dit_->load_seconds(),
                    dit_->load_gb_per_second());
      progress_.finish(text);
    }
    const auto prepared = dit_->attention().prepare(request_.attention);
    auto as_asked = prepared;
    dit_->attention().apply(std::move(as_asked));

    pipeline::RunReport report = header();
    nlohmann::ordered_json comparisons = nlohmann::ordered_json::array();
    const auto start = std::chrono::steady_clock::now();
    const at::Tensor text = dit_->model().refine_text(inputs_.request.text);
    synchronize(setup_.device);
    report.text_seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    for (size_t k = 0; k < request_.seeds.size(); ++k) {
      inputs_.request.seed = static_cast<uint64_t>(request_.seeds[k]);
      const DenoiseResult result = denoise(text, k, "", &report);
      if (!options_.compare_dense) continue;
      AttentionOverride off;
      off.off = true;
      dit_->attention().apply(dit_->attention().prepare(off));
      const DenoiseResult dense = denoise(text, k, "-dense", &report);
      auto again = prepared;
      dit_->attention().apply(std::move(again));
      comparisons.push_back(pipeline::against_dense(result, dense));
    }
    if (first()) print(report, comparisons);
    return kExitOk;
  }

  DenoiseResult denoise(const at::Tensor& text, size_t k, const char* suffix,
                        pipeline::RunReport* report) {
    dit_->attention().reset_stats();
    pipeline::DenoiseJob job(dit_->model(), inputs_.request, text);
    pipeline::DenoiseOptions options;
    options.profile = !options_.no_profile;
    options.agree_to_stop = [&](bool) { return any_interrupted(); };
    double sum = 0;
    const std::string stage = *suffix ? "denoise (dense)" : "denoise";
    // From here an interrupt waits for the end of a step; before, it ends the program at once.
    const Interrupts interrupts;
    if (first())
      progress_.finish("prepare: noise and tables of " + std::to_string(inputs_.request.forwards) +
                       " steps");
    DenoiseResult result = job.run(
        [&](const pipeline::StepProgress& p) {
          sum += p.seconds;
          if (!first()) return;
          progress_.step(stage, p.step + 1, p.steps, sum / static_cast<double>(p.step + 1));
        },
        {}, options);
    const std::string path = output_name(options_, k, request_.seeds.size(), suffix);
    if (!first()) return result;
    char line[96];
    std::snprintf(line, sizeof(line), "%s: %zu steps in %.2f s", stage.c_str(), result.steps.size(),
                  sum);
    progress_.finish(line);
    write_latents(path, result, metadata(*suffix != 0));
    pipeline::RunReport::Output output{path, inputs_.request.seed, result,
                                       dit_->attention().stats_json()};
    output.result.video.reset();
    output.result.audio.reset();
    report->outputs.push_back(std::move(output));
    return result;
  }

  // Every rank asks at every step, so that all stop at the same one.
  bool any_interrupted() {
    if (!world_) return g_interrupted;
    parallel::Group& all = world_->group(parallel::GroupKind::kVaeDecode);
    const at::Tensor mine = at::zeros({1}, at::kByte);
    if (g_interrupted) mine.fill_(1);
    const at::Tensor every = at::zeros({all.size()}, at::kByte);
    all.all_gather(every, mine);
    return every.any().item<bool>();
  }

  std::map<std::string, std::string> metadata(bool dense) const {
    return {{"format", "h3 latents, normalised"},
            {"version", tessera::version()},
            {"task", std::string(to_text(request_.task))},
            {"seed", std::to_string(inputs_.request.seed)},
            {"prompt_hash", hash_text(request_.prompt)},
            {"size",
             std::to_string(inputs_.canvas.width) + "x" + std::to_string(inputs_.canvas.height)},
            {"frames", std::to_string(inputs_.timing.frames)},
            {"forwards", std::to_string(inputs_.request.forwards)},
            {"flow_shift", number_text(inputs_.request.video_shift)},
            {"audio_flow_shift", number_text(inputs_.request.audio_shift)},
            {"dtype", std::string(tessera::dtype_name(setup_.compute))},
            {"ranks", std::to_string(identity_.world_size)},
            {"attention", dense ? "off" : attention_text()}};
  }

  // What the blocks ran.
  std::string attention_text() const {
    const BackendId backend = dit_->attention().layer("transformer", "blocks.0.attn")->backend();
    std::string text(to_text(backend));
    if (is_sparse(backend)) {
      text += " " + describe(with_override(setup_.plan.choices.subblock, request_.attention));
    }
    return text;
  }

  static std::string number_text(double value) {
    char text[32];
    std::snprintf(text, sizeof(text), "%.9g", value);
    return text;
  }

  // Distinct timesteps of all steps, at most: what the AdaLN tables are sized by.
  int64_t moments() const {
    const int64_t each =
        2 + (layout_.condition_video_rows > 0) + (layout_.condition_audio_rows > 0);
    return inputs_.request.forwards * each;
  }

  // All ranks must work on the same request, or the result is a mixture of several.
  void record_request(parallel::ConfigRecord* record) const {
    std::string seeds;
    for (const int64_t seed : request_.seeds) seeds += std::to_string(seed) + " ";
    record->set("request.seeds", seeds);
    record->set("request.file", hash_text(read_text(options_.request)));
    record->set("request.features", hash_text(read_text(options_.features)));
    record->set("request.forwards", inputs_.request.forwards);
    record->set("request.flow_shift", number_text(inputs_.request.video_shift));
    record->set("request.audio_flow_shift", number_text(inputs_.request.audio_shift));
    record->set("request.attention", batch_signature(request_.attention));
    record->set("request.compare_dense", options_.compare_dense ? 1 : 0);
  }

  static std::string hash_text(const std::string& text) {
    char hash[17];
    std::snprintf(hash, sizeof(hash), "%016llx", static_cast<unsigned long long>(fnv1a(text)));
    return hash;
  }

  pipeline::RunReport header() const {
    pipeline::RunReport report;
    report.version = tessera::version();
    report.model = setup_.checkpoint.paths.transformer;
    if (setup_.checkpoint.paths.partition) {
      report.partition = weights::partition_text(*setup_.checkpoint.paths.partition);
    }
    report.device = setup_.device.str();
    report.dtype = std::string(tessera::dtype_name(setup_.compute));
    report.ranks = identity_.world_size;
    report.task = std::string(to_text(request_.task));
    report.canvas = inputs_.canvas;
    report.timing = inputs_.timing;
    report.packed_rows = layout_.rows;
    report.used_rows = layout_.used;
    report.load_seconds = dit_->load_seconds();
    report.load_gb_per_second = dit_->load_gb_per_second();
    report.weight_bytes = dit_->model().weight_bytes();
    return report;
  }

  void print(const pipeline::RunReport& report, const nlohmann::ordered_json& comparisons) {
    nlohmann::ordered_json json = pipeline::report_json(report);
    if (options_.compare_dense) json["against_dense"] = comparisons;
    if (!options_.report.empty()) {
      const std::string text = json.dump(2) + "\n";
      const tessera::Status status =
          tessera::io::write_file_atomic(options_.report, text.data(), text.size());
      if (!status.ok()) throw Error(ErrorCode::kUnavailable, status.message());
    }
    if (options_.json) return print_text(json.dump(2) + "\n");
    std::string text = pipeline::report_text(report);
    for (const auto& one : comparisons) text += pipeline::against_dense_text(one);
    print_text(text);
  }

  const Options options_;
  Progress progress_;
  VideoRequest request_;
  DeviceChoice device_;
  parallel::RankIdentity identity_;
  pipeline::DitSetup setup_;
  pipeline::DenoiseInputs inputs_;
  dit::PackedLayout layout_;
  parallel::World* world_ = nullptr;
  std::unique_ptr<pipeline::LoadedDit> dit_;
};

int run_denoise(const Options& options, const GlobalOptions& global) {
  if (options.gpus > 1 && parallel::rank_identity().source == "none") {
    parallel::LaunchOptions launch;
    launch.ranks = options.gpus;
    launch.command = global.arguments;
    launch.prefix_output = false;             // rank 0 alone prints
    launch.grace = std::chrono::seconds(30);  // a step has to end first
    return parallel::launch(launch).exit_code;
  }
  return Run(options, global).run();
}

}  // namespace

void add_denoise_command(CLI::App& app, GlobalOptions& global) {
  auto options = std::make_shared<Options>();
  CLI::App* sub =
      add_command(app, global, "denoise",
                  "Run the transformer: a request and encoded conditions in, latents out",
                  "h3 denoise tiny/examples/t2va.json --features tiny/examples/t2va.safetensors "
                  "--model-path tiny -o latents.safetensors",
                  [options, &global] { return run_denoise(*options, global); });
  sub->add_option("request", options->request, "Request: a JSON file (minimax_h3.request/v1)")
      ->required()
      ->type_name("FILE");
  sub->add_option("--model-path", options->model.path,
                  "Checkpoint: repository, partition, folder or file")
      ->required()
      ->type_name("PATH");
  sub->add_option("--model-variant", options->model.variant, "fl2va, ref2va or hybrid")
      ->type_name("NAME");
  sub->add_option("--model-subfolder", options->model.subfolder, "Folder of the partition")
      ->type_name("NAME");
  sub->add_option(
         "--features", options->features,
         "Text features and condition latents: a safetensors file with `text` [L, text_dim], "
         "condition.<i>.visual, condition.<i>.audio")
      ->required()
      ->type_name("FILE");
  sub->add_option("-o,--output-path", options->output, "Latents: a .safetensors file")
      ->required()
      ->type_name("FILE");
  sub->add_option("--report", options->report, "Also write the run report here, as JSON")
      ->type_name("FILE");
  sub->add_option("--device", options->device, "cpu, cuda or cuda:N; default: what is here")
      ->type_name("DEVICE");
  sub->add_option("--dtype", options->dtype,
                  "bf16 or f32; default: bf16 on CUDA and with sparse attention, else f32")
      ->check(CLI::IsMember({"bf16", "f32"}))
      ->type_name("NAME");
  sub->add_option("--seed", options->seed, "Instead of the request's; output k gets seed + k")
      ->type_name("N");
  sub->add_option("--num-inference-steps,--steps", options->steps, "Instead of the request's")
      ->check(CLI::Range(int64_t{1}, int64_t{1000}))
      ->type_name("N");
  sub->add_option("--step-count", options->step_count,
                  "What the steps count: forwards, or grid-points (one more than forwards)")
      ->check(CLI::IsMember({"forwards", "grid-points"}))
      ->type_name("NAME");
  sub->add_option("--flow-shift", options->flow_shift, "Sigma shift of the video")->type_name("X");
  sub->add_option("--audio-flow-shift", options->audio_flow_shift, "Sigma shift of the audio")
      ->type_name("X");
  sub->add_option("--num-gpus", options->gpus, "Ranks to start on this host")
      ->check(CLI::Range(1, 4096))
      ->type_name("N");
  sub->add_option("--tp-size", options->tensor, "Ranks that share the weights")
      ->check(CLI::Range(1, 4096))
      ->type_name("N");
  sub->add_flag("--compare-dense", options->compare_dense,
                "Run each seed once more with dense attention and report the difference");
  sub->add_flag("--no-profile", options->no_profile, "Do not time the phases of the steps");
  sub->add_flag("--json", options->json, "Print the run report as JSON on stdout");
  sub->add_flag("-q,--quiet", options->quiet, "No progress on stderr");
  add_attention_options(sub, options->attention);
}

}  // namespace h3::cli
