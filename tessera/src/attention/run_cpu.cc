// Splits a checked attention call into work items for the CPU kernels.
#include <algorithm>
#include <limits>
#include <memory>
#include <numbers>

#include "tessera/src/attention/problem.h"
#include "tessera/src/common/element.h"
#include "tessera/src/common/parallel.h"
#include "tessera/src/cpu/reference.h"
#include "tessera/src/plan/plan_rows.h"

namespace tessera::internal {
namespace {

/// Up to kGroupBlocks query blocks of one head and document.
struct WorkItem {
  int64_t batch = 0, head = 0;
  const Document* document = nullptr;
  int32_t first_block = 0;  // inside the document
  int32_t blocks = 0;
};

std::vector<WorkItem> split(const AttentionProblem& problem, int32_t blocks_per_item) {
  std::vector<WorkItem> items;
  for (int64_t b = 0; b < problem.batch; ++b) {
    for (int64_t h = 0; h < problem.heads; ++h) {
      for (const Document& d : problem.layout.documents) {
        for (int32_t i = 0; i < d.query_blocks; i += blocks_per_item) {
          items.push_back({b, h, &d, i, std::min(blocks_per_item, d.query_blocks - i)});
        }
      }
    }
  }
  return items;
}

cpu::AttendTask make_task(const AttentionProblem& problem, const WorkItem& item) {
  const AttentionParams& p = *problem.params;
  const Document& d = *item.document;
  const int64_t kv_head = item.head / (problem.heads / problem.kv_heads);
  const int64_t row = d.query_start + int64_t{item.first_block} * kBlockTokens;
  cpu::AttendTask task;
  task.head_dim = problem.head_dim;
  task.scale_log2 = static_cast<float>(double{problem.scale} * std::numbers::log2e);
  task.query_rows = static_cast<int>(
      std::min<int64_t>(int64_t{item.blocks} * kBlockTokens,
                        d.query_length - int64_t{item.first_block} * kBlockTokens));
  task.key_rows = d.key_length;
  task.q = head_rows(p.q, item.batch, item.head, row);
  task.k = head_rows(p.k, item.batch, kv_head, d.key_start);
  task.v = head_rows(p.v, item.batch, kv_head, d.key_start);
  task.out = const_cast<void*>(head_rows(p.out, item.batch, item.head, row).data);
  task.out_stride = p.out.stride[1];
  task.out_dtype = p.out.dtype;
  if (p.lse.present()) {
    task.lse = static_cast<float*>(p.lse.data) + offset_of<3>(p.lse, {item.batch, item.head, row});
    task.lse_stride = p.lse.stride[2];
  }
  return task;
}

/// Ascending union of the lists of the item's query blocks, with who wants each block.
void build_walk(const AttentionProblem& problem, const WorkItem& item, std::vector<int32_t>& ids,
                std::vector<uint32_t>& wanted, std::vector<cpu::WalkStep>& walk) {
  const uint32_t everyone = (1u << item.blocks) - 1u;
  const Document& d = *item.document;
  walk.clear();
  wanted.assign(d.key_blocks, problem.params->plan ? 0u : everyone);
  if (problem.params->plan) {
    for (int32_t g = 0; g < item.blocks; ++g) {
      read_row(*problem.params->plan, problem.layout,
               {item.batch, item.head, d.first_query_block + item.first_block + g}, &ids);
      for (int32_t j : ids) wanted[j] |= 1u << g;
    }
  }
  for (int32_t j = 0; j < d.key_blocks; ++j) {
    if (wanted[j] != 0) walk.push_back({j, wanted[j]});
  }
}

/// Rows past the last document attend to nothing.
void clear_rows_outside(const AttentionProblem& problem) {
  const AttentionParams& p = *problem.params;
  const auto& documents = problem.layout.documents;
  const int64_t first =
      documents.empty() ? 0 : documents.back().query_start + documents.back().query_length;
  for (int64_t b = 0; b < problem.batch; ++b) {
    for (int64_t s = first; s < p.q.size[1]; ++s) {
      for (int64_t h = 0; h < problem.heads; ++h) {
        const int64_t start = offset_of<4>(p.out, {b, s, h, 0});
        for (int64_t c = 0; c < problem.head_dim; ++c) {
          store_element(0.0f, p.out.data, start + c, p.out.dtype);
        }
        if (p.lse.present()) {
          static_cast<float*>(p.lse.data)[offset_of<3>(p.lse, {b, h, s})] =
              -std::numeric_limits<float>::infinity();
        }
      }
    }
  }
}

/// fp32 copies of K and V kept at a time. At 37,760 tokens one head takes 39 MB; a longer one is
/// converted block by block instead, for every group of query blocks anew.
constexpr int64_t kPackedBytesPerThread = int64_t{48} << 20;
constexpr int32_t kBlocksPerPackItem = 8;

/// Runs the vector kernel over batches of (batch, key head, document) whose packed K and V fit.
class PackedRun {
 public:
  PackedRun(const AttentionProblem& problem, const Execution& exec, int threads)
      : problem_(problem), exec_(exec), threads_(threads), workers_(threads) {
    for (const Document& d : problem.layout.documents) {
      const int64_t groups = (d.query_blocks + cpu::kGroupBlocks - 1) / cpu::kGroupBlocks;
      total_ += groups * problem.batch * problem.heads;
    }
  }

