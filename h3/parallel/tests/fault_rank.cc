// One rank that misbehaves as its argument says; fault_test.cc starts several and looks at how they
// end. The last rank is the one at fault unless the mode says otherwise.
#include <ATen/Functions.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <string>
#include <thread>

#include "h3/common/error.h"
#include "h3/parallel/tests/plain_attention.h"
#include "h3/parallel/usp_attention.h"

namespace hp = h3::parallel;

namespace {

// Dies between the exchange to heads and the one back, while the others wait in the latter.
class DyingAttention : public hp::PlainAttention {
 public:
  explicit DyingAttention(int call) : call_(call) {}
  at::Tensor forward(const h3::Qkv& qkv, const h3::AttentionContext& context) override {
    if (calls == call_) raise(SIGKILL);
    return PlainAttention::forward(qkv, context);
  }

 private:
  int call_;
};

int body(hp::World& world, const std::string& mode) {
  const bool at_fault =
      world.rank() == (mode == "kill-first" || mode == "stop-first" ? 0 : world.size() - 1);
  hp::SequenceGroups groups = world.sequence_groups();
  auto staging = std::make_shared<hp::StagingBuffers>();
  hp::UspOptions layer{.layer = {.name = "layer", .heads = 4 * world.size()}};
  auto impl = std::make_shared<DyingAttention>(mode == "kill" && at_fault ? 3 : -1);
  hp::UspAttention attention(impl, &groups, staging, layer);
  for (int call = 0; call < 6; ++call) {
    if (at_fault && call == 3) {
      if (mode == "kill-first") raise(SIGKILL);
      if (mode == "stop" || mode == "stop-first") raise(SIGSTOP);
      if (mode == "leave") _exit(0);
      if (mode == "hang") std::this_thread::sleep_for(std::chrono::minutes(5));
      if (mode == "throw")
        throw h3::Error(h3::ErrorCode::kInvalidArgument, "a value nobody accepts");
      if (mode == "exit-code") return 7;
    }
    int64_t rows = 4;
    if (call == 3 && mode == "shapes") rows = at_fault ? 5 : 4;
    if (call == 3 && mode == "new-shapes") rows = at_fault ? 6 : 5;
    at::Tensor x = at::ones({1, rows, 4 * world.size(), 8});
    attention.forward({x, x, x}, {}, {});
    // The one at fault is idle here, so that others notice a death without a collective.
    if (mode == "idle-kill" && call == 3) {
      if (at_fault) raise(SIGKILL);
      std::this_thread::sleep_for(std::chrono::minutes(5));
    }
  }
  return 0;
}

}  // namespace

int main(int, char** argv) {
  const std::string mode = argv[1];
  try {
    hp::WorldOptions options = hp::WorldOptions::from_environment();
    const int ranks = options.identity.world_size;
    options.degrees = hp::resolve_degrees({.world_size = ranks, .ulysses = ranks});
    if (mode == "degrees") options.degrees.ulysses = options.degrees.sequence = ranks + 1;
    if (mode == "new-shapes") options.agreement = hp::Agreement::kNewSignatures;
    options.record.set("attention.backend",
                       mode == "config" && options.identity.rank == 1 ? "torch_sdpa" : "fa");
    return hp::run_rank(options, [&](hp::World& world) { return body(world, mode); });
  } catch (const std::exception& error) {
    std::fprintf(stderr, "h3: %s\n", error.what());
    return hp::exit_code_of(error);
  }
}
