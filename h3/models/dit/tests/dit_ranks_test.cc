// The transformer on several ranks against the same model on one, which every rank runs as well.
// The launcher starts 2, 4, 7 or 8 of them: h3_run_ranks 4 h3_dit_ranks_test. With
// --different-backend the last rank is configured in another way than the others.
#include <cstdio>
#include <cstring>

#include "h3/models/dit/tests/dit_test_util.h"
#include "h3/parallel/plan_admission.h"

namespace h3::dit {
namespace {

using parallel::Degrees;
using parallel::resolve_degrees;
using parallel::SequenceGroups;

parallel::World* g_world = nullptr;  // of this process, set by main

// Exchanges move bits; what differs is the height of matrix products (Ulysses), the order of sums
// over keys (ring) or over columns (tensor). Measured: 5e-7 at most.
constexpr double kTolerance = 1e-5;

constexpr StepTimes kFirst{0, 0}, kMiddle{0.3f, 0.62f}, kLate{0.9993f, 0.9f};

int world_size() { return g_world->size(); }
bool last_rank() { return g_world->rank() + 1 == world_size(); }

SequenceGroups spread(int64_t ulysses, int64_t ring = 1, int64_t tensor = 1) {
  return g_world->sequence_groups(resolve_degrees(
      {.world_size = world_size(), .tensor = tensor, .ulysses = ulysses, .ring = ring}));
}

// Ranks of one tensor group follow one another, and so do those of a Ulysses group.
parallel::Group* tensor_group(int64_t size) {
  return size == 1 ? nullptr : spread(size, world_size() / size).ulysses;
}

/// A factoring of the ranks that are there.
struct Spread {
  std::string name;
  SequenceGroups groups;
  parallel::Group* tensor = nullptr;
  DitParallel parallel() const { return {&groups, tensor}; }
};

std::vector<Spread> spreads() {
  const int64_t all = world_size();
  std::vector<Spread> list{{"ulysses", spread(all)}};
  if (all == 7) return list;
  if (all <= 4) list.push_back({"ring", spread(1, all)});
  if (all == 2) {
    // What nobody asked for: two ranks gather keys and values.
    list.push_back({"default", g_world->sequence_groups(resolve_degrees({.world_size = all}))});
  } else {
    list.push_back({"ulysses x ring 2", spread(all / 2, 2)});
  }
  list.push_back({"tensor 2 x ulysses", spread(all / 2, 1, 2), tensor_group(2)});
  if (all == 4) {
    list.push_back({"tensor 4", spread(1, 1, 4), tensor_group(4)});
    list.push_back({"tensor 2 x ring 2", spread(1, 2, 2), tensor_group(2)});
  }
  return list;
}

DitConfig tiny_config() {
  DitConfig config = tiny_dit_config();
  config.hidden = 128;  // ranks share few cores
  config.layers = 2;
  config.refiner_layers = 1;
  if (world_size() == 7) config.heads = 7;
  return config;
}

LayoutRequest t2va(int64_t text, const LatentShape& target, int64_t audio) {
  LayoutRequest request;
  request.text_rows = text;
  request.target = target;
  request.target_audio_latents = audio;
  return request;
}

/// Layouts of the specification, 12.1; on seven ranks those that it can divide.
std::vector<std::pair<std::string, LayoutRequest>> layouts() {
  LayoutRequest a = t2va(5, {7, 6, 8}, 12);
  a.text_is_vision = {0, 1, 1, 0, 0};
  if (world_size() == 7) {
    a.target.frames = 24;  // 5 + 24 + 288 + 84 = 401 of 448 rows
    a.keyframes = {Keyframe::kFirst};
    a.text_rows = 5 + 84 - 12;
    a.text_is_vision = {};
    return {{"seven ranks", a}};
  }
  LayoutRequest keyframe = t2va(9, {7, 6, 8}, 12);
  keyframe.keyframes = {Keyframe::kFirst};
  LayoutRequest references = t2va(5, {7, 6, 8}, 12);
  references.references = {{ReferenceKind::kImage, {1, 4, 6}, 0},
                           {ReferenceKind::kVideo, {7, 4, 4}, 9},
                           {ReferenceKind::kAudio, {}, 11}};
  return {{"t2va", a},
          {"fl2va", keyframe},
          {"ref2va", references},
          {"64 rows", t2va(4, {7, 4, 4}, 16)},
          // On 8 ranks the last three hold padding alone.
          {"65 rows", t2va(5, {7, 4, 4}, 16)}};
}

/// Whether all ranks hold these bits.
bool on_all_ranks(const at::Tensor& tensor) {
  const at::Tensor mine = tensor.contiguous();
  at::Tensor all = at::empty({world_size(), mine.numel()}, mine.options());
  spread(world_size()).sequence->all_gather(all, mine);
  for (int rank = 0; rank < world_size(); ++rank) {
    if (!all[rank].view(mine.sizes()).equal(mine)) return false;
  }
  return true;
}

TEST(DitRanks, Velocities_EqualOneRank) {
  const DitConfig config = tiny_config();
  Engine whole(config, {});
  std::vector<std::pair<Request, std::vector<Velocity>>> wanted;
  std::vector<std::string> names;
  for (const auto& [name, layout] : layouts()) {
    // With references 3, 4 and 3 different timesteps, in one session.
    const bool several = !layout.references.empty() || world_size() == 7;
    Request request(config, layout,
                    several ? std::vector{kMiddle, kFirst, kLate} : std::vector{kMiddle});
    std::vector<Velocity> velocities = request.run(whole.model);
    EXPECT_GT(velocities[0].video.abs().mean().item<double>(), 0.1) << "nothing to compare";
    wanted.emplace_back(std::move(request), std::move(velocities));
    names.push_back(name);
  }
  for (const Spread& spread : spreads()) {
    Engine engine(config, {}, spread.parallel());
    double worst = 0;
    for (size_t i = 0; i < wanted.size(); ++i) {
      const std::vector<Velocity> got = wanted[i].first.run(engine.model);
      for (size_t k = 0; k < got.size(); ++k) {
        const std::string where = spread.name + ", " + names[i] + ", step " + std::to_string(k);
        const double error = relative_distance(got[k], wanted[i].second[k]);
        EXPECT_LE(error, kTolerance) << where;
        worst = std::max(worst, error);
        EXPECT_TRUE(on_all_ranks(got[k].video)) << where;
        EXPECT_TRUE(on_all_ranks(got[k].audio)) << where;
      }
    }
    std::printf("%s: relative L2 from one rank %.2e\n", spread.name.c_str(), worst);
  }
}

TEST(DitRanks, RefinedText_IsTheSameOnAllRanks) {
  const DitConfig config = tiny_config();
  Engine whole(config, {});
  const at::Tensor text = random_rows(37, config.text_dim, 5);
  const at::Tensor want = whole.model.refine_text(text);
  for (const Spread& spread : spreads()) {
    Engine engine(config, {}, spread.parallel());
    const at::Tensor got = engine.model.refine_text(text);
    if (spread.tensor == nullptr) {
      EXPECT_TRUE(got.equal(want)) << spread.name;  // no rank exchanges anything
    } else {
      EXPECT_LE(relative_distance(got, want), kTolerance) << spread.name;
    }
    EXPECT_TRUE(on_all_ranks(got)) << spread.name;
  }
}

// Blocks are chosen per head over the whole sequence, so each rank keeps as many as one rank does
// for its heads.
TEST(DitRanks, SparseAttention_KeepsTheBlocksOfOneRank) {
  if (world_size() == 7) GTEST_SKIP() << "832 rows do not divide by 7";
  const DitConfig config = tiny_config();
  EngineOptions options{.compute = tessera::Dtype::kBf16, .backend = BackendId::kSubBlock};
  options.subblock.options.min_seq_len = 512;
  options.subblock.options.skip_first_steps = 1;
  options.subblock.options.sparsity = 0.5;
  const Request request(config, t2va(5, {12, 16, 16}, 10), {kFirst, kMiddle});
  Engine whole(config, options);
  const std::vector<Velocity> want = request.run(whole.model);
  const CounterValues all = whole.counters("blocks.1.attn");
  EXPECT_EQ(all.sparse_calls, 1);
  EXPECT_EQ(all.blocks_kept, 8 * (13 + 12 * 8));
  for (const Spread& spread : spreads()) {
    if (spread.groups.degrees.ring > 1) continue;
    Engine engine(config, options, spread.parallel());
    const std::vector<Velocity> got = request.run(engine.model);
    const CounterValues mine = engine.counters("blocks.1.attn");
    EXPECT_EQ(mine.sparse_calls, 1) << spread.name;
    EXPECT_EQ(mine.dense_calls, all.dense_calls) << spread.name;
    EXPECT_EQ(mine.blocks_total * world_size(), all.blocks_total) << spread.name;
    EXPECT_EQ(mine.blocks_kept * world_size(), all.blocks_kept) << spread.name;
    for (size_t k = 0; k < got.size(); ++k) {
      const double error = relative_distance(got[k], want[k]);
      std::printf("bf16, %s, step %zu: relative L2 from one rank %.2e\n", spread.name.c_str(), k,
                  error);
      // Tensor ranks add bf16 parts, after which other blocks may be the best: 1.2e-2.
      EXPECT_LE(error, 3e-2) << spread.name;
      EXPECT_TRUE(on_all_ranks(got[k].video)) << spread.name;
    }
  }
}

TEST(DitRanks, SparseUnderRing_IsRefused) {
  if (world_size() == 7) GTEST_SKIP() << "7 ranks are tried with Ulysses alone";
  const DitConfig config = tiny_config();
  const EngineOptions options{.compute = tessera::Dtype::kBf16, .backend = BackendId::kSubBlock};
  const SequenceGroups groups = spread(world_size() / 2, 2);
  expect_parts(thrown_by([&] { Engine(config, options, {&groups}); }), ErrorCode::kUnsupported,
               {"transformer.blocks.0.attn: ring degree 2 with the sparse backend",
                "use ring degree 1 with ulysses"});
}

TEST(DitRanks, HeadsThatDoNotDivide_AreRefusedWithLegalDegrees) {
  DitConfig config = tiny_config();
  config.heads = 9;
  AttentionRuntime attention(make_plan(config, {}), {.log = [](std::string_view) {}});
  const auto refusal = [&](const DitParallel& parallel) {
    DitWeights weights =
        take_weights(config, tessera::Dtype::kF32, {}, zero_tensors(config, tessera::Dtype::kF32));
    return thrown_by([&] { DitModel(config, std::move(weights), attention, parallel); });
  };
  const SequenceGroups groups = spread(world_size());
  expect_parts(
      refusal({&groups}), ErrorCode::kInvalidArgument,
      {"transformer.blocks.0.attn has 9 heads", "ulysses degree " + std::to_string(world_size()),
       "accepted ulysses degrees: 1, 3, 9"});
  if (world_size() == 7) return;
  const SequenceGroups tensor = spread(world_size() / 2, 1, 2);
  expect_parts(
      refusal({&tensor, tensor_group(2)}), ErrorCode::kInvalidArgument,
      {"9 heads, tensor degree 2 does not divide them", "accepted tensor degrees: 1, 3, 9"});
}

TEST(DitRanks, RowsThatDoNotDivide_AreRefused) {
  const DitConfig config = tiny_config();
  const SequenceGroups groups = spread(world_size());
  Engine engine(config, {}, {&groups});
  Request request(config, t2va(5, {7, 4, 4}, 16), {kMiddle});
  request.layout.rows = 67;  // a layout of the library has a multiple of 64
  request.layout.tags.resize(67);
  request.layout.positions.resize(67 * 3);
  request.steps[0].inverse.resize(67);
  expect_parts(
      thrown_by([&] { request.run(engine.model); }), ErrorCode::kInvalidArgument,
      {"67 packed rows do not divide by " + std::to_string(world_size()) + " sequence ranks"});
}

// A rank with another request must not give a wrong picture on all of them.
TEST(DitRanks, DifferentRequests_AreRefusedOnAllRanks) {
  const DitConfig config = tiny_config();
  const int64_t frames = world_size() == 7 ? 90 : 7;
  for (const Spread& spread : spreads()) {
    const Degrees& degrees = spread.groups.degrees;
    // With both, a rank whose two groups hold no other one learns of it when they end.
    if (degrees.sequence > 1 && degrees.tensor > 1) continue;
    Engine engine(config, {}, spread.parallel());
    // As many packed rows, of which two more are used.
    const Request request(config, t2va(5, {frames, 4, 4}, last_rank() ? 17 : 16), {kMiddle});
    const int64_t used = 5 + 32 + 4 * frames;
    expect_parts(
        thrown_by([&] { request.run(engine.model); }), ErrorCode::kInvalidArgument,
        {"call differently", "used " + std::to_string(used), "used " + std::to_string(used + 2)});
    if (spread.tensor == nullptr) continue;
    expect_parts(thrown_by([&] {
                   engine.model.refine_text(random_rows(last_rank() ? 6 : 5, config.text_dim, 1));
                 }),
                 ErrorCode::kInvalidArgument, {"call differently", "rows 5", "rows 6"});
  }
}

}  // namespace
}  // namespace h3::dit

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  namespace hp = h3::parallel;
  hp::WorldOptions options = hp::WorldOptions::from_environment();
  const int ranks = options.identity.world_size;
  options.degrees = hp::resolve_degrees({.world_size = ranks, .ulysses = ranks});
  h3::dit::EngineOptions engine;
  if (argc > 1 && std::strcmp(argv[1], "--different-backend") == 0 &&
      options.identity.rank + 1 == ranks) {
    engine.backend = h3::BackendId::kTorchSdpa;
  }
  hp::record_plan(make_plan(h3::dit::tiny_dit_config(), engine), &options.record);
  std::printf("seed %llu\n", static_cast<unsigned long long>(h3::dit::kSeed));
  return hp::run_rank(options, [](hp::World& world) {
    h3::dit::g_world = &world;
    return RUN_ALL_TESTS();
  });
}
