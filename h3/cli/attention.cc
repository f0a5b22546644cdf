// `h3 attention`: which backend every attention layer would run and why; the support matrix.
#include <memory>
#include <string>

#include "h3/attention/h3_layers.h"
#include "h3/attention/report.h"
#include "h3/cli/attention_options.h"
#include "h3/cli/commands.h"
#include "h3/cli/device_option.h"
#include "h3/common/error.h"
#include "h3/parallel/plan_admission.h"
#include "tessera/device.h"

namespace h3::cli {
namespace {

struct Options {
  bool explain = false, backends = false, json = false;
  std::string device, capability;
  int64_t tokens = 37760;  // 5 s at 1344 x 768
  AttentionOptionTexts attention;
};

[[noreturn]] void refuse(const std::string& text, const std::string& hint) {
  throw Error(ErrorCode::kInvalidArgument, text, hint);
}

Platform platform_of(const Options& options) {
  if (options.capability.empty()) {
    try {
      return choose_device(options.device).platform;
    } catch (const Error& error) {  // here the device may also be described
      refuse(error.message(),
             "use --device cpu, or say what the device would be: --capability 9.0");
    }
  }
  const std::string device = folded(options.device);
  if (device == "cpu") {
    refuse("--capability " + options.capability + " contradicts --device cpu",
           "leave one of them out");
  }
  if (!device.empty() && device != "cuda" && !device.starts_with("cuda:")) choose_device(device);
  // A device that is described need not be here, and neither do its kernels.
  const Capability c = capability_from_text(options.capability);
  return cuda_platform(c.major, c.minor);
}

int run_attention(const Options& options, const GlobalOptions& global) {
  if (options.explain == options.backends) {
    refuse("h3 attention needs exactly one of --explain and --backends",
           "see `h3 attention --help`");
  }
  if (options.backends) {
    print_text(options.json ? backends_json() : backends_text());
    return kExitOk;
  }
  const AttentionChoices choices = attention_choices(options.attention, global);
  const Platform platform = platform_of(options);
  const AttentionPlan plan = resolve_attention(minimax_h3_layers(platform), choices, platform);
  const int64_t ranks = int64_t{choices.ulysses_degree} * choices.ring_degree;
  parallel::admit_plan(plan, parallel::resolve_degrees({.world_size = ranks,
                                                        .ulysses = choices.ulysses_degree,
                                                        .ring = choices.ring_degree}));
  if (options.json) {
    print_text(plan_json(plan));
    return kExitOk;
  }
  const std::string kept = kept_text(plan, options.tokens);
  std::string text = plan_text(plan);
  if (!kept.empty()) {
    text += "\na sequence of " + std::to_string(options.tokens) + " tokens keeps " + kept + "\n";
  }
  if (!options.capability.empty() && !tessera::built_with_cuda()) {
    message("note: this build holds no CUDA kernels; the table assumes a build that does");
  }
  print_text(text);
  return kExitOk;
}

}  // namespace

void add_attention_command(CLI::App& app, GlobalOptions& global) {
  auto options = std::make_shared<Options>();
  CLI::App* sub =
      add_command(app, global, "attention", "Say which attention backend every layer runs, and why",
                  "h3 attention --explain --capability 9.0 --component-attention-backends "
                  "transformer=subblock_sparse_attn",
                  [options, &global] { return run_attention(*options, global); });
  sub->add_flag("--explain", options->explain, "Print the resolved table");
  sub->add_flag("--backends", options->backends, "Print names and capabilities of all backends");
  sub->add_flag("--json", options->json, "Print one JSON document on stdout");
  sub->add_option("--device", options->device, "cpu, cuda or cuda:N; default: what is here")
      ->type_name("DEVICE");
  sub->add_option("--capability", options->capability,
                  "Plan for a CUDA device of this compute capability, such as 9.0")
      ->type_name("X.Y");
  sub->add_option("--tokens", options->tokens, "Sequence length for the kept count")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 31))
      ->type_name("N");
  add_attention_options(sub, options->attention);
}

}  // namespace h3::cli
