// Strict reading of the release block: a wrong shift or task renders plausible, wrong videos.
#include "h3/weights/model_index.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <optional>

#include "h3/weights/faults.h"
#include "h3/weights/json_text.h"
#include "tessera/io/text.h"

namespace h3::weights {
namespace {

using Json = nlohmann::json;
using tessera::io::detail::in_quotes;

constexpr const char* kBlock = "_minimax_h3";

std::optional<Partition> partition_of_task(const std::string& task) {
  if (task == "t2va" || task == "fl2va") return Partition::kFl2va;
  if (task == "ref2va") return Partition::kRef2va;
  return std::nullopt;
}

class BlockReader {
 public:
  BlockReader(const Json& block, Faults& faults) : block_(block), faults_(faults) {}

  ReleaseBlock read() {
    const Json version = value("schema_version");
    if (version.is_boolean() || version != 1) {
      fault("schema_version", version, "1 is accepted");
    }
    read_partition();
    read_tasks();
    read_aliases();
    const Json shifts = value("sigma_shift_scales");
    release_.video_shift = shift(shifts, "video");
    release_.audio_shift = shift(shifts, "audio");
    read_distilled();
    return release_;
  }

 private:
  Json value(const char* key) const {
    const auto at = block_.find(key);
    return at == block_.end() ? Json() : *at;
  }

  void fault(const std::string& key, const Json& got, const std::string& accepted) {
    faults_.add(std::string(kBlock) + "." + key + " is " +
                (got.is_null() ? "missing" : json_value_text(got)) + "; " + accepted);
  }

  void read_partition() {
    const Json partition = value("partition");
    known_partition_ = partition == "fl2va" || partition == "ref2va";
    if (!known_partition_) fault("partition", partition, "fl2va and ref2va are accepted");
    release_.partition = partition == "ref2va" ? Partition::kRef2va : Partition::kFl2va;
  }

  void read_tasks() {
    const Json tasks = value("tasks");
    if (!tasks.is_array() || tasks.empty()) {
      fault("tasks", tasks, "a list of t2va, fl2va or ref2va is needed");
      return;
    }
    for (const Json& task : tasks) {
      const std::string name = task.is_string() ? task.get<std::string>() : "";
      const auto home = partition_of_task(name);
      if (!home) {
        fault("tasks[]", task, "t2va, fl2va and ref2va are accepted");
      } else if (std::count(release_.tasks.begin(), release_.tasks.end(), name) != 0) {
        faults_.add(std::string(kBlock) + ".tasks names " + name + " twice");
      } else if (known_partition_ && *home != release_.partition) {
        faults_.add(std::string(kBlock) + ".tasks names " + name + ", which partition " +
                    std::string(partition_text(release_.partition)) + " cannot do");
      } else {
        release_.tasks.push_back(name);
      }
    }
  }

  void read_aliases() {
    const Json aliases = value("task_aliases");
    if (aliases.is_null()) return;
    if (!aliases.is_object()) {
      fault("task_aliases", aliases, "an object of alias and task is needed");
      return;
    }
    for (const auto& [alias, task] : aliases.items()) {
      const bool known =
          task.is_string() &&
          std::count(release_.tasks.begin(), release_.tasks.end(), task.get<std::string>()) != 0;
      if (!known) fault("task_aliases[" + in_quotes(alias) + "]", task, "one of tasks is needed");
    }
  }

  double shift(const Json& shifts, const char* key) {
    const auto at = shifts.is_object() ? shifts.find(key) : shifts.end();
    const Json got = shifts.is_object() && at != shifts.end() ? *at : Json();
    const double number = got.is_number() ? got.get<double>() : 0;
    if (!std::isfinite(number) || number <= 0) {
      fault(std::string("sigma_shift_scales.") + key, got, "a positive number is needed");
    }
    return number;
  }

  void read_distilled() {
    if (const Json steps = value("dmd_denoising_steps"); !steps.is_null()) {
      int64_t last = 1001;
      bool good = steps.is_array() && !steps.empty();
      for (size_t i = 0; good && i < steps.size(); ++i) {
        good = steps[i].is_number_integer() && steps[i] > 0 && steps[i] < last;
        if (good) last = release_.dmd_denoising_steps.emplace_back(steps[i].get<int64_t>());
      }
      if (!good) {
        fault("dmd_denoising_steps", steps,
              "strictly decreasing integers from 1000 down to 1 are needed");
      }
    }
    if (const Json heads = value("pdd_fused_heads"); !heads.is_null()) {
      const std::filesystem::path path = heads.is_string() ? heads.get<std::string>() : "";
      const bool outside = std::find(path.begin(), path.end(), "..") != path.end();
      if (path.extension() != ".safetensors" || path.is_absolute() || outside) {
        fault("pdd_fused_heads", heads, "a relative path of a .safetensors file is needed");
      }
      release_.pdd_fused_heads = path.string();
    }
  }

  const Json& block_;
  Faults& faults_;
  ReleaseBlock release_;
  bool known_partition_ = false;
};

}  // namespace

std::string_view partition_text(Partition partition) {
  return partition == Partition::kFl2va ? "fl2va" : "ref2va";
}

std::vector<std::string> partition_tasks(Partition partition) {
  if (partition == Partition::kFl2va) return {"t2va", "fl2va"};
  return {"ref2va"};
}

ReleaseBlock parse_release_block(std::string_view model_index, std::string_view label) {
  const Json json = parse_json_object(model_index, label);
  Faults faults{std::string(label)};
  ReleaseBlock release;
  const auto block = json.find(kBlock);
  if (block == json.end() || !block->is_object()) {
    faults.add(std::string(kBlock) + " is " +
               (block == json.end() ? "missing" : json_value_text(*block)) +
               "; the block that names partition, tasks and sigma shifts is needed");
  } else {
    release = BlockReader(*block, faults).read();
  }
  faults.throw_if_any("use the model_index.json that came with the partition");
  return release;
}

bool has_release_block(std::string_view model_index, std::string_view label) {
  return parse_json_object(model_index, label).contains(kBlock);
}

}  // namespace h3::weights
