// Shape of the simple kernel: one warpgroup, one query block, its own list; nothing is shared. It
// is the yardstick and the oracle of the sharing kernel.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tessera/src/sm90/attention_params.h"

namespace tessera::sm90 {

template <class Element_, bool kPacked_>
struct ListFwdConfig {
  using Element = Element_;
  static constexpr bool kPacked = kPacked_;  // several documents, or rows outside them
  static constexpr int kGroup = 1;
  static constexpr int kStages =
      2;  // 80 KiB with Q: two CTAs share an SM and hide each other's waits
  static constexpr int kThreads = 128;
  static constexpr uint32_t kTileBytes = kBlock * kHeadDim * 2;
  static constexpr uint32_t kStageBytes = 2 * kTileBytes;
  static constexpr size_t kSharedBytes = 1024 + kTileBytes + kStages * kStageBytes + 64;
};

}  // namespace tessera::sm90
