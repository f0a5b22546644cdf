// All ranks of a run: where they meet, that they were started alike, the groups among them, and
// that they end together. One World per process.
//
//   auto world = World::start(options);            // compares configurations on all ranks
//   UspAttention layer(impl, world->sequence_groups(), ...);
//   world->finish();
#pragma once

#include <c10/core/DeviceType.h>

#include <functional>
#include <memory>
#include <string>

#include "h3/common/error.h"
#include "h3/parallel/config_record.h"
#include "h3/parallel/environment.h"
#include "h3/parallel/group.h"
#include "h3/parallel/plan.h"
#include "h3/parallel/rows.h"

namespace h3::parallel {

/// The groups one attention layer works in. Pointers live as long as the World; a group of one rank
/// is there too and moves nothing.
struct SequenceGroups {
  Degrees degrees;
  SequencePlace place;
  Group* sequence = nullptr;
  Group* ulysses = nullptr;
  Group* ring = nullptr;
};

struct WorldOptions {
  RankIdentity identity;
  Degrees degrees;
  ConfigRecord record;                            // compared on all ranks
  c10::DeviceType device = c10::DeviceType::CPU;  // CUDA: NCCL, on device `local_rank`
  double start_timeout_s = 300;                   // H3_START_TIMEOUT_S
  double collective_timeout_s = 600;              // H3_COLLECTIVE_TIMEOUT_S
  double heartbeat_timeout_s = 30;     // H3_HEARTBEAT_TIMEOUT_S: silence after which a rank is dead
  std::optional<Agreement> agreement;  // unset: always on the CPU, new signatures on CUDA

  /// Identity and time limits from the environment.
  static WorldOptions from_environment();
};

/// A fault that another rank has already reported: end with `exit_code` and print nothing.
class PeerError : public Error {
 public:
  PeerError(int exit_code, std::string message)
      : Error(ErrorCode::kUnavailable, std::move(message)), exit_code_(exit_code) {}
  int exit_code() const { return exit_code_; }

 private:
  int exit_code_;
};

class World {
 public:
  /// Meets the other ranks and compares world size, degrees and record with rank 0's. On a
  /// difference every rank throws: one of them h3::Error with rank and field, the others PeerError.
  /// Missing ranks are named after start_timeout_s. Also starts a thread that reports this rank
  /// alive and watches the others.
  static std::unique_ptr<World> start(WorldOptions options);
  ~World();

  int rank() const;
  int size() const;
  const WorldOptions& options() const;
  /// Group of this rank of that kind. Kinds with the same ranks share one group.
  Group& group(GroupKind kind);
  SequenceGroups sequence_groups();
  /// Groups of another factoring of the same ranks, for a component that is spread differently.
  /// Made on first use: all ranks must ask in the same order.
  SequenceGroups sequence_groups(const Degrees& degrees);

  /// Prints "rank R: message" once for all ranks and ends every one of them with `exit_code`; a
  /// call on several ranks prints the first message only. Does not return.
  [[noreturn]] void end_all(int exit_code, const std::string& message);

  /// Waits for all ranks, closes the groups (which must not be used any more), stops watching. A
  /// world destroyed without it (an exception) counts as failed for the others once its process is
  /// gone.
  void finish();

 private:
  struct State;
  explicit World(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

/// Exit code of the command line for an error: 2 invalid argument, 3 unsupported, 5 out of memory,
/// 130 cancelled, otherwise 1.
int exit_code_of(const std::exception& error);

/// The body of a rank: starts the world, runs `body`, finishes; an exception ends all ranks with
/// one message. Returns the exit code of the process. SIGPIPE is ignored from then on.
int run_rank(const WorldOptions& options, const std::function<int(World&)>& body);

}  // namespace h3::parallel
