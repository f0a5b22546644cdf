// The ring of the sharing kernel as a model: a producer, copies that arrive in any order, three
// consumers, the barriers by parity, one step of a random actor at a time. It is a model and not
// the device code (that is asynchronous assembly); it takes the number of stages and the run-ahead
// limit from the kernel's configuration. The hand-over of the schedule itself is left out.
#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <vector>

#include "tessera/tests/support/host_warp.h"
#include "tessera/tests/support/random.h"
// After the words it is written with.
#include "tessera/src/sm90/union_fwd/config.h"

namespace tessera::sm90 {
namespace {

using testing::Random;
using C = UnionFwdConfig<uint16_t, true, false>;

constexpr int kGroup = C::kGroup, kEverybody = (1 << kGroup) - 1;

enum class Outcome { kFinished, kDeadlock, kWrongBlock, kOverwritten, kBadArrival };

/// Chunks of who needs each block; an item begins with one stage of queries for everybody.
using Item = std::vector<std::vector<int>>;

struct Rules {
  int stages = C::kStages;
  int run_ahead = C::kMaxRunAhead;
  bool announced = true;  // a consumer waits until the producer has begun a use
};

/// An mbarrier: a phase ends when all have arrived and no bytes are missing.
struct Barrier {
  int expected = 1, pending = 1, phase = 0;
  bool bytes_missing = false;

  bool arrive(int n) {
    pending -= n;
    return finish_phase();
  }
  bool finish_phase() {
    if (pending == 0 && !bytes_missing) {
      pending = expected;
      ++phase;
    }
    return pending >= 0;
  }
  /// As mbarrier.try_wait.parity: true once the phase of this parity is over.
  bool passed(int parity) const { return phase % 2 != parity; }
};

struct Use {
  int wanted, item;
  bool queries;
};

struct Step {
  enum Kind { kWait, kRelease, kEndItem } kind;
  int use;
};

class Ring {
 public:
  Ring(const std::vector<Item>& items, const Rules& rules, Random& random)
      : rules_(rules), random_(random), full_(rules.stages), empty_(rules.stages) {
    for (Barrier& barrier : empty_) barrier.expected = barrier.pending = kGroup;
    loaded_.assign(rules.stages, -1);
    for (size_t item = 0; item < items.size(); ++item)
      add_item(items[item], static_cast<int>(item));
  }

  Outcome run() {
    std::array<double, kGroup + 2> speed{};
    for (double& s : speed) s = random_.chance(0.3) ? 0.02 : 1.0;  // some actors lag far behind
    int idle = 0;
    while (true) {
      if (outcome_ != Outcome::kFinished) return outcome_;
      bool done = next_use_ == uses_.size() && copies_.empty();
      for (int g = 0; g < kGroup; ++g) done &= at_[g] == steps_[g].size();
      if (done) return Outcome::kFinished;
      const int actor = static_cast<int>(random_.integer(0, kGroup + 1));
      if (!random_.chance(speed[actor])) continue;
      if (act(actor)) {
        idle = 0;
      } else if (++idle > 200) {  // certain only when nobody at all can move
        bool any = false;
        for (int a = 0; a < kGroup + 2; ++a) any |= act(a);
        if (!any) return Outcome::kDeadlock;
        idle = 0;
      }
    }
  }

 private:
  void add_item(const Item& item, int number) {
    const int queries = static_cast<int>(uses_.size());
    uses_.push_back({kEverybody, number, true});
    for (auto& steps : steps_) {
      steps.push_back({Step::kWait, queries});
      steps.push_back({Step::kRelease, queries});
    }
    for (const std::vector<int>& chunk : item) {
      const int first = static_cast<int>(uses_.size());
      for (int wanted : chunk) uses_.push_back({wanted, number, false});
      for (int g = 0; g < kGroup; ++g) add_chunk(chunk, first, g);
    }
    for (auto& steps : steps_) steps.push_back({Step::kEndItem, number});
  }
  /// The product of a block stays pending while the next needed block is near.
  void add_chunk(const std::vector<int>& chunk, int first, int group) {
    int held = -1;
    for (int i = 0; i < static_cast<int>(chunk.size()); ++i) {
      if ((chunk[i] >> group & 1) == 0) continue;
      const int use = first + i;
      const bool near = held >= 0 && use - held <= rules_.run_ahead;
      if (held >= 0 && !near) steps_[group].push_back({Step::kRelease, held});
      steps_[group].push_back({Step::kWait, use});
      if (near) steps_[group].push_back({Step::kRelease, held});
      held = use;
    }
    if (held >= 0) steps_[group].push_back({Step::kRelease, held});
  }

