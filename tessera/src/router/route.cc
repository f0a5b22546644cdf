// `route`: checks, pooling, scores and selection, split over threads.
//
// Heads are routed in batches whose pooled cells stay under a fixed size, so that memory does not
// grow with the head count; scores live only for the few rows a thread is selecting from.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <memory>
#include <numbers>

#include "tessera/router.h"
#include "tessera/src/attention/problem.h"
#include "tessera/src/common/cat.h"
#include "tessera/src/common/parallel.h"
#include "tessera/src/cpu/reference.h"
#include "tessera/src/router/problem.h"
#ifdef TESSERA_WITH_CUDA
#include "tessera/src/sm90/router.h"
#endif

namespace tessera {

using internal::cat;
using internal::RouteProblem;
using internal::RowBudget;
using internal::shape_text;

namespace {

constexpr int64_t kPooledBytesPerBatch = int64_t{24} << 20;
constexpr int64_t kCellsPerPoolItem = 128;

Status check_config(const RouterConfig& c) {
  for (const auto& [name, n] : {std::pair{"n_q", c.n_q}, std::pair{"n_k", c.n_k}}) {
    if (n != 1 && n != 2 && n != 4 && n != 8) {
      return invalid_argument(cat(name, " is ", n, "; accepted are 1, 2, 4 and 8"));
    }
  }
  const Budget& b = c.budget;
  switch (b.kind) {
    case BudgetKind::kSparsity:
      if (!(b.sparsity >= 0.0 && b.sparsity < 1.0)) {
        return invalid_argument(cat("sparsity is ", b.sparsity, "; it must lie in [0, 1)"));
      }
      if (b.granularity < 1) {
        return invalid_argument(cat("granularity is ", b.granularity, "; it must be at least 1"));
      }
      return {};
    case BudgetKind::kKeep:
      if (b.keep < 1) return invalid_argument(cat("keep is ", b.keep, "; it must be at least 1"));
      return {};
    case BudgetKind::kMass:
      if (!(b.mass > 0.0 && b.mass <= 1.0)) {
        return invalid_argument(cat("mass is ", b.mass, "; it must lie in (0, 1]"));
      }
      if (b.min_keep < 1 || b.max_keep < 0 || (b.max_keep > 0 && b.max_keep < b.min_keep)) {
        return invalid_argument(
            cat("min_keep is ", b.min_keep, " and max_keep ", b.max_keep,
                "; needed is 1 <= min_keep <= max_keep, or max_keep 0 for all"));
      }
      return {};
  }
  return internal_error("unknown budget kind");
}

Status check_protected(const RouteParams& p, int32_t key_blocks) {
  for (int32_t id : p.protected_blocks) {
    if (id < 0 || id >= key_blocks) {
      return invalid_argument(cat("protected block ", id, " is outside [0, ", key_blocks,
                                  "), the key blocks of a routed document"));
    }
  }
  return {};
}

Status check_route(const RouteParams& p, RouteProblem* out) {
  RouteProblem problem;
  problem.params = &p;
  TESSERA_RETURN_IF_ERROR(
      internal::check_query_key(p.q, p.k, p.cu_seqlens, p.max_seqlen, &problem.layout));
  TESSERA_RETURN_IF_ERROR(internal::resolve_scale(p.softmax_scale, p.q.size[3], &problem.scale));
  TESSERA_RETURN_IF_ERROR(check_config(p.config));
  if (p.min_seq_len < 0) {
    return invalid_argument(cat("min_seq_len is ", p.min_seq_len, "; it must not be negative"));
  }
  if (!p.dense_query_blocks.empty() &&
      static_cast<int64_t>(p.dense_query_blocks.size()) != problem.layout.query_blocks) {
    return invalid_argument(cat("dense_query_blocks has ", p.dense_query_blocks.size(),
                                " entries but q has ", problem.layout.query_blocks,
                                " query blocks; the mask length must match"));
  }
  problem.protected_blocks.assign(p.protected_blocks.begin(), p.protected_blocks.end());
  std::sort(problem.protected_blocks.begin(), problem.protected_blocks.end());
  problem.protected_blocks.erase(
      std::unique(problem.protected_blocks.begin(), problem.protected_blocks.end()),
      problem.protected_blocks.end());

  int32_t width = 0;
  for (const Document& d : problem.layout.documents) {
    RowBudget budget;
    const bool dense = d.key_length < p.min_seq_len;
    if (!dense) {
      TESSERA_RETURN_IF_ERROR(check_protected(p, d.key_blocks));
      TESSERA_RETURN_IF_ERROR(internal::resolve_budget(p.config.budget, d.key_blocks,
                                                       problem.protected_blocks, &budget));
      width = std::max(width, budget.keep);
    }
    problem.budgets.push_back(budget);
    problem.dense_document.push_back(dense);
  }
  problem.shape = {static_cast<int32_t>(p.q.size[0]), static_cast<int32_t>(p.q.size[2]),
                   problem.layout.query_blocks, problem.layout.max_key_blocks, width};
  *out = std::move(problem);
  return {};
}

Status check_outputs(const RouteProblem& problem, const RouteOutputs& out) {
  const PlanShape& s = problem.shape;
  const std::array<int64_t, 4> index{s.batch, s.heads, s.query_blocks, s.width};
  const std::array<int64_t, 3> rows{s.batch, s.heads, s.query_blocks};
  const std::array<int64_t, 4> words{s.batch, s.heads, s.query_blocks, s.words()};
  const std::array<int64_t, 4> scores{s.batch, s.heads, s.query_blocks, s.key_blocks};
  const std::array<int64_t, 2> dense{s.batch, s.query_blocks};
  const auto check = [](const auto& view, const auto& want, Dtype dtype, bool needed,
                        const char* name) -> Status {
    if (!view.present() && !needed) return {};
    if (!view.present() || view.size != want || view.dtype != dtype || view.stride.back() != 1) {
      return invalid_argument(
          cat("output ", name, " must be ", dtype_name(dtype), " ", shape_text(want),
              " with last stride 1; got ", dtype_name(view.dtype), " ", shape_text(view.size),
              view.present() ? "" : " without data", "; size it with route_shape"));
    }
    return {};
  };
  TESSERA_RETURN_IF_ERROR(check(out.plan.index, index, Dtype::kI32, true, "plan.index"));
  TESSERA_RETURN_IF_ERROR(check(out.plan.count, rows, Dtype::kI32, true, "plan.count"));
  TESSERA_RETURN_IF_ERROR(check(out.plan.dense_rows, dense, Dtype::kU8, true, "plan.dense_rows"));
  TESSERA_RETURN_IF_ERROR(check(out.plan.bitmap, words, Dtype::kU32, false, "plan.bitmap"));
  TESSERA_RETURN_IF_ERROR(check(out.mass, rows, Dtype::kF32, false, "mass"));
  return check(out.scores, scores, Dtype::kF32, false, "scores");
}

template <class T, int kRank>
T* at(const TensorView<kRank>& view, std::array<int64_t, kRank> where) {
  return static_cast<T*>(view.data) + offset_of<kRank>(view, where);
}

/// Writes one plan row from ascending ids (none for a dense row).
void write_row(const RouteOutputs& out, int64_t b, int64_t h, int64_t block,
               std::span<const int32_t> ids, float mass) {
  int32_t* slots = at<int32_t, 4>(out.plan.index, {b, h, block, 0});
  std::copy(ids.begin(), ids.end(), slots);
  std::fill(slots + ids.size(), slots + out.plan.index.size[3], -1);
  *at<int32_t, 3>(out.plan.count, {b, h, block}) = static_cast<int32_t>(ids.size());
  if (out.plan.bitmap.present()) {
    uint32_t* words = at<uint32_t, 4>(out.plan.bitmap, {b, h, block, 0});
    std::fill(words, words + out.plan.bitmap.size[3], 0u);
    for (int32_t j : ids) words[j / 32] |= 1u << (j % 32);
  }
  if (out.mass.present()) *at<float, 3>(out.mass, {b, h, block}) = mass;
}

/// Routes one document for all heads.
class DocumentRouter {
 public:
  DocumentRouter(const RouteProblem& problem, size_t document, const Execution& exec,
                 const RouteOutputs& out)
      : problem_(problem),
        document_(problem.layout.documents[document]),
        index_(document),
        exec_(exec),
        out_(out),
        reference_(exec.kernel == "cpu_reference"),
        dim_(problem.params->q.size[3]),
        q_cells_(int64_t{document_.query_blocks} * problem.params->config.n_q),
        k_cells_(int64_t{document_.key_blocks} * problem.params->config.n_k) {}

