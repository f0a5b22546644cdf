#include "h3/attention/subblock_impl.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "h3/attention/checks.h"

namespace h3 {
namespace {

using tessera::kBlockTokens;

int64_t blocks(int64_t rows) { return (rows + kBlockTokens - 1) / kBlockTokens; }

tessera::Dtype dtype_of(at::ScalarType type) {
  switch (type) {
    case at::kBFloat16: return tessera::Dtype::kBf16;
    case at::kHalf: return tessera::Dtype::kF16;
    case at::kFloat: return tessera::Dtype::kF32;
    default: return tessera::Dtype::kF64;
  }
}

/// Query blocks and pairs of blocks of a sparse call, for one head of one batch entry.
struct CallSize {
  int64_t query_blocks = 0, longest_keys = 0;
  int64_t sparse_rows = 0, dense_rows = 0;
  int64_t kept = 0, total = 0;
};

class SubBlockImpl final : public AttentionImpl {
 public:
  SubBlockImpl(const SubBlockOptions& options, DenseHalf dense, std::shared_ptr<LayerStats> stats,
               const SubBlockOps& ops)
      : options_(options),
        router_(router_config(options.settings)),
        dense_(std::move(dense)),
        stats_(std::move(stats)),
        ops_(ops) {}

  at::Tensor forward(const Qkv& qkv, const AttentionContext& context) override {
    check_qkv(qkv, 4);
    const auto dense = [&](DenseReason reason) {
      at::Tensor out = dense_for(qkv).forward(qkv, context);
      stats_->add_dense(reason);
      return out;
    };
    if (const auto reason = gate(qkv, context, qkv.k.size(1))) return dense(*reason);
    const int64_t rows = qkv.q.size(1);
    const PackedRun run{{{0, rows, true, true}}, rows, 1};
    if (!admits_any(context, run)) return dense(DenseReason::kNoVideo);
    return sparse(qkv, nullptr, context, run);
  }

  at::Tensor forward_packed(const Qkv& qkv, const PackedBounds& bounds,
                            const AttentionContext& context) override {
    check_qkv(qkv, 3);
    const auto dense = [&](DenseReason reason) {
      at::Tensor out = dense_for(qkv).forward_packed(qkv, bounds, context);
      stats_->add_dense(reason);
      return out;
    };
    if (const auto reason = gate(qkv, context, qkv.k.size(0))) return dense(*reason);
    const PackedRun run =
        decide_packed(bounds.cu, qkv.q.size(0), bounds.max_seqlen, true, options_.settings);
    if (run.sparse_documents == 0) return dense(DenseReason::kShort);
    if (!admits_any(context, run)) return dense(DenseReason::kNoVideo);
    return sparse(qkv, &bounds, context, run);
  }

 private:
  AttentionImpl& dense_for(const Qkv& qkv) const {
    const bool f32 = qkv.q.scalar_type() == at::kFloat && dense_.f32 != nullptr;
    return f32 ? *dense_.f32 : *dense_.impl;
  }

  std::optional<DenseReason> gate(const Qkv& qkv, const AttentionContext& context,
                                  int64_t key_rows) const {
    return call_gate(options_.gate,
                     {.step = context.step.value,
                      .dtype = dtype_of(qkv.q.scalar_type()),
                      .key_rows = key_rows,
                      .causal = options_.attention.causal},
                     options_.settings);
  }

  /// Whether any row may be sparse under the mask, which is checked here.
  bool admits_any(const AttentionContext& context, const PackedRun& run) const {
    if (!context.has_query_block_mask && !options_.needs_query_block_mask) return true;
    const std::vector<uint8_t>& mask = context.query_block_mask;
    check_query_block_mask(context.has_query_block_mask, mask.size(), run);
    if (run.sparse_documents > 1 || !run.documents[0].sparse) return true;
    return std::any_of(mask.begin(), mask.end(), [](uint8_t video) { return video != 0; });
  }

  /// Query blocks of the whole call that must be dense, or none.
  static std::vector<uint8_t> dense_query_blocks(const AttentionContext& context,
                                                 const PackedRun& run) {
    std::vector<uint8_t> dense;
    if (!context.has_query_block_mask || !run.documents[0].masked) return dense;
    const std::vector<uint8_t>& mask = context.query_block_mask;
    if (std::find(mask.begin(), mask.end(), 0) == mask.end()) return dense;
    int64_t total = 0;
    for (const DocumentRun& d : run.documents) total += blocks(d.stop - d.start);
    dense.assign(static_cast<size_t>(total), 0);
    for (size_t i = 0; i < mask.size(); ++i) dense[i] = mask[i] == 0;
    return dense;
  }

