// Properties of the forward on one rank that need no other implementation: sparse attention where
// the schedule says, sessions, refusals, timing, random weights. Parity is in h3/tests/parity.
#include <chrono>
#include <cstdio>

#include "h3/models/dit/tests/dit_test_util.h"

namespace h3::dit {
namespace {

using tessera::Dtype;

constexpr StepTimes kEarly{0, 0}, kMiddle{0.3f, 0.62f}, kLate{0.8f, 0.9f};

DitConfig config_with(int64_t layers, int64_t heads) {
  DitConfig config = tiny_dit_config();
  config.layers = layers;
  config.heads = heads;
  return config;
}

LayoutRequest t2va(int64_t text, const LatentShape& target, int64_t audio) {
  LayoutRequest request;
  request.text_rows = text;
  request.target = target;
  request.target_audio_latents = audio;
  return request;
}

// 5 text, 20 audio and 768 video rows: 13 query blocks, the first of them mixed.
LayoutRequest short_request() { return t2va(5, {12, 16, 16}, 10); }

EngineOptions sparse(double sparsity) {
  EngineOptions options{.compute = Dtype::kBf16, .backend = BackendId::kSubBlock};
  options.subblock.options.sparsity = sparsity;
  options.subblock.options.min_seq_len = 512;
  options.subblock.options.skip_first_steps = 0;
  return options;
}

int64_t dense_calls(const CounterValues& counters, DenseReason reason) {
  return counters.dense_calls[static_cast<size_t>(reason)];
}

// A budget that keeps all blocks goes through router and sparse kernel all the same. On the CPU the
// sparse kernel visits its blocks in the order of the dense one, so the bits are equal; for scale,
// bf16 is 7e-3 from f32 here.
TEST(DitSubBlock, FullBudget_EqualsDense) {
  const DitConfig config = config_with(2, 4);
  const Request request(config, short_request(), {kMiddle});
  EngineOptions by_mass = sparse(0.5);
  by_mass.subblock.target_mass = 1.0;
  for (const EngineOptions& options : {sparse(1e-6), by_mass}) {
    Engine engine(config, options);
    const Velocity full = request.run(engine.model)[0];
    for (const char* layer : {"blocks.0.attn", "blocks.1.attn"}) {
      const CounterValues counters = engine.counters(layer);
      EXPECT_EQ(counters.sparse_calls, 1) << layer;
      EXPECT_EQ(counters.blocks_total, 4 * 13 * 13) << layer;
      EXPECT_EQ(counters.blocks_kept, counters.blocks_total) << layer;
    }
    engine.switch_to({.off = true});
    EXPECT_TRUE(same_bits(request.run(engine.model)[0], full));
  }
  // Negative control: half of the blocks are not all of them.
  Engine half(config, sparse(0.5));
  const Velocity cut = request.run(half.model)[0];
  half.switch_to({.off = true});
  const double error = relative_distance(cut, request.run(half.model)[0]);
  std::printf("half of the blocks from dense: %.2e\n", error);
  EXPECT_GT(error, 5e-2);
}

// Layout (d) of the specification: 256 x 256 canvas, 72 latent frames.
TEST(DitSubBlock, LongLayout_RunsSparseWhereTheScheduleSays) {
  const DitConfig config = config_with(3, 1);
  // 5 text and 120 audio rows, then 4608 video rows: blocks 0 and 1 are not video alone.
  const Request request(config, t2va(5, {72, 16, 16}, 60), {kMiddle, kLate});
  ASSERT_EQ(request.layout.used, 4733);
  EngineOptions options{.compute = Dtype::kBf16, .backend = BackendId::kSubBlock};
  options.subblock.options.skip_first_steps = 1;
  options.subblock.options.skip_first_layers = 1;
  ASSERT_EQ(options.subblock.options.min_seq_len, 4096);
  Engine engine(config, options);
  request.run(engine.model);

  const int64_t blocks = 74, dense_rows = 2, sparse_rows = 72;
  // A quarter of 74 is 18.5: 19 blocks, rounded up to a multiple of 8.
  const int64_t kept = 24;
  const SubBlockSettings& settings = options.subblock;
  for (const ResolvedLayer& resolved : engine.attention.plan().layers) {
    const LayerDescriptor& layer = resolved.layer;
    if (layer.component != "transformer") continue;
    // What the pure functions of the schedule say about both steps.
    CounterValues expected;
    for (int64_t step = 0; step < 2; ++step) {
      const bool refiner = layer.stack == LayerStack::kRefiner;
      if (refiner && step > 0) continue;  // the text is refined once
      const LayerGate gate = layer_gate(layer, settings);
      const int64_t rows = refiner ? 5 : request.layout.rows;
      if (const auto reason = call_gate(gate, {.step = step, .key_rows = rows}, settings)) {
        ++expected.dense_calls[static_cast<size_t>(*reason)];
        continue;
      }
      expected.sparse_calls += 1;
      expected.sparse_documents += 1;
      expected.blocks_total += blocks * blocks;
      expected.blocks_kept += dense_rows * blocks + sparse_rows * kept;
    }
    const CounterValues got = engine.counters(layer.name);
    EXPECT_EQ(got.sparse_calls, expected.sparse_calls) << layer.name;
    EXPECT_EQ(got.dense_calls, expected.dense_calls) << layer.name;
    EXPECT_EQ(got.sparse_documents, expected.sparse_documents) << layer.name;
    EXPECT_EQ(got.dense_documents, 0) << layer.name;
    EXPECT_EQ(got.blocks_total, expected.blocks_total) << layer.name;
    EXPECT_EQ(got.blocks_kept, expected.blocks_kept) << layer.name;
  }
  // The same by hand, so that the schedule cannot agree with itself alone.
  EXPECT_EQ(dense_calls(engine.counters("blocks.0.attn"), DenseReason::kEarlyLayer), 2);
  for (const char* layer : {"blocks.1.attn", "blocks.2.attn"}) {
    const CounterValues counters = engine.counters(layer);
    EXPECT_EQ(dense_calls(counters, DenseReason::kEarlyStep), 1) << layer;
    EXPECT_EQ(counters.sparse_calls, 1) << layer;
    EXPECT_EQ(counters.blocks_kept, 2 * 74 + 72 * 24) << layer;
  }
  for (const char* layer : {"token_refiner.blocks.0.attn", "token_refiner.blocks.1.attn"}) {
    EXPECT_EQ(dense_calls(engine.counters(layer), DenseReason::kStack), 1) << layer;
  }
}

TEST(DitSubBlock, QueryBlockMask_HoldsBlocksOfVideoAlone) {
  const DitConfig config = config_with(1, 1);
  Engine engine(config, sparse(0.75));
  const auto first_sparse = [&](const LayoutRequest& wanted) {
    const PackedLayout layout = pack_layout(wanted);
    const AttentionContext context = engine.attention.context({0}, layout.sparse_rows, layout.used);
    EXPECT_TRUE(context.has_query_block_mask);
    const std::vector<uint8_t>& mask = context.query_block_mask;
    EXPECT_EQ(static_cast<int64_t>(mask.size()), (layout.used + 63) / 64);
    const auto first = std::find(mask.begin(), mask.end(), 1);
    EXPECT_EQ(std::find(first, mask.end(), 0), mask.end()) << "video blocks are the last ones";
    return first - mask.begin();
  };
  LayoutRequest request = t2va(5, {72, 16, 16}, 60);
  EXPECT_EQ(first_sparse(request), 2);  // 125 rows before the target
  request.text_rows = 8;                // 128: video begins with a block
  EXPECT_EQ(first_sparse(request), 2);
  request.text_rows = 9;
  EXPECT_EQ(first_sparse(request), 3);
  request.keyframes = {Keyframe::kFirst, Keyframe::kLast};  // 257
  EXPECT_EQ(first_sparse(request), 5);
}

TEST(DitSubBlock, KeyframeBlocks_StayDense) {
  const DitConfig config = config_with(1, 1);
  LayoutRequest wanted = short_request();
  wanted.keyframes = {Keyframe::kFirst, Keyframe::kLast};  // rows 5 to 132: all of block 1
  const Request request(config, wanted, {kMiddle});
  ASSERT_EQ(request.layout.used, 921);
  Engine engine(config, sparse(0.5));
  request.run(engine.model);
  // 15 blocks, of which 3 hold more than target video; half of 15 is rounded up to 8.
  EXPECT_EQ(engine.counters("blocks.0.attn").blocks_kept, 3 * 15 + 12 * 8);
}

TEST(DitSubBlock, WithoutAVideoBlock_RunsDense) {
  const DitConfig config = config_with(1, 1);
  // The target is 28 of 632 rows; the last block has 56.
  const Request request(config, t2va(4, {7, 4, 4}, 300), {kMiddle});
  ASSERT_EQ(request.layout.used, 632);
  Engine engine(config, sparse(0.5));
  request.run(engine.model);
  EXPECT_EQ(dense_calls(engine.counters("blocks.0.attn"), DenseReason::kNoVideo), 1);
}

TEST(DitSubBlock, OverrideOff_GivesTheBitsOfTheDenseBackend) {
  const DitConfig config = config_with(2, 2);
  const Request request(config, short_request(), {kMiddle});
  Engine engine(config, sparse(0.5));
  const Velocity before = request.run(engine.model)[0];
  engine.attention.reset_stats();
  engine.switch_to({.off = true});
  const Velocity off = request.run(engine.model)[0];
  EXPECT_EQ(dense_calls(engine.counters("blocks.1.attn"), DenseReason::kOff), 1);
  EXPECT_EQ(engine.counters("blocks.1.attn").sparse_calls, 0);

  Engine dense(config, {.compute = Dtype::kBf16});
  EXPECT_TRUE(same_bits(off, request.run(dense.model)[0]));
  EXPECT_GT(relative_distance(before, off), 1e-3);

  engine.switch_to({});
  EXPECT_TRUE(same_bits(request.run(engine.model)[0], before));
  EXPECT_EQ(engine.counters("blocks.1.attn").sparse_calls, 1);
}

// The mask is taken when a session begins: one that began while sparse attention was off must not
// run sparse without it.
TEST(DitSubBlock, SwitchedOnInsideASession_IsRefused) {
  const DitConfig config = config_with(1, 1);
  const Request request(config, short_request(), {kMiddle});
  Engine engine(config, sparse(0.5));
  engine.switch_to({.off = true});
  DitSession session(engine.model, request.layout, engine.model.refine_text(request.text),
                     request.steps);
  session.forward(0, request.video, request.audio);
  engine.switch_to({});
  expect_parts(thrown_by([&] { session.forward(0, request.video, request.audio); }),
               ErrorCode::kInvalidArgument, {"no mask says which query blocks are video"});
}

// All steps share one pass over the AdaLN weights, which is a product of other height.
TEST(DitSession, Step_EqualsASessionOfThatStepAlone) {
  const DitConfig config = tiny_dit_config();
  Engine engine(config, {});
  LayoutRequest wanted = t2va(5, {7, 6, 8}, 12);
  wanted.keyframes = {Keyframe::kFirst};
  // 2, 3, 3 and 2 different timesteps.
  const std::vector<StepTimes> times{kEarly, kMiddle, kLate, {0.9995f, 0.9997f}};
  const Request request(config, wanted, times);
  std::vector<size_t> unique;
  for (const RowTimesteps& step : request.steps) unique.push_back(step.unique.size());
  EXPECT_EQ(unique, (std::vector<size_t>{2, 3, 3, 2}));

  const std::vector<Velocity> all = request.run(engine.model);
  for (size_t k = 0; k < times.size(); ++k) {
    const Velocity alone = Request(config, wanted, {times[k]}).run(engine.model)[0];
    const double error = relative_distance(all[k], alone);
    std::printf("step %zu from a session of its own: %.2e\n", k, error);
    EXPECT_LE(error, 2e-6) << k;
    if (k > 0) {
      EXPECT_GT(relative_distance(all[k], all[k - 1]), 1e-3) << "steps are alike";
    }
  }
  // Steps leave nothing behind: any order, and twice.
  DitSession session(engine.model, request.layout, engine.model.refine_text(request.text),
                     request.steps);
  for (const size_t k : {3, 0, 2, 2, 1, 0}) {
    EXPECT_TRUE(
        same_bits(session.forward(static_cast<int64_t>(k), request.video, request.audio), all[k]))
        << k;
  }
}

TEST(DitSession, TwoAtOnce_DoNotTouchEachOther) {
  const DitConfig config = config_with(2, 2);
  Engine engine(config, {});
  const Request a(config, t2va(5, {7, 6, 8}, 12), {kMiddle}),
      b(config, t2va(9, {7, 4, 4}, 16), {kLate, kEarly});
  const Velocity want_a = a.run(engine.model)[0], want_b = b.run(engine.model)[1];
  DitSession first(engine.model, a.layout, engine.model.refine_text(a.text), a.steps);
  DitSession second(engine.model, b.layout, engine.model.refine_text(b.text), b.steps);
  EXPECT_TRUE(same_bits(second.forward(1, b.video, b.audio), want_b));
  EXPECT_TRUE(same_bits(first.forward(0, a.video, a.audio), want_a));
  EXPECT_TRUE(same_bits(second.forward(1, b.video, b.audio), want_b));
}

TEST(DitSession, Inputs_AreLeftAsTheyAre) {
  const DitConfig config = config_with(1, 1);
  Engine engine(config, {});
  const Request request(config, t2va(5, {7, 4, 4}, 16), {kMiddle});
  const at::Tensor text = engine.model.refine_text(request.text), text_copy = text.clone();
  const at::Tensor video = request.video.clone(), audio = request.audio.clone();
  DitSession session(engine.model, request.layout, text, request.steps);
  session.forward(0, request.video, request.audio);
  EXPECT_TRUE(request.video.equal(video) && request.audio.equal(audio) && text.equal(text_copy));
}

TEST(DitSession, WrongInputs_AreRefusedWithTheirShapes) {
  const DitConfig config = config_with(1, 1);
  Engine engine(config, {});
  const Request request(config, t2va(5, {7, 6, 8}, 12), {kMiddle, kLate});
  const at::Tensor text = engine.model.refine_text(request.text);
  const auto begin = [&](const at::Tensor& rows) {
    DitSession(engine.model, request.layout, rows, request.steps);
  };
  const ErrorCode invalid = ErrorCode::kInvalidArgument;
  expect_parts(thrown_by([&] { begin(text.narrow(0, 0, 4)); }), invalid,
               {"refined text is [4, 256]", "5 text rows of width 256"});
  expect_parts(thrown_by([&] { begin(request.text); }), invalid, {"refined text is [5, 192]"});
  expect_parts(thrown_by([&] { begin(text.unsqueeze(0)); }), invalid,
               {"refined text is [1, 5, 256]"});

  DitSession session(engine.model, request.layout, text, request.steps);
  const auto refusal = [&](int64_t step, const at::Tensor& video, const at::Tensor& audio) {
    return thrown_by([&] { session.forward(step, video, audio); });
  };
  const at::Tensor &video = request.video, &audio = request.audio;
  expect_parts(refusal(2, video, audio), invalid, {"step is 2", "steps 0 to 1"});
  expect_parts(refusal(-1, video, audio), invalid, {"step is -1", "steps 0 to 1"});
  expect_parts(refusal(0, video.narrow(0, 0, 83), audio), invalid,
               {"video rows are [83, 96]", "accepted: [84, 96] float on cpu"});
  expect_parts(refusal(0, video, audio.narrow(1, 0, 31)), invalid,
               {"audio rows are [24, 31]", "accepted: [24, 32] float on cpu"});
  expect_parts(refusal(0, video.unsqueeze(0), audio), invalid, {"video rows are [1, 84, 96]"});
  expect_parts(refusal(0, video.to(at::kBFloat16), audio), invalid,
               {"video rows are [84, 96] BFloat16 on cpu"});
  expect_parts(refusal(0, audio, video), invalid, {"video rows are [24, 32]"});
}

TEST(DitModel, WrongTextFeatures_AreRefusedWithTheirShape) {
  const DitConfig config = config_with(1, 1);
  Engine engine(config, {});
  for (const auto& [features, shape] :
       std::vector<std::pair<at::Tensor, std::string>>{{at::zeros({5, 191}), "[5, 191]"},
                                                       {at::zeros({0, 192}), "[0, 192]"},
                                                       {at::zeros({1, 5, 192}), "[1, 5, 192]"}}) {
    expect_parts(thrown_by([&, f = features] { engine.model.refine_text(f); }),
                 ErrorCode::kInvalidArgument, {"text features are " + shape, "[L, 192]"});
  }
}

TEST(DitModel, PlanOfAnotherModel_IsRefused) {
  const DitConfig config = config_with(2, 2);
  AttentionRuntime attention(make_plan(config_with(1, 2), {}), {.log = [](std::string_view) {}});
  expect_parts(
      thrown_by([&] { DitModel(config, checkpoint_weights(config, Dtype::kF32), attention); }),
      ErrorCode::kInvalidArgument, {"layer transformer.blocks.1.attn"});
}

TEST(DitModel, PhaseTimes_FillTheForward) {
  const DitConfig config = config_with(2, 4);
  Engine engine(config, {});
  PhaseTimer& timer = engine.model.timer();
  const Request request(config, short_request(), {kMiddle});
  const at::Tensor text = engine.model.refine_text(request.text);
  DitSession session(engine.model, request.layout, text, request.steps);
  session.forward(0, request.video, request.audio);
  for (const double ms : timer.take_milliseconds()) EXPECT_EQ(ms, 0) << "off until enabled";

  timer.enable(true);
  const auto start = std::chrono::steady_clock::now();
  session.forward(0, request.video, request.audio);
  const std::chrono::duration<double, std::milli> wall = std::chrono::steady_clock::now() - start;
  double sum = 0;
  const PhaseTimes times = timer.take_milliseconds();
  for (size_t i = 0; i < kPhases; ++i) {
    EXPECT_GT(times[i], 0) << to_text(static_cast<Phase>(i));
    sum += times[i];
  }
  std::printf("phases %.1f of %.1f ms\n", sum, wall.count());
  EXPECT_LE(sum, wall.count());  // no span lies in another
  // What is between the spans is views and checks.
  EXPECT_GE(sum, 0.5 * wall.count());
  for (const double ms : timer.take_milliseconds()) EXPECT_EQ(ms, 0) << "taken once";
}

TEST(DitWeights, SameSeed_GivesTheSameBits) {
  const DitConfig config = config_with(1, 2);
  const auto made = [&](uint64_t seed) {
    return random_weights(config, Dtype::kBf16, {}, at::kCPU, seed);
  };
  const DitWeights a = made(1), b = made(1), c = made(2);
  const auto some = [](const DitWeights& w) {
    return std::vector<at::Tensor>{
        w.video_in.weight, w.time_out.bias,          w.blocks[0].attention.qkv,
        w.blocks[0].norm1, w.blocks[0].adaln_weight, w.refiner[1].fc2,
        w.final_norm,      w.audio_out.weight};
  };
  for (size_t i = 0; i < some(a).size(); ++i) {
    EXPECT_TRUE(some(a)[i].equal(some(b)[i])) << i;
    EXPECT_FALSE(some(a)[i].equal(some(c)[i])) << i;
  }
  EXPECT_EQ(a.bytes(), static_cast<int64_t>(weights::model_bytes(
                           model_recipes(config, NameStyle::kNative, Dtype::kBf16))));
  EXPECT_EQ(a.video_in.weight.scalar_type(), at::kFloat);
  EXPECT_EQ(a.blocks[0].fc1.scalar_type(), at::kBFloat16);
  EXPECT_NEAR(a.blocks[0].norm1.to(at::kFloat).mean().item<double>(), 1, 0.05);
  EXPECT_NEAR(a.blocks[0].fc1.to(at::kFloat).std().item<double>(), 0.02, 0.001);
  // The default generator is the caller's.
  at::Generator generator = at::globalContext().defaultGenerator(at::kCPU);
  const uint64_t seed = generator.current_seed();
  made(3);
  EXPECT_EQ(generator.current_seed(), seed);
}

TEST(DitWeights, WrongTensors_AreNamed) {
  const DitConfig config = config_with(1, 1);
  const auto all = zero_tensors(config, Dtype::kBf16);
  const auto refusal = [&](const std::string& name, const at::Tensor& tensor) {
    auto changed = all;
    changed.erase(name);
    if (tensor.defined()) changed[name] = tensor;
    return thrown_by([&] { take_weights(config, Dtype::kBf16, {}, std::move(changed)); });
  };
  const ErrorCode internal = ErrorCode::kInternal;
  expect_parts(refusal("blocks.0.norm2.weight", {}), internal,
               {"tensor blocks.0.norm2.weight was not loaded"});
  expect_parts(refusal("blocks.7.norm2.weight", at::zeros({256})), internal,
               {"tensor blocks.7.norm2.weight is not of the model"});
  expect_parts(refusal("blocks.0.norm2.weight", at::zeros({255}, at::kBFloat16)), internal,
               {"blocks.0.norm2.weight is BFloat16 [255 ] on cpu"});
  // An fp32 island in bf16 is an error, not a slow leak of precision.
  expect_parts(refusal("final_layer.video_out.weight", at::zeros({96, 256}, at::kBFloat16)),
               internal, {"final_layer.video_out.weight is BFloat16"});
}

}  // namespace
}  // namespace h3::dit
