// Exact measures of what a plan keeps and costs, against dense attention.
#include "tessera/quality.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <numbers>

#include "tessera/src/attention/problem.h"
#include "tessera/src/common/cat.h"
#include "tessera/src/common/element.h"
#include "tessera/src/common/parallel.h"
#include "tessera/src/cpu/reference.h"

namespace tessera {

using internal::cat;
using internal::shape_text;

Status kept_mass(const TensorView<3>& lse_sparse, const TensorView<3>& lse_dense,
                 const TensorView<3>& recall) {
  for (const TensorView<3>* t : {&lse_sparse, &lse_dense, &recall}) {
    if (!t->present() || t->dtype != Dtype::kF32 || t->size != lse_dense.size) {
      return invalid_argument(cat("kept_mass needs three f32 tensors of one shape; got ",
                                  dtype_name(t->dtype), " ", shape_text(t->size), " beside ",
                                  shape_text(lse_dense.size)));
    }
  }
  for (int64_t b = 0; b < recall.size[0]; ++b) {
    for (int64_t h = 0; h < recall.size[1]; ++h) {
      for (int64_t s = 0; s < recall.size[2]; ++s) {
        const float sparse =
            static_cast<const float*>(lse_sparse.data)[offset_of<3>(lse_sparse, {b, h, s})];
        const float dense =
            static_cast<const float*>(lse_dense.data)[offset_of<3>(lse_dense, {b, h, s})];
        static_cast<float*>(recall.data)[offset_of<3>(recall, {b, h, s})] =
            std::exp(sparse - dense);
      }
    }
  }
  return {};
}

namespace {

Status run_block_mass(const Bshd& q, const Bshd& k, float softmax_scale,
                      const TensorView<3>& lse_dense, const TensorView<4>& mass,
                      const Execution& exec) {
  if (exec.device.kind == DeviceKind::kCuda) {
    return unsupported(cat("device cuda:", exec.device.index,
                           " was asked for; block_mass runs on the cpu, on host memory"));
  }
  TESSERA_RETURN_IF_ERROR(internal::check_device(exec));
  if (!exec.kernel.empty() && exec.kernel != "cpu_highway" && exec.kernel != "cpu_reference") {
    return invalid_argument(cat("there is no block_mass kernel named \"", exec.kernel,
                                "\"; known are cpu_highway, cpu_reference"));
  }
  BlockLayout layout;
  TESSERA_RETURN_IF_ERROR(internal::check_query_key(q, k, {}, 0, &layout));
  float scale = 0;
  TESSERA_RETURN_IF_ERROR(internal::resolve_scale(softmax_scale, q.size[3], &scale));
  const std::array<int64_t, 3> want_lse{q.size[0], q.size[2], q.size[1]};
  const std::array<int64_t, 4> want{q.size[0], q.size[2], layout.query_blocks,
                                    layout.max_key_blocks};
  if (!lse_dense.present() || lse_dense.dtype != Dtype::kF32 || lse_dense.size != want_lse) {
    return invalid_argument(cat("lse_dense is ", dtype_name(lse_dense.dtype), " ",
                                shape_text(lse_dense.size), "; it must be f32 ",
                                shape_text(want_lse)));
  }
  if (!mass.present() || mass.dtype != Dtype::kF32 || mass.size != want || mass.stride[3] != 1) {
    return invalid_argument(cat("mass is ", dtype_name(mass.dtype), " ", shape_text(mass.size),
                                "; it must be f32 ", shape_text(want), " with last stride 1"));
  }

  const int32_t group = cpu::kGroupBlocks;
  const int64_t groups = (layout.query_blocks + group - 1) / group;
  const int64_t ratio = q.size[2] / k.size[2];
  const int threads = internal::thread_count(exec);
  std::vector<std::unique_ptr<cpu::Scratch>> scratch(threads);
  return internal::parallel_for(
      threads, q.size[0] * q.size[2] * groups,
      [&](int64_t item, int worker) {
        const int64_t b = item / groups / q.size[2], h = item / groups % q.size[2];
        const int64_t block = item % groups * group;
        const int64_t row = block * kBlockTokens;
        cpu::BlockMassTask task;
        task.head_dim = static_cast<int>(q.size[3]);
        task.scale_log2 = static_cast<float>(double{scale} * std::numbers::log2e);
        task.query_rows =
            static_cast<int>(std::min<int64_t>(int64_t{group} * kBlockTokens, q.size[1] - row));
        task.key_rows = k.size[1];
        task.q = internal::head_rows(q, b, h, row);
        task.k = internal::head_rows(k, b, h / ratio, 0);
        task.lse = static_cast<const float*>(lse_dense.data) + offset_of<3>(lse_dense, {b, h, row});
        task.lse_stride = lse_dense.stride[2];
        task.mass = static_cast<float*>(mass.data) + offset_of<4>(mass, {b, h, block, 0});
        task.mass_stride = mass.stride[2];
        if (exec.kernel == "cpu_reference") {
          cpu::reference_block_mass(task);
          return;
        }
        if (!scratch[worker]) {
          scratch[worker] = std::make_unique<cpu::Scratch>(cpu::fast_scratch_bytes(task.head_dim));
        }
        cpu::fast_block_mass(task, scratch[worker]->get());
      },
      exec.progress);
}

}  // namespace

Status block_mass(const Bshd& q, const Bshd& k, float softmax_scale, const TensorView<3>& lse_dense,
                  const TensorView<4>& mass, const Execution& exec) {
  return internal::guarded(
      [&] { return run_block_mass(q, k, softmax_scale, lse_dense, mass, exec); });
}

Status compare_outputs(const Bshd& a, const Bshd& b, ErrorStats* out) {
  TESSERA_RETURN_IF_ERROR(internal::check_input(a, "a"));
  TESSERA_RETURN_IF_ERROR(internal::check_input(b, "b"));
  if (a.size != b.size) {
    return invalid_argument(cat("a has shape ", shape_text(a.size), " and b ", shape_text(b.size),
                                "; they must be equal"));
  }
  ErrorStats stats;
  double difference = 0, norm_a = 0, norm_b = 0, dot = 0;
  bool saw_nan = false;
  for (int64_t n = 0; n < a.size[0]; ++n) {
    for (int64_t s = 0; s < a.size[1]; ++s) {
      for (int64_t h = 0; h < a.size[2]; ++h) {
        const int64_t at_a = offset_of<4>(a, {n, s, h, 0}), at_b = offset_of<4>(b, {n, s, h, 0});
        for (int64_t c = 0; c < a.size[3]; ++c) {
          const double x = internal::load_element(a.data, at_a + c, a.dtype);
          const double y = internal::load_element(b.data, at_b + c, b.dtype);
          const double error = std::abs(x - y);
          stats.non_finite += !std::isfinite(x);
          if (!saw_nan && (std::isnan(error) || error > stats.max_abs)) {
            saw_nan = std::isnan(error);
            stats.max_abs = error;
            stats.max_at = {n, s, h, c};
          }
          difference += (x - y) * (x - y);
          norm_a += x * x;
          norm_b += y * y;
          dot += x * y;
        }
      }
    }
  }
  // Two zero outputs are equal; a zero reference with a non-zero output is infinitely wrong.
  stats.relative_l2 = norm_b > 0        ? std::sqrt(difference / norm_b)
                      : difference == 0 ? 0.0
                                        : std::numeric_limits<double>::infinity();
  if (norm_b != norm_b) stats.relative_l2 = norm_b;
  stats.cosine =
      norm_a > 0 && norm_b > 0 ? dot / std::sqrt(norm_a * norm_b) : (norm_a == norm_b ? 1.0 : 0.0);
  *out = stats;
  return {};
}

}  // namespace tessera
