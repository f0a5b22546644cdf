// Degrees, rank layout, admission (FC-6), row ownership, configuration records and the environment.
#include "h3/parallel/plan.h"

#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>

#include "h3/attention/h3_layers.h"
#include "h3/common/error.h"
#include "h3/parallel/config_record.h"
#include "h3/parallel/environment.h"
#include "h3/parallel/plan_admission.h"
#include "h3/parallel/rows.h"

namespace h3::parallel {
namespace {

using Lists = std::vector<std::vector<int>>;

// Message of the h3::Error that `call` throws; empty if it throws none.
template <class Call>
std::string refusal(Call call, ErrorCode code = ErrorCode::kInvalidArgument) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    return error.what();
  }
  return "";
}

::testing::AssertionResult mentions(const std::string& text, std::vector<std::string> words) {
  for (auto& word : words)
    if (text.find(word) == std::string::npos)
      return ::testing::AssertionFailure() << "'" << word << "' is missing in: " << text;
  return ::testing::AssertionSuccess();
}

TEST(Layout, TensorSequenceGuidance_MatchesTable) {
  Degrees d = resolve_degrees({.world_size = 8, .tensor = 2, .guidance = 2});
  EXPECT_EQ(d.sequence, 2);
  EXPECT_EQ(group_lists(d, GroupKind::kTensor), (Lists{{0, 1}, {2, 3}, {4, 5}, {6, 7}}));
  EXPECT_EQ(group_lists(d, GroupKind::kSequence), (Lists{{0, 2}, {1, 3}, {4, 6}, {5, 7}}));
  EXPECT_EQ(group_lists(d, GroupKind::kGuidance), (Lists{{0, 4}, {1, 5}, {2, 6}, {3, 7}}));
  EXPECT_EQ(group_of(d, GroupKind::kSequence, 3), (std::vector<int>{1, 3}));
}

TEST(Layout, EncoderAndVaeGroups_StayInsideReplica) {
  Degrees d = resolve_degrees({.world_size = 8, .tensor = 2, .data = 2, .ulysses = 2});
  EXPECT_EQ(group_lists(d, GroupKind::kEncoderData), (Lists{{0, 2}, {1, 3}, {4, 6}, {5, 7}}));
  Degrees wide =
      resolve_degrees({.world_size = 16, .tensor = 2, .guidance = 2, .data = 2, .ulysses = 2});
  EXPECT_EQ(group_lists(wide, GroupKind::kVaeDecode),
            (Lists{{0, 1, 2, 3, 4, 5, 6, 7}, {8, 9, 10, 11, 12, 13, 14, 15}}));
}

TEST(Layout, UlyssesConsecutive_RingStrided) {
  Degrees d = resolve_degrees({.world_size = 8, .ulysses = 4, .ring = 2});
  EXPECT_EQ(group_lists(d, GroupKind::kUlysses), (Lists{{0, 1, 2, 3}, {4, 5, 6, 7}}));
  EXPECT_EQ(group_lists(d, GroupKind::kRing), (Lists{{0, 4}, {1, 5}, {2, 6}, {3, 7}}));
  // With tensor ranks in between, the runs are strided in world ranks.
  Degrees t = resolve_degrees({.world_size = 8, .tensor = 2, .ulysses = 2, .ring = 2});
  EXPECT_EQ(group_lists(t, GroupKind::kUlysses), (Lists{{0, 2}, {1, 3}, {4, 6}, {5, 7}}));
  EXPECT_EQ(group_lists(t, GroupKind::kRing), (Lists{{0, 4}, {1, 5}, {2, 6}, {3, 7}}));
}

TEST(Layout, EveryKind_HoldsEveryRankOnce) {
  Degrees d = resolve_degrees({.world_size = 96,
                               .tensor = 2,
                               .pipeline = 2,
                               .guidance = 2,
                               .data = 3,
                               .ulysses = 2,
                               .ring = 2});
  for (GroupKind kind : kAllGroupKinds) {
    std::multiset<int> seen;
    for (auto& list : group_lists(d, kind)) seen.insert(list.begin(), list.end());
    EXPECT_EQ(seen.size(), 96u) << describe(kind);
    EXPECT_EQ(std::set<int>(seen.begin(), seen.end()).size(), 96u) << describe(kind);
  }
}

