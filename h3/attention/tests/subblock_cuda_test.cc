// subblock_sparse_attn on a GPU: what the CPU tests say, where it depends on the device. Skipped
// without one.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <memory>
#include <thread>

#include "h3/attention/dense_impl.h"
#include "h3/attention/runtime_layer.h"
#include "h3/attention/subblock_impl.h"
#include "h3/attention/tests/plan_test_util.h"
#include "h3/attention/tests/reference.h"

namespace h3 {
namespace {

using testing::denoise_layer;
using testing::document_mask;
using testing::max_error;
using testing::packed;
using testing::random_qkv;
using testing::reference_attention;

constexpr uint64_t kSeed = 20261130;

class SubBlockCuda : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!at::hasCUDA()) GTEST_SKIP() << "no CUDA device";
    testing::start_test(kSeed);
  }
};

Qkv on_gpu(const Qkv& qkv) { return {qkv.q.cuda(), qkv.k.cuda(), qkv.v.cuda()}; }

struct Sparse {
  explicit Sparse(double sparsity, int64_t max_pairs = kMaxPairsPerCall) {
    SubBlockOptions options;
    options.settings.options.sparsity = sparsity;
    options.settings.options.min_seq_len = 512;
    options.settings.options.skip_first_steps = 1;
    options.gate = layer_gate(denoise_layer(0), options.settings);
    options.max_pairs = max_pairs;
    impl = make_subblock_impl(options, {make_dense_impl({}), nullptr}, stats);
  }
  std::shared_ptr<LayerStats> stats = std::make_shared<LayerStats>();
  std::unique_ptr<AttentionImpl> impl;
};

const AttentionContext kDense{{0}, false, {}}, kSparse{{1}, false, {}};

TEST_F(SubBlockCuda, DenseStep_IsBitwiseDense_G4) {
  const Qkv qkv = on_gpu(packed(random_qkv(1, 1000, 1000, 4, 2, 128, at::kBFloat16)));
  const PackedBounds bounds{{0, 900, 960}, 900};
  Sparse s(0.75);
  EXPECT_TRUE(at::equal(s.impl->forward_packed(qkv, bounds, kDense),
                        make_dense_impl({})->forward_packed(qkv, bounds, {})));
}

TEST_F(SubBlockCuda, FullBudget_IsDenseAttentionPerDocument_G5) {
  const Qkv batch = random_qkv(1, 1000, 1000, 4, 2, 128, at::kBFloat16);
  const PackedBounds bounds{{0, 700, 960}, 700};
  Sparse s(1e-6);
  const at::Tensor out = s.impl->forward_packed(on_gpu(packed(batch)), bounds, kSparse).cpu();
  const at::Tensor want = reference_attention(batch, document_mask(bounds.cu, 1000)).out[0];
  EXPECT_LT(max_error(out, want), 2e-2);
  EXPECT_EQ(out.narrow(0, 960, 40).abs().max().item<float>(), 0.0f);
  EXPECT_NEAR(s.stats->values().mean_mass().value(), 1.0, 1e-4);
}

TEST_F(SubBlockCuda, HeadSplitting_ChangesNoBit_K6a) {
  const Qkv qkv = on_gpu(packed(random_qkv(1, 1200, 1200, 4, 4, 128, at::kBFloat16)));
  const PackedBounds bounds{{0, 1150, 1200}, 1150};
  AttentionContext masked = kSparse;
  masked.has_query_block_mask = true;
  for (int i = 0; i < 18; ++i) masked.query_block_mask.push_back(i % 2 == 0);
  Sparse whole(0.5), split(0.5, 1);
  EXPECT_TRUE(at::equal(whole.impl->forward_packed(qkv, bounds, masked),
                        split.impl->forward_packed(qkv, bounds, masked)));
  const CounterValues a = whole.stats->values(), b = split.stats->values();
  EXPECT_EQ(a.blocks_kept, b.blocks_kept);
  EXPECT_EQ(a.mass_rows, 4 * 9);
  EXPECT_NEAR(a.mass_sum, b.mass_sum, 1e-3);
}

// The sums are read in the order of the stream that wrote them, whatever is current where.
TEST_F(SubBlockCuda, MassReadByAnotherThread_EqualsTheCpus) {
  const Qkv host = packed(random_qkv(1, 1024, 1024, 2, 2, 128, at::kBFloat16));
  const Qkv qkv = on_gpu(host);
  const PackedBounds bounds{{0, 1024}, 1024};
  Sparse gpu(0.5), cpu(0.5);
  for (int i = 0; i < 100; ++i) gpu.impl->forward_packed(qkv, bounds, kSparse);
  cpu.impl->forward_packed(host, bounds, kSparse);
  CounterValues v;
  std::thread([&] { v = gpu.stats->values(); }).join();
  EXPECT_EQ(v.sparse_calls, 100);
  EXPECT_EQ(v.blocks_kept, 100 * cpu.stats->values().blocks_kept);
  EXPECT_NEAR(v.mean_mass().value(), cpu.stats->values().mean_mass().value(), 1e-4);
}

TEST_F(SubBlockCuda, F32Call_RunsADenseBackendThatTakesIt) {
  ResolvedLayer resolved;
  resolved.layer = denoise_layer(0);
  resolved.backend = BackendId::kSubBlock;
  resolved.dense = BackendId::kFa;
  RuntimeLayer layer(resolved, {}, cuda_platform(9, 0));
  const Qkv host = random_qkv(1, 100, 100, 2, 2, 128);
  EXPECT_LT(max_error(layer.forward(on_gpu(host), {}).cpu(), reference_attention(host).out), 1e-3);
}

}  // namespace
}  // namespace h3
