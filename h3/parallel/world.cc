#include "h3/parallel/world.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <optional>
#include <thread>

#include "h3/parallel/backend.h"
#include "h3/parallel/silence_guard.h"
#include "h3/parallel/text.h"
#include "h3/parallel/watch.h"

namespace h3::parallel {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;
using StorePtr = c10::intrusive_ptr<c10d::Store>;

constexpr char kVerdictKey[] = "start/verdict";

std::chrono::milliseconds to_ms(double seconds) {
  return std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000));
}

SilenceGuard::Duration to_duration(double seconds) {
  return std::chrono::duration_cast<SilenceGuard::Duration>(std::chrono::duration<double>(seconds));
}

std::string address_of(const RankIdentity& id) {
  return id.master_addr + ":" + std::to_string(id.master_port);
}

bool serves_store(const RankIdentity& id) { return id.rank == 0 && !id.external_store; }

// The store has no password and its own listener takes every interface; ranks of one host meet on
// loopback instead. Returns the listening socket.
int listen_on_loopback(uint16_t port) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int on = 1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (fd < 0 || bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0 ||
      listen(fd, SOMAXCONN) != 0) {
    const std::string reason = std::strerror(errno);
    if (fd >= 0) close(fd);
    throw std::runtime_error(reason);
  }
  return fd;
}

StorePtr connect_store(const WorldOptions& options) {
  const RankIdentity& id = options.identity;
  c10d::TCPStoreOptions store;
  store.port = id.master_port;
  store.isServer = serves_store(id);
  store.waitWorkers = false;  // missing ranks are named by the start protocol instead
  store.timeout = to_ms(options.start_timeout_s);
  try {
    if (store.isServer && is_loopback(id.master_addr) && id.master_addr != "::1")
      store.masterListenFd = listen_on_loopback(id.master_port);
    return c10::make_intrusive<c10d::TCPStore>(id.master_addr, store);
  } catch (const std::exception& error) {
    const std::string reason = first_line(error.what());
    if (store.isServer)
      throw Error(ErrorCode::kUnavailable,
                  "rank 0 cannot listen on " + address_of(id) + ": " + reason,
                  "set MASTER_ADDR to this host and MASTER_PORT to a free port");
    throw Error(ErrorCode::kUnavailable,
                "rank " + std::to_string(id.rank) + " got no answer from rank 0 at " +
                    address_of(id) + " within " + std::to_string(options.start_timeout_s) +
                    " s: " + reason,
                "check that rank 0 runs and MASTER_ADDR and MASTER_PORT name it");
  }
}

// What rank 0 compares: the user's record, the degrees, the world size and the kind of device.
ConfigRecord full_record(const WorldOptions& options) {
  ConfigRecord record = options.record;
  record.add(options.degrees);
  record.set("world_size", options.identity.world_size);
  record.set("device", options.device == c10::DeviceType::CPU ? "cpu" : "cuda");
  return record;
}

// The start protocol: every rank posts its record, rank 0 posts one verdict that all obey.
class Start {
 public:
  Start(c10d::Store& store, const WorldOptions& options)
      : store_(store), options_(options), id_(options.identity), record_(full_record(options)) {
    if (serves_store(id_)) return;
    guard_ = std::make_unique<SilenceGuard>(
        to_duration(options.heartbeat_timeout_s), [this](SilenceGuard::Duration) {
          std::fprintf(stderr,
                       "h3: rank %d: rank 0 at %s stopped answering during the start: dead or "
                       "stopped\n",
                       id_.rank, address_of(id_).c_str());
          std::fflush(nullptr);
          std::_Exit(1);
        });
  }

  void run() {
    const std::string me = std::to_string(id_.rank);
    if (store_.add("start/claim/" + me, 1) > 1)
      decide(2, "rank " + me + " was started twice; every process needs a RANK of its own");
    store_.set("start/record/" + me, record_.serialize());
    if (id_.rank == 0) judge();
    obey();
  }

