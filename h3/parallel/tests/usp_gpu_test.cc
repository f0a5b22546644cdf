// Sequence parallelism over NCCL: one rank per GPU, started by the launcher like usp_test. Skipped
// with a reason where there are fewer GPUs than ranks.
#include <ATen/Context.h>
#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include <cstdio>

#include "h3/attention/dense_impl.h"
#include "h3/attention/sdpa_impl.h"
#include "h3/parallel/backend.h"
#include "h3/parallel/usp_attention.h"

namespace h3::parallel {
namespace {

constexpr uint64_t kSeed = 20251130;
World* g_world = nullptr;

at::Device device() { return at::Device(at::kCUDA, g_world->options().identity.local_rank); }

// The same on all ranks: made on the host.
Qkv random_packed(int64_t rows, int64_t heads) {
  at::manual_seed(kSeed);
  at::Tensor fused = at::randn({rows, heads, 3 * 128}).to(at::kBFloat16).to(device());
  return {fused.narrow(2, 0, 128), fused.narrow(2, 128, 128), fused.narrow(2, 256, 128)};
}
at::Tensor my_rows(const at::Tensor& x) {
  const int64_t rows = x.size(0) / g_world->size();
  return x.narrow(0, g_world->rank() * rows, rows);
}
Qkv my_rows(const Qkv& x) { return {my_rows(x.q), my_rows(x.k), my_rows(x.v)}; }

SequenceGroups layout(int64_t ring) {
  return g_world->sequence_groups(resolve_degrees(
      {.world_size = g_world->size(), .ulysses = g_world->size() / ring, .ring = ring}));
}

TEST(UspGpu, PackedExchange_EqualsThreeAndRoundTrips) {
  SequenceGroups groups = layout(1);
  StagingBuffers staging;
  UlyssesExchange exchange(*groups.ulysses, staging);
  Qkv mine = my_rows(random_packed(640, 8));
  Qkv batch{mine.q.unsqueeze(0), mine.k.unsqueeze(0), mine.v.unsqueeze(0)};
  int64_t before = groups.ulysses->collectives();
  Qkv packed = exchange.to_heads(batch);
  EXPECT_EQ(groups.ulysses->collectives() - before, 1);
  packed = {packed.q.clone(), packed.k.clone(), packed.v.clone()};
  Qkv three = exchange.to_heads_unpacked(batch);
  EXPECT_TRUE(packed.q.equal(three.q) && packed.k.equal(three.k) && packed.v.equal(three.v));
  EXPECT_TRUE(exchange.to_rows(packed.v).equal(batch.v));
}

// Bits: with the same kernel, heads do not depend on which others are in the call.
TEST(UspGpu, Ulysses_EqualsOneRank) {
  SequenceGroups groups = layout(1);
  auto impl = std::shared_ptr<AttentionImpl>(make_sdpa_impl({}));
  UspAttention attention(impl, &groups, nullptr, {.layer = {.name = "test", .heads = 8}});
  Qkv whole = random_packed(1280, 8);
  const PackedBounds bounds{{0, 1203, 1280}, 1203};
  at::Tensor out = attention.forward_packed(my_rows(whole), bounds, {});
  at::Tensor expected = my_rows(impl->forward_packed(whole, bounds, {}));
  EXPECT_TRUE(out.equal(expected)) << out.sub(expected).abs().max().to(at::kFloat).item<double>();
}

TEST(UspGpu, Ring_MatchesOneRank) {
  SequenceGroups groups = layout(g_world->size());
  auto impl = std::shared_ptr<AttentionImpl>(make_dense_impl({}));
  UspAttention attention(
      impl, &groups, nullptr,
      {.layer = {.name = "test", .heads = 8, .backend = "fa", .supports_ring = true}});
  Qkv whole = random_packed(1280, 8);
  for (int32_t used : {1280, 1220, 500}) {
    PackedBounds bounds{{0, used}, used};
    if (1280 - used < kPackedAlignment) bounds.cu.push_back(1280);
    at::Tensor out = attention.forward_packed(my_rows(whole), bounds, {});
    at::Tensor expected = impl->forward_packed(whole, bounds, {});
    expected.narrow(0, used, 1280 - used).zero_();
    EXPECT_LE(out.sub(my_rows(expected)).abs().max().to(at::kFloat).item<double>(), 4e-3)
        << "used " << used;
  }
}

// On GPUs signatures are compared once each; a new one is compared before any data moves.
TEST(UspGpu, DifferentShapes_AreRefusedOnEveryRank) {
  SequenceGroups groups = layout(1);
  UspAttention attention(std::shared_ptr<AttentionImpl>(make_sdpa_impl({})), &groups, nullptr,
                         {.layer = {.name = "test", .heads = 8}});
  Qkv qkv = random_packed(g_world->rank() == 0 ? 70 : 71, 8);
  EXPECT_THROW(attention.forward_packed(qkv, {{0, 70}}, {}), Error);
}

}  // namespace
}  // namespace h3::parallel

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  namespace hp = h3::parallel;
  hp::WorldOptions options = hp::WorldOptions::from_environment();
  const int ranks = options.identity.world_size;
  if (ranks < 2 || !hp::has_nccl() || at::getNumGPUs() < static_cast<size_t>(ranks)) {
    std::printf("SKIPPED: started with %d ranks; needs at least 2, a GPU each and NCCL\n", ranks);
    return 0;
  }
  std::printf("seed %llu\n", static_cast<unsigned long long>(hp::kSeed));
  options.degrees = hp::resolve_degrees({.world_size = ranks, .ulysses = ranks});
  options.device = at::kCUDA;
  return hp::run_rank(options, [](hp::World& world) {
    hp::g_world = &world;
    return RUN_ALL_TESTS();
  });
}
