#include "h3/attention/dense_impl.h"

#include "h3/attention/binding.h"
#include "h3/attention/checks.h"
#include "h3/common/error.h"

namespace h3 {
namespace {

class DenseImpl final : public AttentionImpl {
 public:
  explicit DenseImpl(const AttentionOptions& options) : scale_(options.softmax_scale) {}

  at::Tensor forward(const Qkv& qkv, const AttentionContext&) override {
    return attend(qkv, {.softmax_scale = scale_}).out;
  }

  at::Tensor forward_packed(const Qkv& qkv, const PackedBounds& bounds,
                            const AttentionContext&) override {
    return attend(qkv, {.bounds = &bounds, .softmax_scale = scale_}).out;
  }

  AttentionPartial forward_with_lse(const Qkv& qkv) override {
    if (qkv.q.dim() != 3) return attend(qkv, {.softmax_scale = scale_, .with_lse = true});
    check_qkv(qkv, 3);
    // One document whose keys may be of another length than its queries: a batch of one.
    const Qkv one{qkv.q.unsqueeze(0), qkv.k.unsqueeze(0), qkv.v.unsqueeze(0)};
    AttentionPartial result = attend(one, {.softmax_scale = scale_, .with_lse = true});
    return {result.out.squeeze(0), result.lse.squeeze(0)};
  }

 private:
  const float scale_;
};

}  // namespace

std::unique_ptr<AttentionImpl> make_dense_impl(const AttentionOptions& options) {
  if (options.causal) {
    throw Error(ErrorCode::kUnsupported, "attention backend fa has no causal kernel",
                "choose torch_sdpa for causal layers");
  }
  return std::make_unique<DenseImpl>(options);
}

}  // namespace h3