  /// Waits until every rank has set its key of this name.
  void await_all(const std::string& prefix) {
    std::vector<std::string> keys;
    for (int rank = 0; rank < id_.world_size; ++rank) keys.push_back(prefix + std::to_string(rank));
    const auto deadline = Clock::now() + to_ms(options_.start_timeout_s);
    while (!check(keys)) {
      if (Clock::now() > deadline)
        throw Error(ErrorCode::kUnavailable, "a rank ended during the start");
      std::this_thread::sleep_for(5ms);
    }
  }

 private:
  // Everything that polls comes through here, so that a store which answers shows.
  bool check(const std::vector<std::string>& keys) {
    const bool there = store_.check(keys);
    if (guard_) guard_->answered();
    return there;
  }

  std::string get(const std::string& key) { return store_.get_to_str(key); }

  // First verdict wins. Code 0 with the world size means go.
  void decide(int code, const std::string& text) {
    store_.compareSet(kVerdictKey, std::string(),
                      std::to_string(code) + ";" + std::to_string(id_.rank) + ";" + text);
  }

  void judge() {
    const auto deadline = Clock::now() + to_ms(options_.start_timeout_s);
    std::vector<int> missing;
    for (int rank = 1; rank < id_.world_size; ++rank) missing.push_back(rank);
    while (!missing.empty() && !check({kVerdictKey})) {
      // Records are judged as they come: a wrong world size must not wait for ranks that never
      // will.
      for (size_t i = 0; i < missing.size();) {
        const std::string rank = std::to_string(missing[i]);
        if (!check({"start/record/" + rank})) {
          ++i;
          continue;
        }
        ConfigRecord other = ConfigRecord::parse(get("start/record/" + rank));
        if (auto text = record_.difference(other, "rank 0", "rank " + rank))
          return decide(2, "ranks were started with different configurations (digests " +
                               record_.digest() + ", " + other.digest() + "): " + *text);
        missing.erase(missing.begin() + static_cast<std::ptrdiff_t>(i));
      }
      if (missing.empty()) break;
      if (Clock::now() > deadline) {
        std::string list;
        for (int rank : missing) list += (list.empty() ? "" : ", ") + std::to_string(rank);
        return decide(1, "of " + std::to_string(id_.world_size) + " ranks these did not come to " +
                             address_of(id_) + " within " +
                             std::to_string(static_cast<int64_t>(options_.start_timeout_s)) +
                             " s: " + list);
      }
      std::this_thread::sleep_for(5ms);
    }
    decide(0, std::to_string(id_.world_size));
  }

  void obey() {
    // Rank 0 decides within the limit; the others grant it the same again for their own late start.
    const auto deadline = Clock::now() + 2 * to_ms(options_.start_timeout_s) + 5s;
    while (!check({kVerdictKey})) {
      if (Clock::now() > deadline)
        throw Error(ErrorCode::kUnavailable,
                    "rank 0 at " + address_of(id_) + " answers but does not finish the start");
      std::this_thread::sleep_for(5ms);
    }
    const std::string verdict = get(kVerdictKey);
    const size_t first = verdict.find(';'), second = verdict.find(';', first + 1);
    const int code = std::stoi(verdict), author = std::stoi(verdict.substr(first + 1));
    const std::string text = verdict.substr(second + 1);
    const int64_t read = store_.add("start/read", 1);
    if (code == 0) {
      if (text == std::to_string(id_.world_size)) return;
      throw Error(ErrorCode::kInvalidArgument,
                  "rank " + std::to_string(id_.rank) + " was started with WORLD_SIZE " +
                      std::to_string(id_.world_size) + ", rank 0 with " + text,
                  "start all ranks with the same WORLD_SIZE");
    }
    if (serves_store(id_)) linger(read);
    if (author == id_.rank)
      throw Error(code == 2 ? ErrorCode::kInvalidArgument : ErrorCode::kUnavailable, text);
    throw PeerError(code, text);
  }

  // The store ends with rank 0: those who have come must have read the verdict.
  void linger(int64_t read) {
    for (auto end = Clock::now() + 1500ms; read < id_.world_size && Clock::now() < end;
         read = store_.add("start/read", 0))
      std::this_thread::sleep_for(10ms);
  }

