// The sharing kernel's own scheduling code (list_union, balance, ScheduleCursor: the very source
// the GPU runs) on a simulated warp of 32 threads, against a schedule written down plainly here.
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <string>
#include <vector>

#include "tessera/tests/support/host_warp.h"
#include "tessera/tests/support/random.h"
// After the words it is written with.
#include "tessera/src/sm90/union_fwd/schedule.cuh"

namespace tessera::sm90 {
namespace {

using testing::HostWarp;
using testing::Random;

using Balanced = UnionFwdConfig<uint16_t, true, false>;
using Plain = UnionFwdConfig<uint16_t, false, false>;
using Entries = std::vector<uint16_t>;

constexpr int kGroup = Balanced::kGroup, kClasses = 1 << kGroup;

/// Bitmaps of up to three query blocks. Bits behind the last block are set: nobody may follow them.
struct Lists {
  DocumentInfo document;
  ForwardParams params;
  std::vector<uint32_t> words;
  bool dense = false;
  int blocks = kGroup;

  Lists(int key_blocks, int last_block_keys, int query_blocks) : blocks(query_blocks) {
    document.key_blocks = key_blocks;
    document.last_block_keys = last_block_keys;
    params.bitmap_row = (key_blocks + 31) / 32 + 2;  // rows of a wider bitmap
    words.assign(params.bitmap_row * kGroup, 0);
    if (key_blocks % 32 == 0) return;
    for (int g = 0; g < kGroup; ++g) {
      words[g * params.bitmap_row + key_blocks / 32] = ~0u << (key_blocks % 32);
    }
  }
  void keep(int g, int block) { words[g * params.bitmap_row + block / 32] |= 1u << (block % 32); }
  bool wants(int g, int block) const {
    if (g >= blocks) return false;
    return dense || (words[g * params.bitmap_row + block / 32] >> (block % 32) & 1u) != 0;
  }
  const uint32_t* rows() const { return dense ? nullptr : words.data(); }
};

Lists random_lists(Random& random, int key_blocks, double density, double shared) {
  const int last = random.chance(0.5) ? kBlock : static_cast<int>(random.integer(1, kBlock - 1));
  Lists lists(key_blocks, last, static_cast<int>(random.integer(1, kGroup)));
  for (int block = 0; block < key_blocks; ++block) {
    const bool common = random.chance(density);
    for (int g = 0; g < kGroup; ++g) {
      if (random.chance(shared) ? common : random.chance(density)) lists.keep(g, block);
    }
  }
  return lists;
}

/// Blocks of a chunk that somebody needs, from the last to the first.
Entries plain_union(const Lists& lists, int chunk) {
  Entries entries;
  const int blocks = lists.document.key_blocks;
  const int last = std::min(blocks, (chunk + 1) * Balanced::kChunkBlocks);
  for (int block = last - 1; block >= chunk * Balanced::kChunkBlocks; --block) {
    int wanted = 0;
    for (int g = 0; g < kGroup; ++g) wanted += lists.wants(g, block) ? 1 << g : 0;
    const bool ragged = block + 1 == blocks && lists.document.last_block_keys < kBlock;
    if (wanted != 0)
      entries.push_back(static_cast<uint16_t>(block + 4096 * wanted + 32768 * ragged));
  }
  return entries;
}

/// Smooth weighted round robin over the classes; of equal credits the higher class wins.
Entries plain_balance(const Entries& entries) {
  Entries order;
  std::vector<std::deque<uint16_t>> classes(kClasses);
  std::vector<int> size(kClasses), credit(kClasses);
  for (uint16_t entry : entries) {
    if (entry >= 32768) {
      order.push_back(entry);
    } else {
      classes[entry / 4096].push_back(entry);
    }
  }
  int left = 0;
  for (int q = 0; q < kClasses; ++q) left += size[q] = static_cast<int>(classes[q].size());
  for (const int count = left; left > 0; --left) {
    int best = 0;
    for (int q = 1; q < kClasses; ++q) {
      credit[q] += size[q];
      if (size[q] > 0 && (best == 0 || credit[q] >= credit[best])) best = q;
    }
    credit[best] -= count;
    order.push_back(classes[best].front());
    classes[best].pop_front();
  }
  return order;
}

template <class C>
Entries warp_union(const Lists& lists, int chunk) {
  Entries entries(C::kChunkBlocks, 0xffff);
  std::vector<int> counts(HostWarp::kLanes);
  HostWarp::run([&](int lane) {
    counts[lane] = list_union<C>(lists.params, lists.document, lists.rows(), lists.blocks, chunk,
                                 entries.data(), lane);
  });
  EXPECT_EQ(counts, std::vector<int>(HostWarp::kLanes, counts[0])) << "lanes disagree";
  for (size_t i = counts[0]; i < entries.size(); ++i) EXPECT_EQ(entries[i], 0xffff) << i;
  entries.resize(counts[0]);
  return entries;
}

Entries warp_balance(const Entries& entries) {
  static Balanced::Control control;
  std::copy(entries.begin(), entries.end(), control.unordered);
  Entries order(entries.size() + 1, 0xffff);
  const int count = static_cast<int>(entries.size());
  HostWarp::run([&](int lane) { balance<Balanced>(control, order.data(), count, lane); });
  EXPECT_EQ(order.back(), 0xffff) << "written behind the end";
  order.pop_back();
  return order;
}

/// How far a class runs ahead of (positive) or behind its even share, at most, in entries.
struct Drift {
  double ahead = 0, behind = 0;
};

Drift drift_of(const Entries& entries) {
  std::vector<double> total(kClasses), seen(kClasses);
  for (uint16_t entry : entries) ++total[entry >> 12 & 7];
  Drift drift;
  for (size_t i = 0; i < entries.size(); ++i) {
    ++seen[entries[i] >> 12 & 7];
    for (int q = 1; q < kClasses; ++q) {
      const double even = total[q] * double(i + 1) / double(entries.size());
      drift.ahead = std::max(drift.ahead, seen[q] - even);
      drift.behind = std::max(drift.behind, even - seen[q]);
    }
  }
  return drift;
}

TEST(Sm90Schedule, Union_EqualsThePlainList) {
  Random random(testing::test_seed(401));
  for (int key_blocks : {1, 2, 31, 32, 33, 64, 590, 1023, 1024, 1025, 2100, 4096}) {
    for (double density : {0.0, 0.02, 0.26, 1.0}) {
      const Lists lists = random_lists(random, key_blocks, density, 0.5);
      SCOPED_TRACE(std::to_string(key_blocks) + " key blocks, density " + std::to_string(density));
      const int chunks = chunks_of<Plain>(lists.document);
      EXPECT_EQ(chunks, (key_blocks + 1023) / 1024);
      for (int chunk = 0; chunk < chunks; ++chunk) {
        EXPECT_EQ(warp_union<Plain>(lists, chunk), plain_union(lists, chunk)) << "chunk " << chunk;
      }
    }
  }
}

TEST(Sm90Schedule, DenseRun_ListsEveryRealBlockOnce) {
  for (int key_blocks : {1, 33, 590, 1500}) {
    Lists lists(key_blocks, 17, 2);
    lists.dense = true;
    int expected = key_blocks;
    for (int chunk = chunks_of<Plain>(lists.document) - 1; chunk >= 0; --chunk) {
      for (uint16_t entry : warp_union<Plain>(lists, chunk)) {
        --expected;
        EXPECT_EQ(entry & 4095, expected);
        EXPECT_EQ(wanted_by(entry), 3) << "two of the three query blocks exist";
        EXPECT_EQ(entry >> 15, expected + 1 == key_blocks);
      }
    }
    EXPECT_EQ(expected, 0);
  }
}

TEST(Sm90Schedule, Balance_EqualsThePlainRoundRobin) {
  Random random(testing::test_seed(402));
  for (int round = 0; round < 12; ++round) {
    const int key_blocks = static_cast<int>(random.integer(1, round < 10 ? 200 : 1024));
    const Lists lists = random_lists(random, key_blocks, random.uniform(), random.uniform());
    const Entries entries = plain_union(lists, 0);
    SCOPED_TRACE(std::to_string(entries.size()) + " entries");
    EXPECT_EQ(warp_balance(entries), plain_balance(entries));
  }
}

TEST(Sm90Schedule, Balance_KeepsEveryEntryTheRaggedBlockFirstAndClassesEven) {
  Random random(testing::test_seed(403));
  for (int round = 0; round < 6; ++round) {
    Lists lists = random_lists(random, 300, 0.1 + 0.15 * round, 0.5);
    lists.document.last_block_keys = round % 2 == 0 ? 5 : kBlock;
    lists.blocks = kGroup;
    lists.keep(1, 299);
    const Entries entries = plain_union(lists, 0);
    Entries order = warp_balance(entries);
    ASSERT_FALSE(order.empty());
    if (round % 2 == 0) {
      EXPECT_EQ(order.front() & 0x8fff, 0x8000 | 299);
      order.erase(order.begin());  // it stands outside the turns
    }
    // No credit falls to -count or below, so no class is a whole entry ahead of its share; the
    // credits add up to 0, which bounds how far one can be behind.
    const Drift drift = drift_of(order);
    EXPECT_LT(drift.ahead, 1.0);
    EXPECT_LT(drift.behind, kClasses - 2);
    for (int q = 1; q < kClasses; ++q) {  // stable: descending inside a class
      int before = 4096;
      for (uint16_t entry : order) {
        if (wanted_by(entry) != q) continue;
        EXPECT_LT(entry & 4095, before);
        before = entry & 4095;
      }
    }
    Entries sorted = entries, again = warp_balance(entries);
    std::sort(sorted.begin(), sorted.end());
    std::sort(again.begin(), again.end());
    EXPECT_EQ(again, sorted);
  }
}

TEST(Sm90Schedule, DescendingOrderOfClusteredLists_IsUneven_Control) {
  Lists lists(300, kBlock, kGroup);
  for (int g = 0; g < kGroup; ++g) {
    for (int block = 0; block < 100; ++block) lists.keep(g, g * 100 + block);
  }
  const Entries entries = plain_union(lists, 0);
  EXPECT_GT(drift_of(entries).ahead, 50.0);
  EXPECT_LT(drift_of(warp_balance(entries)).ahead, 1.0);
}

TEST(Sm90Schedule, Cursor_FindsExactlyTheOwnEntries) {
  Random random(testing::test_seed(404));
  for (int key_blocks : {1, 40, 700}) {
    const Entries entries =
        plain_balance(plain_union(random_lists(random, key_blocks, 0.2, 0.3), 0));
    for (int group = 0; group < kGroup; ++group) {
      std::vector<int> expected;
      for (size_t i = 0; i < entries.size(); ++i) {
        if (entries[i] >> (12 + group) & 1) expected.push_back(static_cast<int>(i));
      }
      std::vector<std::vector<int>> found(HostWarp::kLanes);
      HostWarp::run([&](int lane) {
        ScheduleCursor cursor{entries.data(), static_cast<int>(entries.size()), group, lane};
        for (int at = cursor.next(); at >= 0; at = cursor.next()) found[lane].push_back(at);
      });
      for (const auto& lane : found) EXPECT_EQ(lane, expected) << "group " << group;
    }
  }
}

}  // namespace
}  // namespace tessera::sm90
