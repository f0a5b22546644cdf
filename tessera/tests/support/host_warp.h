// Device code on the host: the CUDA words it is written with, and a warp of 32 threads that meet at
// every warp-wide instruction. Include it before the headers under test; a build without CUDA needs
// nothing else.
#pragma once

#include <algorithm>
#include <array>
#include <barrier>
#include <bit>
#include <cstdint>
#include <thread>
#include <vector>

// The names are CUDA's own, so they cannot follow the rules of this project.
#define __host__
#define __device__
#define __forceinline__ inline

namespace tessera::testing {

/// Runs `body(lane)` on 32 threads. Every lane must execute the same warp-wide instructions in the
/// same order, as the full masks of the code under test demand; a lane that leaves one out hangs.
class HostWarp {
 public:
  static constexpr int kLanes = 32;

  template <class Body>
  static void run(Body body) {
    HostWarp warp;
    std::vector<std::jthread> lanes;
    for (int lane = 0; lane < kLanes; ++lane) {
      lanes.emplace_back([&warp, &body, lane] {
        current_ = &warp;
        lane_ = lane;
        body(lane);
        current_ = nullptr;
      });
    }
  }

  /// What every lane gave to this instruction. Two buffers: nobody writes to one of them before all
  /// have arrived at the next instruction, and so are through with reading it.
  static const std::array<uint32_t, kLanes>& exchange(uint32_t own) {
    HostWarp& warp = *current_;
    std::array<uint32_t, kLanes>& values = warp.values_[turn_++ & 1];
    values[lane_] = own;
    warp.meet_.arrive_and_wait();
    return values;
  }
  static int lane() { return lane_; }

 private:
  std::barrier<> meet_{kLanes};
  std::array<std::array<uint32_t, kLanes>, 2> values_{};
  static inline thread_local HostWarp* current_ = nullptr;
  static inline thread_local int lane_ = 0;
  static inline thread_local unsigned turn_ = 0;
};

}  // namespace tessera::testing

inline void __syncwarp() { tessera::testing::HostWarp::exchange(0); }

inline uint32_t __ballot_sync(uint32_t, bool vote) {
  const auto& votes = tessera::testing::HostWarp::exchange(vote);
  uint32_t bits = 0;
  for (int lane = 0; lane < 32; ++lane) bits |= votes[lane] << lane;
  return bits;
}

inline int __shfl_sync(uint32_t, int value, int source) {
  return static_cast<int>(
      tessera::testing::HostWarp::exchange(static_cast<uint32_t>(value))[source & 31]);
}

/// A lane without a lane `step` below it keeps its own value.
inline int __shfl_up_sync(uint32_t, int value, int step) {
  const auto& values = tessera::testing::HostWarp::exchange(static_cast<uint32_t>(value));
  const int lane = tessera::testing::HostWarp::lane();
  return static_cast<int>(values[lane >= step ? lane - step : lane]);
}

inline int __reduce_max_sync(uint32_t, int value) {
  int top = value;
  for (uint32_t other : tessera::testing::HostWarp::exchange(static_cast<uint32_t>(value))) {
    top = std::max(top, static_cast<int>(other));
  }
  return top;
}

inline int __popc(uint32_t bits) { return std::popcount(bits); }
inline int __clz(uint32_t bits) { return std::countl_zero(bits); }
inline int __ffs(uint32_t bits) { return bits == 0 ? 0 : std::countr_zero(bits) + 1; }
template <class T>
T __ldg(const T* from) {
  return *from;
}

// CUDA's `min` is a global function.
inline int min(int a, int b) { return std::min(a, b); }
