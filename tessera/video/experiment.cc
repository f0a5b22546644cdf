#include "tessera/video/experiment.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <functional>
#include <new>
#include <numeric>
#include <span>

#include "tessera/attention.h"

namespace tessera::video {
namespace {

double seconds_of(const std::function<Status()>& work, Status* status) {
  const auto start = std::chrono::steady_clock::now();
  *status = work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t n = values.size();
  return n % 2 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

TensorView<3> row_view(const std::vector<float>& values, const Qkv& qkv) {
  return contiguous_view<3>(values.data(), {1, qkv.heads, qkv.tokens}, Dtype::kF32);
}

// Runs route, sparse and dense in turn, so that a slow phase of the machine hits all three.
Status measure(const Qkv& qkv, const RouteParams& routing, const Execution& exec, Experiment* e) {
  constexpr double kBudgetSeconds = 8.0;
  constexpr int kMaxRepeats = 5;
  std::vector<float> lse_sparse(e->lse_dense.size());
  const std::array<int64_t, 4> size = {1, qkv.tokens, qkv.heads, kHeadDim};
  RouteParams route_params = routing;
  route_params.q = qkv.q_view();
  route_params.k = qkv.k_view();
  AttentionParams dense{.q = qkv.q_view(),
                        .k = qkv.k_view(),
                        .v = qkv.v_view(),
                        .out = contiguous_view<4>(e->dense_out.data(), size, Dtype::kBf16),
                        .lse = row_view(e->lse_dense, qkv)};
  AttentionParams sparse = dense;
  sparse.out = contiguous_view<4>(e->sparse_out.data(), size, Dtype::kBf16);
  sparse.lse = row_view(lse_sparse, qkv);

  std::vector<double> route_s, sparse_s, dense_s;
  double spent = 0;
  Status status;
  do {
    route_s.push_back(
        seconds_of([&] { return tessera::route(route_params, exec, &e->plan); }, &status));
    TESSERA_RETURN_IF_ERROR(status);
    sparse.plan = e->plan.view();
    sparse_s.push_back(seconds_of([&] { return attend(sparse, exec); }, &status));
    TESSERA_RETURN_IF_ERROR(status);
    dense_s.push_back(seconds_of([&] { return attend(dense, exec); }, &status));
    TESSERA_RETURN_IF_ERROR(status);
    spent += route_s.back() + sparse_s.back() + dense_s.back();
  } while (int(dense_s.size()) < kMaxRepeats &&
           spent * (1.0 + 1.0 / double(dense_s.size())) < kBudgetSeconds);
  e->repeats = int(dense_s.size());
  e->route_s = median(route_s);
  e->sparse_s = median(sparse_s);
  e->dense_s = median(dense_s);
  e->kernel = explain(sparse, exec).kernel;
  TESSERA_RETURN_IF_ERROR(compare_outputs(sparse.out, dense.out, &e->errors));
  return kept_mass(row_view(lse_sparse, qkv), row_view(e->lse_dense, qkv),
                   row_view(e->recall, qkv));
}

void summarise_recall(const Qkv& qkv, Experiment* e) {
  for (int h = 0; h < qkv.heads; ++h) {
    const auto first = e->recall.begin() + h * qkv.tokens;
    e->head_recall.push_back(std::accumulate(first, first + qkv.tokens, 0.0) / double(qkv.tokens));
  }
  e->mean_recall = std::accumulate(e->head_recall.begin(), e->head_recall.end(), 0.0) / qkv.heads;
  std::vector<float> sorted = e->recall;
  const auto low = sorted.begin() + int64_t(sorted.size()) / 100;
  std::nth_element(sorted.begin(), low, sorted.end());
  e->low_recall = *low;
}

int kept_blocks(double sparsity, int blocks) {
  return std::clamp(int(std::ceil((1.0 - sparsity) * blocks - 1e-9)), 1, blocks);
}

// Adds to `sums` the mass one row keeps at each sparsity when its blocks are taken in the order of
// falling `score`, ties to the lower index.
void add_row(std::span<const float> score, std::span<const float> mass, double weight,
             const std::vector<double>& sparsity, std::vector<double>* sums) {
  const int blocks = int(mass.size());
  std::vector<int> order(size_t(blocks), 0);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int a, int b) { return score[size_t(a)] > score[size_t(b)]; });
  std::vector<double> running(size_t(blocks) + 1, 0.0);
  for (int i = 0; i < blocks; ++i) running[i + 1] = running[i] + mass[size_t(order[i])];
  for (size_t i = 0; i < sparsity.size(); ++i) {
    (*sums)[i] += weight * running[size_t(kept_blocks(sparsity[i], blocks))];
  }
}

// A curve from one score for every block pair, [H, G, G].
RecallCurve make_curve(std::string name, const Qkv& qkv, const Experiment& e,
                       const std::vector<float>& scores, const std::vector<double>& sparsity) {
  const int blocks = e.layout.query_blocks;
  RecallCurve curve{std::move(name), std::vector<double>(sparsity.size(), 0.0)};
  for (int64_t row = 0; row < int64_t{qkv.heads} * blocks; ++row) {
    const int64_t first_token = row % blocks * kBlockTokens;
    const double tokens = double(std::min<int64_t>(kBlockTokens, qkv.tokens - first_token));
    add_row(std::span(scores).subspan(size_t(row * blocks), size_t(blocks)),
            std::span(e.block_mass).subspan(size_t(row * blocks), size_t(blocks)),
            tokens / double(qkv.tokens * qkv.heads), sparsity, &curve.mass);
  }
  return curve;
}

RecallCurve random_curve(const Qkv& qkv, const Experiment& e, uint64_t seed,
                         const std::vector<double>& sparsity) {
  std::vector<float> scores(e.block_mass.size());
  for (float& s : scores) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    s = float(seed >> 40);
  }
  return make_curve("random lists", qkv, e, scores, sparsity);
}

}  // namespace

