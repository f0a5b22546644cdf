// Host time of one attention call, in microseconds: what the binding and the backends add around
// the kernels. On the CPU the kernel itself is included, so the shapes are tiny and the thread
// count is one; the row "tessera" is the same call without torch.
//   h3_attention_overhead [calls]
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <vector>

#include "h3/attention/binding.h"
#include "h3/attention/dense_impl.h"
#include "h3/attention/sdpa_impl.h"
#include "h3/attention/workspace.h"
#include "tessera/attention.h"

namespace {

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

}  // namespace

int main(int argc, char** argv) {
  const int calls = argc > 1 ? std::max(1, std::atoi(argv[1])) : 200;
  const c10::InferenceMode inference;
  at::set_num_threads(1);
  const auto tensor = [] { return at::randn({1, 1, 1, 64}); };
  const h3::Qkv qkv{tensor(), tensor(), tensor()};
  at::Tensor out = at::empty_like(qkv.q);
  const auto view = [](const at::Tensor& t) {
    return tessera::contiguous_view<4>(t.data_ptr(), {1, 1, 1, 64}, tessera::Dtype::kF32);
  };
  const tessera::AttentionParams params{
      .q = view(qkv.q), .k = view(qkv.k), .v = view(qkv.v), .out = view(out)};
  const h3::RoutePlan plan = h3::route(qkv.q, qkv.k, {});
  const auto fa = h3::make_dense_impl({});
  const auto sdpa = h3::make_sdpa_impl({});
  h3::WorkspaceCache cache;
  const c10::Stream stream(c10::Stream::DEFAULT, at::Device(at::kCPU));

  const auto report = [&](const char* name, const std::function<void()>& call) {
    std::printf("%-44s %8.2f us\n", name, microseconds(calls, call));
  };
  report("tessera::attend, 1 token, dense", [&] {
    if (!tessera::attend(params, {.threads = 1}).ok()) std::abort();
  });
  report("h3::attend, dense, given out", [&] { h3::attend(qkv, {.out = out}); });
  report("h3::attend, dense, new out", [&] { h3::attend(qkv); });
  report("h3::attend, sparse, new out", [&] { h3::attend(qkv, {.plan = &plan}); });
  report("h3::route", [&] { h3::route(qkv.q, qkv.k, {}); });
  report("fa: forward", [&] { fa->forward(qkv, {}); });
  report("torch_sdpa: forward", [&] { sdpa->forward(qkv, {}); });
  report("at::empty", [&] { at::empty(qkv.q.sizes(), qkv.q.options()); });
  report("workspace: borrow", [&] { cache.borrow(stream, 1 << 20); });
  return 0;
}
