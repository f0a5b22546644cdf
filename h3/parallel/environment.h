// Who am I and where do the ranks meet: read from the variables that torchrun, `h3 launch`, mpirun
// and srun set.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

namespace h3::parallel {

struct RankIdentity {
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;  // index among the ranks of this host: the GPU to use
  int local_world_size = 1;
  std::string master_addr = "127.0.0.1";
  uint16_t master_port = 29500;
  bool external_store = false;  // the launcher already serves the store at that address
  std::string store_prefix;     // keeps restarts apart on an external store
  std::string source = "none";  // which family of variables was used
};

/// 127.x.x.x, ::1 or localhost: all ranks are on this host.
bool is_loopback(const std::string& address);

using GetEnv = std::function<std::optional<std::string>(const std::string&)>;
std::optional<std::string> process_env(const std::string& name);

/// First family that is present wins: RANK/WORLD_SIZE (torchrun, h3 launch), OMPI_COMM_WORLD_*,
/// SLURM_PROCID/SLURM_STEP_NUM_TASKS, PMI_RANK/PMI_SIZE. None: one rank. Throws kInvalidArgument
/// for half-set families, numbers out of range, and several hosts without MASTER_ADDR.
RankIdentity rank_identity(const GetEnv& env = process_env);

/// Seconds from an environment variable, or the default. Throws kInvalidArgument unless > 0.
double env_seconds(const char* name, double fallback, const GetEnv& env = process_env);

}  // namespace h3::parallel
