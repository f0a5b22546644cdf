// Ring attention against one rank, and the merging of partial results.
#include "h3/parallel/ring.h"

#include "h3/attention/dense_impl.h"
#include "h3/parallel/tests/ranks.h"

namespace h3::parallel {
namespace {

TEST(Ring, RealKernel_MatchesOneRank) {
  SequenceGroups groups = layout(1, world_size());
  const int64_t whole = 96 * world_size();
  Qkv batch = random_qkv(1, whole, 8, 8, 89, 64);
  const int32_t used = static_cast<int32_t>(whole - 50);
  const PackedBounds bounds{{0, used, static_cast<int32_t>(whole)}, used};
  std::shared_ptr<AttentionImpl> impl = make_dense_impl({});
  UspAttention attention(
      impl, &groups, nullptr,
      {.layer = {.name = "real", .heads = 8, .backend = "fa", .supports_ring = true}});
  Qkv mine = my_share(batch);
  at::Tensor out = attention.forward_packed({mine.q[0], mine.k[0], mine.v[0]}, bounds, {});
  at::Tensor expected = impl->forward_packed({batch.q[0], batch.k[0], batch.v[0]}, bounds, {});
  expected.narrow(0, used, whole - used).zero_();
  EXPECT_LE(distance(out, my_share(expected.unsqueeze(0))[0]), 1e-5);
}

// U4, U4a. Chunks cut by the padding, chunks of nothing but padding, no real row at all.
TEST(Ring, PaddedChunks_MatchOneRank) {
  for (int64_t ring = 2; ring <= world_size(); ring *= 2)
    for (int64_t batch : {1, 2}) {
      Layer layer = make_layer(layout(world_size() / ring, ring), 8, 8);
      const int64_t whole = 4 * world_size();
      Qkv qkv = random_qkv(batch, whole, 8, 8, 29);
      for (int64_t real : {whole, whole - 1, whole / 2 - 1, int64_t{1}, int64_t{0}}) {
        UspCall call;
        call.valid_rows = real;
        at::Tensor out = layer.attention->forward(my_share(qkv), call, {});
        at::Tensor expected = at::zeros({batch, whole, 8, 8});
        if (real > 0) expected.narrow(1, 0, real).copy_(whole_result(rows_of(qkv, 0, real)));
        EXPECT_LE(distance(out, my_share(expected)), 1e-5) << "ring " << ring << " real " << real;
        // The packed form, as the model calls it.
        Qkv mine = my_share(rows_of(qkv, 0, whole));
        const int32_t used = static_cast<int32_t>(real), total = static_cast<int32_t>(whole);
        std::vector<PackedBounds> forms = {{{0, used}}, {{0, used}, used}};
        if (used == 0) forms.push_back({{0}});
        if (used >= total - used) forms.push_back({{0, used, total}, used});
        for (const PackedBounds& bounds : forms) {
          at::Tensor packed =
              layer.attention->forward_packed({mine.q[0], mine.k[0], mine.v[0]}, bounds, {});
          EXPECT_LE(distance(packed, my_share(expected)[0]), 1e-5);
        }
      }
    }
}

TEST(Ring, PaddedChunks_AreNotAttendedTo) {
  Layer layer = make_layer(layout(1, world_size()), 8, 8);
  Qkv qkv = random_qkv(1, 2 * world_size(), 8, 8, 31);
  UspCall call;
  call.valid_rows = 2;
  layer.attention->forward(my_share(qkv), call, {});
  EXPECT_EQ(layer.impl->calls, 1);
}

TEST(Ring, Merge_HandlesRowsWithoutKeys) {
  const float nothing = -INFINITY;
  AttentionPartial a{at::full({1, 2, 1, 1}, 3.0), at::zeros({1, 1, 2})};
  AttentionPartial b{at::full({1, 2, 1, 1}, 7.0), at::zeros({1, 1, 2})};
  b.lse.fill_(nothing);
  AttentionPartial merged = merge_partials(a, b);
  EXPECT_TRUE(same_bits(merged.out, a.out) && same_bits(merged.lse, a.lse));
  AttentionPartial none = merge_partials(b, b);
  EXPECT_TRUE(same_bits(none.out, at::zeros({1, 2, 1, 1})));
  EXPECT_TRUE(same_bits(none.lse, b.lse));
  b.lse.fill_(std::log(3.0f));
  EXPECT_NEAR(merge_partials(a, b).out.max().item<double>(), 6, 1e-6);
}

// A document taken for padding would come out as zeros.
TEST(Ring, SecondRealDocument_IsRefused) {
  Layer layer = make_layer(layout(1, world_size()), 8, 8);
  const int32_t total = 128;
  Qkv mine = my_share(random_qkv(1, total, 8, 8, 7));
  auto packed = [&](const PackedBounds& bounds) {
    return layer.attention->forward_packed({mine.q[0], mine.k[0], mine.v[0]}, bounds, {});
  };
  auto expect_refused = [&](std::vector<int32_t> cu, int64_t max_seqlen, const char* reason) {
    const std::string text = refusal(ErrorCode::kUnsupported, [&] { packed({cu, max_seqlen}); });
    EXPECT_NE(text.find(reason), std::string::npos) << cu[1] << ": " << text;
  };
  expect_refused({0, 100, total}, 0, "not marked as padding");
  expect_refused({0, 100, total}, total, "not marked as padding");
  expect_refused({0, 60, total}, 0, "not marked as padding");
  expect_refused({0, 60, total}, 68, "not marked as padding");
  expect_refused({0, 100, total - 1}, 100, "not marked as padding");
  expect_refused({0, 0, total}, total, "not marked as padding");
  expect_refused({0, 64, total}, 64, "more than the 63");
  expect_refused({0, 123, 123, total}, 123, "3 documents");
  EXPECT_EQ(refusal(ErrorCode::kUnsupported, [&] { packed({{0, 65, total}, 65}); }), "");
}

TEST(Ring, ManyDocumentsMasksCausal_AreRefused) {
  Layer layer = make_layer(layout(1, world_size()), 8, 8);
  Qkv qkv = random_qkv(1, 4, 8, 8, 1);
  Qkv packed{qkv.q[0], qkv.k[0], qkv.v[0]};
  EXPECT_NE(refusal(ErrorCode::kUnsupported,
                    [&] {
                      layer.attention->forward_packed(packed, {{0, 1, 2, 3}}, {});
                    })
                .find("3 documents"),
            std::string::npos);
  UspCall call;
  call.key_mask = at::ones({1, 4}, at::kBool);
  EXPECT_NE(refusal(ErrorCode::kUnsupported, [&] { layer.attention->forward(qkv, call, {}); })
                .find("key_mask"),
            std::string::npos);
  UspCall uneven;
  uneven.seq_lens.assign(world_size(), 4);
  EXPECT_NE(refusal(ErrorCode::kUnsupported, [&] { layer.attention->forward(qkv, uneven, {}); })
                .find("seq_lens"),
            std::string::npos);
  EXPECT_NE(refusal(ErrorCode::kUnsupported,
                    [&] { make_layer(layout(1, world_size()), 8, 8, {.causal = true}); })
                .find("causal"),
            std::string::npos);
}

}  // namespace
}  // namespace h3::parallel