  Status run() {
    const RouteParams& p = *problem_.params;
    const int64_t heads = p.q.size[0] * p.q.size[2];
    const int64_t bytes_per_head = (q_cells_ + k_cells_) * dim_ * int64_t{sizeof(float)};
    const int64_t batch = std::clamp<int64_t>(kPooledBytesPerBatch / bytes_per_head, 1, heads);
    std::vector<float> q_pool(batch * q_cells_ * dim_), k_pool(batch * k_cells_ * dim_);
    for (int64_t first = 0; first < heads; first += batch) {
      const int64_t last = std::min(heads, first + batch);
      TESSERA_RETURN_IF_ERROR(pool(first, last, q_pool.data(), k_pool.data()));
      TESSERA_RETURN_IF_ERROR(score_and_select(first, last, q_pool.data(), k_pool.data()));
    }
    return {};
  }

 private:
  /// Index of the key/value head behind query head l = b * H + h.
  int64_t kv_of(int64_t l) const {
    const int64_t heads = problem_.params->q.size[2];
    return l / heads * problem_.params->k.size[2] + l % heads / problem_.ratio();
  }

  Status pool(int64_t first, int64_t last, float* q_pool, float* k_pool) const {
    const RouteParams& p = *problem_.params;
    const int64_t kv_first = kv_of(first), kv_last = kv_of(last - 1) + 1;
    const int64_t q_chunks = (q_cells_ + kCellsPerPoolItem - 1) / kCellsPerPoolItem;
    const int64_t k_chunks = (k_cells_ + kCellsPerPoolItem - 1) / kCellsPerPoolItem;
    const int64_t q_items = (last - first) * q_chunks;
    const int64_t items = q_items + (kv_last - kv_first) * k_chunks;
    const auto body = [&](int64_t item, int) {
      const bool query = item < q_items;
      const int64_t chunks = query ? q_chunks : k_chunks;
      const int64_t local = (query ? item : item - q_items) / chunks;
      const int64_t chunk = (query ? item : item - q_items) % chunks;
      const Bshd& tensor = query ? p.q : p.k;
      const int64_t l = (query ? first : kv_first) + local;
      const int64_t cells = query ? q_cells_ : k_cells_;
      cpu::PoolTask task;
      task.head_dim = static_cast<int>(dim_);
      task.cell_tokens = kBlockTokens / (query ? p.config.n_q : p.config.n_k);
      task.rows = query ? document_.query_length : document_.key_length;
      task.first_cell = chunk * kCellsPerPoolItem;
      task.cells = std::min(kCellsPerPoolItem, cells - task.first_cell);
      // The product is formed in double and passed as fp32, as the published router does.
      task.scale = query ? static_cast<float>(double{problem_.scale} * std::numbers::log2e) : 1.0f;
      task.source = internal::head_rows(tensor, l / tensor.size[2], l % tensor.size[2],
                                        query ? document_.query_start : document_.key_start);
      task.out = (query ? q_pool : k_pool) + (local * cells + task.first_cell) * dim_;
      reference_ ? cpu::reference_pool(task) : cpu::fast_pool(task);
    };
    return internal::parallel_for(internal::thread_count(exec_), items, body);
  }

