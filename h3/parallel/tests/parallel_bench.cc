// Cost of sequence parallelism, to be started by a launcher:
//   h3 launch -n 2 -- h3_parallel_bench --device cuda --impl fa
// Measures the exchange of q, k and v (one collective against three), the exchange back, attention
// alone, and the whole call; efficiency = time of one rank for everything / (ranks * time of the
// whole call). Rank 0 prints a table and, with --json, one line of JSON.
#include <ATen/Functions.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <map>

#include "h3/attention/dense_impl.h"
#include "h3/attention/sdpa_impl.h"
#include "h3/attention/subblock_impl.h"
#include "h3/parallel/usp_attention.h"

namespace hp = h3::parallel;

namespace {

struct Arguments {
  int64_t rows = 37760, used = 37700, heads = 56, width = 128;
  int64_t ring = 1;
  int samples = 30, warm_up = 5;
  std::string device = "cpu", impl = "sdpa", dtype = "bf16";
  bool json = false;
};

// The published setting (three quarters left out), from the first step on.
std::shared_ptr<h3::AttentionImpl> make_sparse() {
  h3::SubBlockOptions options;
  options.settings.options.skip_first_steps = 0;
  options.gate.enabled = true;
  return h3::make_subblock_impl(options, {h3::make_dense_impl({}), nullptr},
                                std::make_shared<h3::LayerStats>());
}

// A further implementation to measure is one more line here.
const std::map<std::string, std::function<std::shared_ptr<h3::AttentionImpl>()>> kImpls = {
    {"fa", [] { return h3::make_dense_impl({}); }},
    {"sdpa", [] { return h3::make_sdpa_impl({}); }},
    {"cudnn", [] { return h3::make_cudnn_sdpa_impl({}); }},
    {"subblock", make_sparse},
};

struct Times {
  double median = 0, p10 = 0, p90 = 0;  // milliseconds
};

class Bench {
 public:
  Bench(hp::World& world, const Arguments& arguments) : world_(world), arguments_(arguments) {}

  // The host waits for the device around each sample, never inside one.
  Times time(const std::function<void()>& call) {
    for (int i = 0; i < arguments_.warm_up; ++i) call();
    std::vector<double> samples;
    for (int i = 0; i < arguments_.samples; ++i) {
      synchronize();
      world_.group(hp::GroupKind::kSequence).barrier();
      auto start = std::chrono::steady_clock::now();
      call();
      synchronize();
      samples.push_back(
          std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start)
              .count());
    }
    std::sort(samples.begin(), samples.end());
    auto at = [&](double share) {
      return samples[static_cast<size_t>(share * (samples.size() - 1))];
    };
    return {at(0.5), at(0.1), at(0.9)};
  }

  int run() {
    c10::InferenceMode inference;
    const at::Device device = arguments_.device == "cuda"
                                  ? at::Device(at::kCUDA, world_.options().identity.local_rank)
                                  : at::Device(at::kCPU);
    device_ = device;
    const auto options =
        at::TensorOptions().device(device).dtype(arguments_.dtype == "f32"   ? at::kFloat
                                                 : arguments_.dtype == "f16" ? at::kHalf
                                                                             : at::kBFloat16);
    const int64_t ranks = world_.size(), heads = arguments_.heads, width = arguments_.width;
    const int64_t rows = arguments_.rows / ranks;

    auto impl = kImpls.at(arguments_.impl)();
    auto staging = std::make_shared<hp::StagingBuffers>();
    hp::SequenceGroups groups = world_.sequence_groups();
    hp::UspOptions layer{.layer = {.name = "bench",
                                   .heads = heads,
                                   .backend = arguments_.impl,
                                   .supports_ring = arguments_.impl == "fa"}};
    hp::UspAttention attention(impl, &groups, staging, layer);
    hp::UlyssesExchange exchange(*groups.ulysses, *staging);

    auto slices = [&](int64_t n, int64_t h) {
      at::Tensor fused = at::randn({n, h, 3 * width}, options);
      return h3::Qkv{fused.narrow(2, 0, width), fused.narrow(2, width, width),
                     fused.narrow(2, 2 * width, width)};
    };
    h3::Qkv share = slices(rows, heads);
    h3::Qkv batch{share.q.unsqueeze(0), share.k.unsqueeze(0), share.v.unsqueeze(0)};
    const h3::PackedBounds bounds{
        {0, static_cast<int32_t>(arguments_.used), static_cast<int32_t>(arguments_.rows)},
        arguments_.used};

    std::map<std::string, Times> times;
    if (groups.ulysses->size() > 1) {
      times["exchange in, one collective"] = time([&] { exchange.to_heads(batch); });
      times["exchange in, three"] = time([&] { exchange.to_heads_unpacked(batch); });
      at::Tensor out = exchange.to_heads(batch).q.contiguous();
      times["exchange out"] = time([&] { exchange.to_rows(out); });
    }
    const double parallel =
        (times["whole call"] = time([&] { attention.forward_packed(share, bounds, {}); })).median;
    {
      h3::Qkv part = slices(arguments_.rows, heads / ranks);
      times["attention alone, heads / ranks"] =
          time([&] { impl->forward_packed(part, bounds, {}); });
    }
    h3::Qkv whole = slices(arguments_.rows, heads);
    const double single =
        (times["one rank"] = time([&] { impl->forward_packed(whole, bounds, {}); })).median;
    report(times, single / (static_cast<double>(ranks) * parallel));
    return 0;
  }

