// Host time of one attention call, in microseconds: what the runtime adds around the library's
// kernels, layer by layer. On the CPU the kernels are included, so a call has one token and one
// thread; "bare" rows are the same library calls without torch, into memory that is there already.
//   h3_attention_overhead [calls]
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/core/InferenceMode.h>
#include <malloc.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <vector>

#include "h3/attention/binding.h"
#include "h3/attention/dense_impl.h"
#include "h3/attention/runtime_layer.h"
#include "h3/attention/sdpa_impl.h"
#include "h3/attention/workspace.h"
#include "tessera/attention.h"

namespace {

constexpr int64_t kHeadDim = 128;

/// Median over `samples` of the mean over `calls`.
double microseconds(int calls, const std::function<void()>& call) {
  constexpr int kSamples = 31;
  std::vector<double> samples;
  for (int s = 0; s < kSamples; ++s) {
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < calls; ++i) call();
    const std::chrono::duration<double, std::micro> time = std::chrono::steady_clock::now() - start;
    samples.push_back(time.count() / calls);
  }
  std::nth_element(samples.begin(), samples.begin() + kSamples / 2, samples.end());
  return samples[kSamples / 2];
}

void expect_ok(const tessera::Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", status.message().c_str());
  std::exit(1);
}

/// A sub-block layer of the denoise stack that is sparse from step 1 on, for any length.
h3::RuntimeLayer make_layer(h3::BackendId backend) {
  h3::ResolvedLayer resolved;
  resolved.layer.component = "transformer";
  resolved.layer.name = "blocks.0.attn";
  resolved.layer.stack = h3::LayerStack::kDenoise;
  resolved.layer.heads = resolved.layer.kv_heads = 1;
  resolved.layer.head_dim = kHeadDim;
  resolved.layer.needs_query_block_mask = true;
  resolved.backend = backend;
  resolved.dense = h3::BackendId::kFa;
  h3::SubBlockSettings settings;
  settings.options.skip_first_steps = 1;
  settings.options.min_seq_len = 1;
  return h3::RuntimeLayer(resolved, settings, h3::cpu_platform());
}

}  // namespace

int main(int argc, char** argv) {
  const int calls = argc > 1 ? std::max(1, std::atoi(argv[1])) : 200;
  const c10::InferenceMode inference;
  at::set_num_threads(1);
  // The CPU kernels take and free scratch in every call. Whether glibc gives that back to the
  // kernel each time depends on what else lies on the heap, and would drown what is measured.
  mallopt(M_TRIM_THRESHOLD, 1 << 30);
  mallopt(M_MMAP_THRESHOLD, 1 << 30);
  const auto tensor = [] { return at::randn({1, 1, kHeadDim}).to(at::kBFloat16); };
  const h3::Qkv qkv{tensor(), tensor(), tensor()};
  const h3::PackedBounds bounds{{0, 1}, 1};
  at::Tensor out = at::empty_like(qkv.q);

  // The same memory as the library sees it.
  const auto view = [](const at::Tensor& t) {
    return tessera::contiguous_view<4>(t.data_ptr(), {1, 1, 1, kHeadDim}, tessera::Dtype::kBf16);
  };
  tessera::AttentionParams params{
      .q = view(qkv.q), .k = view(qkv.k), .v = view(qkv.v), .out = view(out)};
  params.cu_seqlens = bounds.cu;
  tessera::RouteParams routing{.q = params.q, .k = params.k};
  routing.cu_seqlens = bounds.cu;
  std::vector<int32_t> index(1), count(1);
  std::vector<uint8_t> dense_rows(1);
  std::vector<float> mass(1);
  tessera::RouteOutputs routed;
  routed.plan.index = tessera::contiguous_view<4>(index.data(), {1, 1, 1, 1}, tessera::Dtype::kI32);
  routed.plan.count = tessera::contiguous_view<3>(count.data(), {1, 1, 1}, tessera::Dtype::kI32);
  routed.plan.dense_rows =
      tessera::contiguous_view<2>(dense_rows.data(), {1, 1}, tessera::Dtype::kU8);
  routed.mass = tessera::contiguous_view<3>(mass.data(), {1, 1, 1}, tessera::Dtype::kF32);
  tessera::AttentionParams sparse_params = params;
  sparse_params.plan = routed.plan;
  tessera::Execution exec{.threads = 1};

  const auto report = [&](const char* name, const std::function<void()>& call) {
    const double time = microseconds(calls, call);
    std::printf("%-58s %8.2f us\n", name, time);
    return time;
  };
  const auto extra = [](const char* name, double with, double bare) {
    std::printf("%-58s %8.2f us\n", name, with - bare);
  };

  const double bare_dense =
      report("bare: attend", [&] { expect_ok(tessera::attend(params, exec)); });
  const double bare_sparse = report("bare: route + attend", [&] {
    expect_ok(tessera::route(routing, exec, routed));
    expect_ok(tessera::attend(sparse_params, exec));
  });

  h3::RuntimeLayer fa = make_layer(h3::BackendId::kFa);
  h3::RuntimeLayer subblock = make_layer(h3::BackendId::kSubBlock);
  const h3::AttentionContext early{{0}, true, {1}}, late{{1}, true, {1}};
  const double layer_fa = report("layer: fa", [&] { fa.forward_packed(qkv, bounds, early); });
  const double layer_dense = report("layer: subblock_sparse_attn, dense step",
                                    [&] { subblock.forward_packed(qkv, bounds, early); });
  const double layer_sparse = report("layer: subblock_sparse_attn, sparse step",
                                     [&] { subblock.forward_packed(qkv, bounds, late); });
  if (subblock.stats().values().sparse_calls != int64_t{31} * calls) {
    std::fprintf(stderr, "the sparse step did not run sparse\n");
    return 1;
  }
  extra("added by the runtime: fa", layer_fa, bare_dense);
  extra("added by the runtime: dense step", layer_dense, bare_dense);
  extra("added by the runtime: sparse step", layer_sparse, bare_sparse);

  std::printf("\nparts\n");
  const h3::RoutePlan plan = h3::route(qkv.q, qkv.k, {}, &bounds);
  const auto dense = h3::make_dense_impl({});
  const auto sdpa = h3::make_sdpa_impl({});
  h3::LayerStats stats;
  h3::WorkspaceCache cache;
  const c10::Stream stream(c10::Stream::DEFAULT, at::Device(at::kCPU));
  report("h3::attend, dense, given out", [&] { h3::attend(qkv, {.bounds = &bounds, .out = out}); });
  report("h3::attend, dense, new out", [&] { h3::attend(qkv, {.bounds = &bounds}); });
  report("h3::attend, sparse, new out",
         [&] { h3::attend(qkv, {.plan = &plan, .bounds = &bounds}); });
  report("h3::route", [&] { h3::route(qkv.q, qkv.k, {}, &bounds); });
  report("h3::route, without mass",
         [&] { h3::route(qkv.q, qkv.k, {.estimate_mass = false}, &bounds); });
  report("counters: mass of a plan", [&] { stats.add_plan(plan, 1, 0, false); });
  report("fa: forward_packed", [&] { dense->forward_packed(qkv, bounds, {}); });
  report("torch_sdpa: forward_packed", [&] { sdpa->forward_packed(qkv, bounds, {}); });
  report("at::empty", [&] { at::empty(qkv.q.sizes(), qkv.q.options()); });
  report("workspace: borrow", [&] { cache.borrow(stream, 1 << 20); });
  return 0;
}
