// `h3 encode`: from a picture, a clip or sound to the latents of a condition.
#include <c10/core/Device.h>

#include <cstdio>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "h3/cli/attention_options.h"
#include "h3/cli/commands.h"
#include "h3/cli/device_option.h"
#include "h3/cli/run_files.h"
#include "h3/cli/vae_folder.h"
#include "h3/common/error.h"
#include "h3/pipeline/encode.h"
#include "tessera/io/safetensors.h"

namespace h3::cli {
namespace {

struct Options {
  std::string output, device, size, fit = "stretch", prefix = "condition.0", into;
  pipeline::EncodeRequest request;
  weights::ModelRequest model;
  AttentionOptionTexts attention;
};

dit::Canvas canvas_of(const std::string& text) {
  if (text.empty()) return {};
  long long width = 0, height = 0;
  char end = 0;
  if (std::sscanf(text.c_str(), "%lldx%lld%c", &width, &height, &end) != 2 || width < 1 ||
      height < 1) {
    throw Error(ErrorCode::kInvalidArgument, "--size is " + text + "; accepted: WIDTHxHEIGHT",
                "write --size 1344x768");
  }
  return {width, height};
}

int run_encode(const Options& options, const GlobalOptions& global) {
  require_writable(options.output, "--output-path");
  std::vector<std::pair<std::string, std::string>> files = {
      {"the media file", options.request.path}, {"--output-path", options.output}};
  require_distinct(files);
  const DeviceChoice device = choose_device(options.device);
  pipeline::VaeOptions vae;
  vae.folder = vae_folder(options.model);
  vae.platform = device.platform;
  vae.device = c10::Device(device.name());
  vae.attention = attention_choices(options.attention, global);
  pipeline::EncodeRequest request = options.request;
  request.canvas = canvas_of(options.size);
  request.fit = options.fit == "cover" ? pipeline::Fit::kCover : pipeline::Fit::kStretch;

  // Tensors of an existing features file travel along, so that conditions can be added one by one.
  tessera::io::SafetensorsFile into;
  std::vector<tessera::io::SafetensorsItem> items;
  if (!options.into.empty()) {
    const tessera::Status s = tessera::io::SafetensorsFile::open(options.into, &into);
    if (!s.ok()) throw Error(ErrorCode::kInvalidArgument, s.message(), "--into takes features");
    for (const tessera::io::SafetensorsEntry& e : into.entries()) {
      if (e.name.starts_with(options.prefix + ".")) continue;
      items.push_back({e.name, e.dtype, e.shape, e.data});
    }
  }
  const pipeline::VaeSetup setup = pipeline::plan_vaes(vae);
  pipeline::LoadedVaes vaes(setup, vae_video::Part::kEncoder);
  const pipeline::EncodedMedia media = pipeline::encode_media(vaes, request);
  std::string text = options.request.path + ": ";
  const auto add = [&](const char* name, const at::Tensor& t) {
    if (!t.defined()) return;
    items.push_back(
        {options.prefix + "." + name, tessera::Dtype::kF32, t.sizes().vec(), t.data_ptr()});
    text += "\n  " + options.prefix + "." + name + " [";
    for (size_t i = 0; i < t.sizes().size(); ++i) {
      text += (i ? ", " : "") + std::to_string(t.sizes()[i]);
    }
    text += "]";
  };
  if (media.frames > 0) {
    text += std::to_string(media.frames) + " frames on " + std::to_string(media.canvas.width) +
            "x" + std::to_string(media.canvas.height);
  } else {
    text += "sound";
  }
  add("visual", media.visual);
  add("audio", media.audio);
  const tessera::Status s = tessera::io::write_safetensors(options.output, items);
  if (!s.ok()) throw Error(ErrorCode::kUnavailable, s.message());
  print_text(text + "\n-> " + options.output + "\n");
  return kExitOk;
}

}  // namespace

void add_encode_command(CLI::App& app, GlobalOptions& global) {
  auto options = std::make_shared<Options>();
  CLI::App* sub = add_command(app, global, "encode",
                              "Turn a picture, a clip or sound into the latents of a condition",
                              "h3 encode first.png --model-path tiny --size 1344x768 --into "
                              "text.safetensors -o f.safetensors",
                              [options, &global] { return run_encode(*options, global); });
  sub->add_option("media", options->request.path, "Picture, video or sound")
      ->required()
      ->type_name("FILE");
  sub->add_option("--model-path", options->model.path,
                  "Release, partition, or a folder with video_vae/ (or vae/) and audio_vae/")
      ->required()
      ->type_name("PATH");
  sub->add_option("--model-variant", options->model.variant, "fl2va or ref2va")->type_name("NAME");
  sub->add_option("-o,--output-path", options->output, "Latents: a .safetensors file")
      ->required()
      ->type_name("FILE");
  sub->add_option("--name", options->prefix, "Tensors are NAME.visual and NAME.audio")
      ->type_name("NAME");
  sub->add_option("--into", options->into, "Features whose other tensors are written too")
      ->type_name("FILE");
  sub->add_option("--size", options->size,
                  "Canvas, multiples of 32; default: as the references of a request")
      ->type_name("WxH");
  sub->add_option("--fit", options->fit,
                  "stretch (first keyframe, references) or cover (second keyframe)")
      ->check(CLI::IsMember({"stretch", "cover"}))
      ->type_name("NAME");
  sub->add_option("--start-seconds", options->request.start_seconds, "Where clip and sound begin")
      ->check(CLI::Range(0.0, 1e6))
      ->type_name("S");
  sub->add_option("--max-frames", options->request.max_frames, "Frames of a clip at most")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 20))
      ->type_name("N");
  sub->add_option("--max-seconds", options->request.max_seconds, "Sound at most")
      ->check(CLI::Range(0.0, 1e6))
      ->type_name("S");
  sub->add_option("--device", options->device, "cpu, cuda or cuda:N; default: what is here")
      ->type_name("DEVICE");
  add_attention_options(sub, options->attention);
}

}  // namespace h3::cli
