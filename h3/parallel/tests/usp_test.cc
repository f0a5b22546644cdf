// UspAttention over Ulysses and gathered keys and values against one rank.
#include "h3/parallel/usp_attention.h"

#include "h3/attention/dense_impl.h"
#include "h3/attention/sdpa_impl.h"
#include "h3/parallel/tests/ranks.h"

namespace h3::parallel {
namespace {

// FC-6: one pad row (five on eight ranks) of which nothing may be seen.
TEST(Usp, PaddedSequence_IgnoresPadRow) {
  const int64_t heads = world_size(), whole = padded_rows(1003, world_size());
  for (int64_t ring : {1, 2}) {
    Layer layer = make_layer(layout(world_size() / ring, ring), heads, heads);
    Qkv qkv{at::zeros({1, whole, heads, 1}), at::zeros({1, whole, heads, 1}),
            at::ones({1, whole, heads, 1})};
    qkv.v.narrow(1, 1003, whole - 1003).fill_(10000);
    UspCall call;
    call.valid_rows = 1003;
    at::Tensor out = layer.attention->forward(my_share(qkv), call, {});
    at::Tensor expected = at::ones({1, whole, heads, 1});
    expected.narrow(1, 1003, whole - 1003).zero_();
    EXPECT_LE(distance(out, my_share(expected)), 1e-6) << "ring " << ring;
    // Negative control: with the pad row seen the mean is about 11.
    at::Tensor leak = layer.attention->forward(my_share(qkv), {}, {});
    EXPECT_GT(distance(leak, my_share(expected)), 5);
  }
}

TEST(Usp, Ulysses_EqualsOneRankBitForBit) {
  for (int64_t batch : {1, 2})
    for (int64_t kv_heads : {16, 8})
      for (bool causal : {false, true}) {
        Layer layer = make_layer(layout(world_size()), 16, kv_heads, {.causal = causal});
        EXPECT_EQ(layer.attention->mode(), UspAttention::Mode::kUlysses);
        Qkv qkv = random_qkv(batch, 5 * world_size(), 16, kv_heads, 11);
        at::Tensor out = layer.attention->forward(my_share(qkv), {}, {});
        EXPECT_TRUE(same_bits(out, my_share(whole_result(qkv, causal))))
            << "batch " << batch << " kv heads " << kv_heads << " causal " << causal;
      }
}

TEST(Usp, PackedDocuments_EqualOneRankBitForBit) {
  Layer layer = make_layer(layout(world_size()), 8, 8);
  const int64_t whole = 6 * world_size();
  Qkv batch = random_qkv(1, whole, 8, 8, 13);
  const int32_t total = static_cast<int32_t>(whole);
  for (const PackedBounds& bounds :
       {PackedBounds{{0, total - 5, total}}, PackedBounds{{0, 3, 3, 10}}, PackedBounds{{0}}}) {
    Qkv mine = my_share(batch);
    at::Tensor out = layer.attention->forward_packed({mine.q[0], mine.k[0], mine.v[0]}, bounds, {});
    at::Tensor expected =
        PlainAttention().forward_packed({batch.q[0], batch.k[0], batch.v[0]}, bounds, {});
    EXPECT_TRUE(same_bits(out, my_share(expected.unsqueeze(0))[0]));
  }
  Qkv mine = my_share(batch);
  EXPECT_NE(refusal(ErrorCode::kInvalidArgument,
                    [&] {
                      layer.attention->forward_packed({mine.q[0], mine.k[0], mine.v[0]},
                                                      {{0, total + 1}}, {});
                    })
                .find("whole sequence"),
            std::string::npos);
}

TEST(Usp, PackedMaxSeqlenTooSmall_IsRefusedInEveryMode) {
  for (const SequenceGroups& groups :
       {layout(world_size()), layout(1, world_size()), gather_layout(false)}) {
    Layer layer = make_layer(groups, 8, 8);
    Qkv mine = my_share(random_qkv(1, 8 * world_size(), 8, 8, 14));
    const std::string text = refusal(ErrorCode::kInvalidArgument, [&] {
      layer.attention->forward_packed({mine.q[0], mine.k[0], mine.v[0]}, {{0, 9}, 7}, {});
    });
    EXPECT_NE(text.find("max_seqlen is 7 but the longest document has 9"), std::string::npos);
  }
}

TEST(Usp, RealKernels_EqualOneRankBitForBit) {
  SequenceGroups groups = layout(world_size());
  const int64_t whole = 64 * world_size();
  Qkv batch = random_qkv(1, whole, 8, 8, 83, 64);
  const PackedBounds bounds{{0, static_cast<int32_t>(whole - 9), static_cast<int32_t>(whole)}};
  for (bool fa : {true, false}) {
    std::shared_ptr<AttentionImpl> impl = fa ? make_dense_impl({}) : make_sdpa_impl({});
    UspAttention attention(impl, &groups, nullptr, {.layer = {.name = "real", .heads = 8}});
    Qkv mine = my_share(batch);
    at::Tensor out = attention.forward_packed({mine.q[0], mine.k[0], mine.v[0]}, bounds, {});
    at::Tensor expected = impl->forward_packed({batch.q[0], batch.k[0], batch.v[0]}, bounds, {});
    EXPECT_TRUE(same_bits(out, my_share(expected.unsqueeze(0))[0])) << (fa ? "fa" : "sdpa");
  }
}

// U2.
TEST(Usp, UnevenLengths_EqualOneRankBitForBit) {
  std::vector<int64_t> lens{5, 3, 0, 8, 1, 4, 2, 6};
  lens.resize(world_size());
  int64_t whole = 0, first = 0;
  for (int64_t rank = 0; rank < world_size(); ++rank) {
    if (rank == my_rank()) first = whole;
    whole += lens[rank];
  }
  for (int64_t batch : {1, 2})
    for (int64_t kv_heads : {16, 8}) {
      Layer layer = make_layer(layout(world_size()), 16, kv_heads);
      Qkv qkv = random_qkv(batch, whole, 16, kv_heads, 17);
      UspCall call;
      call.seq_lens = lens;
      Qkv mine = rows_of(qkv, first, lens[my_rank()]);
      at::Tensor out = layer.attention->forward(mine, call, {});
      EXPECT_TRUE(same_bits(out, whole_result(qkv).narrow(1, first, lens[my_rank()])));
    }
  Layer layer = make_layer(layout(world_size()), 8, 8);
  UspCall call;
  call.seq_lens.assign(world_size() + 1, 2);
  Qkv two = random_qkv(1, 2, 8, 8, 1);
  EXPECT_NE(refusal(ErrorCode::kInvalidArgument, [&] { layer.attention->forward(two, call, {}); })
                .find("seq_lens for the"),
            std::string::npos);
  call.seq_lens.assign(world_size(), 3);
  EXPECT_NE(refusal(ErrorCode::kInvalidArgument, [&] { layer.attention->forward(two, call, {}); })
                .find("the tensor has 2"),
            std::string::npos);
}

// U3. Exchanging the replicated rows as if they were shares would count them once for each rank.
TEST(Usp, ReplicatedRows_EqualOneRank) {
  for (int64_t ring : {int64_t{1}, int64_t{2}, world_size()})
    for (Replicated mode : {Replicated::kPrefix, Replicated::kSuffix, Replicated::kKvPrefix})
      for (int64_t kv_heads : {16, 8}) {
        if (ring > 1 && mode == Replicated::kSuffix) continue;
        Layer layer = make_layer(layout(world_size() / ring, ring), 16, kv_heads);
        Qkv text = random_qkv(2, 3, 16, kv_heads, 19);
        Qkv media = random_qkv(2, 4 * world_size(), 16, kv_heads, 23);
        Qkv share = my_share(media);
        UspCall call;
        call.replicated = mode;
        call.replicated_rows = 3;
        const bool suffix = mode == Replicated::kSuffix, kv = mode == Replicated::kKvPrefix;
        Qkv input = suffix ? joined(share, text) : joined(text, share);
        Qkv whole = suffix ? joined(media, text) : joined(text, media);
        if (kv) {
          input.q = share.q;
          whole.q = media.q;
        }
        at::Tensor out = layer.attention->forward(input, call, {});
        at::Tensor all = whole_result(whole);
        const int64_t rows = 4 * world_size();
        at::Tensor expected =
            kv       ? my_share(all)
            : suffix ? at::cat({my_share(all.narrow(1, 0, rows)), all.narrow(1, rows, 3)}, 1)
                     : at::cat({all.narrow(1, 0, 3), my_share(all.narrow(1, 3, rows))}, 1);
        if (ring == 1)
          EXPECT_TRUE(same_bits(out, expected)) << "mode " << static_cast<int>(mode);
        else
          EXPECT_LE(distance(out, expected), 1e-5) << "mode " << static_cast<int>(mode);
        if (ring > 1 && mode == Replicated::kPrefix) {
          // What all ranks hold must stay the same bits everywhere.
          at::Tensor text_rows = out.narrow(1, 0, 3).contiguous();
          at::Tensor others = at::empty({world_size(), 2, 3, 16, 8});
          layer.groups.sequence->all_gather(others, text_rows);
          for (int64_t rank = 0; rank < world_size(); ++rank)
            EXPECT_TRUE(same_bits(others[rank], text_rows));
        }
      }
}

TEST(Usp, SuffixUnderRing_IsRefused) {
  Layer layer = make_layer(layout(1, world_size()), 8, 8);
  UspCall call;
  call.replicated = Replicated::kSuffix;
  call.replicated_rows = 1;
  Qkv qkv = random_qkv(1, 3, 8, 8, 1);
  EXPECT_NE(refusal(ErrorCode::kUnsupported, [&] { layer.attention->forward(qkv, call, {}); })
                .find("suffix under ring"),
            std::string::npos);
}

// U4b.
TEST(KvGather, AllForms_EqualOneRankBitForBit) {
  for (bool automatic : {false, true}) {
    Layer layer = make_layer(gather_layout(automatic), 8, 4);
    ASSERT_EQ(layer.attention->mode(), UspAttention::Mode::kKvGather);
    const int64_t whole = 4 * world_size();
    Qkv qkv = random_qkv(2, whole, 8, 4, 37);
    EXPECT_TRUE(
        same_bits(layer.attention->forward(my_share(qkv), {}, {}), my_share(whole_result(qkv))));
    UspCall padded;
    padded.valid_rows = whole - 5;
    at::Tensor expected = at::zeros({2, whole, 8, 8});
    expected.narrow(1, 0, whole - 5).copy_(whole_result(rows_of(qkv, 0, whole - 5)));
    EXPECT_TRUE(same_bits(layer.attention->forward(my_share(qkv), padded, {}), my_share(expected)));

    Qkv text = random_qkv(2, 3, 8, 4, 41);
    UspCall prefix;
    prefix.replicated = Replicated::kPrefix;
    prefix.replicated_rows = 3;
    at::Tensor out = layer.attention->forward(joined(text, my_share(qkv)), prefix, {});
    at::Tensor all = whole_result(joined(text, qkv));
    EXPECT_TRUE(same_bits(out.narrow(1, 0, 3), all.narrow(1, 0, 3)));
    EXPECT_TRUE(same_bits(out.narrow(1, 3, 4), my_share(all.narrow(1, 3, whole))));

    Qkv one =
        rows_of({qkv.q.narrow(0, 0, 1), qkv.k.narrow(0, 0, 1), qkv.v.narrow(0, 0, 1)}, 0, whole);
    Qkv mine = my_share(one);
    PackedBounds bounds{{0, 3, static_cast<int32_t>(whole) - 1}};
    at::Tensor packed =
        layer.attention->forward_packed({mine.q[0], mine.k[0], mine.v[0]}, bounds, {});
    at::Tensor documents =
        PlainAttention().forward_packed({one.q[0], one.k[0], one.v[0]}, bounds, {});
    EXPECT_TRUE(same_bits(packed, my_share(documents.unsqueeze(0))[0]));
  }
}

TEST(KvGather, CausalAndSparse_FollowModeTable) {
  using Mode = UspAttention::Mode;
  UspOptions sparse{.layer = {.backend = "subblock_sparse_attn", .sparse = true}};
  EXPECT_EQ(make_layer(gather_layout(true), 8, 8, {.causal = true}).attention->mode(),
            Mode::kUlysses);
  Layer layer = make_layer(gather_layout(true), 8, 8, sparse);
  EXPECT_EQ(layer.attention->mode(), Mode::kUlysses);
  EXPECT_NE(layer.attention->mode_reason().find("sparse"), std::string::npos);
  Qkv qkv = random_qkv(1, 2 * world_size(), 8, 8, 43);
  EXPECT_TRUE(
      same_bits(layer.attention->forward(my_share(qkv), {}, {}), my_share(whole_result(qkv))));
  EXPECT_NE(refusal(ErrorCode::kInvalidArgument,
                    [] { make_layer(gather_layout(false), 8, 8, {.causal = true}); })
                .find("causal"),
            std::string::npos);
  EXPECT_NE(
      refusal(ErrorCode::kUnsupported, [&] { make_layer(gather_layout(false), 8, 8, sparse); })
          .find("K/V gather"),
      std::string::npos);
}

// U4c, and masks with gaps.
TEST(Mask, GapsAndPrefix_MatchOneRank) {
  for (bool gather : {false, true})
    for (int64_t prefix : {0, 3}) {
      Layer layer = make_layer(gather ? gather_layout(false) : layout(world_size()), 8, 8);
      const int64_t whole = 4 * world_size();
      Qkv text = random_qkv(2, prefix, 8, 8, 47), media = random_qkv(2, whole, 8, 8, 53);
      at::Tensor mask = random_tensor({2, prefix + whole}, 59).gt(-0.5);
      UspCall call;
      if (prefix) call.replicated = Replicated::kPrefix;
      call.replicated_rows = prefix;
      call.key_mask =
          at::cat({mask.narrow(1, 0, prefix), my_share(mask.narrow(1, prefix, whole))}, 1);
      at::Tensor out = layer.attention->forward(joined(text, my_share(media)), call, {});

      Qkv all = joined(text, media);
      at::Tensor expected = at::zeros(all.q.sizes());
      for (int64_t b = 0; b < 2; ++b) {
        at::Tensor kept = at::nonzero(mask[b]).flatten();
        auto take = [&](const at::Tensor& x) { return x.narrow(0, b, 1).index_select(1, kept); };
        expected[b].index_copy_(0, kept, whole_result({take(all.q), take(all.k), take(all.v)})[0]);
      }
      EXPECT_TRUE(same_bits(out.narrow(1, 0, prefix), expected.narrow(1, 0, prefix)));
      EXPECT_TRUE(same_bits(out.narrow(1, prefix, 4), my_share(expected.narrow(1, prefix, whole))));
    }
}

TEST(Mask, AllValid_IsOnePlainCall) {
  Layer layer = make_layer(layout(world_size()), 8, 8);
  Qkv qkv = random_qkv(2, 2 * world_size(), 8, 8, 61);
  UspCall call;
  call.key_mask = at::ones({2, 2}, at::kBool);
  at::Tensor out = layer.attention->forward(my_share(qkv), call, {});
  EXPECT_EQ(layer.impl->calls, 1);
  EXPECT_TRUE(same_bits(out, my_share(whole_result(qkv))));
  call.key_mask = at::ones({2, 2}, at::kFloat);
  EXPECT_NE(refusal(ErrorCode::kInvalidArgument,
                    [&] { layer.attention->forward(my_share(qkv), call, {}); })
                .find("accepted: bool [2, 2]"),
            std::string::npos);
}

// U6, U7.
TEST(Skip, LocalLayer_AdmitsAnyBackendAndMovesNothing) {
  SequenceGroups ring = layout(1, world_size());
  UspOptions sdpa{.layer = {.name = "vae", .heads = 7, .backend = "torch_sdpa"}};
  auto impl = std::make_shared<PlainAttention>();
  EXPECT_NE(refusal(ErrorCode::kUnsupported, [&] { UspAttention(impl, &ring, nullptr, sdpa); })
                .find("torch_sdpa"),
            std::string::npos);
  UspOptions sparse{
      .layer = {
          .name = "transformer", .heads = 8, .backend = "subblock_sparse_attn", .sparse = true}};
  EXPECT_NE(refusal(ErrorCode::kUnsupported, [&] { UspAttention(impl, &ring, nullptr, sparse); })
                .find("sparse backend subblock_sparse_attn"),
            std::string::npos);
  sdpa.layer.skip_sequence_parallel = true;
  UspAttention local(impl, &ring, nullptr, sdpa);
  EXPECT_EQ(local.mode(), UspAttention::Mode::kLocal);
  // Different data, and different shapes, on every rank: a collective would mix or hang them.
  Qkv tile = random_qkv(1, 3 + my_rank(), 7, 7, 67 + my_rank());
  auto moved = [&] {
    return ring.sequence->collectives() + ring.ring->collectives() + ring.ulysses->collectives();
  };
  const int64_t before = moved();
  EXPECT_TRUE(same_bits(local.forward(tile, {}, {}), whole_result(tile)));
  // The same by the call, as for cross attention with replicated keys.
  Layer layer = make_layer(ring, 8, 8);
  UspCall call;
  call.skip_sequence_parallel = true;
  Qkv qkv = random_qkv(1, 5, 8, 8, 71);
  EXPECT_TRUE(same_bits(layer.attention->forward(qkv, call, {}), whole_result(qkv)));
  EXPECT_EQ(moved(), before);
}

TEST(Agreement, DifferentShapes_ReachEveryRankWithOneText) {
  Layer layer = make_layer(layout(world_size()), 8, 8);
  const int64_t odd = world_size() - 1;
  Qkv qkv = random_qkv(1, my_rank() == odd ? 3 : 2, 8, 8, 73);
  std::string text =
      refusal(ErrorCode::kInvalidArgument, [&] { layer.attention->forward(qkv, {}, {}); });
  EXPECT_NE(text.find("rank 0 attention q [1, 2, 8, 8]"), std::string::npos) << text;
  EXPECT_NE(text.find("rank " + std::to_string(odd) + " attention q [1, 3, 8, 8]"),
            std::string::npos)
      << text;
  // The group stays usable.
  Qkv good = random_qkv(1, 2 * world_size(), 8, 8, 79);
  EXPECT_TRUE(
      same_bits(layer.attention->forward(my_share(good), {}, {}), my_share(whole_result(good))));
}

TEST(Heads, ThatDoNotDivide_AreRefusedWithLegalValues) {
  EXPECT_NE(refusal(ErrorCode::kInvalidArgument,
                    [] { make_layer(layout(world_size()), 8 * world_size() + 1, 8); })
                .find("accepted ulysses degrees: 1"),
            std::string::npos);
}

}  // namespace
}  // namespace h3::parallel
