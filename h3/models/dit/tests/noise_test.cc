// Equality with torch.Generator and the public packing is in h3/tests/parity/test_noise.py; here
// are orders computed by hand, independence of the streams and refusals.
#include "h3/models/dit/noise.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <cmath>

#include "h3/common/error.h"

namespace h3::dit {
namespace {

bool same(const at::Tensor& a, const at::Tensor& b) { return a.equal(b); }

float value(const at::Tensor& t, std::initializer_list<int64_t> at) {
  at::Tensor x = t;
  for (const int64_t i : at) x = x.select(0, i);
  return x.item<float>();
}

TEST(Noise, Patchify_PutsTheChannelSlowest) {
  // Element [0, c, t, y, x] holds its own flat index; 3 channels, 2 frames, 4 x 6.
  const at::Tensor x = at::arange(3 * 2 * 4 * 6, at::kFloat).view({1, 3, 2, 4, 6});
  const at::Tensor rows = patchify_video(x);
  ASSERT_EQ(rows.sizes(), at::IntArrayRef({12, 12}));
  for (int64_t c = 0; c < 3; ++c) {
    for (int64_t t = 0; t < 2; ++t) {
      for (int64_t y = 0; y < 4; ++y) {
        for (int64_t col = 0; col < 6; ++col) {
          const int64_t row = t * 6 + (y / 2) * 3 + col / 2;
          EXPECT_EQ(value(rows, {row, c * 4 + (y % 2) * 2 + col % 2}), value(x, {0, c, t, y, col}));
        }
      }
    }
  }
  EXPECT_TRUE(same(unpatchify_video(rows, {2, 4, 6}), x));
}

TEST(Noise, Audio_IsPackedChannelByChannel) {
  const at::Tensor x = at::arange(2 * 3 * 5, at::kFloat).view({2, 3, 5});
  const at::Tensor rows = pack_audio(x);
  ASSERT_EQ(rows.sizes(), at::IntArrayRef({10, 3}));
  for (int64_t side = 0; side < 2; ++side) {
    for (int64_t t = 0; t < 5; ++t) {
      for (int64_t c = 0; c < 3; ++c) {
        EXPECT_EQ(value(rows, {side * 5 + t, c}), value(x, {side, c, t}));
      }
    }
  }
  EXPECT_TRUE(same(unpack_audio(rows), x));
}

TEST(Noise, Streams_DependOnTheSeedAlone) {
  const at::Tensor a = video_noise(42, {2, 4, 6}, 24);
  (void)audio_noise(7, 3, 32);
  EXPECT_TRUE(same(a, video_noise(42, {2, 4, 6}, 24)));
  EXPECT_FALSE(same(a, video_noise(43, {2, 4, 6}, 24)));
  // The audio stream starts anew, hence the same leading values as the video's.
  const at::Tensor video = unpatchify_video(a, {2, 4, 6}).flatten();
  const at::Tensor audio = audio_noise(42, 18, 32).flatten();  // 1152 values each
  EXPECT_TRUE(same(video, audio));
  EXPECT_TRUE(same(audio_condition_noise(42, 9, 32), audio_noise(43, 9, 32)));
}

TEST(Noise, ConditionNoise_IsTheStartOfTheLongDraw) {
  const at::Tensor rows = visual_condition_noise(5, {2, 4, 4}, 7, 3, 24);
  const at::Tensor whole = video_noise(5, {10, 4, 4}, 24);
  EXPECT_TRUE(same(rows, whole.narrow(0, 0, 8)));
  EXPECT_NO_THROW(visual_condition_noise(5, {10, 4, 4}, 7, 3, 24));
  EXPECT_THROW(visual_condition_noise(5, {11, 4, 4}, 7, 3, 24), Error);
}

TEST(Noise, Draws_AreStandardNormal) {
  const at::Tensor x = video_noise(1, {16, 32, 32}, 24);  // 393216 values, seed 1
  EXPECT_NEAR(x.mean().item<float>(), 0, 0.01);
  EXPECT_NEAR(x.std().item<float>(), 1, 0.01);
}

TEST(Noise, Mix_KeepsTheLevelInFloat32) {
  const at::Tensor clean = at::full({4}, 2.0f), noise = at::full({4}, -1.0f);
  const float level = 0.999f;
  volatile float kept = level * 2.0f, added = (1.0f - level) * -1.0f;
  EXPECT_EQ(mix_condition(clean, noise, 0.999)[0].item<float>(), kept + added);
  EXPECT_TRUE(same(mix_condition(clean, noise, 0.0), noise));
  EXPECT_TRUE(mix_condition(clean, noise, 1.0).is_same(clean));
  EXPECT_THROW(mix_condition(clean, noise, 1.001), Error);
  EXPECT_THROW(mix_condition(clean, noise, -0.1), Error);
  EXPECT_THROW(mix_condition(clean, noise, std::nan("")), Error);
  EXPECT_THROW(mix_condition(clean, at::full({5}, 1.0f), 0.5), Error);
}

TEST(Noise, Normalisation_IsPerChannelAndInvertible) {
  const at::Tensor x = at::arange(2 * 3 * 4, at::kFloat).view({2, 3, 4});
  const at::Tensor mean = at::arange(3, at::kFloat), std = at::arange(1, 4, at::kFloat);
  const at::Tensor n = normalize_latents(x, mean, std);
  EXPECT_EQ(value(n, {1, 2, 3}), (23.0f - 2.0f) / 3.0f);
  EXPECT_EQ(value(n, {0, 0, 1}), 1.0f);
  EXPECT_TRUE(denormalize_latents(n, mean, std).allclose(x));
  EXPECT_EQ(value(denormalize_latents(x, mean, std), {1, 1, 0}), 16.0f * 2.0f + 1.0f);
  EXPECT_THROW(normalize_latents(x, at::zeros({2}), std), Error);
  EXPECT_THROW(denormalize_latents(x, mean, at::zeros({4})), Error);
}

TEST(Noise, WrongShapes_AreRefused) {
  EXPECT_THROW(patchify_video(at::zeros({2, 24, 1, 2, 2})), Error);
  EXPECT_THROW(patchify_video(at::zeros({1, 24, 1, 3, 2})), Error);
  EXPECT_THROW(patchify_video(at::zeros({24, 1, 2, 2})), Error);
  EXPECT_THROW(unpatchify_video(at::zeros({5, 96}), {1, 4, 4}), Error);
  EXPECT_THROW(unpatchify_video(at::zeros({4, 95}), {1, 4, 4}), Error);
  EXPECT_THROW(pack_audio(at::zeros({1, 32, 4})), Error);
  EXPECT_THROW(unpack_audio(at::zeros({3, 32})), Error);
  EXPECT_THROW(video_noise(1, {0, 4, 4}, 24), Error);
  EXPECT_THROW(audio_noise(1, 0, 32), Error);
}

}  // namespace
}  // namespace h3::dit
