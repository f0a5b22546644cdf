#include "tessera/cli/common/cuda_bench_variant.h"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <memory>
#include <tuple>
#include <utility>

#include "tessera/cli/common/cuda_bench_data.h"
#include "tessera/cli/common/cuda_sensor.h"
#include "tessera/cli/common/timing.h"
#include "tessera/quality.h"
#include "tessera/router.h"

namespace tessera::cli {
namespace {

constexpr uint64_t kSeed = 20261130;
constexpr int64_t kHeadWidth = 128;
constexpr size_t kFlushBytes = size_t{256} << 20;  // five times the L2 of an H200
constexpr double kErrorLimit = 1e-2;               // relative L2 against the CPU, 16-bit outputs
constexpr double kOverlapLimit = 0.97;  // ids that the GPU router shares with the CPU router
constexpr int64_t kCheckedHeads = 4;
constexpr int kSharingGroup = 3;  // query blocks that one CTA of the sharing kernel owns

Status cuda_check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return {};
  return internal_error(fmt::format("{}: {}", what, cudaGetErrorString(error)));
}

// A plan on both sides.
struct BothPlan {
  Plan host;
  std::vector<uint32_t> words;
  DeviceBuffer index, count, bitmap;
  PlanView view;  // device

  Status upload(const BlockLayout& layout, bool as_bitmap) {
    const PlanShape& s = host.shape;
    if (as_bitmap) {
      words.assign(s.rows() * s.words(), 0);
      PlanView out;
      const std::array<int64_t, 4> size = {s.batch, s.heads, s.query_blocks, s.words()};
      out.bitmap = contiguous_view<4>(words.data(), size, Dtype::kU32);
      TESSERA_RETURN_IF_ERROR(list_to_bitmap(host.view(), layout, out));
      TESSERA_RETURN_IF_ERROR(bitmap.upload(words.data(), words.size() * sizeof(uint32_t)));
      view.bitmap = contiguous_view<4>(bitmap.data(), size, Dtype::kU32);
      return {};
    }
    TESSERA_RETURN_IF_ERROR(index.upload(host.index.data(), host.index.size() * sizeof(int32_t)));
    TESSERA_RETURN_IF_ERROR(count.upload(host.count.data(), host.count.size() * sizeof(int32_t)));
    view.index =
        contiguous_view<4>(index.data(), {s.batch, s.heads, s.query_blocks, s.width}, Dtype::kI32);
    view.count = contiguous_view<3>(count.data(), {s.batch, s.heads, s.query_blocks}, Dtype::kI32);
    return {};
  }
};

struct Routed {
  RouteParams params;
  RouteOutputs outputs;
  PlanShape shape;
  DeviceBuffer index, count, bitmap, dense_rows, workspace;
  cudaGraphExec_t graph = nullptr;
  ~Routed() {
    if (graph != nullptr) (void)cudaGraphExecDestroy(graph);
  }
};

// Kept blocks with the router's settings for them.
std::vector<std::pair<int32_t, RouterConfig>> budgets(const CudaBenchOptions& options,
                                                      const BenchShape& shape) {
  const int32_t blocks = single_document(shape.tokens, shape.tokens).max_key_blocks;
  std::vector<std::pair<int32_t, RouterConfig>> list;
  if (options.densities.empty()) {
    const RouterConfig config;
    list.emplace_back(
        blocks_for_sparsity(config.budget.sparsity, blocks, config.budget.granularity), config);
  }
  for (double density : options.densities) {
    RouterConfig config;
    config.budget.kind = BudgetKind::kKeep;
    config.budget.keep = blocks_for_sparsity(1 - density, blocks, 1, true);
    list.emplace_back(config.budget.keep, config);
  }
  return list;
}

// Everything of one shape.
class ShapeBench {
 public:
  ShapeBench(const CudaBenchOptions& options, const GlobalOptions& global, const BenchShape& shape)
      : options_(options), global_(global), shape_(shape) {}

  Status run(std::vector<Variant>* variants) {
    TESSERA_RETURN_IF_ERROR(prepare());
    for (Variant& one : *variants) {
      TESSERA_RETURN_IF_ERROR(with_context(one.name(), prepare(&one)));
    }
    return measure(variants);
  }