int Experiment::worst_head() const {
  return int(std::min_element(head_recall.begin(), head_recall.end()) - head_recall.begin());
}

Status run_experiment(const Qkv& qkv, const RouteParams& routing, const Execution& exec,
                      Experiment* out) {
  try {
    Experiment e;
    e.layout = single_document(qkv.tokens, qkv.tokens);
    const size_t rows = size_t(qkv.tokens) * size_t(qkv.heads);
    e.dense_out.resize(rows * kHeadDim);
    e.sparse_out.resize(rows * kHeadDim);
    e.lse_dense.resize(rows);
    e.recall.resize(rows);
    TESSERA_RETURN_IF_ERROR(measure(qkv, routing, exec, &e));
    summarise_recall(qkv, &e);
    e.stats = plan_stats(e.plan.view(), e.layout);
    e.overlap = neighbour_overlap(e.plan.view(), e.layout);
    e.sharing_of_3 = sharing_factor(e.plan.view(), e.layout, 3);
    const int64_t blocks = e.layout.query_blocks;
    e.block_mass.resize(size_t(qkv.heads * blocks * blocks));
    TESSERA_RETURN_IF_ERROR(block_mass(
        qkv.q_view(), qkv.k_view(), 0, row_view(e.lse_dense, qkv),
        contiguous_view<4>(e.block_mass.data(), {1, qkv.heads, blocks, blocks}, Dtype::kF32),
        exec));
    *out = std::move(e);
    return {};
  } catch (const std::bad_alloc&) {
    return out_of_memory("no memory for the attention outputs of " + std::to_string(qkv.tokens) +
                         " tokens; choose fewer --tokens");
  }
}

Status recall_curves(const Qkv& qkv, const Experiment& experiment, uint64_t seed,
                     const Execution& exec, RecallCurves* out) {
  try {
    RecallCurves result;
    for (int i = 0; i <= 18; ++i) result.sparsity.push_back(0.5 + 0.025 * i);
    const int32_t blocks = experiment.layout.query_blocks;
    std::vector<float> scores(experiment.block_mass.size());
    for (int n : {1, 2, 4, 8}) {
      RouteParams params{.q = qkv.q_view(), .k = qkv.k_view()};
      params.config = {.n_q = n, .n_k = n, .budget = {.kind = BudgetKind::kKeep, .keep = 1}};
      PlanShape shape;
      TESSERA_RETURN_IF_ERROR(route_shape(params, &shape));
      Plan plan;
      TESSERA_RETURN_IF_ERROR(allocate_plan(shape, &plan));
      plan.dense_rows.assign(size_t(shape.batch) * shape.query_blocks, 0);
      RouteOutputs outputs{.plan = plan.view()};
      outputs.scores =
          contiguous_view<4>(scores.data(), {1, qkv.heads, blocks, blocks}, Dtype::kF32);
      TESSERA_RETURN_IF_ERROR(tessera::route(params, exec, outputs));
      result.curves.push_back(
          make_curve("n = " + std::to_string(n), qkv, experiment, scores, result.sparsity));
    }
    result.curves.push_back(
        make_curve("oracle", qkv, experiment, experiment.block_mass, result.sparsity));
    result.curves.push_back(random_curve(qkv, experiment, seed, result.sparsity));
    *out = std::move(result);
    return {};
  } catch (const std::bad_alloc&) {
    return out_of_memory("no memory for the block scores of " + std::to_string(qkv.tokens) +
                         " tokens; choose fewer --tokens");
  }
}

}  // namespace tessera::video