TEST(Degrees, Unset_AreInferred) {
  Degrees one = resolve_degrees({});
  EXPECT_EQ(one.sequence, 1);
  EXPECT_FALSE(one.kv_gather);
  Degrees four = resolve_degrees({.world_size = 4});
  EXPECT_EQ(four.ulysses, 4);
  EXPECT_EQ(four.ring, 1);
  Degrees two = resolve_degrees({.world_size = 2});
  EXPECT_TRUE(two.kv_gather && two.kv_gather_automatic);
  Degrees asked = resolve_degrees({.world_size = 2, .ulysses = 2});
  EXPECT_FALSE(asked.kv_gather);
  Degrees ring = resolve_degrees({.world_size = 8, .ring = 4});
  EXPECT_EQ(ring.ulysses, 2);
  Degrees gather = resolve_degrees({.world_size = 4, .kv_gather = 4});
  EXPECT_TRUE(gather.kv_gather && !gather.kv_gather_automatic);
  EXPECT_EQ(gather.ulysses, 4);
}

TEST(Degrees, Conflicts_NameValuesAndChoices) {
  EXPECT_TRUE(mentions(refusal([] { resolve_degrees({.world_size = 6, .tensor = 4}); }),
                       {"6 ranks", "tensor 4", "1, 2, 3, 6"}));
  EXPECT_TRUE(mentions(refusal([] { resolve_degrees({.world_size = 8, .sequence = 4}); }),
                       {"sequence degree 4", "8", "set the sequence degree to 8"}));
  EXPECT_TRUE(mentions(refusal([] { resolve_degrees({.world_size = 8, .ulysses = 4}); }),
                       {"ulysses degree 4", "ring degree 1", "set the ring degree to 2"}));
  EXPECT_TRUE(mentions(refusal([] { resolve_degrees({.world_size = 8, .ulysses = 3}); }),
                       {"ulysses degree 3", "1, 2, 4, 8"}));
  EXPECT_TRUE(mentions(refusal([] { resolve_degrees({.world_size = 8, .ring = 3}); }),
                       {"ring degree 3", "1, 2, 4, 8"}));
  EXPECT_TRUE(
      mentions(refusal([] { resolve_degrees({.world_size = 4, .ulysses = 2, .kv_gather = 4}); }),
               {"kv-gather degree 4", "ulysses degree 2"}));
  EXPECT_TRUE(mentions(refusal([] { resolve_degrees({.world_size = 4, .kv_gather = 2}); }),
                       {"kv-gather degree 2", "4"}));
  EXPECT_TRUE(mentions(refusal([] { resolve_degrees({.world_size = 4, .ring = 0}); }),
                       {"ring degree is 0", "1 or more"}));
}

struct HeadCase {
  int64_t tensor, ulysses;
  bool accepted;
  const char *local, *legal;
};

TEST(Admission, FiftySixHeads_MatchFieldCase6) {
  const HeadCase cases[] = {
      {1, 8, true, "", ""},
      {2, 4, true, "", ""},
      {4, 2, true, "", ""},
      {8, 7, true, "", ""},
      {1, 16, false, "leaves 56 per rank", "1, 2, 4, 7, 8, 14, 28, 56"},
      {4, 4, false, "leaves 14 per rank", "1, 2, 7, 14"},
      {2, 8, false, "leaves 28 per rank", "1, 2, 4, 7, 14, 28"},
  };
  for (const HeadCase& c : cases) {
    Degrees d = resolve_degrees(
        {.world_size = c.tensor * c.ulysses, .tensor = c.tensor, .ulysses = c.ulysses});
    std::string text = refusal([&] { admit_layer(d, {.name = "transformer", .heads = 56}); });
    EXPECT_EQ(text.empty(), c.accepted) << c.tensor << " x " << c.ulysses << ": " << text;
    if (!c.accepted) {
      EXPECT_TRUE(mentions(text, {"56 heads", "tensor degree " + std::to_string(c.tensor),
                                  "ulysses degree " + std::to_string(c.ulysses), c.local,
                                  std::string("accepted ulysses degrees: ") + c.legal}));
    }
  }
  Degrees d = resolve_degrees({.world_size = 3, .tensor = 3});
  EXPECT_TRUE(mentions(refusal([&] { admit_layer(d, {.heads = 56}); }),
                       {"56 heads", "tensor degree 3", "accepted tensor degrees"}));
}

