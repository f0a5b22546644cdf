// Catalogue R11: element offsets past 2^31. The tensors are sparse mappings whose few real rows lie
// gigabytes apart; only the touched pages take memory.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include "tessera/router.h"
#include "tessera/tests/support/attend_case.h"

namespace tessera {
namespace {

using testing::AttendCase;
using testing::is_ok;
using testing::kernels;
using testing::on;
using testing::Random;

/// bf16 [B, S, H, D] in an untouched mapping with the given strides.
class FarTensor {
 public:
  FarTensor(std::array<int64_t, 4> size, std::array<int64_t, 4> stride) {
    view_ = {nullptr, size, stride, Dtype::kBf16};
    int64_t last = 1;
    for (int i = 0; i < 4; ++i) last += (size[i] - 1) * stride[i];
    bytes_ = static_cast<size_t>(last) * 2;
    void* data = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (data != MAP_FAILED) view_.data = data;
  }
  FarTensor(const FarTensor&) = delete;
  FarTensor& operator=(const FarTensor&) = delete;
  ~FarTensor() {
    if (view_.data != nullptr) munmap(view_.data, bytes_);
  }
  const Bshd& view() const { return view_; }
  uint16_t& at(const std::array<int64_t, 4>& index) const {
    return static_cast<uint16_t*>(view_.data)[offset_of<4>(view_, index)];
  }

 private:
  Bshd view_;
  size_t bytes_ = 0;
};

/// The same values near and far: equal plans, equal output bits.
void check_far(const std::array<int64_t, 4>& size, const std::array<int64_t, 4>& stride) {
  FarTensor q(size, stride), k(size, stride), v(size, stride), out(size, stride);
  for (const FarTensor* t : {&q, &k, &v, &out}) {
    if (!t->view().present()) GTEST_SKIP() << "the system refuses a mapping of this size";
  }
  Random random(testing::test_seed(151));
  AttendCase near({.batch = size[0],
                   .sq = size[1],
                   .sk = size[1],
                   .heads = size[2],
                   .kv_heads = size[2],
                   .dtype = Dtype::kBf16});
  near.fill_random(random, 2);
  testing::for_each_index<4>(size, [&](const auto& at) {
    q.at(at) = f32_to_bf16(near.q.get(at));
    k.at(at) = f32_to_bf16(near.k.get(at));
    v.at(at) = f32_to_bf16(near.v.get(at));
  });
  for (const std::string& kernel : kernels()) {
    RouteParams p;
    p.q = q.view();
    p.k = k.view();
    p.config.budget.kind = BudgetKind::kKeep;
    p.config.budget.keep = 2;
    Plan far_plan, near_plan;
    ASSERT_TRUE(is_ok(route(p, on(kernel), &far_plan)));
    p.q = near.q.view();
    p.k = near.k.view();
    ASSERT_TRUE(is_ok(route(p, on(kernel), &near_plan)));
    EXPECT_EQ(far_plan.index, near_plan.index) << kernel;
    AttentionParams a{.q = q.view(), .k = k.view(), .v = v.view(), .out = out.view()};
    a.plan = far_plan.view();
    ASSERT_TRUE(is_ok(attend(a, on(kernel))));
    ASSERT_TRUE(is_ok(near.run(near_plan.view(), on(kernel))));
    testing::for_each_index<4>(size, [&](const auto& at) {
      ASSERT_EQ(bf16_to_f32(out.at(at)), near.out.get(at)) << kernel;
    });
  }
}

constexpr int64_t kFar = (int64_t{1} << 31) + (int64_t{1} << 20);

TEST(Offsets, TokensFarApart_EqualTheCompactTensor_R11) {
  // Row 199 starts at element 199 * 2^24, beyond 2^31.
  check_far({1, 200, 2, 128}, {int64_t{200} << 24, int64_t{1} << 24, 4096, 1});
}

TEST(Offsets, LastHeadsFarApart_EqualTheCompactTensor_R11) {
  check_far({1, 200, 3, 128}, {3 * kFar, 128, kFar, 1});
}

TEST(Offsets, BatchesFarApart_EqualTheCompactTensor_R11) {
  check_far({2, 130, 2, 128}, {kFar, 256, 128, 1});
}

}  // namespace
}  // namespace tessera
