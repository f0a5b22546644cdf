// Combines partial attention results by their log-sum-exp.
#include <algorithm>
#include <cmath>
#include <limits>

#include "tessera/attention.h"
#include "tessera/src/attention/problem.h"
#include "tessera/src/common/cat.h"
#include "tessera/src/common/element.h"
#include "tessera/src/common/parallel.h"

namespace tessera {
namespace {

using internal::cat;
using internal::shape_text;

Status check_merge(const MergeParams& p) {
  TESSERA_RETURN_IF_ERROR(internal::check_input(p.out_a, "out_a"));
  TESSERA_RETURN_IF_ERROR(internal::check_input(p.out_b, "out_b"));
  TESSERA_RETURN_IF_ERROR(internal::check_input(p.out, "out"));
  if (p.out_a.size != p.out_b.size || p.out_a.size != p.out.size) {
    return invalid_argument(cat("out_a has shape ", shape_text(p.out_a.size), ", out_b ",
                                shape_text(p.out_b.size), " and out ", shape_text(p.out.size),
                                "; all three must be equal"));
  }
  for (int i = 0; i < 3; ++i) {
    if (p.out.size[i] > 1 && p.out.stride[i] == 0) {
      return invalid_argument(cat("out has stride 0 in dimension ", i, " of size ", p.out.size[i],
                                  "; rows would overwrite each other"));
    }
  }
  const std::array<int64_t, 3> want{p.out.size[0], p.out.size[2], p.out.size[1]};
  for (const TensorView<3>* lse : {&p.lse_a, &p.lse_b, &p.lse}) {
    if (!lse->present() || lse->size != want || lse->dtype != Dtype::kF32) {
      return invalid_argument(cat("lse_a, lse_b and lse must be f32 ", shape_text(want),
                                  " ([B, H, S]); got ", dtype_name(lse->dtype), " ",
                                  shape_text(lse->size), lse->present() ? "" : " without data"));
    }
  }
  return {};
}

void merge_row(const MergeParams& p, int64_t b, int64_t s, int64_t h) {
  constexpr float kNone = -std::numeric_limits<float>::infinity();
  const float lse_a = static_cast<const float*>(p.lse_a.data)[offset_of<3>(p.lse_a, {b, h, s})];
  const float lse_b = static_cast<const float*>(p.lse_b.data)[offset_of<3>(p.lse_b, {b, h, s})];
  const float top = std::max(lse_a, lse_b);
  float weight_a = 0, weight_b = 0, merged = kNone;
  if (top != kNone) {
    weight_a = std::exp(lse_a - top);
    weight_b = std::exp(lse_b - top);
    const float sum = weight_a + weight_b;
    merged = top + std::log(sum);
    weight_a /= sum;
    weight_b /= sum;
  }
  const int64_t at_a = offset_of<4>(p.out_a, {b, s, h, 0});
  const int64_t at_b = offset_of<4>(p.out_b, {b, s, h, 0});
  const int64_t at = offset_of<4>(p.out, {b, s, h, 0});
  for (int64_t c = 0; c < p.out.size[3]; ++c) {
    // An empty side holds zeros by contract, but 0 * NaN would leak what an unused buffer holds.
    const float a =
        weight_a == 0 ? 0 : internal::load_element(p.out_a.data, at_a + c, p.out_a.dtype);
    const float b_value =
        weight_b == 0 ? 0 : internal::load_element(p.out_b.data, at_b + c, p.out_b.dtype);
    internal::store_element(weight_a * a + weight_b * b_value, p.out.data, at + c, p.out.dtype);
  }
  static_cast<float*>(p.lse.data)[offset_of<3>(p.lse, {b, h, s})] = merged;
}

}  // namespace

Status merge_partials(const MergeParams& params, const Execution& exec) {
  if (exec.device.kind == DeviceKind::kCuda) {
    return unsupported(cat("device cuda:", exec.device.index,
                           " was asked for; merge_partials runs on the cpu, on host memory"));
  }
  TESSERA_RETURN_IF_ERROR(internal::check_device(exec));
  TESSERA_RETURN_IF_ERROR(check_merge(params));
  const int64_t tokens = params.out.size[1];
  return internal::parallel_for(
      internal::thread_count(exec), params.out.size[0] * tokens,
      [&](int64_t item, int) {
        for (int64_t h = 0; h < params.out.size[2]; ++h) {
          merge_row(params, item / tokens, item % tokens, h);
        }
      },
      exec.progress);
}

}  // namespace tessera
