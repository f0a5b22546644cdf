// Tensors and output buffers of one routing call.
#pragma once

#include <algorithm>
#include <limits>
#include <string>
#include <vector>

#include "tessera/router.h"
#include "tessera/src/attention/problem.h"
#include "tessera/src/cpu/reference.h"
#include "tessera/tests/support/attend_case.h"

namespace tessera::testing {

struct RouterCase {
  Tensor4 q, k;
  std::vector<int32_t> cu;

  explicit RouterCase(const CaseShape& s)
      : q({s.batch, s.sq, s.heads, s.dim}, s.dtype, guarded_rows()),
        k({s.batch, s.sk, s.kv_heads, s.dim}, s.dtype, guarded_rows()) {}
  void fill_random(Random& random, float spread) {
    q.fill_random(random, spread);
    k.fill_random(random, spread);
  }
  void fill_constant(float value) {
    q.fill([=](const auto&) { return value; });
    k.fill([=](const auto&) { return value; });
  }
  RouteParams params() const {
    RouteParams p;
    p.q = q.view();
    p.k = k.view();
    p.cu_seqlens = cu;
    return p;
  }
};

/// All outputs of `route`, pre-filled with values that a row left out would show.
struct RouteBuffers {
  PlanShape shape;
  Plan plan;
  std::vector<float> mass, scores;
  std::vector<uint32_t> bitmap;

  explicit RouteBuffers(const RouteParams& params) {
    EXPECT_TRUE(is_ok(route_shape(params, &shape)));
    EXPECT_TRUE(is_ok(allocate_plan(shape, &plan)));
    std::fill(plan.index.begin(), plan.index.end(), 12345);
    std::fill(plan.count.begin(), plan.count.end(), 12345);
    plan.dense_rows.assign(std::max(1, shape.batch * shape.query_blocks), 77);
    mass.assign(std::max<int64_t>(1, shape.rows()), std::numeric_limits<float>::quiet_NaN());
    scores.assign(std::max<int64_t>(1, shape.rows() * shape.key_blocks),
                  std::numeric_limits<float>::quiet_NaN());
    bitmap.assign(std::max<int64_t>(1, shape.rows() * shape.words()), 0xa5a5a5a5u);
  }
  RouteOutputs outputs() {
    RouteOutputs out;
    out.plan = plan.view();
    const int64_t b = shape.batch, h = shape.heads, g = shape.query_blocks;
    out.plan.bitmap = contiguous_view<4>(bitmap.data(), {b, h, g, shape.words()}, Dtype::kU32);
    out.mass = contiguous_view<3>(mass.data(), {b, h, g}, Dtype::kF32);
    out.scores = contiguous_view<4>(scores.data(), {b, h, g, shape.key_blocks}, Dtype::kF32);
    return out;
  }
  std::vector<int32_t> ids(int64_t row) const {
    const auto begin = plan.index.begin() + row * shape.width;
    return {begin, begin + plan.count[row]};
  }
};

/// The cells that `kernel` pools from tokens [start, start + length) of one head.
inline std::vector<float> pooled_cells(const std::string& kernel, const Tensor4& x, int64_t batch,
                                       int64_t head, int64_t start, int64_t length, int n,
                                       float scale) {
  cpu::PoolTask task;
  task.head_dim = static_cast<int>(x.size()[3]);
  task.cell_tokens = kBlockTokens / n;
  task.rows = length;
  task.cells = (length + 63) / 64 * n;
  task.scale = scale;
  task.source = internal::head_rows(x.view(), batch, head, start);
  std::vector<float> cells(task.cells * task.head_dim, -99.0f);
  task.out = cells.data();
  kernel == "cpu_reference" ? cpu::reference_pool(task) : cpu::fast_pool(task);
  return cells;
}

}  // namespace tessera::testing
