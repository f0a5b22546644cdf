#include "h3/attention/sdpa_impl.h"

#include <ATen/ops/_scaled_dot_product_cudnn_attention.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <optional>

#include "h3/attention/checks.h"
#include "h3/common/error.h"

namespace h3 {
namespace {

std::optional<double> scale_of(const AttentionOptions& options) {
  if (options.softmax_scale == 0) return std::nullopt;
  return options.softmax_scale;
}

/// What the two backends share: layouts and documents. They differ in `run`.
class SdpaImpl : public AttentionImpl {
 public:
  explicit SdpaImpl(const AttentionOptions& options)
      : scale_(scale_of(options)), causal_(options.causal) {}

  at::Tensor forward(const Qkv& qkv, const AttentionContext&) override {
    check_qkv(qkv, 4);
    return run(qkv.q.transpose(1, 2), qkv.k.transpose(1, 2), qkv.v.transpose(1, 2)).transpose(1, 2);
  }

  at::Tensor forward_packed(const Qkv& qkv, const PackedBounds& bounds,
                            const AttentionContext&) override {
    check_qkv(qkv, 3);
    if (qkv.q.size(0) != qkv.k.size(0)) {
      throw Error(ErrorCode::kInvalidArgument,
                  "q is " + describe(qkv.q) + " and k " + describe(qkv.k),
                  "packed documents need one token axis");
    }
    check_bounds(bounds, qkv.q.size(0));
    at::Tensor out = at::empty(qkv.q.sizes(), qkv.q.options());
    for (size_t d = 0; d + 1 < bounds.cu.size(); ++d) {
      const int64_t start = bounds.cu[d], length = bounds.cu[d + 1] - start;
      if (length == 0) continue;
      const auto rows = [&](const at::Tensor& t) {  // [1, H, L, D]
        return t.narrow(0, start, length).transpose(0, 1).unsqueeze(0);
      };
      out.narrow(0, start, length)
          .copy_(run(rows(qkv.q), rows(qkv.k), rows(qkv.v)).squeeze(0).transpose(0, 1));
    }
    const int64_t end = bounds.cu.back();
    out.narrow(0, end, out.size(0) - end).zero_();
    return out;
  }

 protected:
  /// All [B, H, S, D].
  virtual at::Tensor run(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) const = 0;

  const std::optional<double> scale_;
  const bool causal_;
};

class TorchSdpaImpl final : public SdpaImpl {
 public:
  using SdpaImpl::SdpaImpl;

 private:
  at::Tensor run(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) const override {
    const int64_t sq = q.size(2), sk = k.size(2);
    const bool grouped = q.size(1) != k.size(1);
    const bool masked = causal_ && sq != sk;
    std::optional<at::Tensor> mask;
    if (masked) {
      // torch's is_causal aligns at the top left, which differs for unequal lengths.
      mask = at::ones({sq, sk}, q.options().dtype(at::kBool)).tril_(sk - sq);
    }
    at::Tensor out =
        at::scaled_dot_product_attention(q, k, v, mask, 0.0, causal_ && !masked, scale_, grouped);
    // Queries before the first key: torch leaves open what its kernels give.
    if (masked && sq > sk) out.narrow(2, 0, sq - sk).zero_();
    return out;
  }
};

class CudnnSdpaImpl final : public SdpaImpl {
 public:
  using SdpaImpl::SdpaImpl;

 private:
  at::Tensor run(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) const override {
    if (!q.is_cuda()) {
      throw Error(ErrorCode::kUnsupported,
                  "attention backend torch_cudnn_sdpa runs on cuda; q is " + describe(q),
                  "choose torch_sdpa or fa");
    }
    const int64_t ratio = q.size(1) / k.size(1);
    const auto heads = [&](const at::Tensor& t) {
      return ratio == 1 ? t : t.repeat_interleave(ratio, 1);
    };
    try {
      // Called by name: torch's selection obeys process-wide switches and would take another kernel
      // where cuDNN declines.
      return std::get<0>(at::_scaled_dot_product_cudnn_attention(
          q, heads(k), heads(v), std::nullopt, /*compute_log_sumexp=*/false, /*dropout_p=*/0.0,
          /*is_causal=*/false, /*return_debug_mask=*/false, scale_));
    } catch (const c10::OutOfMemoryError&) {
      throw;
    } catch (const c10::Error& e) {
      throw Error(ErrorCode::kUnsupported,
                  "cuDNN refused q " + describe(q) + ", k " + describe(k) + ": " +
                      e.what_without_backtrace(),
                  "choose torch_sdpa or fa");
    }
  }
};

}  // namespace

std::unique_ptr<AttentionImpl> make_sdpa_impl(const AttentionOptions& options) {
  return std::make_unique<TorchSdpaImpl>(options);
}

std::unique_ptr<AttentionImpl> make_cudnn_sdpa_impl(const AttentionOptions& options) {
  if (options.causal) {
    throw Error(ErrorCode::kUnsupported,
                "attention backend torch_cudnn_sdpa runs non-causal layers only",
                "choose torch_sdpa for causal layers");
  }
  return std::make_unique<CudnnSdpaImpl>(options);
}

}  // namespace h3
