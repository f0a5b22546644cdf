// What the host decides for the CUDA kernels: work items, the table of documents, bitmap rows and
// workspaces. The arithmetic is the library's own, in headers that need no CUDA.
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <tuple>
#include <vector>

#include "tessera/tests/support/host_warp.h"
#include "tessera/tests/support/random.h"
// After the words they are written with.
#include "tessera/src/sm90/forward_setup.h"
#include "tessera/src/sm90/list_fwd/config.h"
#include "tessera/src/sm90/router/setup.h"
#include "tessera/src/sm90/union_fwd/config.h"
#include "tessera/src/sm90/work_item.h"

namespace tessera::sm90 {
namespace {

using internal::RouteProblem;
using testing::Random;

/// A packed or unpacked call without tensors.
struct Call {
  std::vector<int32_t> bounds;
  AttentionParams params;
  AttentionProblem problem;

  Call(std::vector<int32_t> cu, int64_t batch, int64_t heads, int64_t kv_heads)
      : bounds(std::move(cu)) {
    params.cu_seqlens = bounds;
    problem.params = &params;
    problem.batch = batch;
    problem.heads = heads;
    problem.kv_heads = kv_heads;
    problem.scale = 0.125f;
    EXPECT_TRUE(packed_documents(bounds, bounds.back(), 0, &problem.layout).ok());
  }
  Call(int64_t queries, int64_t keys, int64_t batch, int64_t heads, int64_t kv_heads) {
    problem.params = &params;
    problem.batch = batch;
    problem.heads = heads;
    problem.kv_heads = kv_heads;
    problem.layout = single_document(queries, keys);
  }
  Call(const Call&) = delete;
};

std::vector<int32_t> random_bounds(Random& random, int documents) {
  std::vector<int32_t> cu{0};
  for (int i = 0; i < documents; ++i) {
    const bool round = random.chance(0.3);
    const auto length = static_cast<int32_t>(random.integer(0, 500));
    cu.push_back(cu.back() + (round ? length / 64 * 64 : length));
  }
  return cu;
}

template <class C>
void expect_every_query_block_once(const Call& call, const Execution& exec) {
  const auto& problem = call.problem;
  ForwardBuffers buffers;
  std::map<std::tuple<int, int, int>, int> seen;  // batch, head, plan row
  std::set<int> tail_slots_seen;
  size_t documents = 0;
  for (const Span& span : launches_of(problem)) {
    const ForwardParams p = make_params(problem, exec, buffers, span, C::kGroup);
    EXPECT_EQ(p.document_count, static_cast<int>(span.last - span.first));
    for (int i = 0; i < p.document_count; ++i, ++documents) {
      const Document& d = problem.layout.documents[documents];
      EXPECT_EQ(p.documents[i].norm_slot, static_cast<int>(documents));
      EXPECT_EQ(p.documents[i].last_block_keys + (d.key_blocks - 1) * kBlock, d.key_length);
      const bool ragged = C::kPacked && d.key_length % kBlock != 0;
      EXPECT_EQ(p.documents[i].tail_slot >= 0, ragged);
      if (ragged) {
        EXPECT_TRUE(tail_slots_seen.insert(p.documents[i].tail_slot).second) << "slot twice";
      }
    }
    for (int item = 0; item < p.items; ++item) {
      const DocumentInfo* d = nullptr;
      const WorkItem at = locate_item<C>(p, item, d);
      ASSERT_NE(d, nullptr);
      ASSERT_LT(at.block, d->query_blocks);
      EXPECT_EQ(at.block % C::kGroup, 0);
      for (int g = 0; g < C::kGroup && at.block + g < d->query_blocks; ++g) {
        ++seen[{at.batch, at.head, d->first_plan_row + at.block + g}];
      }
    }
  }
  EXPECT_EQ(documents, problem.layout.documents.size());
  EXPECT_EQ(static_cast<int>(tail_slots_seen.size()), tail_slots(problem));
  EXPECT_TRUE(tail_slots_seen.empty() || *tail_slots_seen.rbegin() == tail_slots(problem) - 1);
  EXPECT_EQ(static_cast<int64_t>(seen.size()),
            problem.batch * problem.heads * problem.layout.query_blocks);
  for (const auto& [where, times] : seen) {
    EXPECT_EQ(times, 1);
    EXPECT_LT(std::get<0>(where), problem.batch);
    EXPECT_LT(std::get<1>(where), problem.heads);
  }
}

TEST(Sm90Setup, WorkItems_CoverEveryQueryBlockOnce) {
  Random random(testing::test_seed(421));
  Execution exec;
  for (int documents : {1, 2, 7, 31, 32, 33, 70}) {
    const Call call(random_bounds(random, documents), 1, 3, 1);
    SCOPED_TRACE(documents);
    expect_every_query_block_once<UnionFwdConfig<uint16_t, true, true>>(call, exec);
    expect_every_query_block_once<ListFwdConfig<uint16_t, true>>(call, exec);
  }
  for (int64_t queries : {1, 64, 65, 192, 193, 700}) {
    const Call call(queries, 333, 2, 4, 2);
    SCOPED_TRACE(queries);
    expect_every_query_block_once<UnionFwdConfig<uint16_t, true, false>>(call, exec);
    expect_every_query_block_once<ListFwdConfig<uint16_t, false>>(call, exec);
  }
}

TEST(Sm90Setup, BitmapRows_OfBuiltBitmapsAreContiguousPlanRows) {
  Call call({0, 100, 100, 400, 1000}, 1, 5, 5);
  call.params.plan.emplace();
  call.problem.batch = 3;  // a packed call has one; the offsets must not care
  std::vector<uint32_t> bits(1);
  ForwardBuffers buffers;
  buffers.bitmap = bits.data();
  PlanFault fault;
  buffers.fault = &fault;
  using Config = UnionFwdConfig<uint16_t, true, true>;
  const ForwardParams p = make_params(call.problem, {}, buffers, {0, 3}, Config::kGroup);
  EXPECT_EQ(p.fault, &fault.code);
  const int words = words_of(call.problem), rows = call.problem.layout.query_blocks;
  std::set<int64_t> offsets;
  for (int item = 0; item < p.items; ++item) {
    const DocumentInfo* d = nullptr;
    const WorkItem at = locate_item<Config>(p, item, d);
    const int64_t row = (int64_t{at.batch} * 5 + at.head) * rows + d->first_plan_row + at.block;
    const auto bytes = static_cast<int64_t>(reinterpret_cast<uintptr_t>(bitmap_rows(p, *d, at)) -
                                            reinterpret_cast<uintptr_t>(bits.data()));
    EXPECT_EQ(bytes, row * words * 4);
    offsets.insert(bytes);
  }
  EXPECT_EQ(static_cast<int>(offsets.size()), p.items);
  ForwardParams dense = p;
  dense.bitmap = nullptr;
  EXPECT_EQ(bitmap_rows(dense, p.documents[0], {0, 0, 0}), nullptr);
}

TEST(Sm90Setup, GivenBitmap_IsUsedOnlyUncheckedAndItsOffsetsCount64Bits) {
  Call call(262144, 262144, 2, 64, 64);
  std::vector<uint32_t> bits(1);
  PlanView plan;
  plan.bitmap.data = bits.data();
  plan.bitmap.stride = {int64_t{1} << 34, int64_t{1} << 28, int64_t{1} << 16, 1};
  call.params.plan = plan;
  Execution exec;
  exec.check_plan = true;
  EXPECT_FALSE(uses_given_bitmap(call.problem, exec));
  exec.check_plan = false;
  ASSERT_TRUE(uses_given_bitmap(call.problem, exec));
  const ForwardParams p = make_params(call.problem, exec, {}, {0, 1}, 3);
  EXPECT_EQ(p.fault, nullptr);
  const uint32_t* row = bitmap_rows(p, p.documents[0], {1, 63, 4095});
  const uint64_t bytes =
      reinterpret_cast<uintptr_t>(row) - reinterpret_cast<uintptr_t>(bits.data());
  EXPECT_EQ(bytes, ((uint64_t{1} << 34) + (uint64_t{63} << 28) + (uint64_t{4095} << 16)) * 4);
}

/// Addresses are never followed.
template <class T>
uintptr_t address(const T* pointer) {
  return reinterpret_cast<uintptr_t>(pointer);
}

TEST(Sm90Setup, ForwardWorkspace_PiecesAreAlignedDisjointAndCount64Bits) {
  Call call(262144, 262144, 16, 56, 8);  // 4,096 blocks a side, 128 words a row
  call.params.plan.emplace();
  const size_t bytes = carve_forward(call.problem, nullptr, nullptr);
  EXPECT_GE(bytes, size_t{16} * 56 * 4096 * 128 * 4);
  EXPECT_LE(bytes, size_t{16} * 56 * 4096 * 128 * 4 + 16 * 8 * 4 + 3 * 256);
  EXPECT_GT(bytes, size_t{1} << 30);
  Call wide(4096 * 64, 4096 * 64, 1024, 56, 8);
  wide.params.plan.emplace();
  EXPECT_GT(carve_forward(wide.problem, nullptr, nullptr), size_t{1024} * 56 * 4096 * 512);

  Call packed({0, 100, 228, 1000}, 1, 4, 2);
  packed.params.plan.emplace();
  const size_t needed = carve_forward(packed.problem, nullptr, nullptr);
  std::vector<std::byte> memory(needed + 256);
  auto* base = memory.data() + (256 - address(memory.data()) % 256) % 256;
  ForwardBuffers b;
  EXPECT_EQ(carve_forward(packed.problem, base, &b), needed);
  const int slots = tail_slots(packed.problem);
  EXPECT_EQ(slots, 2);  // 100 and 772 keys; 128 is whole
  std::map<uintptr_t, size_t> pieces{{address(b.fault), sizeof(PlanFault)},
                                     {address(b.key_norms), 2 * 3 * sizeof(float)},
                                     {address(b.bitmap), sizeof(uint32_t) * 4 * 17 * 1},
                                     {address(b.tail_k), size_t{2} * slots * 64 * 128 * 2},
                                     {address(b.tail_v), size_t{2} * slots * 64 * 128 * 2}};
  ASSERT_EQ(packed.problem.layout.query_blocks, 17);
  ASSERT_EQ(pieces.size(), size_t{5});
  uintptr_t end = address(base);
  for (const auto& [start, size] : pieces) {
    EXPECT_EQ(start % 256, 0u);
    EXPECT_GE(start, end);
    end = start + size;
  }
  EXPECT_EQ(end, address(base) + needed);
}

TEST(Sm90Setup, RouterWorkspace_HoldsWholeTilesAndCounts64Bits) {
  for (int n : {1, 2, 4, 8}) {
    for (int32_t blocks : {1, 15, 16, 17, 590, 4095, 4096}) {
      const int tiles = tiles_for(blocks, n);
      EXPECT_GE(tiles * kRouterTile, blocks * n);
      EXPECT_LT((tiles - 1) * kRouterTile, blocks * n);
      EXPECT_EQ(padded_blocks(blocks, n) * n, tiles * kRouterTile);
    }
  }
  RouteParams params;
  params.q.size = {8, 262144, 56, 128};
  params.k.size = {8, 262144, 8, 128};
  params.config.n_q = params.config.n_k = 8;
  RouteProblem problem;
  problem.params = &params;
  problem.layout = single_document(262144, 262144);
  problem.dense_document = {0};
  const size_t scores = size_t{8} * 56 * 4096 * 4096 * 4;
  const size_t cells = (size_t{8} * 56 + 8 * 8) * 4096 * 8 * 128 * 2;
  EXPECT_GT(scores, size_t{1} << 34);
  EXPECT_EQ(carve_router(problem, nullptr, nullptr), scores + cells);
  problem.dense_document = {1};
  EXPECT_EQ(carve_router(problem, nullptr, nullptr), size_t{0});
}

}  // namespace
}  // namespace tessera::sm90
