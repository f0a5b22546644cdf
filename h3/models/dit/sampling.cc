// Compiled without contraction into fused multiply-add (plan.cmake), except where std::fma says so.
#include "h3/models/dit/sampling.h"

#include <fmt/format.h>

#include <cmath>
#include <string>

#include "h3/common/error.h"

namespace h3::dit {
namespace {

constexpr int64_t kMaxForwards = 1000;

// torch.linspace(1, 0, points): two halves, each counted from its own end, each value rounded once
// (PyTorch's kernel fuses the product and the sum).
std::vector<float> linspace_down(int64_t points) {
  std::vector<float> out(static_cast<size_t>(points));
  const float step = (0.0f - 1.0f) / float(points - 1);
  for (int64_t i = 0; i < points; ++i) {
    out[size_t(i)] = i < points / 2 ? std::fma(step, float(i), 1.0f)
                                    : std::fma(-step, float(points - 1 - i), 0.0f);
  }
  return out;
}

}  // namespace

int64_t forwards_of(int64_t num_inference_steps, StepCount convention) {
  const int64_t extra = convention == StepCount::kGridPoints ? 1 : 0;
  if (num_inference_steps < 1 + extra || num_inference_steps > kMaxForwards + extra) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("num_inference_steps is {}; accepted: {} to {}", num_inference_steps,
                            1 + extra, kMaxForwards + extra));
  }
  return num_inference_steps - extra;
}

std::vector<float> sigma_grid(int64_t forwards, double shift) {
  forwards_of(forwards, StepCount::kForwards);
  if (!std::isfinite(shift) || shift <= 0) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("the flow shift is {}; accepted: finite numbers above 0", shift));
  }
  const float s = float(shift);
  const float s_minus_1 = float(shift - 1.0);  // in double first, as published
  std::vector<float> grid = linspace_down(forwards + 1);
  for (float& b : grid) {
    const float numerator = s * b;
    const float product = s_minus_1 * b;
    b = numerator / (1.0f + product);
  }
  for (size_t i = 1; i < grid.size(); ++i) {
    // Written so that NaN fails. The public code merges equal neighbours and so runs fewer steps
    // than asked for.
    if (!(grid[i] < grid[i - 1]) || !std::isfinite(grid[i - 1])) {
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("the flow shift {} leaves noise levels {} and {} of {} equal in "
                              "float32",
                              shift, i - 1, i, forwards),
                  "use a shift nearer to 1 or fewer steps");
    }
  }
  return grid;
}

EulerFactors euler_factors(float sigma, float sigma_next) {
  EulerFactors f;
  f.t = 1.0f - sigma;
  f.one_minus_t = 1.0f - f.t;  // not always sigma
  f.ratio = sigma == 0.0f ? 0.0f : sigma_next / sigma;
  f.one_minus_ratio = 1.0f - f.ratio;
  return f;
}

void euler_step(std::span<float> x, std::span<const float> velocity, float sigma,
                float sigma_next) {
  if (x.size() != velocity.size()) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("velocity has {} values; accepted: as many as x, {}", velocity.size(),
                            x.size()));
  }
  const EulerFactors f = euler_factors(sigma, sigma_next);
  for (size_t i = 0; i < x.size(); ++i) {
    const float towards = f.one_minus_t * velocity[i];
    const float denoised = x[i] + towards;
    if (sigma == 0.0f) {
      x[i] = denoised;
      continue;
    }
    const float kept = f.ratio * x[i];
    const float moved = f.one_minus_ratio * denoised;
    x[i] = kept + moved;
  }
}

}  // namespace h3::dit