  cpu::ScoreTask score_task(const float* q_cells, const float* k_cells) const {
    const RouterConfig& config = problem_.params->config;
    cpu::ScoreTask task;
    task.head_dim = static_cast<int>(dim_);
    task.n_q = config.n_q;
    task.n_k = config.n_k;
    task.q_cells = q_cells;
    task.k_cells = k_cells;
    task.q_valid = internal::valid_cells(document_.query_length, config.n_q);
    task.k_valid = internal::valid_cells(document_.key_length, config.n_k);
    task.q_tail_log2 = internal::tail_weight_log2(config, document_.query_length, config.n_q);
    task.k_tail_log2 = internal::tail_weight_log2(config, document_.key_length, config.n_k);
    task.key_blocks = document_.key_blocks;
    task.score_stride = document_.key_blocks;
    return task;
  }

  Status score_and_select(int64_t first, int64_t last, const float* q_pool,
                          const float* k_pool) const {
    struct Worker {
      std::unique_ptr<cpu::Scratch> scratch;
      std::vector<float> scores;
      std::vector<int32_t> ids;
      internal::SelectScratch select;
    };
    const int32_t step = cpu::fast_score_blocks();
    const int64_t tiles = (document_.query_blocks + step - 1) / step;
    const int threads = internal::thread_count(exec_);
    std::vector<Worker> workers(threads);
    const auto body = [&](int64_t item, int w) {
      Worker& worker = workers[w];
      if (!worker.scratch) {
        worker.scratch =
            std::make_unique<cpu::Scratch>(cpu::fast_scratch_bytes(static_cast<int>(dim_)));
        worker.scores.resize(int64_t{step} * document_.key_blocks);
        worker.ids.resize(std::max(1, problem_.budgets[index_].keep));
      }
      const int64_t l = first + item / tiles;
      cpu::ScoreTask task = score_task(q_pool + (l - first) * q_cells_ * dim_,
                                       k_pool + (kv_of(l) - kv_of(first)) * k_cells_ * dim_);
      task.first_block = static_cast<int32_t>(item % tiles) * step;
      task.blocks = std::min(step, document_.query_blocks - task.first_block);
      task.scores = worker.scores.data();
      reference_ ? cpu::reference_scores(task) : cpu::fast_scores(task, worker.scratch->get());
      const int64_t heads = problem_.params->q.size[2];
      for (int32_t i = 0; i < task.blocks; ++i) {
        select(l / heads, l % heads, task.first_block + i,
               {worker.scores.data() + i * task.score_stride,
                static_cast<size_t>(document_.key_blocks)},
               worker.select, worker.ids);
      }
    };
    return internal::parallel_for(threads, (last - first) * tiles, body, exec_.progress);
  }