TEST(Admission, GroupedHeads_AreCheckedToo) {
  Degrees d = resolve_degrees({.world_size = 8, .ulysses = 8});
  EXPECT_TRUE(mentions(refusal([&] { admit_layer(d, {.heads = 56, .kv_heads = 4}); }),
                       {"4 key/value heads", "accepted ulysses degrees: 1, 2, 4"}));
}

// U6 and U7.
TEST(Admission, Ring_NeedsDenseBackendWithLse) {
  Degrees d = resolve_degrees({.world_size = 4, .ulysses = 2, .ring = 2});
  LayerFacts fa{.name = "transformer", .heads = 56, .backend = "fa", .supports_ring = true};
  EXPECT_EQ(refusal([&] { admit_layer(d, fa); }), "");
  LayerFacts sdpa{.name = "vae", .heads = 56, .backend = "torch_sdpa"};
  EXPECT_TRUE(mentions(refusal([&] { admit_layer(d, sdpa); }, ErrorCode::kUnsupported),
                       {"vae", "ring degree 2", "torch_sdpa", "log-sum-exp"}));
  sdpa.skip_sequence_parallel = true;
  EXPECT_EQ(refusal([&] { admit_layer(d, sdpa); }), "");
  // The global backend may be fa: what counts is the layer's own, here set by an override.
  LayerFacts sparse{.name = "transformer",
                    .heads = 56,
                    .backend = "subblock_sparse_attn",
                    .sparse = true,
                    .supports_ring = true};
  EXPECT_TRUE(mentions(refusal([&] { admit_layer(d, sparse); }, ErrorCode::kUnsupported),
                       {"ring degree 2", "subblock_sparse_attn", "sparse"}));
}

TEST(Admission, KvGather_ExplicitRefusesSparse) {
  LayerFacts sparse{
      .name = "transformer", .heads = 55, .backend = "subblock_sparse_attn", .sparse = true};
  Degrees asked = resolve_degrees({.world_size = 5, .kv_gather = 5});
  EXPECT_TRUE(mentions(refusal([&] { admit_layer(asked, sparse); }, ErrorCode::kUnsupported),
                       {"K/V gather", "ulysses"}));
  // Dense layers gather whole heads: 55 heads over 2 ranks are fine, unless sparse falls back.
  Degrees automatic = resolve_degrees({.world_size = 2});
  EXPECT_EQ(refusal([&] { admit_layer(automatic, {.heads = 55}); }), "");
  EXPECT_TRUE(mentions(refusal([&] { admit_layer(automatic, sparse); }), {"55", "1, 5, 11, 55"}));
}

TEST(Admission, H3Rules_AnySequenceDegreeNoGuidance) {
  for (int64_t sequence : {1, 2, 4, 7, 8, 16, 64})
    EXPECT_EQ(
        refusal([&] { admit_h3(resolve_degrees({.world_size = sequence, .sequence = sequence})); }),
        "");
  EXPECT_TRUE(mentions(refusal([] { admit_h3(resolve_degrees({.world_size = 2, .guidance = 2})); },
                               ErrorCode::kUnsupported),
                       {"guidance degree 2", "accepted: 1"}));
}