 private:
  Status prepare() {
    TESSERA_RETURN_IF_ERROR(select_device(options_.device));
    TESSERA_RETURN_IF_ERROR(stream_.open());
    layout_ = single_document(shape_.tokens, shape_.tokens);
    const int64_t count = shape_.tokens * shape_.heads * kHeadWidth;
    const std::array<int64_t, 4> size = {1, shape_.tokens, shape_.heads, kHeadWidth};
    uint64_t seed = kSeed;
    for (auto [host, device, view, params] : {std::tuple{&host_q_, &q_, &host_.q, &device_.q},
                                              std::tuple{&host_k_, &k_, &host_.k, &device_.k},
                                              std::tuple{&host_v_, &v_, &host_.v, &device_.v}}) {
      *host = normal_elements(count, shape_.dtype, seed++, global_.threads);
      TESSERA_RETURN_IF_ERROR(device->upload(host->data(), host->size() * sizeof(uint16_t)));
      *view = contiguous_view<4>(host->data(), size, shape_.dtype);
      *params = contiguous_view<4>(device->data(), size, shape_.dtype);
    }
    TESSERA_RETURN_IF_ERROR(out_.reserve(count * sizeof(uint16_t)));
    device_.out = contiguous_view<4>(out_.data(), size, shape_.dtype);
    exec_.device = options_.device;
    exec_.stream = stream_.handle();
    exec_.check_plan = false;  // plans of this file; the check would wait for the device
    return flush_.reserve(kFlushBytes);
  }

  Status prepare(Variant* one) {
    if (one->routes()) return prepare_router(one);
    AttentionParams params = device_;
    std::shared_ptr<BothPlan> plan;
    if (one->keep > 0) {
      plan = std::make_shared<BothPlan>();
      TESSERA_RETURN_IF_ERROR(
          one->subject == "sparse_shared"
              ? neighbour_plan(layout_, shape_.heads, one->keep, kSeed, &plan->host)
              : random_plan(layout_, 1, shape_.heads, one->keep, kSeed, &plan->host));
      TESSERA_RETURN_IF_ERROR(plan->upload(layout_, options_.bitmaps));
      params.plan = plan->view;
      one->density = plan_stats(plan->host.view(), layout_).density();
      one->sharing = sharing_factor(plan->host.view(), layout_, kSharingGroup);
    }
    one->flops = attention_flops(plan ? &plan->host : nullptr, shape_);
    Execution exec = exec_;
    exec.kernel = one->kernel;
    size_t needed = 0;
    TESSERA_RETURN_IF_ERROR(attention_workspace(params, exec, &needed));
    auto workspace = std::make_shared<DeviceBuffer>();
    TESSERA_RETURN_IF_ERROR(workspace->reserve(needed));
    exec.workspace = {workspace->data(), workspace->bytes()};
    one->enqueue = [params, exec, plan, workspace] { return attend(params, exec); };
    TESSERA_RETURN_IF_ERROR(one->enqueue());
    TESSERA_RETURN_IF_ERROR(stream_.wait());
    return check_attention_result(plan ? &plan->host : nullptr, &one->error);
  }

  // The first, a middle and the last query block of a few heads, as calls of one block each.
  Status check_attention_result(const Plan* plan, double* worst) {
    std::vector<uint16_t> got(device_.out.elements());
    TESSERA_RETURN_IF_ERROR(out_.download(got.data(), got.size() * sizeof(uint16_t)));
    Bshd all = contiguous_view<4>(got.data(), device_.out.size, shape_.dtype);
    const int64_t heads = std::min(shape_.heads, kCheckedHeads);
    for (int32_t block : {0, layout_.query_blocks / 2, layout_.query_blocks - 1}) {
      const int64_t first = int64_t{block} * kBlockTokens;
      const int64_t rows = std::min<int64_t>(kBlockTokens, shape_.tokens - first);
      const auto cut = [&](Bshd view, bool keys) {
        view.size[2] = heads;
        if (keys) return view;
        view.data = static_cast<uint16_t*>(view.data) + first * view.stride[1];
        view.size[1] = rows;
        return view;
      };
      std::vector<uint16_t> want(rows * heads * kHeadWidth);
      AttentionParams params;
      params.q = cut(host_.q, false);
      params.k = cut(host_.k, true);
      params.v = cut(host_.v, true);
      params.out = contiguous_view<4>(want.data(), params.q.size, shape_.dtype);
      Plan one_row;
      if (plan != nullptr) {
        const PlanShape& s = plan->shape;
        TESSERA_RETURN_IF_ERROR(
            allocate_plan({1, static_cast<int32_t>(heads), 1, s.key_blocks, s.width}, &one_row));
        for (int64_t h = 0; h < heads; ++h) {
          const int64_t row = h * s.query_blocks + block;
          one_row.count[h] = plan->count[row];
          std::copy_n(plan->index.begin() + row * s.width, s.width,
                      one_row.index.begin() + h * s.width);
        }
        params.plan = one_row.view();
      }
      TESSERA_RETURN_IF_ERROR(attend(params, make_execution(global_)));
      ErrorStats error;
      TESSERA_RETURN_IF_ERROR(compare_outputs(cut(all, false), params.out, &error));
      *worst = std::max(*worst, error.relative_l2);
      if (!(error.relative_l2 < kErrorLimit) || error.non_finite > 0) {
        return internal_error(fmt::format(
            "query block {} differs from the CPU by {:.2e} (relative L2, {} elements not finite); "
            "at most {:.0e} is accepted; its time would mean nothing",
            block, error.relative_l2, error.non_finite, kErrorLimit));
      }
    }
    return {};
  }

