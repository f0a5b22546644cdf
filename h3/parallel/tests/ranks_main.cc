// One rank of the multi-rank tests: h3_run_ranks 4 h3_usp_test --gtest_filter=...
#include <cstdio>

#include "h3/parallel/tests/ranks.h"

namespace h3::parallel {
World* g_world = nullptr;
}

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  namespace hp = h3::parallel;
  hp::WorldOptions options = hp::WorldOptions::from_environment();
  options.degrees = hp::resolve_degrees(
      {.world_size = options.identity.world_size, .ulysses = options.identity.world_size});
  std::printf("seed %llu\n", static_cast<unsigned long long>(hp::kSeed));
  return hp::run_rank(options, [](hp::World& world) {
    hp::g_world = &world;
    return RUN_ALL_TESTS();
  });
}
