// What the multi-rank tests share. Every rank runs every test; the launcher starts 2, 4 or 8 of
// them. "One rank" in the comparisons is the same implementation called locally on the whole
// sequence, which every rank builds from the same seed.
#pragma once

#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "h3/common/error.h"
#include "h3/parallel/tests/plain_attention.h"
#include "h3/parallel/usp_attention.h"

namespace h3::parallel {

inline constexpr uint64_t kSeed = 20251130;
extern World* g_world;  // of this process, set by main

inline int64_t world_size() { return g_world->size(); }
inline int64_t my_rank() { return g_world->rank(); }

inline SequenceGroups layout(int64_t ulysses, int64_t ring = 1) {
  return g_world->sequence_groups(
      resolve_degrees({.world_size = world_size(), .ulysses = ulysses, .ring = ring}));
}
inline SequenceGroups gather_layout(bool automatic) {
  Degrees degrees = resolve_degrees({.world_size = world_size(), .kv_gather = world_size()});
  degrees.kv_gather_automatic = automatic;
  return g_world->sequence_groups(degrees);
}

// Values from integers, so that all ranks make the same without a shared generator.
inline at::Tensor random_tensor(at::IntArrayRef shape, uint64_t seed) {
  at::Tensor x = at::empty(shape, at::kFloat);
  uint64_t state = kSeed + 0x9e3779b97f4a7c15u * (seed + 1);
  for (int64_t i = 0; i < x.numel(); ++i) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    x.data_ptr<float>()[i] = static_cast<float>(static_cast<int64_t>(state >> 40) - (1 << 23)) /
                             static_cast<float>(1 << 22);
  }
  return x;
}
inline Qkv random_qkv(int64_t batch, int64_t rows, int64_t heads, int64_t kv_heads, uint64_t seed,
                      int64_t width = 8) {
  return {random_tensor({batch, rows, heads, width}, seed * 3),
          random_tensor({batch, rows, kv_heads, width}, seed * 3 + 1),
          random_tensor({batch, rows, kv_heads, width}, seed * 3 + 2)};
}
inline Qkv rows_of(const Qkv& x, int64_t first, int64_t count) {
  return {x.q.narrow(1, first, count), x.k.narrow(1, first, count), x.v.narrow(1, first, count)};
}
inline Qkv my_share(const Qkv& x) {
  const int64_t rows = x.q.size(1) / world_size();
  return rows_of(x, my_rank() * rows, rows);
}
inline at::Tensor my_share(const at::Tensor& x) {
  const int64_t rows = x.size(1) / world_size();
  return x.narrow(1, my_rank() * rows, rows);
}
inline Qkv joined(const Qkv& a, const Qkv& b) {
  return {at::cat({a.q, b.q}, 1), at::cat({a.k, b.k}, 1), at::cat({a.v, b.v}, 1)};
}

inline bool same_bits(const at::Tensor& a, const at::Tensor& b) { return a.equal(b); }
inline double distance(const at::Tensor& a, const at::Tensor& b) {
  return a.sub(b).abs().max().item<double>();
}

struct Layer {
  std::shared_ptr<PlainAttention> impl;
  std::shared_ptr<StagingBuffers> staging = std::make_shared<StagingBuffers>();
  SequenceGroups groups;
  std::unique_ptr<UspAttention> attention;
};
inline Layer make_layer(const SequenceGroups& groups, int64_t heads, int64_t kv_heads,
                        UspOptions options = {}) {
  Layer layer;
  layer.impl = std::make_shared<PlainAttention>(options.causal);
  layer.groups = groups;
  options.layer.name = "test";
  options.layer.heads = heads;
  options.layer.kv_heads = kv_heads;
  if (!options.layer.sparse) options.layer.supports_ring = true;
  layer.attention =
      std::make_unique<UspAttention>(layer.impl, &layer.groups, layer.staging, options);
  return layer;
}

inline at::Tensor whole_result(const Qkv& qkv, bool causal = false) {
  return PlainAttention(causal).forward(qkv, {});
}

// Message of the refusal with that code; empty if there was none.
template <class Call>
std::string refusal(ErrorCode code, Call call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    return error.what();
  }
  return "";
}

}  // namespace h3::parallel