  bool act(int actor) {
    if (actor < kGroup) return consume(actor);
    return actor == kGroup ? produce() : copy();
  }
  bool produce() {
    if (next_use_ == uses_.size()) return false;
    const int use = static_cast<int>(next_use_);
    const Use& what = uses_[use];
    const int stage = use % rules_.stages, round = use / rules_.stages;
    for (int g = 0; what.queries && g < kGroup; ++g) {
      if (ended_[g] < what.item) return false;  // the places of the resident half
    }
    if (!empty_[stage].passed((round & 1) ^ 1)) return false;
    for (int g = 0; g < kGroup; ++g) {
      for (int held : held_[g]) {
        if (held % rules_.stages == stage) outcome_ = Outcome::kOverwritten;
      }
    }
    full_[stage].bytes_missing = true;
    full_[stage].arrive(1);
    loaded_[stage] = -1;
    copies_.push_back(use);
    ++next_use_;
    const int skipped = kGroup - std::popcount(static_cast<unsigned>(what.wanted));
    if (skipped > 0) arrive_empty(stage, skipped);
    return true;
  }
  bool copy() {
    if (copies_.empty()) return false;
    const size_t which = random_.integer(0, static_cast<int64_t>(copies_.size()) - 1);
    const int use = copies_[which], stage = use % rules_.stages;
    copies_.erase(copies_.begin() + static_cast<std::ptrdiff_t>(which));
    loaded_[stage] = use;
    full_[stage].bytes_missing = false;
    full_[stage].finish_phase();
    return true;
  }
  bool consume(int g) {
    if (at_[g] == steps_[g].size()) return false;
    const Step step = steps_[g][at_[g]];
    const int stage = step.use % rules_.stages;
    switch (step.kind) {
      case Step::kWait:
        if (rules_.announced && static_cast<int>(next_use_) <= step.use) return false;
        if (!full_[stage].passed(step.use / rules_.stages & 1)) return false;
        if (loaded_[stage] != step.use) outcome_ = Outcome::kWrongBlock;
        held_[g].push_back(step.use);
        break;
      case Step::kRelease:
        std::erase(held_[g], step.use);
        arrive_empty(stage, 1);
        break;
      case Step::kEndItem: ended_[g] = step.use + 1; break;
    }
    ++at_[g];
    return true;
  }
  void arrive_empty(int stage, int n) {
    if (!empty_[stage].arrive(n)) outcome_ = Outcome::kBadArrival;
  }

  Rules rules_;
  Random& random_;
  std::vector<Use> uses_;
  std::array<std::vector<Step>, kGroup> steps_;
  std::array<size_t, kGroup> at_{};
  std::array<std::vector<int>, kGroup> held_;
  std::array<int, kGroup> ended_{};  // items
  std::vector<Barrier> full_, empty_;
  std::vector<int> loaded_;  // use whose data a stage holds, -1 during a copy
  std::vector<int> copies_;  // under way
  size_t next_use_ = 0;
  Outcome outcome_ = Outcome::kFinished;
};

/// Lists between independent and equal, some warpgroups with hardly any block.
std::vector<Item> random_items(Random& random) {
  std::vector<Item> items(random.integer(1, 4));
  for (Item& item : items) {
    std::array<double, kGroup> density{};
    for (double& d : density) d = random.chance(0.3) ? 0.03 : random.uniform();
    item.resize(random.integer(1, 3));
    for (auto& chunk : item) {
      for (int64_t i = random.integer(0, 60); i > 0; --i) {
        int wanted = 0;
        for (int g = 0; g < kGroup; ++g) wanted |= random.chance(density[g]) << g;
        if (wanted != 0) chunk.push_back(wanted);
      }
    }
  }
  return items;
}

TEST(Sm90Ring, KernelLimits_FinishWithTheRightBlocks) {
  Random random(testing::test_seed(411));
  for (int round = 0; round < 400; ++round) {
    const auto items = random_items(random);
    ASSERT_EQ(Ring(items, {}, random).run(), Outcome::kFinished) << "round " << round;
  }
}

TEST(Sm90Ring, RunAheadBelowTheStages_Finishes) {
  Random random(testing::test_seed(412));
  for (int stages = 2; stages <= 8; ++stages) {
    for (int run_ahead = 0; run_ahead < stages; ++run_ahead) {
      for (int round = 0; round < 20; ++round) {
        const auto items = random_items(random);
        ASSERT_EQ(Ring(items, {stages, run_ahead}, random).run(), Outcome::kFinished)
            << stages << " stages, run-ahead " << run_ahead;
      }
    }
  }
}

TEST(Sm90Ring, RunAheadOfAllStages_Deadlocks_Control) {
  Random random(testing::test_seed(413));
  for (int stages = 2; stages <= 8; ++stages) {
    // Warpgroup 0 holds a stage and waits for the next block that goes into it.
    std::vector<int> chunk(stages + 1, 0b110);
    chunk.front() = chunk.back() = 0b111;
    for (int round = 0; round < 20; ++round) {
      EXPECT_EQ(Ring({{chunk}}, {stages, stages}, random).run(), Outcome::kDeadlock) << stages;
      EXPECT_EQ(Ring({{chunk}}, {stages, stages - 1}, random).run(), Outcome::kFinished) << stages;
    }
  }
}

TEST(Sm90Ring, ParityWithoutTheAnnouncedCount_ReadsAnEarlierBlock_Control) {
  Random random(testing::test_seed(414));
  int wrong = 0;
  for (int round = 0; round < 100; ++round) {
    const auto items = random_items(random);
    Rules rules;
    rules.announced = false;
    wrong += Ring(items, rules, random).run() != Outcome::kFinished;
  }
  EXPECT_GT(wrong, 0) << "the model would not notice a missing count";
}

}  // namespace
}  // namespace tessera::sm90