  Status prepare_router(Variant* one) {
    auto routed = std::make_shared<Routed>();
    RouteParams& params = routed->params;
    params.q = device_.q;
    params.k = device_.k;
    for (const auto& [keep, config] : budgets(options_, shape_)) {
      if (keep == one->keep) params.config = config;
    }
    TESSERA_RETURN_IF_ERROR(route_shape(params, &routed->shape));
    const PlanShape& s = routed->shape;
    const size_t rows = static_cast<size_t>(s.rows());
    TESSERA_RETURN_IF_ERROR(routed->index.reserve(rows * s.width * sizeof(int32_t)));
    TESSERA_RETURN_IF_ERROR(routed->count.reserve(rows * sizeof(int32_t)));
    TESSERA_RETURN_IF_ERROR(routed->bitmap.reserve(rows * s.words() * sizeof(uint32_t)));
    TESSERA_RETURN_IF_ERROR(routed->dense_rows.reserve(s.query_blocks));
    PlanView& view = routed->outputs.plan;
    view.index = contiguous_view<4>(routed->index.data(), {1, s.heads, s.query_blocks, s.width},
                                    Dtype::kI32);
    view.count =
        contiguous_view<3>(routed->count.data(), {1, s.heads, s.query_blocks}, Dtype::kI32);
    view.bitmap = contiguous_view<4>(routed->bitmap.data(), {1, s.heads, s.query_blocks, s.words()},
                                     Dtype::kU32);
    view.dense_rows =
        contiguous_view<2>(routed->dense_rows.data(), {1, s.query_blocks}, Dtype::kU8);
    Execution exec = exec_;
    size_t needed = 0;
    TESSERA_RETURN_IF_ERROR(route_workspace(params, exec, &needed));
    TESSERA_RETURN_IF_ERROR(routed->workspace.reserve(needed));
    exec.workspace = {routed->workspace.data(), routed->workspace.bytes()};
    one->density = double(one->keep) / layout_.max_key_blocks;
    one->flush = true;
    one->enqueue = [routed, exec] { return route(routed->params, exec, routed->outputs); };
    // Also before capturing: the first launch of a kernel loads it.
    TESSERA_RETURN_IF_ERROR(one->enqueue());
    TESSERA_RETURN_IF_ERROR(stream_.wait());
    if (one->subject == "router_graph") TESSERA_RETURN_IF_ERROR(capture(routed.get(), one));
    TESSERA_RETURN_IF_ERROR(one->enqueue());
    TESSERA_RETURN_IF_ERROR(stream_.wait());
    return check_routed(*routed, &one->error);
  }

  Status capture(Routed* routed, Variant* one) {
    const auto stream = static_cast<cudaStream_t>(stream_.handle());
    TESSERA_RETURN_IF_ERROR(cuda_check(
        cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "graph capture"));
    const Status captured = one->enqueue();
    cudaGraph_t graph = nullptr;
    const cudaError_t ended = cudaStreamEndCapture(stream, &graph);
    TESSERA_RETURN_IF_ERROR(captured);
    TESSERA_RETURN_IF_ERROR(cuda_check(ended, "graph capture"));
    const cudaError_t made = cudaGraphInstantiate(&routed->graph, graph, 0);
    (void)cudaGraphDestroy(graph);
    TESSERA_RETURN_IF_ERROR(cuda_check(made, "graph instantiation"));
    // Keeps the buffers alive through the enqueue function that it replaces.
    one->enqueue = [stream, routed, keep = one->enqueue] {
      return cuda_check(cudaGraphLaunch(routed->graph, stream), "graph launch");
    };
    return {};
  }

