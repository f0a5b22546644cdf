// Queries, keys and values made from the patches of a clip, so that attention has the content
// structure of a trained model without any weights.
//
// With z the 128 whitened components of a token, head h has
//   q = bf16(rope(bf16(gain_h * rms_norm(Wq_h z + b_h)))),  Wq_h = s W_h + sqrt(1 - s^2) W'_h
//   k the same with Wk_h = s W_h + sqrt(1 - s^2) W''_h
// where W, W', W'' and b are seeded Gaussian. The shared part s makes a query point at keys of
// similar content; with s = 0 the mass lies where no router could find it. The common vector b,
// after rotation, favours keys nearby in time and space, as trained heads do; without it almost
// all mass lies in the query's own block. v holds the unwhitened components, the same for all
// heads: attention then averages pixels, and its output can be looked at.
#pragma once

#include <cstdint>
#include <vector>

#include "tessera/status.h"
#include "tessera/tensor_view.h"
#include "tessera/video/rope.h"

namespace tessera::video {

struct QkvOptions {
  int heads = 4;      // 1 .. 64
  uint64_t seed = 1;  // of the projections; same seed, same bits on one machine
  // The defaults, measured at about 8,000 tokens, 4 heads, sparsity 0.75: heads keep 0.82-0.96 of
  // their mass on the clip "bigbuckbunny" and 0.77-0.89 on "bikes"; lists of 3 neighbouring query
  // blocks are shared 2.0 to 2.1 times. With locality 0 they are shared 1.3 times (4,032 tokens),
  // and 0.7 to 0.9 of the mass is in the query's own block.
  double shared = 0.7;    // s, [0, 1]
  double locality = 0.8;  // size of b against z, >= 0
  // Gain of the normalised q and k (the norm weight), spread evenly over the heads. A larger gain
  // sharpens the softmax.
  double min_gain = 1.75, max_gain = 2.5;
};

struct Qkv {
  int64_t tokens = 0;
  int heads = 0;
  std::vector<uint16_t> q, k, v;  // bf16 bits, [1, S, H, 128]

  Bshd q_view() const { return view(q); }
  Bshd k_view() const { return view(k); }
  Bshd v_view() const { return view(v); }

 private:
  Bshd view(const std::vector<uint16_t>& bits) const {
    return contiguous_view<4>(bits.data(), {1, tokens, heads, kHeadDim}, Dtype::kBf16);
  }
};

/// `whitened` and `pixels` are [S, 128], `positions` [S]. Finite for any finite input: a token
/// whose components are all zero gets q = k = 0.
Status make_qkv(const std::vector<float>& whitened, const std::vector<float>& pixels,
                const std::vector<Position>& positions, const QkvOptions& options, Qkv* out);

/// Gain of head `head`: evenly spread from min_gain to max_gain.
double head_gain(const QkvOptions& options, int head);

}  // namespace tessera::video
