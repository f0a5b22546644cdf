// Every rule about the tensors of an attention call, each with a message that says what to change.
#include <algorithm>
#include <cmath>
#include <utility>

#include "tessera/src/attention/problem.h"
#include "tessera/src/common/cat.h"
#include "tessera/src/common/element.h"
#include "tessera/src/plan/plan_rows.h"

namespace tessera::internal {
namespace {

Status check_head_dim(int64_t head_dim) {
  if (head_dim == 64 || head_dim == 128) return {};
  return unsupported(cat("head_dim is ", head_dim, "; the kernels here run 64 and 128"));
}

/// Byte interval [first, last) that a view touches.
std::pair<const char*, const char*> extent(const Bshd& t) {
  int64_t low = 0, high = 0;
  for (int i = 0; i < 4; ++i) {
    const int64_t reach = (t.size[i] - 1) * t.stride[i];
    (reach < 0 ? low : high) += reach;
  }
  const int64_t bytes = static_cast<int64_t>(dtype_bytes(t.dtype));
  const char* base = static_cast<const char*>(t.data);
  return {base + low * bytes, base + (high + 1) * bytes};
}

/// Two views of one fused buffer ([B, S, parts, H, D]) interleave without touching: same token
/// stride, and the distance between their rows leaves room for both.
bool interleaved(const Bshd& a, const Bshd& b) {
  if (a.stride != b.stride || a.dtype != b.dtype) return false;
  const int64_t bytes = static_cast<int64_t>(dtype_bytes(a.dtype));
  const int64_t row = a.stride[1];
  // Sequence-first tensors hold all samples of a token in one row.
  const bool samples_in_row = a.stride[0] > 0 && a.stride[0] < row;
  const auto footprint = [&](const Bshd& t) {
    return (samples_in_row ? (t.size[0] - 1) * t.stride[0] : 0) + (t.size[2] - 1) * t.stride[2] +
           t.size[3];
  };
  if (row <= 0 || a.stride[2] <= 0) return false;
  if (a.size[0] > 1 && !samples_in_row && a.stride[0] % row != 0) return false;
  const int64_t delta = static_cast<const char*>(a.data) - static_cast<const char*>(b.data);
  if (delta % bytes != 0) return false;
  const int64_t shift = ((delta / bytes) % row + row) % row;  // a's row start inside b's row
  return shift >= footprint(b) && row - shift >= footprint(a);
}

Status check_disjoint(const Bshd& out, const Bshd& in, std::string_view name) {
  const auto [out_low, out_high] = extent(out);
  const auto [in_low, in_high] = extent(in);
  if (out_high <= in_low || in_high <= out_low || interleaved(out, in)) return {};
  return invalid_argument(cat("out overlaps ", name, " in memory (", in_high - in_low, " bytes of ",
                              name, ", ", out_high - out_low,
                              " bytes of out); give out a buffer of its own"));
}

Status check_output(const Bshd& out, const Bshd& q) {
  if (!out.present())
    return invalid_argument("out has no data pointer; give a buffer of q's shape");
  if (out.size != q.size || out.dtype != q.dtype) {
    return invalid_argument(cat("out is ", dtype_name(out.dtype), " ", shape_text(out.size),
                                "; it must be ", dtype_name(q.dtype), " ", shape_text(q.size),
                                " like q"));
  }
  if (out.stride[3] != 1) {
    return invalid_argument(cat("out has a last stride of ", out.stride[3], "; it must be 1"));
  }
  for (int i = 0; i < 3; ++i) {
    if (out.size[i] > 1 && out.stride[i] == 0) {
      return invalid_argument(cat("out has stride 0 in dimension ", i, " of size ", out.size[i],
                                  "; rows would overwrite each other"));
    }
  }
  return {};
}

Status check_lse(const TensorView<3>& lse, const Bshd& q) {
  if (!lse.present()) return {};
  const std::array<int64_t, 3> want{q.size[0], q.size[2], q.size[1]};
  for (int i = 0; i < 3; ++i) {
    if (lse.size[i] > 1 && lse.stride[i] == 0) {
      return invalid_argument(cat("lse has stride 0 in dimension ", i, " of size ", lse.size[i],
                                  "; rows would overwrite each other"));
    }
  }
  if (lse.size == want && lse.dtype == Dtype::kF32) return {};
  return invalid_argument(cat("lse is ", dtype_name(lse.dtype), " ", shape_text(lse.size),
                              "; it must be f32 ", shape_text(want), " ([B, H, Sq])"));
}

}  // namespace

Status check_input(const Bshd& t, std::string_view name) {
  if (!t.present()) return invalid_argument(cat(name, " has no data pointer"));
  if (!is_float(t.dtype)) {
    return invalid_argument(
        cat(name, " is ", dtype_name(t.dtype), "; accepted are bf16, f16 and f32"));
  }
  for (int i = 0; i < 4; ++i) {
    if (t.size[i] < 1) {
      return invalid_argument(cat(name, " has shape ", shape_text(t.size),
                                  " ([B, S, H, D]); every size must be at least 1"));
    }
  }
  if (t.stride[3] != 1) {
    return invalid_argument(cat(name, " has a last stride of ", t.stride[3],
                                "; the head dimension must be contiguous (stride 1)"));
  }
  return {};
}

Status check_query_key(const Bshd& q, const Bshd& k, std::span<const int32_t> cu_seqlens,
                       int64_t max_seqlen, BlockLayout* layout) {
  TESSERA_RETURN_IF_ERROR(check_input(q, "q"));
  TESSERA_RETURN_IF_ERROR(check_input(k, "k"));
  if (q.dtype != k.dtype) {
    return invalid_argument(cat("q is ", dtype_name(q.dtype), " but k is ", dtype_name(k.dtype),
                                "; convert them to one dtype"));
  }
  if (q.size[0] != k.size[0] || q.size[3] != k.size[3]) {
    return invalid_argument(cat("q has shape ", shape_text(q.size), " and k ", shape_text(k.size),
                                "; batch and head_dim must agree"));
  }
  TESSERA_RETURN_IF_ERROR(check_head_dim(q.size[3]));
  if (q.size[2] % k.size[2] != 0) {
    return invalid_argument(cat("q has ", q.size[2], " heads and k has ", k.size[2],
                                "; the query heads must be a multiple of the key heads"));
  }
  if (cu_seqlens.empty()) {
    *layout = single_document(q.size[1], k.size[1]);
    return {};
  }
  if (q.size[0] != 1 || q.size[1] != k.size[1]) {
    return invalid_argument(cat("packed documents need one batch and one token axis; q has shape ",
                                shape_text(q.size), " and k ", shape_text(k.size)));
  }
  return packed_documents(cu_seqlens, q.size[1], max_seqlen, layout);
}

Status resolve_scale(float given, int64_t head_dim, float* out) {
  if (given == 0.0f) {
    *out = static_cast<float>(1.0 / std::sqrt(static_cast<double>(head_dim)));
    return {};
  }
  if (!std::isfinite(given) || given < 0.0f) {
    return invalid_argument(
        cat("softmax_scale is ", given, "; it must be positive and finite, or 0 for 1/sqrt(D)"));
  }
  *out = given;
  return {};
}

Status check_attention(const AttentionParams& p, DeviceKind device, AttentionProblem* out) {
  AttentionProblem problem;
  problem.params = &p;
  TESSERA_RETURN_IF_ERROR(check_query_key(p.q, p.k, p.cu_seqlens, p.max_seqlen, &problem.layout));
  TESSERA_RETURN_IF_ERROR(check_input(p.v, "v"));
  if (p.v.size != p.k.size || p.v.dtype != p.k.dtype) {
    return invalid_argument(cat("v is ", dtype_name(p.v.dtype), " ", shape_text(p.v.size),
                                "; it must have the shape and dtype of k, ", dtype_name(p.k.dtype),
                                " ", shape_text(p.k.size)));
  }
  TESSERA_RETURN_IF_ERROR(check_output(p.out, p.q));
  TESSERA_RETURN_IF_ERROR(check_disjoint(p.out, p.q, "q"));
  TESSERA_RETURN_IF_ERROR(check_disjoint(p.out, p.k, "k"));
  TESSERA_RETURN_IF_ERROR(check_disjoint(p.out, p.v, "v"));
  TESSERA_RETURN_IF_ERROR(check_lse(p.lse, p.q));
  TESSERA_RETURN_IF_ERROR(resolve_scale(p.softmax_scale, p.q.size[3], &problem.scale));
  problem.batch = p.q.size[0];
  problem.heads = p.q.size[2];
  problem.kv_heads = p.k.size[2];
  problem.head_dim = static_cast<int>(p.q.size[3]);
  if (p.plan) {
    const auto check = device == DeviceKind::kCpu ? validate_plan : check_plan_shapes;
    TESSERA_RETURN_IF_ERROR(check(*p.plan, problem.layout, problem.batch, problem.heads));
  }
  *out = std::move(problem);
  return {};
}

cpu::Rows head_rows(const Bshd& t, int64_t batch, int64_t head, int64_t first_row) {
  const int64_t offset = batch * t.stride[0] + first_row * t.stride[1] + head * t.stride[2];
  return {static_cast<const char*>(t.data) + offset * static_cast<int64_t>(dtype_bytes(t.dtype)),
          t.stride[1], t.dtype};
}

Status refuse_cuda(const Device& device) {
  return unsupported(cat("device cuda:", device.index,
                         " was asked for, but this build holds no CUDA kernels; use the cpu"));
}

}  // namespace tessera::internal
