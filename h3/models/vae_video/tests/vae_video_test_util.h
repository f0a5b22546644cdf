// What the tests of the video VAE share: small models with random weights and random inputs.
#pragma once

#include <ATen/Context.h>
#include <ATen/ops/empty.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "h3/attention/h3_layers.h"
#include "h3/common/error.h"
#include "h3/models/vae_video/vae.h"

namespace h3::vae_video {

inline constexpr uint64_t kSeed = 20261130;

inline VideoVaeConfig small_config() {
  VideoVaeConfig config = tiny_video_vae_config();
  config.layers = 2;
  config.heads = 2;
  return config;
}

inline AttentionPlan make_plan(const VideoVaeConfig& config, const Platform& platform,
                               const AttentionChoices& choices = {}) {
  H3LayerOptions layers;
  layers.video_vae = {static_cast<int>(config.layers), static_cast<int>(config.heads),
                      static_cast<int>(config.head_dim)};
  return resolve_attention(minimax_h3_layers(platform, layers), choices, platform);
}

/// A VAE on the CPU and its attention.
struct Engine {
  explicit Engine(const VideoVaeConfig& config = small_config(), Part part = Part::kAll,
                  const VideoVaeOptions& options = {})
      : attention(make_plan(config, cpu_platform()), {.log = [](std::string_view) {}}),
        vae(config, random_weights(config, part, at::kCPU, kSeed), &attention, options) {}

  AttentionRuntime attention;
  VideoVae vae;
};

inline at::Tensor random_normal(at::IntArrayRef shape, uint64_t seed) {
  at::Generator generator = at::globalContext().defaultGenerator(at::kCPU).clone();
  generator.set_current_seed(kSeed + seed);
  return at::empty(shape, at::kFloat).normal_(0.0, 1.0, generator);
}

inline at::Tensor random_bytes(at::IntArrayRef shape, uint64_t seed) {
  return random_normal(shape, seed).mul(60).add(128).clamp(0, 255).to(at::kByte);
}

template <class Call>
Error thrown_by(Call call) {
  try {
    call();
  } catch (const Error& error) {
    return error;
  }
  ADD_FAILURE() << "nothing was thrown";
  return Error(ErrorCode::kInternal, "nothing was thrown");
}

inline void expect_parts(const Error& error, ErrorCode code,
                         const std::vector<std::string>& parts) {
  EXPECT_EQ(error.code(), code) << error.what();
  const std::string text = error.what();
  for (const std::string& part : parts) {
    EXPECT_NE(text.find(part), std::string::npos) << "missing: " << part << "\nin: " << text;
  }
}

}  // namespace h3::vae_video
