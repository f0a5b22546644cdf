// Decoding as a stream: same frames as decoding at once, bounded memory, context, refusals.
#include <ATen/Functions.h>
#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <mutex>
#include <stdexcept>
#include <unordered_map>

#include "h3/models/vae_video/pixels.h"
#include "h3/models/vae_video/tests/vae_video_test_util.h"
#include "h3/models/vae_video/tiles.h"

namespace h3::vae_video {
namespace {

at::Tensor decoded(VideoVae& vae, const at::Tensor& latents, const DecodeOptions& options = {}) {
  std::vector<at::Tensor> parts;
  int64_t at = 0, of = 0;
  vae.decode(
      latents,
      [&](const FrameChunk& chunk) {
        EXPECT_EQ(chunk.first, at);
        EXPECT_LE(chunk.frames.size(2), 17);
        EXPECT_TRUE(chunk.frames.is_contiguous());
        at += chunk.frames.size(2);
        of = chunk.of_frames;
        parts.push_back(chunk.frames);
      },
      options);
  EXPECT_EQ(at, of);
  return at::cat(parts, 2);
}

// Everything in memory, as the formula says it.
at::Tensor decoded_at_once(VideoVae& vae, const at::Tensor& latents) {
  at::Tensor z = denormalised_latents(vae.config(), latents);
  const DecodePlan plan = plan_decode(vae.geometry(), z.size(2));
  if (plan.padding > 0) {
    z = at::cat({z, z.narrow(2, z.size(2) - 1, 1).repeat({1, 1, plan.padding, 1, 1})}, 2);
  }
  std::vector<at::Tensor> parts;
  at::Tensor last;
  for (int64_t i = 0; i < plan.clips; ++i) {
    const at::Tensor clip = vae.decode_clip(z.narrow(2, 5 * i, 7));
    at::Tensor part = clip.narrow(2, 3, 17);
    if (i > 0) part = blend(last, part, 5, 2);
    last = clip.narrow(2, 23, 5);
    parts.push_back(part);
  }
  parts.push_back(last);
  return shown_pixels(at::cat(parts, 2).narrow(2, 0, plan.frames));
}

TEST(Decode, Stream_HasTheBitsOfDecodingAtOnce) {
  Engine engine(small_config(), Part::kDecoder);
  for (const int64_t frames : {3, 7, 8, 12, 17}) {
    const at::Tensor z = random_normal({1, 24, frames, 6, 11}, 1);
    EXPECT_TRUE(decoded(engine.vae, z).equal(decoded_at_once(engine.vae, z))) << frames;
  }
}

TEST(Decode, TileBatches_GiveTheSameFrames) {
  Engine engine(small_config(), Part::kDecoder);
  const at::Tensor z = random_normal({2, 24, 7, 16, 20}, 2);  // 3 x 3 tiles, two videos
  const at::Tensor one = decoded(engine.vae, z, {.tile_batch = 1});
  for (const int64_t batch : {0, 2, 4, 9, 100}) {
    const at::Tensor more = decoded(engine.vae, z, {.tile_batch = batch});
    EXPECT_LT(more.sub(one).abs().max().item<double>(), 1e-5) << batch;
  }
  // Videos of a batch know nothing of each other.
  const at::Tensor second = decoded(engine.vae, z.narrow(0, 1, 1), {.tile_batch = 1});
  EXPECT_LT(second.sub(one.narrow(0, 1, 1)).abs().max().item<double>(), 1e-5);
}

TEST(Decode, InputIsNotChanged_AnyFloatType) {
  Engine engine(small_config(), Part::kDecoder);
  const at::Tensor z = random_normal({1, 24, 3, 4, 4}, 3).to(at::kHalf), copy = z.clone();
  const at::Tensor frames = decoded(engine.vae, z);
  EXPECT_TRUE(z.equal(copy));
  EXPECT_TRUE(frames.equal(decoded(engine.vae, z.to(at::kFloat))));
  EXPECT_GE(frames.min().item<double>(), 0);
  EXPECT_LE(frames.max().item<double>(), 1);
}

TEST(Decode, Image_IsTheLastFrameOfOneLatent) {
  Engine engine(small_config(), Part::kDecoder);
  const at::Tensor z = random_normal({1, 24, 1, 6, 6}, 4);
  const at::Tensor image = engine.vae.decode_image(z);
  const at::Tensor clip = engine.vae.decode_clip(denormalised_latents(engine.vae.config(), z));
  EXPECT_EQ(image.sizes(), (std::vector<int64_t>{1, 3, 1, 24, 24}));
  EXPECT_TRUE(image.equal(shown_pixels(clip.narrow(2, 3, 1))));
  expect_parts(thrown_by([&] {
                 engine.vae.decode_image(random_normal({1, 24, 2, 6, 6}, 4));
               }),
               ErrorCode::kInvalidArgument, {"one latent frame"});
}

// Behaviour 22.
TEST(Decode, SetsForwardContext) {
  Engine engine(small_config(), Part::kDecoder);
  const VaeContext& context = engine.vae.context();
  const at::Tensor z = random_normal({1, 24, 7, 4, 4}, 5);
  int calls = 0;
  engine.vae.decode(z, [&](const FrameChunk&) {
    ++calls;
    EXPECT_EQ(context.current("test").step.value, 0);
    EXPECT_FALSE(context.current("test").has_query_block_mask);
  });
  EXPECT_EQ(calls, 2);
  EXPECT_THROW(context.current("test"), Error);
  EXPECT_THROW(engine.vae.decode(z, [](const FrameChunk&) { throw std::runtime_error("full"); }),
               std::runtime_error);
  EXPECT_THROW(context.current("test"), Error);
  EXPECT_NO_THROW(decoded(engine.vae, z));
}

// Behaviour 23.
TEST(UspForward, WithoutContextFails) {
  Engine engine(small_config(), Part::kDecoder);
  expect_parts(thrown_by([&] {
                 engine.vae.decoder()->forward(random_normal({1, 24, 2, 4, 4}, 6));
               }),
               ErrorCode::kInternal,
               {"decoder.transformer_blocks.0.attn", "without a forward context"});
}

TEST(Decode, BadLatents_AreRefused) {
  Engine engine(small_config(), Part::kDecoder);
  const auto refusal = [&](const at::Tensor& z, const std::vector<std::string>& parts,
                           const DecodeOptions& options = {}) {
    expect_parts(thrown_by([&] {
                   engine.vae.decode(
                       z, [](const FrameChunk&) {}, options);
                 }),
                 ErrorCode::kInvalidArgument, parts);
  };
  const at::Tensor z = random_normal({1, 24, 7, 4, 4}, 7);
  refusal(z[0], {"Float [24, 7, 4, 4]", "[B, 24, T, h, w]"});
  refusal(z.narrow(1, 0, 23), {"[1, 23, 7, 4, 4]"});
  refusal(z.to(at::kInt), {"Int [1, 24, 7, 4, 4]"});
  refusal(z.narrow(3, 0, 0), {"[1, 24, 7, 0, 4]"});
  for (const double bad :
       {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    at::Tensor broken = z.clone();
    broken[0][3][2][1][0] = bad;
    refusal(broken, {"not finite"});
  }
  refusal(z.narrow(2, 0, 2), {"2 latent frames", "non-positive output frames", "at least 3"});
  refusal(z, {"23 frames were asked for", "hold 22"}, {.frames = 23});
  refusal(z, {"-1 frames"}, {.frames = -1});
  refusal(z, {"tile batch of -2"}, {.tile_batch = -2});
}

/// Counts what tensors hold on the CPU.
class CountingAllocator final : public c10::Allocator {
 public:
  explicit CountingAllocator(c10::Allocator* base) : base_(base) {}

  c10::DataPtr allocate(size_t bytes) override {
    c10::DataPtr block = base_->allocate(bytes);
    const std::lock_guard<std::mutex> lock(mutex_);
    void* data = block.release_context();
    if (data != nullptr) sizes_[data] = static_cast<int64_t>(bytes);
    live_ += static_cast<int64_t>(bytes);
    peak_ = std::max(peak_, live_);
    return {data, data, &drop, c10::Device(c10::DeviceType::CPU)};
  }
  void copy_data(void* dest, const void* src, std::size_t count) const override {
    std::memcpy(dest, src, count);
  }
  c10::DeleterFnPtr raw_deleter() const override { return &drop; }

  int64_t live() const { return live_; }
  int64_t peak() const { return peak_; }
  void reset() { peak_ = live_; }

  /// In place of torch's from the first call on; tensors of it may outlive a test.
  static CountingAllocator& installed() {
    if (instance_ == nullptr) {
      instance_ = new CountingAllocator(c10::GetCPUAllocator());
      c10::SetCPUAllocator(instance_, 1);
    }
    return *instance_;
  }

 private:
  static void drop(void* data) {
    if (data == nullptr) return;
    {
      const std::lock_guard<std::mutex> lock(instance_->mutex_);
      const auto at = instance_->sizes_.find(data);
      instance_->live_ -= at->second;
      instance_->sizes_.erase(at);
    }
    instance_->base_->raw_deleter()(data);
  }

  static inline CountingAllocator* instance_ = nullptr;
  c10::Allocator* base_;
  std::mutex mutex_;
  std::unordered_map<void*, int64_t> sizes_;
  int64_t live_ = 0, peak_ = 0;
};

// The stated bound holds, and no frame of a long video waits for the end.
TEST(Decode, MemoryIsBounded_WhateverTheLength) {
  CountingAllocator& counter = CountingAllocator::installed();
  VideoVaeConfig config = small_config();
  Engine engine(config, Part::kDecoder);
  const auto peak_of = [&](int64_t frames, int64_t h, int64_t w, int64_t batch) {
    const at::Tensor z = random_normal({1, 24, frames, h, w}, 8);
    counter.reset();
    const int64_t before = counter.live();
    engine.vae.decode(z, [](const FrameChunk&) {}, {.tile_batch = batch});
    return counter.peak() - before - 3 * static_cast<int64_t>(z.nbytes());  // copies of latents
  };
  const int64_t shorter = peak_of(12, 32, 24, 1), longer = peak_of(47, 32, 24, 1);
  EXPECT_LT(longer, shorter * 1.02 + 65536);
  const struct { int64_t h, w, batch; } cases[] = {{32, 24, 1}, {32, 24, 3}, {8, 8, 1}, {8, 40, 2}};
  for (const auto& c : cases) {
    const int64_t bound = engine.vae.memory_for(1, c.h, c.w).total(c.batch);
    const int64_t peak = peak_of(7, c.h, c.w, c.batch);
    std::printf("%lld x %lld, batch %lld: peak %.2f MB, bound %.2f MB\n",
                static_cast<long long>(c.h), static_cast<long long>(c.w),
                static_cast<long long>(c.batch), static_cast<double>(peak) / 1e6,
                static_cast<double>(bound) / 1e6);
    EXPECT_LE(peak, bound);
    EXPECT_GT(peak, bound / 3);  // a bound that says something
  }
}

}  // namespace
}  // namespace h3::vae_video