  c10d::Store& store_;
  const WorldOptions& options_;
  const RankIdentity& id_;
  ConfigRecord record_;
  std::unique_ptr<SilenceGuard> guard_;
};

std::string list_text(const std::vector<int>& ranks) {
  std::string text = "{";
  for (int rank : ranks) text += (text.size() > 1 ? ", " : "") + std::to_string(rank);
  return text + "}";
}

}  // namespace

struct World::State {
  WorldOptions options;
  StorePtr store;
  std::unique_ptr<Watch> watch;
  std::map<std::vector<int>, std::unique_ptr<Group>> groups;  // by ranks

  StorePtr own_store(const std::string& prefix) {
    std::string full = options.identity.store_prefix;
    full += (full.empty() ? "" : "/") + prefix;
    return c10::make_intrusive<c10d::PrefixStore>(full, store->clone());
  }

  Group& make_group(const Degrees& degrees, GroupKind kind) {
    const RankIdentity& id = options.identity;
    std::vector<int> ranks = group_of(degrees, kind, id.rank);
    if (auto it = groups.find(ranks); it != groups.end()) return *it->second;
    Group::Parts parts;
    parts.name = std::string(describe(kind)) + " " + list_text(ranks);
    parts.ranks = ranks;
    parts.rank = static_cast<int>(std::find(ranks.begin(), ranks.end(), id.rank) - ranks.begin());
    parts.observer = watch.get();
    const bool cuda = options.device == c10::DeviceType::CUDA;
    parts.agreement =
        options.agreement.value_or(cuda ? Agreement::kNewSignatures : Agreement::kAlways);
    if (ranks.size() > 1) {
      BackendOptions backend{parts.name, parts.rank, static_cast<int>(ranks.size()),
                             to_ms(options.collective_timeout_s), id.master_addr};
      parts.host = make_gloo(own_store("host/" + list_text(ranks)), backend);
      if (cuda) parts.device = make_nccl(own_store("device/" + list_text(ranks)), backend);
    }
    return *groups.emplace(ranks, std::make_unique<Group>(std::move(parts))).first->second;
  }

  // As make_group; what an engine throws ends all ranks, because the others wait for this one.
  Group& group_or_end(const Degrees& degrees, GroupKind kind) {
    try {
      return make_group(degrees, kind);
    } catch (const Error&) {
      throw;
    } catch (const std::exception& error) {
      if (watch) watch->collective_failed(describe(kind), "creation", error.what());
      throw Error(ErrorCode::kUnavailable,
                  std::string("creating the ") + describe(kind) + " group: " + error.what());
    }
  }
};

WorldOptions WorldOptions::from_environment() {
  WorldOptions options;
  options.identity = rank_identity();
  options.start_timeout_s = env_seconds("H3_START_TIMEOUT_S", options.start_timeout_s);
  options.collective_timeout_s =
      env_seconds("H3_COLLECTIVE_TIMEOUT_S", options.collective_timeout_s);
  options.heartbeat_timeout_s = env_seconds("H3_HEARTBEAT_TIMEOUT_S", options.heartbeat_timeout_s);
  return options;
}

World::World(std::unique_ptr<State> state) : state_(std::move(state)) {}

World::~World() = default;

std::unique_ptr<World> World::start(WorldOptions options) {
  const RankIdentity id = options.identity;
  if (options.degrees.world_size() != id.world_size)
    throw Error(ErrorCode::kInvalidArgument,
                "the degrees make " + std::to_string(options.degrees.world_size()) +
                    " ranks, WORLD_SIZE is " + std::to_string(id.world_size),
                "start as many ranks as the degrees make, or leave degrees to be inferred");
  if (options.device == c10::DeviceType::CUDA) use_cuda_device(id.local_rank);

  auto state = std::make_unique<State>();
  state->options = std::move(options);
  if (id.world_size > 1) {
    state->store = connect_store(state->options);
    StorePtr store = state->own_store("h3");
    Start start(*store, state->options);
    start.run();
    WatchOptions watch{id.rank,
                       id.world_size,
                       id.local_rank,
                       serves_store(id),
                       state->options.heartbeat_timeout_s,
                       address_of(id)};
    state->watch = std::make_unique<Watch>(state->own_store("h3"), watch);
    state->watch->report_first();
    // Nobody reads reports before all are there; also the last moment at which a rank can be
    // missing without the watch.
    start.await_all("beat/");
    state->watch->begin();
  }
  for (GroupKind kind : kAllGroupKinds) state->group_or_end(state->options.degrees, kind);
  return std::unique_ptr<World>(new World(std::move(state)));
}