// U5: token ids through the map; with the axes swapped the ranges would not tile the sequence.
TEST(Rows, UlyssesRingGrid_TilesSequence) {
  const int64_t ulysses = 4, ring = 2, local = 3;
  for (int64_t rank = 0; rank < 8; ++rank) {
    SequencePlace place{ulysses, ring, rank % ulysses, rank / ulysses};
    EXPECT_EQ(place.rank(), rank);
    EXPECT_EQ(row_start(place, local), rank * local);
  }
  EXPECT_EQ(row_start({4, 2, 1, 0}, 3), 3);
  EXPECT_EQ(row_start({4, 2, 0, 1}, 3), 12);
}

TEST(Rows, Helpers_MatchHandValues) {
  EXPECT_EQ(padded_rows(1003, 4), 1004);
  EXPECT_EQ(padded_rows(0, 4), 0);
  EXPECT_EQ(even_split(10, 4), (std::vector<int64_t>{3, 3, 2, 2}));
  EXPECT_EQ(real_rows(10, 0, 8), 8);
  EXPECT_EQ(real_rows(10, 1, 8), 2);
  EXPECT_EQ(real_rows(10, 2, 8), 0);
  EXPECT_EQ(ring_source(0, 1, 4), 3);
  EXPECT_EQ(ring_source(3, 3, 4), 0);
}

TEST(ConfigRecord, Difference_NamesFieldAndBothValues) {
  ConfigRecord a, b;
  a.add(resolve_degrees({.world_size = 4}));
  a.set("attention.backend", "fa:7\n=x");
  b = ConfigRecord::parse(a.serialize());
  EXPECT_EQ(a.digest(), b.digest());
  EXPECT_FALSE(a.difference(b, "rank 0", "rank 1"));
  b.set("parallel.ulysses", 2);
  EXPECT_NE(a.digest(), b.digest());
  EXPECT_EQ(a.difference(b, "rank 0", "rank 1"),
            "field parallel.ulysses: rank 0 has '4', rank 1 has '2'");
  ConfigRecord c = a;
  c.set("zzz", "1");
  EXPECT_EQ(a.difference(c, "rank 0", "rank 3"), "field zzz: rank 0 has nothing, rank 3 has '1'");
}

RankIdentity identity(std::map<std::string, std::string> values) {
  return rank_identity([values](const std::string& name) -> std::optional<std::string> {
    auto it = values.find(name);
    return it == values.end() ? std::nullopt : std::optional(it->second);
  });
}

AttentionPlan plan_with(std::optional<BackendId> backend, double sparsity = 0.75) {
  const Platform h100 = cuda_platform(9, 0);
  AttentionChoices choices;
  if (backend) choices.global = RequestedBackend{*backend};
  choices.subblock.options.sparsity = sparsity;
  return resolve_attention(minimax_h3_layers(h100), choices, h100);
}

TEST(PlanAdmission, H3Heads_MatchFieldCase6) {
  const AttentionPlan plan = plan_with(BackendId::kSubBlock);
  auto admit = [&](int64_t ulysses, int64_t ring = 1) {
    return refusal([&] {
      admit_plan(plan,
                 resolve_degrees({.world_size = ulysses * ring, .ulysses = ulysses, .ring = ring}));
    });
  };
  for (int64_t ulysses : {1, 2, 4, 7, 8}) EXPECT_EQ(admit(ulysses), "");
  for (int64_t ulysses : {5, 16})
    EXPECT_TRUE(mentions(admit(ulysses), {"transformer.blocks.0.attn has 56 heads",
                                          "does not divide 56", "1, 2, 4, 7, 8, 14, 28, 56"}));
  EXPECT_TRUE(
      mentions(refusal([&] { admit_plan(plan, resolve_degrees({.world_size = 2, .ring = 2})); },
                       ErrorCode::kUnsupported),
               {"ring degree 2", "sparse backend subblock_sparse_attn"}));
}

