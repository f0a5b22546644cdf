#include "h3/parallel/watch.h"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "h3/parallel/text.h"

namespace h3::parallel {
namespace {

using namespace std::chrono_literals;

constexpr auto kInterval = 200ms;
// A rank that made no sound for this long is suspected when something else has already failed.
constexpr auto kSuspicion = 1200ms;
constexpr char kFailureKey[] = "failure";
constexpr char kSeenKey[] = "failure-seen";
constexpr char kFinished[] = "finished";

std::string beat_key(int rank) { return "beat/" + std::to_string(rank); }

std::string seconds(std::chrono::steady_clock::duration d) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.1f s", std::chrono::duration<double>(d).count());
  return text;
}

// One write, so that lines of several ranks do not mix.
void print_line(int rank, const std::string& message) {
  std::string line = "h3: rank " + std::to_string(rank) + ": " + message + "\n";
  [[maybe_unused]] ssize_t written = write(2, line.data(), line.size());
}

std::string to_string(const std::vector<uint8_t>& bytes) {
  return std::string(bytes.begin(), bytes.end());
}

}  // namespace

Watch::Watch(c10::intrusive_ptr<c10d::Store> store, WatchOptions options)
    : store_(std::move(store)), options_(std::move(options)), peers_(options_.world_size) {}

Watch::~Watch() { end_thread(); }

void Watch::report_first() { report(); }

void Watch::begin() {
  if (options_.world_size == 1) return;
  for (Peer& peer : peers_) peer.changed = Clock::now();
  if (!options_.serves_store) {
    guard_ = std::make_unique<SilenceGuard>(
        std::chrono::duration_cast<Clock::duration>(
            std::chrono::duration<double>(options_.heartbeat_timeout_s)),
        [this](Clock::duration silence) {
          store_lost("it has not answered for " + seconds(silence) + ": dead or stopped");
        });
  }
  thread_ = std::thread([this] { run(); });
}

