// The thread by which ranks notice each other's end, and the one way a rank ends the others.
//
// Through the store that the ranks met at, every rank reports what it does several times a second
// and looks for a recorded failure. The first failure recorded is the one that is printed. A store
// that stops answering blocks that thread and everyone who uses the store; a second thread, which
// does not use it, then ends this rank.
#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "h3/parallel/group.h"
#include "h3/parallel/silence_guard.h"

namespace h3::parallel {

struct WatchOptions {
  int rank = 0, world_size = 1, local_rank = 0;
  bool serves_store = false;  // this process must outlive the others' last look at the store
  double heartbeat_timeout_s = 30;
  std::string store_address;  // for messages
};

class Watch final : public CallObserver {
 public:
  /// `store` is used by this object alone. All ranks must have called report_first() before any
  /// calls begin().
  Watch(c10::intrusive_ptr<c10d::Store> store, WatchOptions options);
  ~Watch() override;

  void report_first();
  void begin();
  /// Stops watching; this rank counts as finished for the others. The destructor only stops: a rank
  /// that goes without a word counts as dead. Until it, the store still has to answer in time.
  void stop();

  [[noreturn]] void end_all(int exit_code, const std::string& message);

  void enter(const std::string& group, const char* operation, uint64_t number) override;
  void leave() override;
  [[noreturn]] void collective_failed(const std::string& group, const char* operation,
                                      const std::string& reason) override;

 private:
  using Clock = std::chrono::steady_clock;
  struct Peer {
    std::string last;
    Clock::time_point changed;
    bool finished = false;
  };

  void run();
  void end_thread();
  void report();
  void look_for_failure();
  void look_at_peers();
  std::string activity();
  std::string suspects(Clock::duration silence);
  std::string whereabouts();
  [[noreturn]] void end_process(const std::string& failure);
  [[noreturn]] void store_lost(const std::string& reason);
  [[noreturn]] void claim_end();

  c10::intrusive_ptr<c10d::Store> store_;
  WatchOptions options_;
  std::vector<Peer> peers_;
  uint64_t beat_ = 0;

  std::mutex store_mutex_;  // peers_ and store_: the thread, and whoever ends the run
  std::mutex call_mutex_;
  std::string call_;  // "all_to_all number 12 of ulysses {0, 1}"
  int calls_inside_ = 0;
  Clock::time_point call_start_ = Clock::now();
  std::string failed_call_;  // set before the store is asked who is to blame

  std::mutex stop_mutex_;
  std::condition_variable stop_signal_;
  bool stopping_ = false;
  std::atomic<bool> ending_{false};
  std::thread thread_;
  std::unique_ptr<SilenceGuard> guard_;  // ranks that do not serve the store themselves
};

}  // namespace h3::parallel
