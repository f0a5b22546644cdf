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

}  // namespace

Status run_cpu_highway(const AttentionProblem& problem, const Execution& exec) {
  struct Worker {
    std::unique_ptr<cpu::Scratch> scratch;
    std::vector<int32_t> ids;
    std::vector<uint32_t> wanted;
    std::vector<cpu::WalkStep> walk;
  };
  clear_rows_outside(problem);
  const std::vector<WorkItem> items = split(problem, cpu::kGroupBlocks);
  const int threads = thread_count(exec);
  std::vector<Worker> workers(threads);
  return parallel_for(
      threads, static_cast<int64_t>(items.size()),
      [&](int64_t i, int w) {
        Worker& worker = workers[w];
        if (!worker.scratch) {
          worker.scratch =
              std::make_unique<cpu::Scratch>(cpu::fast_scratch_bytes(problem.head_dim));
        }
        build_walk(problem, items[i], worker.ids, worker.wanted, worker.walk);
        cpu::AttendTask task = make_task(problem, items[i]);
        task.walk = worker.walk.data();
        task.walk_steps = static_cast<int64_t>(worker.walk.size());
        cpu::fast_attend(task, worker.scratch->get());
      },
      exec.progress);
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