  /// `key_rows`: of an unpacked call; packed documents have as many keys as queries.
  CallSize size_of(const PackedRun& run, int64_t key_rows,
                   const std::vector<uint8_t>& dense) const {
    const tessera::Budget& budget = router_.budget;
    CallSize size;
    for (const DocumentRun& d : run.documents) {
      const int64_t rows = d.stop - d.start, keys = key_rows > 0 ? key_rows : rows;
      const int64_t q_blocks = blocks(rows), k_blocks = blocks(keys);
      size.query_blocks += q_blocks;
      size.longest_keys = std::max(size.longest_keys, keys);
      if (!d.sparse) {
        size.dense_rows += q_blocks;
        continue;
      }
      // Only the first document has dense rows inside.
      const int64_t inside = d.masked ? std::count(dense.begin(), dense.end(), 1) : 0;
      size.dense_rows += inside;
      size.sparse_rows += q_blocks - inside;
      size.total += q_blocks * k_blocks;
      size.kept += inside * k_blocks;
      if (budget.kind == tessera::BudgetKind::kSparsity) {
        size.kept += (q_blocks - inside) *
                     tessera::blocks_for_sparsity(budget.sparsity, static_cast<int32_t>(k_blocks),
                                                  budget.granularity, budget.exact_rounding);
      }
    }
    return size;
  }

  at::Tensor sparse(const Qkv& qkv, const PackedBounds* bounds, const AttentionContext& context,
                    const PackedRun& run) {
    RouteOptions how;
    how.config = router_;
    how.softmax_scale = options_.attention.softmax_scale;
    if (bounds != nullptr) how.min_seq_len = options_.settings.options.min_seq_len;
    how.dense_query_blocks = dense_query_blocks(context, run);
    const CallSize size =
        size_of(run, bounds != nullptr ? 0 : qkv.k.size(1), how.dense_query_blocks);

    const int64_t head_axis = qkv.q.dim() - 2;
    const int64_t heads = qkv.q.size(head_axis), group = heads / qkv.k.size(head_axis);
    const int64_t batch = bounds != nullptr ? 1 : qkv.q.size(0);
    const int64_t query_rows = size.query_blocks * kBlockTokens;
    at::Tensor out;
    if (heads <= heads_per_call(query_rows, size.longest_keys, options_.max_pairs)) {
      out = route_and_attend(qkv, bounds, how, size, batch * heads, {});
    } else {
      out = at::empty(qkv.q.sizes(), qkv.q.options());
      for (const HeadRange& r :
           split_heads(heads, query_rows, size.longest_keys, group, options_.max_pairs)) {
        const auto keys = [&](const at::Tensor& t) {
          return t.narrow(head_axis, r.first / group, r.count / group);
        };
        const Qkv part{qkv.q.narrow(head_axis, r.first, r.count), keys(qkv.k), keys(qkv.v)};
        route_and_attend(part, bounds, how, size, batch * r.count,
                         out.narrow(head_axis, r.first, r.count));
      }
    }
    const int64_t planes = batch * heads;
    const auto documents = static_cast<int64_t>(run.documents.size());
    stats_->add_sparse({.sparse_documents = run.sparse_documents,
                        .dense_documents = documents - run.sparse_documents,
                        .kept = planes * size.kept,
                        .total = planes * size.total});
    return out;
  }

  at::Tensor route_and_attend(const Qkv& qkv, const PackedBounds* bounds, const RouteOptions& how,
                              const CallSize& size, int64_t planes, const at::Tensor& out) {
    const RoutePlan plan = ops_.route(qkv.q, qkv.k, how, bounds);
    AttendOptions run;
    run.plan = &plan;
    run.bounds = bounds;
    run.softmax_scale = how.softmax_scale;
    run.out = out;
    at::Tensor result = ops_.attend(qkv, run).out;
    stats_->add_plan(plan, planes * size.sparse_rows, planes * size.dense_rows,
                     router_.budget.kind != tessera::BudgetKind::kSparsity);
    return result;
  }

  const SubBlockOptions options_;
  const tessera::RouterConfig router_;
  const DenseHalf dense_;
  const std::shared_ptr<LayerStats> stats_;
  const SubBlockOps ops_;
};

}  // namespace

std::unique_ptr<AttentionImpl> make_subblock_impl(const SubBlockOptions& options, DenseHalf dense,
                                                  std::shared_ptr<LayerStats> stats,
                                                  const SubBlockOps& ops) {
  return std::make_unique<SubBlockImpl>(options, std::move(dense), std::move(stats), ops);
}

}  // namespace h3