void Watch::end_thread() {
  {
    std::lock_guard lock(stop_mutex_);
    stopping_ = true;
  }
  stop_signal_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void Watch::stop() {
  end_thread();
  try {
    std::lock_guard lock(store_mutex_);
    store_->set(beat_key(options_.rank), kFinished);
  } catch (const std::exception&) {
    // Rank 0 has left with the store: nobody is there to be told.
  }
}

void Watch::run() {
  for (std::unique_lock lock(stop_mutex_); !stopping_;
       stop_signal_.wait_for(lock, kInterval, [this] { return stopping_; })) {
    lock.unlock();
    std::string lost;
    try {
      report();
      look_for_failure();
      look_at_peers();
      if (guard_) guard_->answered();
    } catch (const std::exception& error) {
      lost = first_line(error.what());
    }
    lock.lock();
    if (lost.empty() || stopping_) continue;
    lock.unlock();
    if (ending_.exchange(true)) claim_end();
    store_lost(lost);
  }
}

std::string Watch::activity() {
  std::lock_guard lock(call_mutex_);
  std::string since = seconds(Clock::now() - call_start_);
  if (calls_inside_ > 0) return "has been in " + call_ + " for " + since;
  return call_.empty() ? "has made no collective call yet"
                       : "left " + call_ + " " + since + " ago and is in no collective";
}

void Watch::report() {
  std::string text = std::to_string(++beat_) + ";" + activity();
  std::lock_guard lock(store_mutex_);
  store_->set(beat_key(options_.rank), text);
}

void Watch::look_for_failure() {
  std::string failure;
  {
    std::lock_guard lock(store_mutex_);
    if (!store_->check({kFailureKey})) return;
    failure = to_string(store_->get(kFailureKey));
  }
  if (!ending_.exchange(true)) end_process(failure);
}

void Watch::look_at_peers() {
  // Two ranks look after all, so that one is left when one of them is the dead one.
  if (options_.rank > 1) return;
  std::string dead = suspects(std::chrono::duration_cast<Clock::duration>(
      std::chrono::duration<double>(options_.heartbeat_timeout_s)));
  if (!dead.empty()) end_all(1, dead);
}

// Ranks without a sign of life for that long; empty if there are none. Reads everyone's reports.
std::string Watch::suspects(Clock::duration silence) {
  std::lock_guard lock(store_mutex_);
  std::vector<std::string> keys;
  for (int rank = 0; rank < options_.world_size; ++rank) keys.push_back(beat_key(rank));
  auto beats = store_->multiGet(keys);
  std::string text;
  for (int rank = 0; rank < options_.world_size; ++rank) {
    Peer& peer = peers_[rank];
    std::string beat = to_string(beats[rank]);
    if (beat != peer.last) {
      peer.last = beat;
      peer.changed = Clock::now();
      peer.finished = beat == kFinished;
    }
    if (rank == options_.rank || peer.finished || Clock::now() - peer.changed < silence) continue;
    text += (text.empty() ? "rank " : "; rank ") + std::to_string(rank) +
            " is dead or stopped: no sign of life for " + seconds(Clock::now() - peer.changed) +
            " (it " + peer.last.substr(peer.last.find(';') + 1) + ")";
  }
  return text;
}

// "; rank 2 has been in ..." for every other rank.
std::string Watch::whereabouts() {
  std::lock_guard lock(store_mutex_);
  std::string text;
  for (int rank = 0; rank < options_.world_size; ++rank) {
    const std::string& last = peers_[rank].last;
    if (rank != options_.rank)
      text += "; rank " + std::to_string(rank) + " " + last.substr(last.find(';') + 1);
  }
  return text;
}

void Watch::enter(const std::string& group, const char* operation, uint64_t number) {
  std::lock_guard lock(call_mutex_);
  call_ = std::string(operation) + " number " + std::to_string(number) + " of " + group;
  call_start_ = Clock::now();
  ++calls_inside_;
}

void Watch::leave() {
  std::lock_guard lock(call_mutex_);
  --calls_inside_;
  call_start_ = Clock::now();
}

void Watch::collective_failed(const std::string& group, const char* operation,
                              const std::string& reason) {
  std::string message = std::string(operation) + " of " + group + " failed (" + reason + ")";
  {
    std::lock_guard lock(call_mutex_);
    failed_call_ = message;
  }
  try {
    // Who is to blame shows within a few reports; a recorded failure ends this process meanwhile.
    std::string blamed;
    for (auto end = Clock::now() + kSuspicion + 3 * kInterval; blamed.empty() && Clock::now() < end;
         std::this_thread::sleep_for(kInterval / 2)) {
      look_for_failure();
      blamed = suspects(kSuspicion);
    }
    if (!blamed.empty()) end_all(1, blamed + "; " + message);
    message += whereabouts();
  } catch (const std::exception& error) {
    if (ending_.exchange(true)) claim_end();
    store_lost(first_line(error.what()));
  }
  end_all(1, message);
}

// Another thread of this process is ending it; this one has nothing left to do.
void Watch::claim_end() {
  for (;;) pause();
}

void Watch::end_all(int exit_code, const std::string& message) {
  if (ending_.exchange(true)) claim_end();
  std::string mine =
      std::to_string(exit_code) + ";" + std::to_string(options_.rank) + ";" + message;
  std::string recorded = mine;
  if (options_.world_size > 1) {
    try {
      std::lock_guard lock(store_mutex_);
      recorded = to_string(store_->compareSet(kFailureKey, std::vector<uint8_t>(),
                                              std::vector<uint8_t>(mine.begin(), mine.end())));
    } catch (const std::exception&) {
      // The store is gone: nobody can be told, so at least say it here.
    }
  }
  if (recorded == mine) print_line(options_.rank, message);
  end_process(recorded);
}

void Watch::end_process(const std::string& failure) {
  const int code = std::atoi(failure.c_str());
  std::fflush(nullptr);
  try {
    std::lock_guard lock(store_mutex_);
    int64_t seen = store_->add(kSeenKey, 1);
    // The store ends with this process: let the others read the record first. Dead ranks never do.
    for (auto end = Clock::now() + 1500ms;
         options_.serves_store && seen < options_.world_size && Clock::now() < end;
         seen = store_->add(kSeenKey, 0))
      std::this_thread::sleep_for(20ms);
  } catch (const std::exception&) {
    // The store has ended already, and so will everyone who watches it.
  }
  // No destructors: a collective that never ends would be waited for in one of them.
  std::_Exit(code);
}

void Watch::store_lost(const std::string& reason) {
  // Without the store the ranks cannot agree on who speaks: the lowest survivor and, on other
  // hosts, the first rank there.
  if (options_.rank == 1 || (options_.local_rank == 0 && options_.rank != 0)) {
    std::string failed;
    {
      std::lock_guard lock(call_mutex_);
      if (!failed_call_.empty()) failed = "; " + failed_call_;
    }
    print_line(options_.rank, "rank 0, which serves the store at " + options_.store_address +
                                  ", is gone (" + reason + ")" + failed);
  }
  std::fflush(nullptr);
  std::_Exit(1);
}

}  // namespace h3::parallel
