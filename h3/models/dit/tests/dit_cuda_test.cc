// The transformer on a GPU against the CPU. Skipped with a reason where there is none of capability
// 9.0 or the build has no kernels for it.
#include <gtest/gtest.h>

#include "h3/layers/device_memory.h"
#include "h3/layers/fused.h"
#include "h3/models/dit/tests/dit_test_util.h"
#include "tessera/device.h"

namespace h3::dit {
namespace {

class DitCuda : public testing::Test {
 protected:
  void SetUp() override {
    const auto devices = tessera::cuda_devices();
    if (devices.empty() || !devices.front().usable || !layers::fused_kernels_available()) {
      GTEST_SKIP() << "no CUDA device of capability 9.0, or a build without its kernels";
    }
    std::printf("seed %llu\n", static_cast<unsigned long long>(kSeed));
  }

  static LayoutRequest wanted(int64_t frames, int64_t side) {
    LayoutRequest r;
    r.text_rows = 5;
    r.text_is_vision = {0, 1, 1, 0, 0};
    r.target = {frames, side, side};
    r.target_audio_latents = 12;
    return r;
  }
  static Velocity on_cpu(const Velocity& v) { return {v.video.cpu(), v.audio.cpu()}; }
};

TEST_F(DitCuda, F32_EqualsTheCpu) {
  const DitConfig config = tiny_dit_config();
  const Request request(config, wanted(7, 8), {{0.0f, 0.0f}, {0.3f, 0.62f}});
  Engine cpu(config, {}),
      cuda(config, {.backend = BackendId::kTorchSdpa, .device = at::kCUDA});  // fa has no f32 there
  const auto want = request.run(cpu.model), got = request.run(cuda.model);
  for (size_t k = 0; k < want.size(); ++k) {
    EXPECT_LE(relative_distance(on_cpu(got[k]), want[k]), 1e-5) << "step " << k;
  }
}

// The fused kernels round where the ATen operations of the CPU do; matrix products and attention
// sum in another order, which bf16 amplifies to about the distance of bf16 from f32 itself.
TEST_F(DitCuda, Bf16_IsAsFarFromF32AsTheCpus) {
  const DitConfig config = tiny_dit_config();
  const Request request(config, wanted(7, 8), {{0.3f, 0.62f}});
  const tessera::Dtype bf16 = tessera::Dtype::kBf16;
  Engine exact(config, {}), cpu(config, {.compute = bf16}),
      cuda(config, {.compute = bf16, .device = at::kCUDA});
  const Velocity want = request.run(exact.model)[0];
  const double own = relative_distance(request.run(cpu.model)[0], want);
  const double got = relative_distance(on_cpu(request.run(cuda.model)[0]), want);
  std::printf("bf16 from f32: CPU %.2e, CUDA %.2e\n", own, got);
  EXPECT_GT(got, 0);
  EXPECT_LE(got, 2 * own);
}

TEST_F(DitCuda, FullBudget_GivesTheBitsOfDense) {
  DitConfig config = tiny_dit_config();
  config.layers = 1;
  const Request request(config, wanted(40, 16), {{0.3f, 0.62f}});
  EngineOptions sparse{
      .compute = tessera::Dtype::kBf16, .backend = BackendId::kSubBlock, .device = at::kCUDA};
  sparse.subblock.options.skip_first_steps = 0;
  sparse.subblock.options.min_seq_len = 512;
  sparse.subblock.options.sparsity = 1e-6;
  EngineOptions half = sparse;
  half.subblock.options.sparsity = 0.5;
  Engine a(config, {.compute = tessera::Dtype::kBf16, .device = at::kCUDA}), b(config, sparse),
      c(config, half);
  const Velocity dense = request.run(a.model)[0], full = request.run(b.model)[0];
  EXPECT_EQ(b.counters("blocks.0.attn").sparse_calls, 1);
  EXPECT_TRUE(same_bits(full, dense)) << relative_distance(full, dense);
  EXPECT_GT(relative_distance(request.run(c.model)[0], dense), 0.01);
}

TEST_F(DitCuda, SameRequest_SameBits) {
  const DitConfig config = tiny_dit_config();
  const Request request(config, wanted(7, 8), {{0.3f, 0.62f}});
  Engine engine(config, {.compute = tessera::Dtype::kBf16, .device = at::kCUDA});
  EXPECT_TRUE(same_bits(request.run(engine.model)[0], request.run(engine.model)[0]));
}

TEST_F(DitCuda, PhaseTimesAndMemory_ArePlausible) {
  const DitConfig config = tiny_dit_config();
  const Request request(config, wanted(7, 8), {{0.3f, 0.62f}});
  Engine engine(config, {.compute = tessera::Dtype::kBf16, .device = at::kCUDA});
  request.run(engine.model);  // first calls choose kernels
  engine.model.timer().enable(true);
  const c10::Device device = engine.model.device();
  reset_peak_memory(device);
  request.run(engine.model);
  const PhaseTimes times = engine.model.timer().take_milliseconds();
  for (const double ms : times) {
    EXPECT_GT(ms, 0);
    EXPECT_LT(ms, 1000);
  }
  const DeviceMemory memory = device_memory(device);
  EXPECT_GT(memory.peak, engine.model.weight_bytes());
  EXPECT_GE(memory.reserved_peak, memory.peak);
  EXPECT_GT(memory.total, memory.free);
}

}  // namespace
}  // namespace h3::dit