int World::rank() const { return state_->options.identity.rank; }
int World::size() const { return state_->options.identity.world_size; }
const WorldOptions& World::options() const { return state_->options; }

Group& World::group(GroupKind kind) {
  return *state_->groups.at(group_of(state_->options.degrees, kind, rank()));
}

SequenceGroups World::sequence_groups() { return sequence_groups(state_->options.degrees); }

SequenceGroups World::sequence_groups(const Degrees& degrees) {
  if (degrees.world_size() != size())
    throw Error(ErrorCode::kInvalidArgument, "the degrees make " +
                                                 std::to_string(degrees.world_size()) +
                                                 " ranks, the world has " + std::to_string(size()));
  SequenceGroups groups;
  groups.degrees = degrees;
  groups.sequence = &state_->group_or_end(degrees, GroupKind::kSequence);
  groups.ulysses = &state_->group_or_end(degrees, GroupKind::kUlysses);
  groups.ring = &state_->group_or_end(degrees, GroupKind::kRing);
  groups.place = {degrees.ulysses, degrees.ring, groups.ulysses->rank(), groups.ring->rank()};
  return groups;
}

void World::end_all(int exit_code, const std::string& message) {
  if (state_->watch) state_->watch->end_all(exit_code, message);
  std::fprintf(stderr, "h3: %s\n", message.c_str());
  std::fflush(nullptr);
  std::_Exit(exit_code);
}

void World::finish() {
  if (!state_->watch) return;
  StorePtr store = state_->own_store("h3");
  store->add("finished", 1);
  // By the store and not by a collective: the watch goes on while ranks wait for slower ones.
  while (store->add("finished", 0) < size()) std::this_thread::sleep_for(5ms);
  for (auto& [ranks, group] : state_->groups) group->shut_down();
  state_->groups.clear();
  state_->watch->stop();
  store->add("left", 1);
  // Rank 0 takes the store with it; a rank that dies here has finished its work anyway.
  for (auto end = Clock::now() + 2s; serves_store(state_->options.identity) && Clock::now() < end &&
                                     store->add("left", 0) < size();)
    std::this_thread::sleep_for(2ms);
  state_->watch.reset();
}

int exit_code_of(const std::exception& error) {
  if (auto* peer = dynamic_cast<const PeerError*>(&error)) return peer->exit_code();
  if (auto* own = dynamic_cast<const Error*>(&error)) {
    if (own->code() == ErrorCode::kInvalidArgument) return 2;
    if (own->code() == ErrorCode::kUnsupported) return 3;
    if (own->code() == ErrorCode::kOutOfMemory) return 5;
    if (own->code() == ErrorCode::kCancelled) return 130;
  }
  return 1;
}

int run_rank(const WorldOptions& options, const std::function<int(World&)>& body) {
  // A peer that is gone must show as an error with its name, not end this rank without a word.
  std::signal(SIGPIPE, SIG_IGN);
  std::unique_ptr<World> world;
  try {
    world = World::start(options);
    int code = body(*world);
    if (code != 0) world->end_all(code, "ended with exit code " + std::to_string(code));
    world->finish();
    return 0;
  } catch (const PeerError& error) {
    return error.exit_code();
  } catch (const std::exception& error) {
    if (world) world->end_all(exit_code_of(error), error.what());
    std::fprintf(stderr, "h3: rank %d: %s\n", options.identity.rank, error.what());
    return exit_code_of(error);
  }
}

}  // namespace h3::parallel
