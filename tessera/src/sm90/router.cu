// Launches the router kernels: three per routed document, plus one that marks dense rows.
#include <algorithm>
#include <array>
#include <numbers>

#include "tessera/src/attention/problem.h"
#include "tessera/src/common/cat.h"
#include "tessera/src/cuda/runtime.h"
#include "tessera/src/sm90/router.h"
#include "tessera/src/sm90/router/defaults.cuh"
#include "tessera/src/sm90/router/pool.cuh"
#include "tessera/src/sm90/router/score.cuh"
#include "tessera/src/sm90/router/select.cuh"
#include "tessera/src/sm90/router/setup.h"

namespace tessera::sm90 {

using internal::cat;
using internal::RouteProblem;

namespace {

Status check_tensors(const RouteProblem& problem) {
  const RouteParams& p = *problem.params;
  for (const auto& [name, t] : {std::pair{"q", &p.q}, std::pair{"k", &p.k}}) {
    if (t->size[3] != 128) {
      return unsupported(cat("head_dim is ", t->size[3], "; the CUDA router runs 128"));
    }
    if (t->dtype == Dtype::kF32) {
      return unsupported(cat(name, " is f32; the CUDA router accepts bf16 and f16"));
    }
    if (reinterpret_cast<uintptr_t>(t->data) % 16 != 0) {
      return invalid_argument(cat(name, " is not 16-byte aligned; align its first element"));
    }
    for (int i = 0; i < 3; ++i) {
      if (t->size[i] > 1 && t->stride[i] % 8 != 0) {
        return invalid_argument(cat(name, " has stride ", t->stride[i], " in dimension ", i,
                                    "; strides must be multiples of 8 elements (16 bytes)"));
      }
    }
  }
  if (problem.shape.rows() > kMaxRows) {
    return unsupported(cat(problem.shape.rows(),
                           " plan rows (batch * heads * query blocks); the CUDA "
                           "router accepts at most ",
                           kMaxRows, "; route fewer heads at a time"));
  }
  if (problem.layout.max_key_blocks > kMaxKeyBlocks || problem.layout.query_blocks > kMaxPlanRows) {
    return unsupported(cat(
        problem.layout.max_key_blocks, " key blocks and ", problem.layout.query_blocks,
        " query blocks; the CUDA router accepts at most ", kMaxKeyBlocks, " and ", kMaxPlanRows));
  }
  return {};
}

PoolSide pool_side(const Bshd& tensor, int64_t start, int64_t tokens, int32_t blocks, int cells,
                   float scale, void* out) {
  PoolSide side;
  side.data = static_cast<const uint16_t*>(tensor.data) + start * tensor.stride[1];
  side.batch_stride = tensor.stride[0];
  side.token_stride = tensor.stride[1];
  side.head_stride = tensor.stride[2];
  side.heads = static_cast<int32_t>(tensor.size[2]);
  side.tokens = static_cast<int32_t>(tokens);
  side.blocks = blocks;
  side.cells_per_block = cells;
  side.scale = scale;
  side.out = out;
  side.tiles = tiles_for(blocks, cells);
  return side;
}

Status launch_pool(const RouteProblem& problem, const Document& d, const RouterBuffers& buffers,
                   cudaStream_t stream) {
  const RouteParams& p = *problem.params;
  PoolParams pool;
  // The product is formed in double and passed as fp32, as the published router does.
  const float q_scale = static_cast<float>(double{problem.scale} * std::numbers::log2e);
  pool.q = pool_side(p.q, d.query_start, d.query_length, d.query_blocks, p.config.n_q, q_scale,
                     buffers.q_cells);
  pool.k =
      pool_side(p.k, d.key_start, d.key_length, d.key_blocks, p.config.n_k, 1.0f, buffers.k_cells);
  pool.batch = static_cast<int32_t>(p.q.size[0]);
  const int64_t warps = int64_t{pool.batch} * (int64_t{pool.q.heads} * pool.q.blocks +
                                               int64_t{pool.k.heads} * pool.k.blocks);
  const auto grid = static_cast<unsigned>((warps + kPoolWarps - 1) / kPoolWarps);
  const auto kernel =
      p.q.dtype == Dtype::kF16 ? router_pool_kernel<__half> : router_pool_kernel<__nv_bfloat16>;
  return cuda::launch_overlapped(kernel, grid, kPoolWarps * 32, 0, stream, pool);
}

using ScoreKernel = void (*)(const ScoreMaps, const ScoreParams);

template <int kNq>
ScoreKernel score_kernel_for(int n_k) {
  switch (n_k) {
    case 1: return router_score_kernel<kNq, 1>;
    case 2: return router_score_kernel<kNq, 2>;
    case 4: return router_score_kernel<kNq, 4>;
    default: return router_score_kernel<kNq, 8>;
  }
}

ScoreKernel score_kernel_for(int n_q, int n_k) {
  switch (n_q) {
    case 1: return score_kernel_for<1>(n_k);
    case 2: return score_kernel_for<2>(n_k);
    case 4: return score_kernel_for<4>(n_k);
    default: return score_kernel_for<8>(n_k);
  }
}

Status launch_scores(const RouteProblem& problem, const Document& d, const RouterBuffers& buffers,
                     int processors, cudaStream_t stream) {
  const RouteParams& params = *problem.params;
  const RouterConfig& config = params.config;
  ScoreParams p;
  p.heads = static_cast<int32_t>(params.q.size[2]);
  p.kv_ratio = static_cast<int32_t>(problem.ratio());
  p.q_tiles = tiles_for(d.query_blocks, config.n_q);
  p.k_tiles = tiles_for(d.key_blocks, config.n_k);
  p.query_blocks = d.query_blocks;
  p.key_blocks = d.key_blocks;
  p.q_valid = static_cast<int32_t>(internal::valid_cells(d.query_length, config.n_q));
  p.k_valid = static_cast<int32_t>(internal::valid_cells(d.key_length, config.n_k));
  p.q_tail_log2 = internal::tail_weight_log2(config, d.query_length, config.n_q);
  p.k_tail_log2 = internal::tail_weight_log2(config, d.key_length, config.n_k);
  p.q_uneven = p.q_valid < d.query_blocks * config.n_q || p.q_tail_log2 != 0;
  p.k_uneven = p.k_valid < d.key_blocks * config.n_k || p.k_tail_log2 != 0;
  p.k_cells = buffers.k_cells;
  p.scores = buffers.scores;

  const int64_t q_heads = params.q.size[0] * params.q.size[2];
  const auto cells = [](void* data, int32_t blocks, int n, int64_t heads) {
    const int64_t rows = int64_t{tiles_for(blocks, n)} * kRouterTile;
    Bshd view;
    view.data = data;
    view.size = {1, rows, heads, 128};
    view.stride = {heads * rows * 128, 128, rows * 128, 1};
    view.dtype = Dtype::kBf16;
    return view;
  };
  ScoreMaps maps;
  TESSERA_RETURN_IF_ERROR(
      cuda::encode_tensor_map(cells(buffers.q_cells, d.query_blocks, config.n_q, q_heads),
                              kRouterTile, 2, "q cells", &maps.q));
  TESSERA_RETURN_IF_ERROR(cuda::encode_tensor_map(
      cells(buffers.k_cells, d.key_blocks, config.n_k, params.k.size[0] * params.k.size[2]),
      kRouterTile, 2, "k cells", &maps.k));
  // As many CTAs as fit; all tiles are dealt out evenly, so that no second wave trails.
  p.tiles = static_cast<int32_t>(int64_t{p.q_tiles} * p.k_tiles * q_heads);
  const auto grid = static_cast<unsigned>(std::min(kScoreCtas * processors, p.tiles));
  const ScoreKernel kernel = score_kernel_for(config.n_q, config.n_k);
  TESSERA_RETURN_IF_CUDA_ERROR(cudaFuncSetAttribute(
      kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(kScoreSharedBytes)));
  return cuda::launch_overlapped(kernel, grid, kScoreThreads, kScoreSharedBytes, stream, maps, p);
}

using SelectKernel = void (*)(const SelectParams, int);

struct SelectChoice {
  int per_lane;
  SelectKernel kernel;
  size_t shared_bytes;
};

template <int kPerLane>
constexpr SelectChoice select_choice() {
  return {kPerLane, router_select_kernel<kPerLane>, kSelectSharedBytes<kPerLane>};
}

/// The smallest instance that holds a row is the fastest.
constexpr std::array kSelectKernels = {
    select_choice<2>(),  select_choice<4>(),  select_choice<8>(),  select_choice<16>(),
    select_choice<20>(), select_choice<26>(), select_choice<32>(), select_choice<48>(),
    select_choice<64>(), select_choice<128>()};

SelectParams select_outputs(const RouteProblem& problem, const RouteOutputs& out) {
  SelectParams p;
  p.heads = problem.shape.heads;
  p.index = static_cast<int32_t*>(out.plan.index.data);
  p.index_batch = out.plan.index.stride[0];
  p.index_head = out.plan.index.stride[1];
  p.index_row = out.plan.index.stride[2];
  p.width = problem.shape.width;
  p.dense_rows = static_cast<uint8_t*>(out.plan.dense_rows.data);
  p.dense_batch = out.plan.dense_rows.stride[0];
  p.dense_row = out.plan.dense_rows.stride[1];
  p.count = static_cast<int32_t*>(out.plan.count.data);
  p.count_batch = out.plan.count.stride[0];
  p.count_head = out.plan.count.stride[1];
  p.count_row = out.plan.count.stride[2];
  if (out.plan.bitmap.present()) {
    p.bitmap = static_cast<uint32_t*>(out.plan.bitmap.data);
    p.bitmap_batch = out.plan.bitmap.stride[0];
    p.bitmap_head = out.plan.bitmap.stride[1];
    p.bitmap_row = out.plan.bitmap.stride[2];
    p.bitmap_words = problem.shape.words();
  }
  if (out.mass.present()) {
    p.mass_out = static_cast<float*>(out.mass.data);
    p.mass_batch = out.mass.stride[0];
    p.mass_head = out.mass.stride[1];
    p.mass_row = out.mass.stride[2];
  }
  if (out.scores.present()) {
    p.scores_out = static_cast<float*>(out.scores.data);
    p.scores_batch = out.scores.stride[0];
    p.scores_head = out.scores.stride[1];
    p.scores_row = out.scores.stride[2];
  }
  for (int32_t id : problem.protected_blocks) p.protected_bits[id / 32] |= 1u << (id % 32);
  p.protected_count = static_cast<int32_t>(problem.protected_blocks.size());
  for (size_t n = 0; n < problem.layout.documents.size(); ++n) {
    const Document& d = problem.layout.documents[n];
    for (int32_t i = d.first_query_block; i < d.first_query_block + d.query_blocks; ++i) {
      if (problem.row_is_dense(n, i)) p.dense_bits[i / 32] |= 1u << (i % 32);
    }
  }
  return p;
}

Status launch_select(const RouteProblem& problem, size_t document, const RouterBuffers& buffers,
                     SelectParams p, cudaStream_t stream) {
  const Document& d = problem.layout.documents[document];
  const internal::RowBudget& budget = problem.budgets[document];
  p.scores = buffers.scores;
  p.score_rows = padded_blocks(d.query_blocks, problem.params->config.n_q);
  p.score_stride = padded_blocks(d.key_blocks, problem.params->config.n_k);
  p.query_blocks = d.query_blocks;
  p.key_blocks = d.key_blocks;
  p.first_row = d.first_query_block;
  p.keep = budget.keep;
  p.min_keep = budget.min_keep;
  p.mass = budget.kind == BudgetKind::kMass ? static_cast<float>(budget.mass) : 0.0f;
  const int64_t rows = int64_t{problem.shape.batch} * problem.shape.heads * d.query_blocks;
  const int needed = (d.key_blocks + 31) / 32;
  const auto choice = std::find_if(kSelectKernels.begin(), kSelectKernels.end(),
                                   [&](const SelectChoice& c) { return c.per_lane >= needed; });
  TESSERA_RETURN_IF_CUDA_ERROR(cudaFuncSetAttribute(choice->kernel,
                                                    cudaFuncAttributeMaxDynamicSharedMemorySize,
                                                    static_cast<int>(choice->shared_bytes)));
  return cuda::launch_overlapped(
      choice->kernel, static_cast<unsigned>((rows + kSelectWarps - 1) / kSelectWarps),
      kSelectWarps * 32, choice->shared_bytes, stream, p, static_cast<int>(rows));
}

/// Only where the selection does not write every row by itself.
Status launch_defaults(const RouteProblem& problem, const SelectParams& p, cudaStream_t stream) {
  const bool any_dense_document =
      std::any_of(problem.dense_document.begin(), problem.dense_document.end(),
                  [](uint8_t dense) { return dense != 0; });
  const int64_t rows = problem.shape.rows();
  if (rows == 0 || (!any_dense_document && p.scores_out == nullptr)) return {};
  router_defaults_kernel<<<static_cast<unsigned>((rows + kSelectWarps - 1) / kSelectWarps),
                           kSelectWarps * 32, 0, stream>>>(p, problem.shape.query_blocks,
                                                           problem.shape.key_blocks, rows);
  return cuda::check(cudaGetLastError(), "router_defaults_kernel");
}

}  // namespace

size_t router_workspace(const RouteProblem& problem) {
  return carve_router(problem, nullptr, nullptr);
}

Status route_cuda(const RouteProblem& problem, const Execution& exec, const RouteOutputs& out) {
  TESSERA_RETURN_IF_ERROR(check_tensors(problem));
  cuda::DeviceFacts facts;
  TESSERA_RETURN_IF_ERROR(cuda::require_sm90(exec.device.index, &facts));
  const cuda::DeviceScope scope(exec.device.index);
  TESSERA_RETURN_IF_ERROR(scope.status());
  const size_t needed = router_workspace(problem);
  TESSERA_RETURN_IF_ERROR(cuda::check_workspace(exec.workspace, needed, "route_workspace"));
  RouterBuffers buffers;
  carve_router(problem, exec.workspace.data, &buffers);
  const auto stream = static_cast<cudaStream_t>(exec.stream);
  const SelectParams outputs = select_outputs(problem, out);
  TESSERA_RETURN_IF_ERROR(launch_defaults(problem, outputs, stream));
  for (size_t n = 0; n < problem.layout.documents.size(); ++n) {
    if (problem.dense_document[n]) continue;
    const Document& d = problem.layout.documents[n];
    TESSERA_RETURN_IF_ERROR(launch_pool(problem, d, buffers, stream));
    TESSERA_RETURN_IF_ERROR(launch_scores(problem, d, buffers, facts.multiprocessors, stream));
    TESSERA_RETURN_IF_ERROR(launch_select(problem, n, buffers, outputs, stream));
  }
  return {};
}

}  // namespace tessera::sm90
