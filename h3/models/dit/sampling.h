// Noise levels and the update rule of MiniMax-H3 (rectified flow, Euler without noise). All values
// are float32 with the published order of operations, bit for bit. No torch.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace h3::dit {

/// What num_inference_steps counts: forwards (SGLang 0.5.23), or grid points, which is one more
/// than forwards (diffusers).
enum class StepCount { kForwards, kGridPoints };

/// Forwards of a request. Throws kInvalidArgument below 1 forward or over 1000.
int64_t forwards_of(int64_t num_inference_steps, StepCount convention);

/// forwards + 1 values from 1 to 0 with the flow shift: s b / (1 + (s - 1) b), b = linspace(1, 0).
/// Strictly falling. `shift` is double because s - 1 is taken in double before it becomes float32.
/// Throws kInvalidArgument for a shift that is not finite and positive, or so far from 1 that
/// neighbours coincide in float32 (video and audio would get grids of different length).
std::vector<float> sigma_grid(int64_t forwards, double shift);

/// One Euler step of `x` in place towards `velocity` (data-ward: x0 = x + sigma v), from sigma to
/// sigma_next: mul, add, mul, mul, add without contraction.
void euler_step(std::span<float> x, std::span<const float> velocity, float sigma, float sigma_next);

/// The factors of the step for code that updates on a device: den = x + one_minus_t v,
/// x = ratio x + one_minus_ratio den; only den if sigma is 0.
struct EulerFactors {
  float t, one_minus_t, ratio, one_minus_ratio;
};
EulerFactors euler_factors(float sigma, float sigma_next);

}  // namespace h3::dit