  // Head 0 against the CPU router: rounding may swap blocks of nearly equal score, no more.
  Status check_routed(const Routed& routed, double* error) {
    const PlanShape& s = routed.shape;
    std::vector<int32_t> got(size_t(s.query_blocks) * s.width);
    TESSERA_RETURN_IF_ERROR(routed.index.download(got.data(), got.size() * sizeof(int32_t)));
    RouteParams params = routed.params;
    params.q = host_.q;
    params.k = host_.k;
    params.q.size[2] = params.k.size[2] = 1;
    Plan want;
    TESSERA_RETURN_IF_ERROR(route(params, make_execution(global_), &want));
    int64_t common = 0;
    for (int32_t row = 0; row < s.query_blocks; ++row) {
      const auto a = got.begin() + int64_t{row} * s.width;
      const auto b = want.index.begin() + int64_t{row} * s.width;
      for (int32_t i = 0; i < s.width; ++i) common += std::binary_search(b, b + s.width, a[i]);
    }
    const double overlap = double(common) / double(got.size());
    *error = 1 - overlap;
    if (overlap >= kOverlapLimit) return {};
    return internal_error(fmt::format(
        "only {:.4f} of head 0's blocks are those of the CPU router; at least {} is expected",
        overlap, kOverlapLimit));
  }

  Status measure(std::vector<Variant>* variants) {
    const auto stream = static_cast<cudaStream_t>(stream_.handle());
    CudaSensor sensor(options_.device);
    for (int round = 0; round < options_.warm_ups + options_.samples; ++round) {
      // The write also keeps the device busy while the first calls of the round are enqueued.
      TESSERA_RETURN_IF_ERROR(cuda_check(
          cudaMemsetAsync(flush_.data(), round & 0xff, kFlushBytes, stream), "L2 flush"));
      for (size_t i = 0; i < variants->size(); ++i) {
        Variant& one = (*variants)[(i + round) % variants->size()];
        if (one.flush) {
          TESSERA_RETURN_IF_ERROR(cuda_check(
              cudaMemsetAsync(flush_.data(), round & 0xff, kFlushBytes, stream), "L2 flush"));
        }
        TESSERA_RETURN_IF_ERROR(one.timer.start(stream_));
        TESSERA_RETURN_IF_ERROR(with_context(one.name(), one.enqueue()));
        TESSERA_RETURN_IF_ERROR(one.timer.stop(stream_));
      }
      const bool counts = round >= options_.warm_ups;
      if (counts) sensor.sample();
      TESSERA_RETURN_IF_ERROR(stream_.wait());
      for (Variant& one : *variants) {
        double seconds = 0;
        TESSERA_RETURN_IF_ERROR(one.timer.seconds(&seconds));
        if (counts) one.seconds.push_back(seconds);
      }
    }
    const CudaSensor::Reading reading = sensor.take();
    for (Variant& one : *variants) {
      one.time = {median(one.seconds), quantile(one.seconds, 0.1), quantile(one.seconds, 0.9)};
      one.reading = reading;
      one.enqueue = nullptr;  // frees its buffers before the next shape
    }
    return {};
  }

  const CudaBenchOptions& options_;
  const GlobalOptions& global_;
  const BenchShape shape_;
  BlockLayout layout_;
  std::vector<uint16_t> host_q_, host_k_, host_v_;
  AttentionParams host_, device_;
  Execution exec_;
  DeviceStream stream_;
  DeviceBuffer q_, k_, v_, out_, flush_;
};

}  // namespace

std::vector<Variant> cuda_variants(const CudaBenchOptions& options, const BenchShape& shape,
                                   const std::regex& filter) {
  std::vector<Variant> all;
  const auto add = [&](const std::string& subject, const std::string& kernel, int32_t keep) {
    Variant one;
    one.subject = subject;
    one.kernel = kernel;
    one.shape = shape;
    one.keep = keep;
    if (std::regex_search(one.name(), filter)) all.push_back(std::move(one));
  };
  for (const std::string& kernel : options.kernels) add("dense", kernel, 0);
  for (const auto& [keep, config] : budgets(options, shape)) {
    for (const char* subject : {"sparse_random", "sparse_shared"}) {
      for (const std::string& kernel : options.kernels) add(subject, kernel, keep);
    }
    add("router", "", keep);
    add("router_graph", "", keep);
  }
  return all;
}

Status measure_variants(const CudaBenchOptions& options, const GlobalOptions& global,
                        const BenchShape& shape, std::vector<Variant>* variants) {
  return ShapeBench(options, global, shape).run(variants);
}

}  // namespace tessera::cli
