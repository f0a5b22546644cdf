// Routes random q and k, attends densely and sparsely, and prints what skipping blocks cost.
// Returns non-zero when something is off:   build/examples/attend && echo fine
#include <cstdio>
#include <random>
#include <vector>

#include "tessera/attention.h"
#include "tessera/quality.h"
#include "tessera/router.h"

namespace {

constexpr int64_t kBatch = 1, kTokens = 1000, kHeads = 2, kWidth = 128;
constexpr int64_t kElements = kBatch * kTokens * kHeads * kWidth;

std::vector<float> random_values(uint32_t seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(kElements);
  for (float& value : values) value = normal(generator);
  return values;
}

tessera::Bshd view(std::vector<float>& values) {
  return tessera::contiguous_view<4>(values.data(), {kBatch, kTokens, kHeads, kWidth},
                                     tessera::Dtype::kF32);
}

bool succeeded(const tessera::Status& status, const char* what) {
  if (!status.ok()) std::fprintf(stderr, "%s: %s\n", what, status.message().c_str());
  return status.ok();
}

}  // namespace

int main() {
  std::vector<float> q = random_values(1), k = random_values(2), v = random_values(3);
  std::vector<float> dense(kElements), sparse(kElements);
  const tessera::Execution exec;

  tessera::RouteParams request{.q = view(q), .k = view(k)};
  request.config.budget = {.kind = tessera::BudgetKind::kKeep, .keep = 4};
  tessera::Plan plan;
  if (!succeeded(tessera::route(request, exec, &plan), "route")) return 1;

  tessera::AttentionParams call{.q = view(q), .k = view(k), .v = view(v), .out = view(dense)};
  if (!succeeded(tessera::attend(call, exec), "dense attend")) return 1;
  call.out = view(sparse);
  call.plan = plan.view();
  if (!succeeded(tessera::attend(call, exec), "sparse attend")) return 1;

  tessera::ErrorStats error;
  if (!succeeded(tessera::compare_outputs(view(sparse), view(dense), &error), "compare")) return 1;
  std::printf("query block 0 kept:");
  for (int slot = 0; slot < plan.count[0]; ++slot) std::printf(" %d", plan.index[slot]);
  std::printf("\n%d of %d key blocks, relative L2 against dense %.3f, cosine %.3f\n", plan.count[0],
              plan.shape.key_blocks, error.relative_l2, error.cosine);
  return plan.count[0] == 4 && error.cosine > 0.2 && error.non_finite == 0 ? 0 : 1;
}
