// Sample rate conversion with the windowed sinc of torchaudio's defaults (Hann window, 6 zero
// crossings, roll-off 0.99), which the conditions of the model are made with.
#pragma once

#include <cstdint>
#include <vector>

namespace h3::media {

/// ceil(n L / o) samples, o and n the rates over their common divisor. Silence is assumed outside.
/// Equal rates give a copy. Throws kInvalidArgument for rates outside of 1 to 768000 and for no
/// samples.
std::vector<float> resample_sinc(const std::vector<float>& samples, int from_rate, int to_rate);

}  // namespace h3::media
