// Shape of the sharing kernel: three query blocks of a head, one warpgroup each, walk the union of
// their key lists; every K/V tile is loaded once for all three.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tessera/src/sm90/attention_params.h"

namespace tessera::sm90 {

/// kBalanced interleaves the union so that each warpgroup gets work evenly (2-3 % faster; the order
/// in which a row adds up its blocks then depends on its neighbours' lists). Otherwise blocks come
/// in descending order and a row has the same bits as in the simple kernel.
template <class Element_, bool kBalanced_, bool kPacked_>
struct UnionFwdConfig {
  using Element = Element_;
  static constexpr bool kBalanced = kBalanced_;
  static constexpr bool kPacked = kPacked_;  // several documents, or rows outside them
  static constexpr int kGroup = 3;           // query blocks a CTA works on
  static constexpr int kStages = 6;          // of K and V of one block
  static constexpr int kThreads = 128 * (kGroup + 1);
  static constexpr int kProducerRegisters = 32, kConsumerRegisters = 160;  // 24 spills
  static constexpr int kQInRegisters = 4;  // of 8 k-steps of q; 6 no longer fit 160 registers
  // Union blocks a warpgroup may pass with a product pending; 4 and 5 are no faster.
  static constexpr int kMaxRunAhead = 3;
  static constexpr int kChunkWords = 32;  // bitmap words scheduled at a time
  static constexpr int kChunkBlocks = kChunkWords * 32;

  static constexpr uint32_t kTileBytes = kBlock * kHeadDim * 2;  // 16 KiB
  static constexpr uint32_t kStageBytes = 2 * kTileBytes;
  // The channels of q that go to registers pass through a stage of the ring; the others have a
  // place of their own, half a tile.
  static constexpr uint32_t kHalfTileBytes = kTileBytes / 2;
  static_assert(kQInRegisters == 4, "half a tile of q goes to registers");
  static_assert(kGroup * kHalfTileBytes <= kStageBytes, "or the half tiles do not fit a stage");

  struct Control {
    uint16_t schedule[2][kChunkBlocks];  // see wanted_by()
    uint16_t unordered[kBalanced ? kChunkBlocks : 1];
    uint16_t by_class[kBalanced ? kChunkBlocks : 1];
    uint64_t stage_full[kStages], stage_empty[kStages];
    uint64_t q_full[kGroup], q_empty[kGroup];
    uint64_t schedule_full[2], schedule_empty[2];
    int32_t schedule_count[2];
    int32_t issued;  // stages the producer has filled or begun to fill, in all
  };
  static constexpr size_t kSharedBytes =
      1024 + kGroup * kHalfTileBytes + kStages * kStageBytes + sizeof(Control);
  static_assert(kSharedBytes <= 232448, "more than an SM offers: shrink kStages");
  static_assert(kMaxRunAhead < kStages, "a warpgroup that runs further ahead deadlocks the ring");
};

}  // namespace tessera::sm90
