#include "tessera/cli/common/input.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <thread>

#include "tessera/cli/commands.h"

namespace tessera::cli {

namespace {

std::string shape_text(const std::vector<int64_t>& shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

Status find_tensor(const io::SafetensorsFile& file, const std::string& name,
                   const io::SafetensorsEntry** out) {
  *out = file.find(name);
  if (*out != nullptr) return {};
  std::vector<std::string> names;
  for (const io::SafetensorsEntry& entry : file.entries()) names.push_back(entry.name);
  return invalid_argument(fmt::format(
      "tensor {} is missing; the file holds: {}; needed: q, k, v as [B, S, H, D], or as "
      "[T, H, D] with cu_seqlens",
      name, names.empty() ? "nothing" : fmt::format("{}", fmt::join(names, ", "))));
}

// q, k or v as [B, S, H, D]; `packed` is decided by the rank.
Status read_tensor(const io::SafetensorsFile& file, const std::string& name, Bshd* out,
                   bool* packed) {
  const io::SafetensorsEntry* entry = nullptr;
  TESSERA_RETURN_IF_ERROR(find_tensor(file, name, &entry));
  const std::vector<int64_t>& shape = entry->shape;
  if (shape.size() != 3 && shape.size() != 4) {
    return invalid_argument(fmt::format(
        "tensor {} has rank {} {}; accepted: [B, S, H, D], or [T, H, D] with cu_seqlens", name,
        shape.size(), shape_text(shape)));
  }
  if (entry->dtype != Dtype::kBf16 && entry->dtype != Dtype::kF16 && entry->dtype != Dtype::kF32) {
    return unsupported(fmt::format("tensor {} is {}; accepted: bf16, f16, f32; convert it first",
                                   name, dtype_name(entry->dtype)));
  }
  *packed = shape.size() == 3;
  std::array<int64_t, 4> size{1, 0, 0, 0};
  std::copy(shape.rbegin(), shape.rend(), size.rbegin());
  constexpr std::array<const char*, 4> kAxis = {"batch", "tokens", "heads", "head width"};
  for (int axis = 0; axis < 4; ++axis) {
    if (size[axis] < 1) {
      return invalid_argument(fmt::format("tensor {} {} has 0 {}; at least 1 is needed", name,
                                          shape_text(shape), kAxis[axis]));
    }
  }
  *out = contiguous_view<4>(entry->data, size, entry->dtype);
  return {};
}

Status check_pair(const Bshd& q, const Bshd& other, const std::string& name) {
  if (other.dtype != q.dtype) {
    return invalid_argument(
        fmt::format("tensor {} is {} but q is {}; q, k and v must have one element type", name,
                    dtype_name(other.dtype), dtype_name(q.dtype)));
  }
  if (other.size[0] != q.size[0] || other.size[3] != q.size[3]) {
    return invalid_argument(
        fmt::format("tensor {} [{}] does not fit q [{}]: batch and head width must agree", name,
                    fmt::join(other.size, ", "), fmt::join(q.size, ", ")));
  }
  if (q.size[2] % other.size[2] != 0) {
    return invalid_argument(
        fmt::format("tensor {} has {} heads and q has {}; the heads of q must be a multiple of "
                    "those of k and v",
                    name, other.size[2], q.size[2]));
  }
  return {};
}

Status read_documents(const InputOptions& options, Input* input) {
  const io::SafetensorsEntry* cu = input->file.find("cu_seqlens");
  const int64_t tokens = input->q.size[1];
  if (!input->packed) {
    if (cu != nullptr) {
      return invalid_argument(
          "tensor cu_seqlens goes with q, k and v as [T, H, D], but q is [B, S, H, D]; drop "
          "cu_seqlens or pack the batch");
    }
    if (options.max_seqlen > 0) {
      return invalid_argument(fmt::format(
          "--max-seqlen {} goes with packed input ([T, H, D] with cu_seqlens), but q is "
          "[B, S, H, D]; drop the option",
          options.max_seqlen));
    }
    input->layout = single_document(tokens, input->k.size[1]);
    return {};
  }
  TESSERA_RETURN_IF_ERROR(find_tensor(input->file, "cu_seqlens", &cu));
  if (cu->dtype != Dtype::kI32) {
    return invalid_argument(
        fmt::format("tensor cu_seqlens is {}; accepted: i32 (document bounds, first 0)",
                    dtype_name(cu->dtype)));
  }
  if (cu->shape.size() != 1) {
    return invalid_argument(fmt::format("tensor cu_seqlens has shape {}; accepted: [documents + 1]",
                                        shape_text(cu->shape)));
  }
  if (input->k.size[1] != tokens) {
    return invalid_argument(
        fmt::format("packed q has {} tokens and k has {}; documents share one token axis, so both "
                    "must agree",
                    tokens, input->k.size[1]));
  }
  const auto* bounds = reinterpret_cast<const int32_t*>(cu->data);
  input->cu_seqlens.assign(bounds, bounds + cu->shape[0]);
  return with_context("tensor cu_seqlens", packed_documents(input->cu_seqlens, tokens,
                                                            options.max_seqlen, &input->layout));
}

Status load_checked(const InputOptions& options, bool need_v, Input* input) {
  bool k_packed = false, v_packed = false;
  TESSERA_RETURN_IF_ERROR(read_tensor(input->file, "q", &input->q, &input->packed));
  TESSERA_RETURN_IF_ERROR(read_tensor(input->file, "k", &input->k, &k_packed));
  TESSERA_RETURN_IF_ERROR(check_pair(input->q, input->k, "k"));
  v_packed = input->packed;  // decides nothing where v is not read
  if (need_v) {
    TESSERA_RETURN_IF_ERROR(read_tensor(input->file, "v", &input->v, &v_packed));
    TESSERA_RETURN_IF_ERROR(check_pair(input->q, input->v, "v"));
    if (input->v.size[1] != input->k.size[1] || input->v.size[2] != input->k.size[2]) {
      return invalid_argument(
          fmt::format("tensor v [{}] does not fit k [{}]: tokens and heads must agree",
                      fmt::join(input->v.size, ", "), fmt::join(input->k.size, ", ")));
    }
  }
  if (k_packed != input->packed || v_packed != input->packed) {
    return invalid_argument(
        "q, k and v must have one rank: all [B, S, H, D], or all [T, H, D] with cu_seqlens");
  }
  const int64_t width = input->q.size[3];
  if (width != 64 && width != 128) {
    return unsupported(fmt::format(
        "tensor q has head width {}; accepted: 64 and 128; pad the heads with zeros", width));
  }
  if (!std::isfinite(options.softmax_scale) || options.softmax_scale < 0) {
    return invalid_argument(
        fmt::format("--softmax-scale {}: accepted: a positive number, or 0 for 1 / sqrt(D)",
                    options.softmax_scale));
  }
  return read_documents(options, input);
}

struct NonFinite {
  int64_t count = 0;
  int64_t first = -1;  // element offset
};

// An element is NaN or infinite when all its exponent bits are set.
template <class Bits>
NonFinite scan(const Bits* data, int64_t begin, int64_t end, Bits exponent_mask) {
  NonFinite found;
  constexpr int64_t kChunk = 4096;  // counted without branches, so that the loop vectorises
  for (int64_t at = begin; at < end; at += kChunk) {
    const int64_t stop = std::min(at + kChunk, end);
    int32_t bad = 0;
    for (int64_t i = at; i < stop; ++i) bad += (data[i] & exponent_mask) == exponent_mask;
    if (bad > 0 && found.first < 0) {
      found.first = std::find_if(data + at, data + stop,
                                 [=](Bits b) { return (b & exponent_mask) == exponent_mask; }) -
                    data;
    }
    found.count += bad;
  }
  return found;
}

NonFinite scan_elements(const Bshd& view, int64_t begin, int64_t end) {
  switch (view.dtype) {
    case Dtype::kBf16:
      return scan<uint16_t>(static_cast<const uint16_t*>(view.data), begin, end, 0x7f80);
    case Dtype::kF16:
      return scan<uint16_t>(static_cast<const uint16_t*>(view.data), begin, end, 0x7c00);
    default:
      return scan<uint32_t>(static_cast<const uint32_t*>(view.data), begin, end, 0x7f800000u);
  }
}

NonFinite scan_parallel(const Bshd& view, int64_t elements, int threads) {
  constexpr int64_t kPerThread = 1 << 20;
  if (threads <= 0) threads = std::max(1u, std::thread::hardware_concurrency());
  const int parts = static_cast<int>(std::clamp<int64_t>(elements / kPerThread, 1, threads));
  std::vector<NonFinite> found(parts);
  std::vector<std::thread> workers;
  for (int p = 1; p < parts; ++p) {
    workers.emplace_back([&, p] {
      found[p] = scan_elements(view, elements * p / parts, elements * (p + 1) / parts);
    });
  }
  found[0] = scan_elements(view, 0, elements / parts);
  for (std::thread& worker : workers) worker.join();
  NonFinite all;
  for (const NonFinite& part : found) {
    if (all.first < 0) all.first = part.first;
    all.count += part.count;
  }
  return all;
}

}  // namespace

void add_input_options(CLI::App* sub, InputOptions& options) {
  sub->add_option("input", options.path,
                  "safetensors file with q, k, v as [B, S, H, D], or as [T, H, D] with cu_seqlens "
                  "(i32); bf16, f16 or f32; k and v may have fewer heads")
      ->required()
      ->type_name("IN");
  sub->add_option("--softmax-scale", options.softmax_scale,
                  "Factor on q k^T; 0 = 1 / sqrt(head width)")
      ->check(accepts_number<float>("a positive number, or 0 for 1 / sqrt(D)"))
      ->type_name("X");
  sub->add_option("--max-seqlen", options.max_seqlen,
                  "Packed input: refuse documents longer than this; 0 = no check")
      ->check(accepts_number<int64_t>("a whole number of tokens, 0 or more",
                                      [](int64_t n) { return n >= 0; }))
      ->type_name("N");
}

std::vector<int64_t> Input::out_shape() const {
  if (packed) return {q.size[1], q.size[2], q.size[3]};
  return {q.size.begin(), q.size.end()};
}

Status load_input(const InputOptions& options, bool need_v, Input* out) {
  out->path = options.path;
  TESSERA_RETURN_IF_ERROR(io::SafetensorsFile::open(options.path, &out->file));
  return with_context(options.path, load_checked(options, need_v, out));
}

Status check_finite(const Input& input, int threads) {
  // Documents are contiguous from row 0, so the rows that belong to one end at the last bound.
  const std::array<std::pair<const char*, const Bshd*>, 3> tensors = {
      {{"q", &input.q}, {"k", &input.k}, {"v", &input.v}}};
  for (const auto& [name, view] : tensors) {
    if (!view->present()) continue;
    const int64_t row = view->size[2] * view->size[3];
    const int64_t rows = input.packed ? input.cu_seqlens.back() : view->size[0] * view->size[1];
    const NonFinite found = scan_parallel(*view, rows * row, threads);
    if (found.count == 0) continue;
    const int64_t token = found.first / row;
    const int64_t head = found.first % row / view->size[3];
    const int64_t channel = found.first % view->size[3];
    const std::string at = input.packed ? fmt::format("[{}, {}, {}]", token, head, channel)
                                        : fmt::format("[{}, {}, {}, {}]", token / view->size[1],
                                                      token % view->size[1], head, channel);
    return invalid_argument(fmt::format(
        "{}: tensor {} has {} values that are NaN or infinite, the first at {}; accepted: finite "
        "values in all rows of documents; look for an overflow where the file was made",
        input.path, name, found.count, at));
  }
  return {};
}

}  // namespace tessera::cli