  Status run() {
    const int64_t budget = kPackedBytesPerThread * threads_ / int64_t{sizeof(float)};
    std::vector<Part> parts;
    int64_t floats = 0;
    for (int64_t b = 0; b < problem_.batch; ++b) {
      for (int64_t kv = 0; kv < problem_.kv_heads; ++kv) {
        for (const Document& d : problem_.layout.documents) {
          const int64_t own = int64_t{d.key_blocks} * kBlockTokens * problem_.head_dim;
          const bool fits = 2 * own <= budget;
          if (floats + 2 * own > budget || (!parts.empty() && !fits)) {
            TESSERA_RETURN_IF_ERROR(run_parts(parts, floats));
            parts.clear();
            floats = 0;
          }
          parts.push_back({b, kv, &d, fits ? floats : -1});
          floats += fits ? 2 * own : 0;
        }
      }
    }
    return run_parts(parts, floats);
  }

 private:
  struct Part {
    int64_t batch = 0, kv_head = 0;
    const Document* document = nullptr;
    int64_t offset = -1;  // of its packed K, V behind it; -1: not packed
  };
  struct Worker {
    std::unique_ptr<cpu::Scratch> scratch;
    std::vector<int32_t> ids;
    std::vector<uint32_t> wanted;
    std::vector<cpu::WalkStep> walk;
  };

  int64_t floats_of(const Document& d) const {
    return int64_t{d.key_blocks} * kBlockTokens * problem_.head_dim;
  }

  Status run_parts(const std::vector<Part>& parts, int64_t floats) {
    if (parts.empty()) return {};
    if (floats > packed_floats_) {
      packed_ = std::make_unique<cpu::Scratch>(static_cast<size_t>(floats) * sizeof(float));
      packed_floats_ = floats;
    }
    TESSERA_RETURN_IF_ERROR(pack(parts));
    return attend(parts);
  }

  float* packed(const Part& part) const {
    return part.offset < 0 ? nullptr : static_cast<float*>(packed_->get()) + part.offset;
  }

  Status pack(const std::vector<Part>& parts) {
    struct Item {
      const Part* part;
      int32_t first;
    };
    std::vector<Item> items;
    for (const Part& part : parts) {
      if (part.offset < 0) continue;
      for (int32_t j = 0; j < part.document->key_blocks; j += kBlocksPerPackItem) {
        items.push_back({&part, j});
      }
    }
    return parallel_for(threads_, static_cast<int64_t>(items.size()), [&](int64_t i, int) {
      const Part& part = *items[i].part;
      const Document& d = *part.document;
      cpu::PackTask task;
      task.head_dim = problem_.head_dim;
      task.key_rows = d.key_length;
      task.first_block = items[i].first;
      task.blocks = std::min(kBlocksPerPackItem, d.key_blocks - items[i].first);
      task.k = head_rows(problem_.params->k, part.batch, part.kv_head, d.key_start);
      task.v = head_rows(problem_.params->v, part.batch, part.kv_head, d.key_start);
      task.packed_k = packed(part);
      task.packed_v = packed(part) + floats_of(d);
      cpu::fast_pack(task);
    });
  }

  Status attend(const std::vector<Part>& parts) {
    const int64_t ratio = problem_.heads / problem_.kv_heads;
    std::vector<WorkItem> items;
    std::vector<const Part*> part_of;
    for (const Part& part : parts) {
      for (int64_t h = part.kv_head * ratio; h < (part.kv_head + 1) * ratio; ++h) {
        for (int32_t i = 0; i < part.document->query_blocks; i += cpu::kGroupBlocks) {
          items.push_back({part.batch, h, part.document, i,
                           std::min(cpu::kGroupBlocks, part.document->query_blocks - i)});
          part_of.push_back(&part);
        }
      }
    }
    const auto body = [&](int64_t i, int w) {
      Worker& worker = workers_[w];
      if (!worker.scratch) {
        worker.scratch = std::make_unique<cpu::Scratch>(cpu::fast_scratch_bytes(problem_.head_dim));
      }
      build_walk(problem_, items[i], worker.ids, worker.wanted, worker.walk);
      cpu::AttendTask task = make_task(problem_, items[i]);
      task.walk = worker.walk.data();
      task.walk_steps = static_cast<int64_t>(worker.walk.size());
      if (const float* k = packed(*part_of[i])) {
        task.packed_k = k;
        task.packed_v = k + floats_of(*part_of[i]->document);
      }
      cpu::fast_attend(task, worker.scratch->get());
    };
    const auto progress = [&](int64_t done, int64_t) {
      if (exec_.progress) exec_.progress(finished_ + done, total_);
    };
    TESSERA_RETURN_IF_ERROR(
        parallel_for(threads_, static_cast<int64_t>(items.size()), body, progress));
    finished_ += static_cast<int64_t>(items.size());
    return {};
  }

  const AttentionProblem& problem_;
  const Execution& exec_;
  const int threads_;
  std::vector<Worker> workers_;
  std::unique_ptr<cpu::Scratch> packed_;
  int64_t packed_floats_ = 0;
  int64_t total_ = 0, finished_ = 0;
};

}  // namespace

Status run_cpu_highway(const AttentionProblem& problem, const Execution& exec) {
  clear_rows_outside(problem);
  const int threads = thread_count(exec);
  PackedRun run(problem, exec, threads);
  return run.run();
}

Status run_cpu_reference(const AttentionProblem& problem, const Execution& exec) {
  clear_rows_outside(problem);
  const std::vector<WorkItem> items = split(problem, 1);
  return parallel_for(
      thread_count(exec), static_cast<int64_t>(items.size()),
      [&](int64_t i, int) {
        std::vector<int32_t> ids;
        std::vector<uint32_t> wanted;
        std::vector<cpu::WalkStep> walk;
        build_walk(problem, items[i], ids, wanted, walk);
        ids.clear();
        for (const cpu::WalkStep& step : walk) ids.push_back(step.key_block);
        cpu::reference_attend(make_task(problem, items[i]), ids);
      },
      exec.progress);
}

}  // namespace tessera::internal