  void select(int64_t b, int64_t h, int32_t block, std::span<const float> scores,
              internal::SelectScratch& scratch, std::vector<int32_t>& ids) const {
    const int32_t row = document_.first_query_block + block;
    if (out_.scores.present()) {
      std::copy(scores.begin(), scores.end(), at<float, 4>(out_.scores, {b, h, row, 0}));
    }
    if (problem_.row_is_dense(index_, row)) return;
    float mass = 0;
    const int32_t kept =
        internal::select_row(scores, problem_.budgets[index_], problem_.protected_blocks, scratch,
                             ids.data(), out_.mass.present() ? &mass : nullptr);
    write_row(out_, b, h, row, {ids.data(), static_cast<size_t>(kept)}, mass);
  }

  const RouteProblem& problem_;
  const Document& document_;
  const size_t index_;
  const Execution& exec_;
  const RouteOutputs& out_;
  const bool reference_;
  const int64_t dim_;
  const int64_t q_cells_, k_cells_;
};

/// Dense rows carry a flag instead of a list; scores start as "not computed".
void write_defaults(const RouteProblem& problem, const RouteOutputs& out) {
  for (int64_t b = 0; b < problem.shape.batch; ++b) {
    for (size_t n = 0; n < problem.layout.documents.size(); ++n) {
      const Document& d = problem.layout.documents[n];
      for (int32_t i = d.first_query_block; i < d.first_query_block + d.query_blocks; ++i) {
        const bool dense = problem.row_is_dense(n, i);
        *at<uint8_t, 2>(out.plan.dense_rows, {b, i}) = dense;
        for (int64_t h = 0; h < problem.shape.heads; ++h) {
          if (dense) write_row(out, b, h, i, {}, 1.0f);
          if (out.scores.present()) {
            std::fill_n(at<float, 4>(out.scores, {b, h, i, 0}), problem.shape.key_blocks,
                        -std::numeric_limits<float>::infinity());
          }
        }
      }
    }
  }
}

Status check_execution(const Execution& exec) {
  TESSERA_RETURN_IF_ERROR(internal::check_device(exec));
  if (exec.device.kind == DeviceKind::kCuda) {
    if (exec.kernel.empty() || exec.kernel.starts_with("sm90")) return {};
    return invalid_argument(
        cat("router kernel \"", exec.kernel, "\" does not run on CUDA; leave the name empty"));
  }
  if (!exec.kernel.empty() && exec.kernel != "cpu_highway" && exec.kernel != "cpu_reference") {
    return invalid_argument(cat("there is no router kernel named \"", exec.kernel,
                                "\"; known are cpu_highway, cpu_reference"));
  }
  return {};
}

}  // namespace

Status route_shape(const RouteParams& params, PlanShape* out) {
  return internal::guarded([&]() -> Status {
    RouteProblem problem;
    TESSERA_RETURN_IF_ERROR(check_route(params, &problem));
    *out = problem.shape;
    return {};
  });
}

Status route_workspace(const RouteParams& params, const Execution& exec, size_t* bytes) {
  *bytes = 0;
  if (exec.device.kind == DeviceKind::kCpu) return {};
  return internal::guarded([&]() -> Status {
    TESSERA_RETURN_IF_ERROR(internal::check_device(exec));
    RouteProblem problem;
    TESSERA_RETURN_IF_ERROR(check_route(params, &problem));
#ifdef TESSERA_WITH_CUDA
    *bytes = sm90::router_workspace(problem);
#endif
    return {};
  });
}

Status route(const RouteParams& params, const Execution& exec, const RouteOutputs& out) {
  return internal::guarded([&]() -> Status {
    TESSERA_RETURN_IF_ERROR(check_execution(exec));
    RouteProblem problem;
    TESSERA_RETURN_IF_ERROR(check_route(params, &problem));
    TESSERA_RETURN_IF_ERROR(check_outputs(problem, out));
#ifdef TESSERA_WITH_CUDA
    if (exec.device.kind == DeviceKind::kCuda) return sm90::route_cuda(problem, exec, out);
#endif
    write_defaults(problem, out);
    for (size_t n = 0; n < problem.layout.documents.size(); ++n) {
      if (problem.dense_document[n]) continue;
      TESSERA_RETURN_IF_ERROR(DocumentRouter(problem, n, exec, out).run());
    }
    return {};
  });
}

Status route(const RouteParams& params, const Execution& exec, Plan* out) {
  return internal::guarded([&]() -> Status {
    if (exec.device.kind == DeviceKind::kCuda) {
      return invalid_argument(
          "an owning Plan lives in host memory; on CUDA route into RouteOutputs of device buffers");
    }
    PlanShape shape;
    TESSERA_RETURN_IF_ERROR(route_shape(params, &shape));
    Plan plan;
    TESSERA_RETURN_IF_ERROR(allocate_plan(shape, &plan));
    plan.dense_rows.assign(std::max<int64_t>(1, int64_t{shape.batch} * shape.query_blocks), 0);
    plan.mass.assign(std::max<int64_t>(1, shape.rows()), 0.0f);
    RouteOutputs outputs;
    outputs.plan = plan.view();
    outputs.mass = contiguous_view<3>(plan.mass.data(),
                                      {shape.batch, shape.heads, shape.query_blocks}, Dtype::kF32);
    TESSERA_RETURN_IF_ERROR(route(params, exec, outputs));
    if (std::none_of(plan.dense_rows.begin(), plan.dense_rows.end(),
                     [](uint8_t dense) { return dense != 0; })) {
      plan.dense_rows.clear();
    }
    *out = std::move(plan);
    return {};
  });
}

}  // namespace tessera
