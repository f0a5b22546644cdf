// The Ulysses exchange alone: where heads and rows go, packing, staging.
#include "h3/parallel/ulysses.h"

#include "h3/parallel/tests/ranks.h"

namespace h3::parallel {
namespace {

// FC-6: which head and row goes where, and back.
TEST(Ulysses, RoundTrip_MovesHeadsAndRowsAsSpecified) {
  SequenceGroups groups = layout(world_size());
  StagingBuffers staging;
  UlyssesExchange exchange(*groups.ulysses, staging);
  const int64_t heads = 8, whole = padded_rows(1003, world_size()), rows = whole / world_size();
  at::Tensor x = at::empty({1, rows, heads, 1}, at::kInt);
  for (int64_t s = 0; s < rows; ++s)
    for (int64_t h = 0; h < heads; ++h)
      x.data_ptr<int>()[s * heads + h] = static_cast<int>(16 * (my_rank() * rows + s) + h);
  Qkv got = exchange.to_heads({x, x, x});
  const int64_t local = heads / world_size();
  ASSERT_EQ(got.q.sizes(), (std::vector<int64_t>{1, whole, local, 1}));
  int64_t wrong = 0;
  for (int64_t s = 0; s < whole; ++s)
    for (int64_t h = 0; h < local; ++h)
      wrong += got.k[0][s][h][0].item<int>() != 16 * s + my_rank() * local + h;
  EXPECT_EQ(wrong, 0);
  EXPECT_TRUE(same_bits(exchange.to_rows(got.v), x));
}

// U1, U1a.
TEST(Ulysses, PackedExchange_EqualsThreeExchangesInOneCollective) {
  SequenceGroups groups = layout(world_size());
  StagingBuffers staging;
  UlyssesExchange exchange(*groups.ulysses, staging);
  const int64_t rows = 5, heads = 8, width = 4;
  for (int64_t batch : {1, 2}) {
    // Slices of one projection, and three tensors of their own.
    at::Tensor fused = random_tensor({batch, rows, heads, 3 * width}, 7 + my_rank());
    Qkv slices{fused.narrow(3, 0, width), fused.narrow(3, width, width),
               fused.narrow(3, 2 * width, width)};
    Qkv apart{slices.q.contiguous(), slices.k.contiguous(), slices.v.contiguous()};
    // Slices in another order than the buffer's: one copy of the whole would mix them up.
    Qkv turned{slices.q, slices.v, slices.k}, shared{slices.q, slices.k, slices.k};
    for (const Qkv& qkv : {slices, apart, turned, shared}) {
      EXPECT_EQ(UlyssesExchange::why_not_packed(qkv), "");
      int64_t before = groups.ulysses->collectives();
      Qkv packed = exchange.to_heads(qkv);
      EXPECT_EQ(groups.ulysses->collectives() - before, 1);
      packed = {packed.q.clone(), packed.k.clone(), packed.v.clone()};
      before = groups.ulysses->collectives();
      Qkv three = exchange.to_heads_unpacked(qkv);
      EXPECT_EQ(groups.ulysses->collectives() - before, 3);
      EXPECT_TRUE(same_bits(packed.q, three.q) && same_bits(packed.k, three.k) &&
                  same_bits(packed.v, three.v));
    }
  }
  at::Tensor longer = random_tensor({2, rows + 1, heads, width}, 1);
  at::Tensor cut = longer.narrow(1, 0, rows);
  EXPECT_NE(UlyssesExchange::why_not_packed({cut, cut, cut}), "");
  at::Tensor gapped = random_tensor({1, rows, heads, 2 * width}, 1).slice(3, 0, 2 * width, 2);
  EXPECT_NE(UlyssesExchange::why_not_packed({gapped, gapped, gapped}), "");
  EXPECT_NE(refusal(ErrorCode::kInvalidArgument,
                    [&] {
                      exchange.to_heads({gapped, gapped, gapped});
                    })
                .find("last stride 1"),
            std::string::npos);
}

TEST(Ulysses, Packed16Bit_KeepsEveryBitPattern) {
  SequenceGroups groups = layout(world_size());
  StagingBuffers staging;
  UlyssesExchange exchange(*groups.ulysses, staging);
  // All values of 16 bits, NaNs included, read as bf16.
  at::Tensor bits = at::arange(65536, at::kInt).to(at::kShort).view({1, 1024, 8, 8});
  at::Tensor x = bits.view(at::kBFloat16);
  Qkv got = exchange.to_heads({x, x, x});
  at::Tensor back = exchange.to_rows(got.q);
  EXPECT_TRUE(same_bits(back.view(at::kShort), bits));
}

TEST(Ulysses, StagingBuffers_GrowOnceAndAreReused) {
  SequenceGroups groups = layout(world_size());
  StagingBuffers staging;
  UlyssesExchange exchange(*groups.ulysses, staging);
  auto run = [&](int64_t rows) {
    Qkv qkv = random_qkv(1, rows, 8, 8, 3);
    return exchange.to_heads(qkv);
  };
  const void* first = run(6).q.data_ptr();
  const int64_t bytes = staging.bytes();
  EXPECT_EQ(bytes, 2 * 3 * 6 * 8 * 8 * 4);
  EXPECT_EQ(run(4).q.data_ptr(), first);
  EXPECT_EQ(staging.bytes(), bytes);
  {
    StagingBuffers::Bypass bypass(staging);
    EXPECT_NE(run(4).q.data_ptr(), first);
  }
  run(12);
  EXPECT_EQ(staging.bytes(), 2 * bytes);
  staging.release();
  EXPECT_EQ(staging.bytes(), 0);
}

// U5: every rank's rows carry their own numbers; swapped axes would give others.
TEST(Grid, UlyssesTimesRing_OwnsContiguousRows) {
  for (int64_t ring = 1; ring <= world_size(); ring *= 2) {
    SequenceGroups groups = layout(world_size() / ring, ring);
    StagingBuffers staging;
    UlyssesExchange exchange(*groups.ulysses, staging);
    const int64_t local = 3, first = row_start(groups.place, local);
    EXPECT_EQ(first, my_rank() * local);
    at::Tensor ids = at::arange(first, first + local, at::kInt)
                         .view({1, local, 1, 1})
                         .expand({1, local, 8, 1})
                         .contiguous();
    at::Tensor got = exchange.to_heads({ids, ids, ids}).q;
    const int64_t chunk = local * groups.place.ulysses;
    at::Tensor expected =
        at::arange(groups.place.ring_rank * chunk, (groups.place.ring_rank + 1) * chunk, at::kInt);
    EXPECT_TRUE(same_bits(got.select(3, 0).select(2, 0)[0], expected)) << "ring " << ring;
  }
}

}  // namespace
}  // namespace h3::parallel
