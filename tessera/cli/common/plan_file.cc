#include "tessera/cli/common/plan_file.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>

#include "tessera/cli/commands.h"
#include "tessera/cli/common/output.h"
#include "tessera/device.h"

namespace tessera::cli {

namespace {

constexpr const char* kFormat = "tessera-plan-1";

Status plan_tensor(const io::SafetensorsFile& file, const std::string& name, Dtype dtype,
                   size_t rank, bool required, const io::SafetensorsEntry** out) {
  *out = file.find(name);
  if (*out == nullptr) {
    if (!required) return {};
    return invalid_argument(fmt::format(
        "tensor {} is missing; a plan holds block_index i32 [B, H, Gq, W] and block_count i32 "
        "[B, H, Gq]; make one with `tessera route`",
        name));
  }
  if ((*out)->dtype != dtype || (*out)->shape.size() != rank) {
    return invalid_argument(fmt::format("tensor {} is {} of rank {}; accepted: {} of rank {}", name,
                                        dtype_name((*out)->dtype), (*out)->shape.size(),
                                        dtype_name(dtype), rank));
  }
  return {};
}

template <class T>
void copy_values(const io::SafetensorsEntry& entry, std::vector<T>* out) {
  out->resize(entry.bytes / sizeof(T));
  if (entry.bytes > 0) std::memcpy(out->data(), entry.data, entry.bytes);
}

// Token counts tell inputs apart whose block counts agree; plans from other tools may lack them.
Status check_origin(const io::SafetensorsFile& file, const Input& input) {
  auto differs = [&](const char* key, int64_t value) {
    const auto found = file.metadata().find(key);
    return found != file.metadata().end() && found->second != std::to_string(value);
  };
  if (differs("query_tokens", input.q.size[1]) || differs("key_tokens", input.k.size[1])) {
    return invalid_argument(fmt::format(
        "the plan was made for {} query and {} key tokens, but {} has {} and {}; route this input",
        file.metadata().at("query_tokens"),
        file.metadata().count("key_tokens") > 0 ? file.metadata().at("key_tokens") : "unknown",
        input.path, input.q.size[1], input.k.size[1]));
  }
  const io::SafetensorsEntry* cu = nullptr;
  TESSERA_RETURN_IF_ERROR(plan_tensor(file, "cu_seqlens", Dtype::kI32, 1, false, &cu));
  if (cu == nullptr) return {};
  std::vector<int32_t> bounds;
  copy_values(*cu, &bounds);
  if (bounds != input.cu_seqlens) {
    return invalid_argument(fmt::format(
        "the plan was made for other documents: cu_seqlens [{}], but {} has [{}]; route this input",
        fmt::join(bounds.begin(), bounds.begin() + std::min<size_t>(bounds.size(), 8), ", "),
        input.path,
        fmt::join(input.cu_seqlens.begin(),
                  input.cu_seqlens.begin() + std::min<size_t>(input.cu_seqlens.size(), 8), ", ")));
  }
  return {};
}

Status load(const io::SafetensorsFile& file, const Input& input, Plan* out) {
  const io::SafetensorsEntry *index = nullptr, *count = nullptr, *dense = nullptr;
  TESSERA_RETURN_IF_ERROR(plan_tensor(file, "block_index", Dtype::kI32, 4, true, &index));
  TESSERA_RETURN_IF_ERROR(plan_tensor(file, "block_count", Dtype::kI32, 3, true, &count));
  TESSERA_RETURN_IF_ERROR(plan_tensor(file, "dense_rows", Dtype::kU8, 2, false, &dense));
  const std::vector<int64_t> rows = {input.q.size[0], input.q.size[2], input.layout.query_blocks};
  const std::vector<int64_t> plan_rows(index->shape.begin(), index->shape.begin() + 3);
  if (plan_rows != rows) {
    return invalid_argument(fmt::format(
        "the plan is for [B, H, query blocks] = [{}], but {} has [{}]; route this input",
        fmt::join(plan_rows, ", "), input.path, fmt::join(rows, ", ")));
  }
  if (count->shape != plan_rows) {
    return invalid_argument(
        fmt::format("tensor block_count [{}] does not fit block_index [{}]; make the plan again",
                    fmt::join(count->shape, ", "), fmt::join(index->shape, ", ")));
  }
  if (dense != nullptr && dense->shape != std::vector<int64_t>{rows[0], rows[2]}) {
    return invalid_argument(fmt::format("tensor dense_rows is [{}]; accepted: [B, Gq] = [{}, {}]",
                                        fmt::join(dense->shape, ", "), rows[0], rows[2]));
  }
  TESSERA_RETURN_IF_ERROR(check_origin(file, input));
  Plan plan;
  plan.shape = {static_cast<int32_t>(rows[0]), static_cast<int32_t>(rows[1]),
                static_cast<int32_t>(rows[2]), input.layout.max_key_blocks,
                static_cast<int32_t>(index->shape[3])};
  copy_values(*index, &plan.index);
  copy_values(*count, &plan.count);
  if (dense != nullptr) copy_values(*dense, &plan.dense_rows);
  if (plan.shape.rows() > 0) {
    TESSERA_RETURN_IF_ERROR(
        validate_plan(plan.view(), input.layout, input.q.size[0], input.q.size[2]));
  }
  *out = std::move(plan);
  return {};
}

}  // namespace

Status write_plan(const std::string& path, const Plan& plan, const Input& input,
                  const nlohmann::ordered_json& settings) {
  const PlanShape& s = plan.shape;
  std::vector<io::SafetensorsItem> items = {
      {"block_index", Dtype::kI32, {s.batch, s.heads, s.query_blocks, s.width}, plan.index.data()},
      {"block_count", Dtype::kI32, {s.batch, s.heads, s.query_blocks}, plan.count.data()}};
  const bool any_dense = std::any_of(plan.dense_rows.begin(), plan.dense_rows.end(),
                                     [](uint8_t flag) { return flag != 0; });
  if (any_dense) {
    items.push_back({"dense_rows", Dtype::kU8, {s.batch, s.query_blocks}, plan.dense_rows.data()});
  }
  if (!plan.mass.empty()) {
    items.push_back(
        {"estimated_mass", Dtype::kF32, {s.batch, s.heads, s.query_blocks}, plan.mass.data()});
  }
  if (input.packed) {
    items.push_back({"cu_seqlens",
                     Dtype::kI32,
                     {static_cast<int64_t>(input.cu_seqlens.size())},
                     input.cu_seqlens.data()});
  }
  return write_tensors(path, items,
                       {{"format", kFormat},
                        {"tessera_version", version()},
                        {"query_tokens", std::to_string(input.q.size[1])},
                        {"key_tokens", std::to_string(input.k.size[1])},
                        {"key_blocks", std::to_string(s.key_blocks)},
                        {"settings", settings.dump()}});
}

Status read_plan(const std::string& path, const Input& input, Plan* out) {
  io::SafetensorsFile file;
  TESSERA_RETURN_IF_ERROR(io::SafetensorsFile::open(path, &file));
  return with_context(path, load(file, input, out));
}

}  // namespace tessera::cli
