// Recognises the published folder layouts.
#include "h3/weights/model_paths.h"

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "h3/common/error.h"
#include "h3/weights/faults.h"
#include "h3/weights/json_text.h"
#include "tessera/io/mapped_file.h"
#include "tessera/io/text.h"

namespace h3::weights {
namespace {

namespace fs = std::filesystem;
using tessera::io::detail::in_quotes;

constexpr size_t kMaxIndexBytes = size_t{16} << 20;
constexpr const char* kNativeClass = "MiniMaxH3DiTModel";

[[noreturn]] void refuse(const std::string& text, const std::string& hint) {
  throw Error(ErrorCode::kInvalidArgument, text, hint);
}

std::string quoted(const fs::path& path) { return in_quotes(path.string(), 1024); }

bool is_folder(const fs::path& path) {
  std::error_code error;
  return fs::is_directory(path, error);
}

bool is_file(const fs::path& path) {
  std::error_code error;
  return fs::is_regular_file(path, error);
}

std::string read_text(const fs::path& path) {
  std::string text;
  const tessera::Status s =
      tessera::io::detail::read_text_file(path.string(), kMaxIndexBytes, &text);
  if (!s.ok()) refuse(s.message(), "fetch the model's JSON files too");
  return text;
}

enum class Variant { kNone, kFl2va, kRef2va, kHybrid };

Variant parse_variant(const std::string& text) {
  if (text.empty()) return Variant::kNone;
  if (text == "fl2va") return Variant::kFl2va;
  if (text == "ref2va") return Variant::kRef2va;
  if (text == "hybrid") return Variant::kHybrid;
  refuse("--model-variant is " + in_quotes(text) + "; accepted: fl2va, ref2va, hybrid",
         "write --model-variant fl2va");
}

Partition partition_or_default(Variant variant) {
  return variant == Variant::kRef2va ? Partition::kRef2va : Partition::kFl2va;
}

const char* native_folder(Partition p) { return p == Partition::kRef2va ? "Ref2VA" : "FL2VA"; }
const char* diffusers_folder(Partition p) {
  return p == Partition::kRef2va ? "transformer_ref" : "transformer";
}

// The partition that a published sub-folder stands for.
std::optional<Partition> partition_of_folder(const std::string& name) {
  for (const Partition p : {Partition::kFl2va, Partition::kRef2va}) {
    if (name == native_folder(p) || name == diffusers_folder(p)) return p;
  }
  return std::nullopt;
}

class Resolver {
 public:
  explicit Resolver(const ModelRequest& request)
      : request_(request), variant_(parse_variant(request.variant)) {}

  ModelPaths resolve() {
    const fs::path path = request_.path;
    if (request_.path.empty()) refuse("the model path is empty", "give --model-path");
    std::error_code error;
    if (!fs::exists(path, error)) {
      refuse("model path " + quoted(path) + ": no such file or folder", "check the path");
    }
    if (!is_folder(path)) return file(path);
    if (!request_.subfolder.empty()) return subfolder(path);
    for (const Partition p : {Partition::kFl2va, Partition::kRef2va}) {
      if (is_folder(path / native_folder(p))) return repository(path);
    }
    return folder(path);
  }

 private:
  // Bare weights say nothing about their partition; the user may.
  ModelPaths bare(ModelLayout layout, const fs::path& transformer, const fs::path& config) {
    ModelPaths paths;
    paths.layout = layout;
    paths.transformer = transformer.string();
    paths.config = config.string();
    if (variant_ == Variant::kHybrid) {
      paths.partition = Partition::kRef2va;
      paths.tasks = {"t2va", "fl2va", "ref2va"};
    } else if (variant_ != Variant::kNone) {
      paths.partition = partition_or_default(variant_);
      paths.tasks = partition_tasks(*paths.partition);
    }
    return paths;
  }

  ModelPaths file(const fs::path& path) {
    if (!request_.subfolder.empty()) {
      refuse(
          "--model-subfolder " + in_quotes(request_.subfolder) + " with the file " + quoted(path),
          "give a folder, or leave --model-subfolder out");
    }
    const fs::path config = path.parent_path() / "config.json";
    return bare(ModelLayout::kFile, path, is_file(config) ? config : fs::path());
  }

  ModelPaths subfolder(const fs::path& root) {
    const fs::path relative = fs::path(request_.subfolder).lexically_normal();
    const bool outside = std::find(relative.begin(), relative.end(), "..") != relative.end();
    if (relative.is_absolute() || outside) {
      refuse("--model-subfolder is " + in_quotes(request_.subfolder),
             "give a folder inside the model path, such as FL2VA");
    }
    const fs::path chosen = root / relative;
    if (!is_folder(chosen)) {
      refuse("--model-subfolder: " + quoted(chosen) + " is no folder",
             "accepted here: " + folders_of(root));
    }
    fs::path last = relative;  // "FL2VA/" ends in an empty part
    if (last.filename().empty()) last = last.parent_path();
    const auto named = partition_of_folder(last.filename().string());
    if (named && variant_ != Variant::kNone && variant_ != Variant::kHybrid) {
      agree(*named, "--model-subfolder " + in_quotes(request_.subfolder));
    }
    const bool component = named && last.filename() == diffusers_folder(*named);
    const fs::path parent = root / last.parent_path();
    if (component && !is_native_transformer(chosen)) return diffusers(parent, *named);
    return folder(chosen);
  }