TEST(PlanAdmission, Record_ShowsEveryDifference) {
  auto difference = [](const AttentionPlan& a, const AttentionPlan& b) {
    ConfigRecord here, there;
    record_plan(a, &here);
    record_plan(b, &there);
    return here.difference(there, "rank 0", "rank 1").value_or("");
  };
  const AttentionPlan sparse = plan_with(BackendId::kSubBlock);
  EXPECT_EQ(difference(sparse, plan_with(BackendId::kSubBlock)), "");
  EXPECT_TRUE(mentions(difference(sparse, plan_with(BackendId::kFa)),
                       {"attention.backend.transformer", "'subblock_sparse_attn'", "'fa'"}));
  EXPECT_TRUE(mentions(difference(sparse, plan_with(BackendId::kSubBlock, 0.8)),
                       {"attention.plan_digest"}));
}

TEST(Environment, LauncherFamilies_AreUnderstood) {
  EXPECT_EQ(identity({}).world_size, 1);
  auto torchrun = identity({{"RANK", "5"},
                            {"WORLD_SIZE", "16"},
                            {"LOCAL_RANK", "1"},
                            {"LOCAL_WORLD_SIZE", "4"},
                            {"MASTER_ADDR", "node0"},
                            {"MASTER_PORT", "1234"},
                            {"TORCHELASTIC_USE_AGENT_STORE", "True"},
                            {"TORCHELASTIC_RESTART_COUNT", "2"}});
  EXPECT_EQ(torchrun.rank, 5);
  EXPECT_EQ(torchrun.local_rank, 1);
  EXPECT_EQ(torchrun.master_addr, "node0");
  EXPECT_EQ(torchrun.master_port, 1234);
  EXPECT_TRUE(torchrun.external_store);
  EXPECT_EQ(torchrun.store_prefix, "attempt_2");
  auto mpi = identity({{"OMPI_COMM_WORLD_RANK", "1"},
                       {"OMPI_COMM_WORLD_SIZE", "2"},
                       {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                       {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}});
  EXPECT_EQ(mpi.rank, 1);
  EXPECT_EQ(mpi.master_addr, "127.0.0.1");
  auto slurm = identity({{"SLURM_PROCID", "3"},
                         {"SLURM_STEP_NUM_TASKS", "4"},
                         {"SLURM_LOCALID", "1"},
                         {"MASTER_ADDR", "n1"}});
  EXPECT_EQ(slurm.rank, 3);
  EXPECT_EQ(slurm.local_rank, 1);
  EXPECT_EQ(identity({{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}, {"MASTER_ADDR", "127.0.0.1"}}).rank, 1);
  // A batch script outside srun is one process.
  EXPECT_EQ(identity({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "8"}}).world_size, 1);
}

TEST(Environment, DamagedValues_AreRefused) {
  EXPECT_TRUE(mentions(refusal([] { identity({{"RANK", "0"}}); }), {"RANK", "WORLD_SIZE"}));
  EXPECT_TRUE(mentions(refusal([] {
                         identity({{"RANK", "4"}, {"WORLD_SIZE", "4"}});
                       }),
                       {"RANK is '4'", "0 to 3"}));
  EXPECT_TRUE(mentions(refusal([] { identity({{"RANK", "x"}, {"WORLD_SIZE", "4"}}); }), {"'x'"}));
  EXPECT_TRUE(mentions(refusal([] {
                         identity({{"RANK", "0"}, {"WORLD_SIZE", "4"}});
                       }),
                       {"MASTER_ADDR", "127.0.0.1"}));
  EXPECT_TRUE(mentions(refusal([] {
                         identity({{"RANK", "0"}, {"WORLD_SIZE", "4"}, {"MASTER_ADDR", "n1"}});
                       }),
                       {"LOCAL_RANK", "GPU"}));
  EXPECT_TRUE(mentions(refusal([] {
                         identity({{"RANK", "0"},
                                   {"WORLD_SIZE", "2"},
                                   {"LOCAL_RANK", "0"},
                                   {"MASTER_ADDR", "n1"},
                                   {"MASTER_PORT", "70000"}});
                       }),
                       {"MASTER_PORT is '70000'", "65535"}));
  EXPECT_TRUE(
      mentions(refusal([] { env_seconds("H3_X_S", 1, [](auto&) { return std::string("0"); }); }),
               {"H3_X_S", "'0'"}));
}

}  // namespace
}  // namespace h3::parallel
