// `h3 inspect`: what a model path holds, whether it is complete, and what it needs in memory. Reads
// configs and headers only.
#include <array>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "h3/cli/commands.h"
#include "h3/common/error.h"
#include "h3/models/dit/checkpoint.h"
#include "h3/models/dit/memory.h"
#include "h3/weights/recipes.h"

namespace h3::cli {
namespace {

using tessera::Dtype;

struct Options {
  weights::ModelRequest model;
  bool json = false;
  int64_t rows = 37760;  // 5 s at 1344 x 768
};

struct Group {
  const char* name;
  int64_t tensors = 0;
  uint64_t bytes = 0, bf16_bytes = 0, f32_bytes = 0;  // in the files; other types only in `bytes`
};

enum GroupId { kBlocks, kAdaln, kRefiner, kRest, kGroups };

// What could be found out; a fault ends only what depends on it.
struct Report {
  weights::ModelPaths paths;
  std::optional<dit::DitConfig> config;
  std::optional<weights::Checkpoint> checkpoint;
  std::optional<dit::NameStyle> style;
  std::array<Group, kGroups> groups{Group{"blocks"}, Group{"adaln"}, Group{"refiner"},
                                    Group{"rest"}};
  std::vector<std::string> faults;
};

GroupId group_of(const std::string& name) {
  if (name.find(".adaln_proj.") != std::string::npos || name.starts_with("norm_out.linear.")) {
    return kAdaln;
  }
  if (name.starts_with("blocks.") || name.starts_with("transformer_blocks.")) return kBlocks;
  return name.starts_with("token_refiner.") ? kRefiner : kRest;
}

void count_groups(Report& report) {
  for (const auto& [name, tensor] : report.checkpoint->tensors()) {
    Group& group = report.groups[group_of(name)];
    ++group.tensors;
    group.bytes += tensor.bytes;
    if (tensor.dtype == Dtype::kBf16) group.bf16_bytes += tensor.bytes;
    if (tensor.dtype == Dtype::kF32) group.f32_bytes += tensor.bytes;
  }
}

template <class Work>
void attempt(Report& report, const Work& work) {
  try {
    work();
  } catch (const Error& error) {
    report.faults.push_back(error.what());
  }
}

Report inspect(const Options& options) {
  Report report;
  report.paths = weights::resolve_model(options.model);  // without a path there is nothing to tell
  attempt(report, [&] { report.config = dit::read_dit_config(report.paths); });
  attempt(report, [&] {
    report.checkpoint = weights::Checkpoint::open(report.paths.transformer);
    count_groups(report);
    report.style = dit::name_style_of(*report.checkpoint);
  });
  if (report.config && report.style) {
    attempt(report, [&] {
      weights::Faults faults(report.paths.transformer);
      add_faults(dit::dit_inventory(*report.checkpoint, *report.config, *report.style), faults);
      faults.throw_if_any("files and config.json must be of one and the same model");
    });
  }
  return report;
}

uint64_t weight_bytes(const dit::DitConfig& config, Dtype compute) {
  return weights::model_bytes(dit::model_recipes(config, dit::NameStyle::kNative, compute));
}

std::string fixed(double value, int digits) {
  char text[64];
  std::snprintf(text, sizeof text, "%.*f", digits, value);
  return text;
}

std::string number(double value) {  // 12, 3, 1e-05
  char text[64];
  std::snprintf(text, sizeof text, "%g", value);
  return text;
}

std::string bytes_text(uint64_t bytes) {
  const auto value = static_cast<double>(bytes);
  if (bytes == 0) return "-";
  if (bytes >= 1'000'000'000) return fixed(value / 1e9, 2) + " GB";
  if (bytes >= 1'000'000) return fixed(value / 1e6, 2) + " MB";
  return fixed(value / 1e3, 1) + " kB";
}

std::string column(const std::string& text, size_t width) {
  return text.size() < width ? std::string(width - text.size(), ' ') + text : " " + text;
}

template <class T>
std::string listed(const std::vector<T>& values) {
  std::ostringstream text;
  for (size_t i = 0; i < values.size(); ++i) text << (i > 0 ? ", " : "") << values[i];
  return text.str();
}

std::string partition_line(const weights::ModelPaths& paths) {
  if (!paths.partition) return "not known from bare weights; say it with --model-variant";
  return std::string(weights::partition_text(*paths.partition)) + "; tasks " + listed(paths.tasks) +
         "; flow shift " + number(paths.video_shift) + " video, " + number(paths.audio_shift) +
         " audio";
}

std::string config_lines(const dit::DitConfig& c) {
  std::ostringstream text;
  text << "config       hidden " << c.hidden << ", " << c.layers << " blocks, " << c.refiner_layers
       << " refiner blocks, " << c.heads << " heads x " << c.head_dim << ", ffn " << c.ffn
       << "\n             text " << c.text_dim << ", video rows " << c.video_row()
       << ", audio rows " << c.audio_row() << ", timestep " << c.timestep_input << " -> "
       << c.time_hidden << " -> " << c.time_embed << ", rope 3 x " << c.rope_freqs << " (theta "
       << c.rope_theta << ")\n";
  return text.str();
}

std::string groups_text(const Report& report) {
  const auto row = [](const std::string& name, const std::vector<std::string>& cells) {
    std::string text = name + std::string(name.size() < 8 ? 8 - name.size() : 1, ' ');
    for (const std::string& cell : cells) text += column(cell, 12);
    return text + "\n";
  };
  std::string text = "\n" + row("group", {"tensors", "bytes", "bf16", "f32"});
  for (const Group& g : report.groups) {
    text += row(g.name, {std::to_string(g.tensors), bytes_text(g.bytes), bytes_text(g.bf16_bytes),
                         bytes_text(g.f32_bytes)});
  }
  return text;
}

std::string memory_text(const dit::DitConfig& config, int64_t rows) {
  std::string text = "\nmemory for " + std::to_string(rows) + " rows on one device\n";
  for (const Dtype compute : {Dtype::kBf16, Dtype::kF32}) {
    const uint64_t weights = weight_bytes(config, compute);
    const auto activations =
        static_cast<uint64_t>(dit::estimated_activation_bytes(config, rows, compute));
    text += "  " + std::string(dtype_name(compute)) + ": weights " + bytes_text(weights) +
            ", activations about " + bytes_text(activations) + " (estimate), together " +
            bytes_text(weights + activations) + "\n";
  }
  return text;
}

std::string report_text(const Report& report, int64_t rows) {
  const weights::ModelPaths& paths = report.paths;
  std::string text = "transformer  " + paths.transformer + " (" +
                     std::string(weights::layout_text(paths.layout)) + ")\npartition    " +
                     partition_line(paths) + "\n";
  if (!paths.dmd_denoising_steps.empty() || !paths.pdd_fused_heads.empty()) {
    text += "distilled    steps " + listed(paths.dmd_denoising_steps) + "; fused heads " +
            (paths.pdd_fused_heads.empty() ? "none" : paths.pdd_fused_heads) + "\n";
  }
  if (report.config) text += config_lines(*report.config);
  if (paths.config.empty()) {
    text += "             no config.json beside the file: the published sizes\n";
  }
  if (report.checkpoint) {
    const weights::Checkpoint& c = *report.checkpoint;
    text += "tensors      " + std::to_string(c.tensors().size()) + " in " +
            std::to_string(c.files().size()) + " files, " + bytes_text(c.tensor_bytes()) + " (" +
            std::to_string(c.tensor_bytes()) + " bytes), " +
            (report.style ? std::string(dit::name_style_text(*report.style)) : "unknown") +
            " names\n" + groups_text(report);
  }
  if (report.config) text += memory_text(*report.config, rows);
  if (report.faults.empty()) text += "\ncomplete: every tensor is there with its shape and type\n";
  return text;
}

std::string report_json(const Report& report, int64_t rows) {
  using Json = nlohmann::ordered_json;
  const weights::ModelPaths& paths = report.paths;
  Json json;
  json["transformer"] = paths.transformer;
  json["layout"] = weights::layout_text(paths.layout);
  json["partition"] = paths.partition ? Json(weights::partition_text(*paths.partition)) : Json();
  json["tasks"] = paths.tasks;
  json["sigma_shift"] = {{"video", paths.video_shift}, {"audio", paths.audio_shift}};
  json["dmd_denoising_steps"] = paths.dmd_denoising_steps;
  json["pdd_fused_heads"] = paths.pdd_fused_heads;
  json["config_file"] = paths.config;
  json["config"] = report.config ? Json::parse(dit_config_json(*report.config)) : Json();
  json["name_style"] = report.style ? Json(dit::name_style_text(*report.style)) : Json();
  if (report.checkpoint) {
    json["tensors"] = report.checkpoint->tensors().size();
    json["files"] = report.checkpoint->files().size();
    json["bytes"] = report.checkpoint->tensor_bytes();
    for (const Group& g : report.groups) {
      json["groups"][g.name] = {{"tensors", g.tensors},
                                {"bytes", g.bytes},
                                {"bf16_bytes", g.bf16_bytes},
                                {"f32_bytes", g.f32_bytes}};
    }
  }
  if (report.config) {
    json["memory"]["rows"] = rows;
    for (const Dtype compute : {Dtype::kBf16, Dtype::kF32}) {
      json["memory"][std::string(dtype_name(compute))] = {
          {"weight_bytes", weight_bytes(*report.config, compute)},
          {"estimated_activation_bytes",
           dit::estimated_activation_bytes(*report.config, rows, compute)}};
    }
  }
  json["faults"] = report.faults;
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

int run_inspect(const Options& options) {
  const Report report = inspect(options);
  print_text(options.json ? report_json(report, options.rows) : report_text(report, options.rows));
  for (const std::string& fault : report.faults) message("error: " + fault);
  return report.faults.empty() ? kExitOk : kExitBadInput;
}

}  // namespace

void add_inspect_command(CLI::App& app, GlobalOptions& global) {
  auto options = std::make_shared<Options>();
  CLI::App* sub = add_command(
      app, global, "inspect", "Say what a model path holds, whether it is complete, what it needs",
      "h3 inspect MiniMax-H3 --model-variant ref2va", [options] { return run_inspect(*options); });
  sub->add_option("path", options->model.path,
                  "Repository, partition, transformer's folder, or .safetensors file")
      ->required()
      ->type_name("PATH");
  sub->add_option("--model-variant", options->model.variant,
                  "fl2va, ref2va or hybrid; default: fl2va where there are several")
      ->type_name("NAME");
  sub->add_option("--model-subfolder", options->model.subfolder, "Folder inside PATH")
      ->type_name("DIR");
  sub->add_option("--rows", options->rows, "Packed rows for the memory estimate")
      ->check(CLI::Range(int64_t{64}, int64_t{1} << 24))
      ->type_name("N");
  sub->add_flag("--json", options->json, "Print one JSON document on stdout");
}

}  // namespace h3::cli