  // Both published layouts, or one of them.
  ModelPaths repository(const fs::path& root) {
    const Partition wanted = partition_or_default(variant_);
    refuse_hybrid(root);
    if (is_folder(root / native_folder(wanted))) return partition(root / native_folder(wanted));
    if (is_folder(root / diffusers_folder(wanted))) return diffusers(root, wanted);
    refuse("model path " + quoted(root) + " has neither " + native_folder(wanted) + "/ nor " +
               diffusers_folder(wanted) + "/, which " + std::string(partition_text(wanted)) +
               " needs; it has " + folders_of(root),
           "choose another --model-variant, or fetch the folder");
  }

  ModelPaths folder(const fs::path& path) {
    const fs::path index = path / "model_index.json";
    if (is_file(index) && has_release_block(read_text(index), index.string())) {
      return partition(path);
    }
    for (const Partition p : {Partition::kFl2va, Partition::kRef2va}) {
      const fs::path transformer = path / diffusers_folder(p);
      if (!is_folder(transformer)) continue;
      if (is_native_transformer(transformer)) return partition(path);  // says what is missing
      return diffusers(path, partition_or_default(variant_));
    }
    if (is_file(path / "config.json")) {
      return bare(ModelLayout::kTransformer, path, path / "config.json");
    }
    refuse("model path " + quoted(path) +
               " is no MiniMax-H3 model: it has no FL2VA/, Ref2VA/, transformer/ or "
               "transformer_ref/, and no config.json",
           "give the repository, one of its partitions, or a transformer's folder");
  }

  bool is_native_transformer(const fs::path& transformer) {
    const fs::path config = transformer / "config.json";
    if (!is_file(config)) {
      refuse(quoted(transformer) + " has no config.json", "fetch the model's JSON files too");
    }
    const nlohmann::json json = read_json_object(config.string());
    const auto name = json.find("_class_name");
    return name != json.end() && *name == kNativeClass;
  }

  ModelPaths partition(const fs::path& root) {
    refuse_hybrid(root);
    const fs::path index = root / "model_index.json";
    const ReleaseBlock release = parse_release_block(read_text(index), index.string());
    if (variant_ != Variant::kNone) agree(release.partition, quoted(index));
    ModelPaths paths;
    paths.layout = ModelLayout::kPartition;
    paths.partition = release.partition;
    paths.tasks = release.tasks;
    paths.video_shift = release.video_shift;
    paths.audio_shift = release.audio_shift;
    paths.dmd_denoising_steps = release.dmd_denoising_steps;
    paths.pdd_fused_heads = release.pdd_fused_heads;
    use_transformer(paths, root, "transformer");
    return paths;
  }

  ModelPaths diffusers(const fs::path& root, Partition wanted) {
    refuse_hybrid(root);
    ModelPaths paths;
    paths.layout = ModelLayout::kDiffusers;
    paths.partition = wanted;
    paths.tasks = partition_tasks(wanted);
    use_transformer(paths, root, diffusers_folder(wanted));
    paths.video_shift = shift(root / "scheduler" / "scheduler_config.json");
    paths.audio_shift = shift(root / "audio_scheduler" / "scheduler_config.json");
    return paths;
  }

  void use_transformer(ModelPaths& paths, const fs::path& root, const char* name) {
    const fs::path transformer = root / name;
    if (!is_folder(transformer)) {
      refuse("model path " + quoted(root) + " has no " + name + "/; it has " + folders_of(root),
             "choose another --model-variant, or fetch the folder");
    }
    paths.root = root.string();
    paths.transformer = transformer.string();
    paths.config = (transformer / "config.json").string();
    if (!is_file(paths.config)) {
      refuse(quoted(transformer) + " has no config.json", "fetch the model's JSON files too");
    }
  }

  double shift(const fs::path& path) {
    if (!is_file(path)) {
      refuse("the flow shift is missing: no " + quoted(path),
             "fetch that folder too, or give the transformer's folder as the model path");
    }
    const nlohmann::json json = read_json_object(path.string());
    const auto at = json.find("shift");
    const double value = at != json.end() && at->is_number() ? at->get<double>() : 0;
    if (!std::isfinite(value) || value <= 0) {
      refuse(quoted(path) + ": shift is " + (at == json.end() ? "missing" : json_value_text(*at)) +
                 "; a positive number is needed",
             "use the file that came with the model");
    }
    return value;
  }

  void agree(Partition found, const std::string& where) {
    if (variant_ != Variant::kHybrid && found == partition_or_default(variant_)) return;
    refuse("--model-variant " + request_.variant + " contradicts " + where + ", which is " +
               std::string(partition_text(found)),
           "leave one of them out");
  }

  void refuse_hybrid(const fs::path& root) {
    if (variant_ != Variant::kHybrid) return;
    refuse("--model-variant hybrid with " + quoted(root) +
               ": the published partitions hold no merged weights",
           "give the folder or file of the merged transformer as the model path");
  }

  static std::string folders_of(const fs::path& root) {
    std::vector<std::string> names;
    std::error_code error;
    for (fs::directory_iterator at(root, error), end; !error && at != end; at.increment(error)) {
      if (is_folder(at->path())) {
        names.push_back(tessera::io::detail::printable(at->path().filename().string()) + "/");
      }
    }
    std::sort(names.begin(), names.end());
    return names.empty() ? "no folders" : capped_list(names);
  }

  const ModelRequest& request_;
  Variant variant_;
};

}  // namespace

std::string_view layout_text(ModelLayout layout) {
  switch (layout) {
    case ModelLayout::kPartition: return "native partition";
    case ModelLayout::kDiffusers: return "diffusers";
    case ModelLayout::kTransformer: return "transformer folder";
    case ModelLayout::kFile: return "file";
  }
  return "";
}

ModelPaths resolve_model(const ModelRequest& request) { return Resolver(request).resolve(); }

}  // namespace h3::weights