 private:
  void synchronize() {
    if (device_.is_cuda())
      c10::impl::VirtualGuardImpl(device_.type()).synchronizeDevice(device_.index());
  }

  void report(const std::map<std::string, Times>& times, double efficiency) {
    if (world_.rank() != 0) return;
    std::printf("ranks %d (ulysses %lld, ring %lld), rows %lld, heads %lld, D %lld, %s, %s on %s\n",
                world_.size(), static_cast<long long>(world_.options().degrees.ulysses),
                static_cast<long long>(world_.options().degrees.ring),
                static_cast<long long>(arguments_.rows), static_cast<long long>(arguments_.heads),
                static_cast<long long>(arguments_.width), arguments_.dtype.c_str(),
                arguments_.impl.c_str(), arguments_.device.c_str());
    for (const auto& [name, t] : times)
      std::printf("%-32s %10.3f ms  (p10 %.3f, p90 %.3f)\n", name.c_str(), t.median, t.p10, t.p90);
    std::printf("efficiency %.3f of ideal\n", efficiency);
    if (!arguments_.json) return;
    std::printf("{\"ranks\": %d, \"rows\": %lld, \"heads\": %lld, \"impl\": \"%s\", ",
                world_.size(), static_cast<long long>(arguments_.rows),
                static_cast<long long>(arguments_.heads), arguments_.impl.c_str());
    for (const auto& [name, t] : times) std::printf("\"%s, ms\": %.4f, ", name.c_str(), t.median);
    std::printf("\"efficiency\": %.4f}\n", efficiency);
  }

  hp::World& world_;
  const Arguments& arguments_;
  at::Device device_{at::kCPU};
};

}  // namespace

int main(int argc, char** argv) {
  Arguments arguments;
  CLI::App app("Benchmark of sequence parallelism; start it with h3 launch.");
  std::vector<std::string> impls;
  for (const auto& [name, make] : kImpls) impls.push_back(name);
  app.add_option("--rows", arguments.rows, "Packed rows of the whole sequence");
  app.add_option("--used", arguments.used, "Real rows among them");
  app.add_option("--heads", arguments.heads);
  app.add_option("--head-dim", arguments.width);
  app.add_option("--ring-degree", arguments.ring);
  app.add_option("--samples", arguments.samples)->check(CLI::Range(1, 10000));
  app.add_option("--device", arguments.device)->check(CLI::IsMember({"cpu", "cuda"}));
  app.add_option("--impl", arguments.impl)->check(CLI::IsMember(impls));
  app.add_option("--dtype", arguments.dtype)->check(CLI::IsMember({"bf16", "f16", "f32"}));
  app.add_flag("--json", arguments.json);
  CLI11_PARSE(app, argc, argv);
  try {
    hp::WorldOptions options = hp::WorldOptions::from_environment();
    const int64_t ranks = options.identity.world_size;
    options.degrees = hp::resolve_degrees(
        {.world_size = ranks, .ulysses = ranks / arguments.ring, .ring = arguments.ring});
    options.device = arguments.device == "cuda" ? at::kCUDA : at::kCPU;
    options.record.set("rows", arguments.rows);
    options.record.set("heads", arguments.heads);
    options.record.set("impl", arguments.impl);
    return hp::run_rank(options, [&](hp::World& world) { return Bench(world, arguments).run(); });
  } catch (const std::exception& error) {
    std::fprintf(stderr, "h3: %s\n", error.what());
    return hp::exit_code_of(error);
  }
}
