#include "h3/parallel/environment.h"

#include <charconv>
#include <cstdlib>

#include "h3/common/error.h"

namespace h3::parallel {
namespace {

int64_t parse_int(const std::string& name, const std::string& text, int64_t low, int64_t high) {
  int64_t value = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < low || value > high)
    throw Error(ErrorCode::kInvalidArgument, name + " is '" + text +
                                                 "'; accepted: " + std::to_string(low) + " to " +
                                                 std::to_string(high));
  return value;
}

struct Family {
  const char *label, *rank, *size, *local_rank, *local_size;
};
// SLURM_STEP_NUM_TASKS and not SLURM_NTASKS: the latter is also set in a batch script that was not
// started by srun, where waiting for the other ranks would never end.
constexpr Family kFamilies[] = {
    {"RANK", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"},
    {"Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE"},
    {"SLURM", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE"},
    {"PMI", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"},
};

}  // namespace

bool is_loopback(const std::string& address) {
  return address.rfind("127.", 0) == 0 || address == "localhost" || address == "::1";
}

std::optional<std::string> process_env(const std::string& name) {
  const char* value = std::getenv(name.c_str());
  if (!value || !*value) return std::nullopt;
  return value;
}

double env_seconds(const char* name, double fallback, const GetEnv& env) {
  auto text = env(name);
  if (!text) return fallback;
  char* end = nullptr;
  double value = std::strtod(text->c_str(), &end);
  if (*end != '\0' || !(value > 0) || value > 1e7)
    throw Error(ErrorCode::kInvalidArgument,
                std::string(name) + " is '" + *text + "'; accepted: seconds above 0, up to 1e7");
  return value;
}

RankIdentity rank_identity(const GetEnv& env) {
  RankIdentity id;
  const Family* family = nullptr;
  for (const Family& candidate : kFamilies) {
    const bool is_slurm = candidate.rank == std::string("SLURM_PROCID");
    auto rank = env(candidate.rank), size = env(candidate.size);
    // SLURM_PROCID alone is what a batch script sees: one process, not a step of many.
    if (!size && (!rank || is_slurm)) continue;
    if (!rank || !size)
      throw Error(ErrorCode::kInvalidArgument,
                  std::string(rank ? candidate.rank : candidate.size) + " is set and " +
                      (rank ? candidate.size : candidate.rank) + " is not",
                  "start the ranks with torchrun, mpirun, srun or `h3 launch`, or set both");
    family = &candidate;
    id.source = candidate.label;
    id.world_size = static_cast<int>(parse_int(candidate.size, *size, 1, 1 << 20));
    id.rank = static_cast<int>(parse_int(candidate.rank, *rank, 0, id.world_size - 1));
    break;
  }
  if (!family) return id;

  auto local_rank = env(family->local_rank), local_size = env(family->local_size);
  if (local_rank)
    id.local_rank = static_cast<int>(parse_int(family->local_rank, *local_rank, 0, 1 << 20));
  // SLURM writes "4(x2),3" for uneven nodes; only a plain number says something about this host.
  const bool plain = local_size && local_size->find_first_not_of("0123456789") == std::string::npos;
  if (plain)
    id.local_world_size = static_cast<int>(parse_int(family->local_size, *local_size, 1, 1 << 20));
  const bool one_host = plain && id.local_world_size == id.world_size;

  if (auto address = env("MASTER_ADDR")) {
    id.master_addr = *address;
  } else if (!one_host && id.world_size > 1) {
    throw Error(ErrorCode::kInvalidArgument,
                "MASTER_ADDR is not set and the " + std::to_string(id.world_size) +
                    " ranks are not known to share one host",
                "set MASTER_ADDR to the host of rank 0 (127.0.0.1 if there is only one)");
  }
  if (!local_rank) {
    if (!one_host && !is_loopback(id.master_addr) && id.world_size > 1)
      throw Error(
          ErrorCode::kInvalidArgument,
          std::string(family->local_rank) + " is not set and the ranks are on several hosts",
          "set it to the index of the rank on its host; it selects the GPU");
    id.local_rank = id.rank;
  }
  if (auto port = env("MASTER_PORT"))
    id.master_port = static_cast<uint16_t>(parse_int("MASTER_PORT", *port, 1, 65535));
  if (env("TORCHELASTIC_USE_AGENT_STORE").value_or("") == "True") {
    id.external_store = true;
    id.store_prefix = "attempt_" + env("TORCHELASTIC_RESTART_COUNT").value_or("0");
  }
  return id;
}

}  // namespace h3::parallel
